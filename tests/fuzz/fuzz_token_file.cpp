#include "tests/fuzz/data_inputs.hpp"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
  isobar::fuzz::token_file(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
