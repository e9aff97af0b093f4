#pragma once

#include "core/plan/plan.hpp"

#include <cstdint>
#include <vector>

namespace isobar {

/// A transfer alone on its path, seconds.
struct PlayedTransfer {
  double latency = 0;
  double data = 0;
};

/// What the plan checker knows of a stage, seconds.
struct PlayedStage {
  double forward = 0;
  double backward = 0;
  double update = 0;
  PlayedTransfer output = {};    ///< to the next stage
  PlayedTransfer gradient = {};  ///< to the stage before
};

/// The time of a step by playing it: every stage goes through its list of work as long as what it needs has arrived, in
/// whatever order the stages come to it. For the plan checker, apart from step_recurrence.hpp, so that a fault in one
/// shows against the other. O(stages x micro-batches).
double play_step(Schedule schedule, std::uint64_t microbatches, PlayedTransfer input,
                 const std::vector<PlayedStage>& stages);

}  // namespace isobar
