#include "tests/fuzz/order_inputs.hpp"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
  isobar::fuzz::order_csv(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
