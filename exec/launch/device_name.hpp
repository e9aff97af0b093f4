#pragma once

#include "core/units.hpp"

#include <cstddef>
#include <filesystem>
#include <string>

namespace isobar::exec {

/// Model name of the processor and the number of threads in use: "AMD EPYC 7B13, 2 threads".
std::string processor_name(std::size_t threads);

/// Memory of the machine or, where that is less, of the process's control group or of one around it, such as a
/// container's or a job's.
struct MachineMemory {
  Bytes total;              ///< what this process may fill
  Bytes available;          ///< what programs can take without swapping; `total` when the system does not report it
  bool is_limited = false;  ///< whether a control group leaves less available than the machine has
};

/// Reads it. Files that a control group keeps in memory count as available. `root` is the root of the files that say
/// it.
MachineMemory machine_memory(const std::filesystem::path& root = "/");
/// For messages: "1.02 GiB available", and whether a control group limits it.
std::string text_of(const MachineMemory& memory);

}  // namespace isobar::exec
