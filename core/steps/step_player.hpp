#pragma once

#include "core/plan/plan.hpp"

#include <cstdint>
#include <vector>

namespace isobar {

/// A transfer without contention, in seconds.
struct PlayedTransfer {
  double latency = 0;
  double data = 0;

  double total() const { return latency + data; }
};

/// The times of a stage, in seconds.
struct PlayedStage {
  double forward = 0;
  double backward = 0;
  double update = 0;
  PlayedTransfer output = {};    ///< to the next stage
  PlayedTransfer gradient = {};  ///< to the previous stage
};

/// Computes the time of a step, in seconds, by playing it: each stage works through its list as its inputs arrive.
///
/// For the plan checker, independent of step_recurrence.hpp, so that an error in one shows against the other.
/// O(stages x micro-batches).
double play_step(ChainSchedule schedule, std::uint64_t microbatches, PlayedTransfer input,
                 const std::vector<PlayedStage>& stages);

}  // namespace isobar
