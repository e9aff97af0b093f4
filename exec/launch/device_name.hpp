#pragma once

#include "core/units.hpp"

#include <cstddef>
#include <string>

namespace isobar::exec {

/// "AMD EPYC 7B13, 2 threads": what the processor calls itself, and how much of it is used.
std::string processor_name(std::size_t threads);

/// What programs may take of this machine's memory without swapping.
Bytes available_memory();

}  // namespace isobar::exec
