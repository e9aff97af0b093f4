#include "tests/fuzz/stored_input.hpp"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
  isobar::fuzz::manifest(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
