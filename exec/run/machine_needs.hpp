#pragma once

#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// What ranks take of something that the machine has which they run on.
struct MachineNeed {
  std::string subject;  ///< "machine memory", "disk"
  std::string text;     ///< one line: what they hold, and what the machine has
  Bytes needs;
  Bytes has;

  bool is_met() const { return needs <= has; }
};

/// Memory that the devices of a plan need together at their peaks, as predicted; 0 without a prediction. `rank`: the
/// only one that runs here.
Bytes peak_memory_here(const Plan& plan, const std::optional<std::size_t>& rank);
/// That of a device that all of them share. Its text: `available_text`; `who_needs`, such as "the plan needs",
/// `needed`.
MachineNeed memory_need(const std::string& who_needs, Bytes needed, Bytes available, const std::string& available_text);

/// What the stages of a program that live elsewhere than on their devices take of this machine: of its memory, as its
/// control group limits it, with that of devices which are its processor; and of the disk that has the folder `scratch`
/// ("": that for temporary files). `rank`: the only one that runs here. Empty where all stages live on their devices.
/// @throws EnvironmentError naming the folder when it cannot be read.
std::vector<MachineNeed> machine_needs(const Program& program, const std::optional<std::size_t>& rank, bool on_gpu,
                                       const std::filesystem::path& scratch);

}  // namespace isobar::exec
