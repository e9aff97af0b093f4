#pragma once

#include "core/units.hpp"

#include <cstddef>
#include <string>

namespace isobar::exec {

/// Model name of the processor and the number of threads in use: "AMD EPYC 7B13, 2 threads".
std::string processor_name(std::size_t threads);

/// Memory of this machine that programs can take without swapping; 0 when the system does not report it.
Bytes available_memory();

}  // namespace isobar::exec
