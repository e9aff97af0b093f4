#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <fmt/format.h>

namespace isobar::exec {

/// Layers split over the stages as evenly as whole layers allow, on devices "device-0", "device-1", ….
inline Plan even_split(const Workload& workload, std::size_t stages, Schedule schedule, std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.schedule = schedule;
  plan.goal.microbatches = microbatches;
  const std::size_t layers = workload.layers.size();
  for (std::size_t i = 0; i < stages; ++i) {
    Stage stage;
    stage.devices.push_back({fmt::format("device-{}", i)});
    stage.first_layer = i * layers / stages;
    stage.last_layer = (i + 1) * layers / stages - 1;
    plan.stages.push_back(stage);
  }
  return plan;
}

}  // namespace isobar::exec
