#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <fmt/format.h>

#include <functional>

namespace isobar::exec {

/// Layers split over the stages as evenly as whole layers allow. Stage i is on device "device-N", where N is
/// `device_of(i)`.
inline Plan even_split_over(const Workload& workload, std::size_t stages, const ScheduleChoice& schedule,
                            std::uint64_t microbatches, const std::function<std::size_t(std::size_t)>& device_of)
{
  Plan plan;
  plan.goal.schedule = schedule;
  plan.goal.microbatches = microbatches;
  const std::size_t layers = workload.layers.size();
  for (std::size_t i = 0; i < stages; ++i) {
    const std::string device = fmt::format("device-{}", device_of(i));
    plan.stages.push_back(stage_on(device, i * layers / stages, (i + 1) * layers / stages - 1));
  }
  return plan;
}

/// The same with a device for each stage: "device-0", "device-1", ….
inline Plan even_split(const Workload& workload, std::size_t stages, const ScheduleChoice& schedule,
                       std::uint64_t microbatches)
{
  return even_split_over(workload, stages, schedule, microbatches, [](std::size_t stage) { return stage; });
}
inline Plan even_split(const Workload& workload, std::size_t stages, ChainSchedule schedule, std::uint64_t microbatches)
{
  return even_split(workload, stages, choice_of(schedule), microbatches);
}

}  // namespace isobar::exec
