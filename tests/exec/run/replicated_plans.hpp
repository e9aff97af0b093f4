#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec {

/// A device and the number of micro-batches that it takes through a stage.
using Takes = std::pair<std::string, std::uint64_t>;

/// A plan whose stages have these replicas. Layers are split over the stages as evenly as whole layers allow.
inline Plan replicated_plan(const Workload& workload, const ScheduleChoice& schedule,
                            const std::vector<std::vector<Takes>>& stages)
{
  Plan plan;
  plan.goal.schedule = schedule;
  plan.goal.microbatches = 0;
  for (const auto& [device, microbatches] : stages.front()) plan.goal.microbatches += microbatches;
  const std::size_t layers = workload.layers.size();
  for (std::size_t i = 0; i < stages.size(); ++i) {
    Stage stage = {i * layers / stages.size(), (i + 1) * layers / stages.size() - 1, {}};
    for (const auto& [device, microbatches] : stages[i]) stage.replicas.push_back({microbatches, {{device}}});
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

}  // namespace isobar::exec
