#pragma once

#include "core/model/sharding.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "tests/exec/run/replicated_plans.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Plans whose replicas divide sequences or experts.
namespace isobar::exec {

struct ExchangeShape {
  ContextParallelism context = {};
  ExpertParallelism experts = {};
  std::size_t replicas = 1;
  std::size_t shards = 1;
  std::size_t stages = 1;  ///< of the pipeline, with equally many layers each
  ScheduleChoice schedule = {"1f1b"};
  Sharding sharded = Sharding::None;
  bool recomputes = false;  ///< all layers but the first and the last
};

inline std::string text_of(const ExchangeShape& shape)
{
  return fmt::format("{}, {}: {} stages of {} replicas of {} shards, {}, sharded {}{}", text_of(shape.context),
                     text_of(shape.experts), shape.stages, shape.replicas, shape.shards, shape.schedule.name,
                     name_of(shape.sharded), shape.recomputes ? ", recomputes" : "");
}

/// `microbatches`: of whole sequences.
inline Plan exchange_plan(const Workload& workload, const ExchangeShape& shape, std::uint64_t microbatches)
{
  std::vector<std::vector<Takes>> takes(shape.stages);
  const std::uint64_t all = microbatches * shape.context.degree;
  for (std::size_t i = 0; i < shape.stages; ++i) {
    for (std::size_t k = 0; k < shape.replicas; ++k) {
      takes[i].emplace_back(fmt::format("d{}.{}.0", i, k), all / shape.replicas);
    }
  }
  Plan plan = replicated_plan(workload, shape.schedule, takes);
  plan.context = shape.context;
  plan.experts = shape.experts;
  plan.sync.sharded = shape.sharded;
  std::vector<Stage> by_layers;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    Stage stage = plan.stages[i];
    for (std::size_t k = 0; k < stage.replicas.size(); ++k) {
      auto& shards = stage.replicas[k].shards;
      for (std::size_t s = 1; s < shape.shards; ++s) shards.push_back({fmt::format("d{}.{}.{}", i, k, s)});
      for (auto& shard : shards) shard.share = 1 / static_cast<double>(shape.shards);
    }
    for (std::size_t layer = plan.stages[i].first_layer; layer <= plan.stages[i].last_layer; ++layer) {
      stage.first_layer = stage.last_layer = layer;
      by_layers.push_back(stage);
    }
  }
  plan.stages = by_layers;
  for (std::size_t layer = 1; layer + 1 < workload.layers.size() && shape.recomputes; ++layer) {
    plan.recompute.push_back(layer);
  }
  return plan;
}

/// The workload of a device of such a plan; of another plan the workload itself.
inline Workload with_divisions(Workload workload, const Plan& plan)
{
  if (!plan.context.divides() && !plan.experts.divides()) return workload;
  if (plan.context.divides()) workload = with_context(workload, plan.context);
  if (plan.experts.divides()) workload = with_experts(workload, plan.experts);
  return plan.recompute.empty() ? workload : with_recomputation(workload, plan.recompute);
}

}  // namespace isobar::exec
