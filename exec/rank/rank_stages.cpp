#include "exec/rank/rank_stages.hpp"

#include "core/plan/operator_plan.hpp"
#include "schedules/lowering/replicas.hpp"

namespace isobar::exec {

RankStages::RankStages(const Plan& plan, std::size_t rank)
{
  if (!divides_operators(plan)) patterns = schedules::microbatch_patterns(plan);
  for (const auto& placed : placed_shards(plan)) {
    if (placed.replica + placed.shard == 0) ranks.emplace_back();
    if (placed.shard == 0) ranks.back().emplace_back();
    ranks.back().back().push_back(placed.rank);
    if (placed.rank != rank) continue;
    RankStage& stage = own[static_cast<std::uint32_t>(placed.stage)];
    stage.placed = placed;
    stage.first_layer = plan.stages[placed.stage].first_layer;
    stage.last_layer = plan.stages[placed.stage].last_layer;
    stage.residence = plan.stages[placed.stage].residence;
  }
}

StageModel* RankStages::model_of_layer(std::size_t layer) const
{
  for (const auto& [index, stage] : own) {
    if (stage.first_layer <= layer && layer <= stage.last_layer) return stage.model.get();
  }
  return nullptr;
}

}  // namespace isobar::exec
