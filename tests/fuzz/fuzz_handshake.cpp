#include "tests/fuzz/handshake_input.hpp"

#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
  isobar::fuzz::handshake({data, size});
  return 0;
}
