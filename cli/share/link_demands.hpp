#pragma once

#include "allocators/mix/link_shifts.hpp"
#include "cli/planning/mix_simulation.hpp"
#include "core/units.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// What jobs send over the links that they have in common, step after step, when each is alone.
struct LinkDemands {
  Seconds tick;                    ///< of the periods and pieces; a thousandth of the shortest step
  std::vector<std::string> links;  ///< that two or more jobs use
  std::vector<allocators::PeriodicJob> jobs;
};

/// Simulates each job alone and records its last step, in child processes. A job is taken to send at full rate while
/// its data use a link.
LinkDemands link_demands(const MixInputs& inputs, std::size_t parallel);

}  // namespace isobar::cli
