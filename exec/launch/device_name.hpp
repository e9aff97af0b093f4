#pragma once

#include "core/units.hpp"

#include <cstddef>
#include <filesystem>
#include <string>

namespace isobar::exec {

/// Model name of the processor and the number of threads in use: "AMD EPYC 7B13, 2 threads".
std::string processor_name(std::size_t threads);

/// Memory that this process may fill: that of the machine or, if it is less, the limit of the process's control group
/// or of one around it, such as a container's. `root` is the root of the files that say it.
Bytes machine_memory(const std::filesystem::path& root = "/");

/// Memory of this machine that programs can take without swapping; 0 when the system does not report it.
Bytes available_memory();

}  // namespace isobar::exec
