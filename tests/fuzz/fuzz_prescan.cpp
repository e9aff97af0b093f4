#include "core/errors.hpp"
#include "sim/prescan.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

/// A platform file of any bytes gives a scan or faults; a profile's name stands for its text, so that both are tried.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size)
{
  try {
    isobar::sim::scan_platform(std::string(data, data + size), "fuzz.xml",
                               [](const std::string& file) { return file; });
  } catch (const isobar::InputError&) {
  }
  return 0;
}
