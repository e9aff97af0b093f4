#pragma once

#include "core/costs/cost_model.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>

namespace isobar::allocators {

/// What `PipelineSteps` knows of a plan.
struct PipelineStep {
  Seconds step;          ///< no play of the plan takes less
  bool fits = true;      ///< false: the plan does not fit into memory
  bool is_exact = true;  ///< a play takes that step, and the plan fits if `fits` is true
};

/// The steps of plans that are pipelines side by side, without playing them: until all gradients are complete a
/// pipeline waits for no other one, so that the recurrence of a chain (step_recurrence.hpp) has its times, once for all
/// that are alike. Then gradients are added up and parameters updated, as play_program plays that.
class PipelineSteps {
 public:
  /// Keeps a reference to `cost`, which must outlive it.
  explicit PipelineSteps(const CostModel& cost);

  /// None for plans of another kind: pipelines of one device for each stage under `sequential`, `gpipe` or `1f1b`
  /// without numbers, whose replicas take the same micro-batches in all stages and have no shards; and for steps that
  /// are too long to be played. Exact unless replicas divide gradients or parameters, or a device has interference.
  /// O(stages x replicas) and for each different pipeline O(its stages x micro-batches).
  std::optional<PipelineStep> step_of(const Plan& plan) const;

 private:
  const CostModel& cost_;
  std::unordered_map<std::string, std::size_t> index_of_device_;
};

}  // namespace isobar::allocators
