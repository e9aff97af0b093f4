#include "allocators/hybrid/pipelines.hpp"

#include "allocators/plan_stages.hpp"
#include "allocators/planners/grid_stages.hpp"
#include "core/model/layer_graph.hpp"

#include <iterator>
#include <set>

namespace isobar::allocators {

std::vector<Stage> stages_of(const std::vector<Pipeline>& pipelines, const ChainView& view, const CostModel& cost,
                             std::size_t parts)
{
  std::set<std::size_t> begins;  // of stages, over the chain
  for (const auto& pipeline : pipelines) {
    for (const auto& stage : pipeline.stages) begins.insert(stage.first_layer);
  }
  begins.insert(view.workload.layers.size());
  std::vector<Stage> stages;
  std::vector<std::size_t> at(pipelines.size(), 0);  // the stage of each pipeline
  for (auto begin = begins.begin(); std::next(begin) != begins.end(); ++begin) {
    std::vector<ReplicaPlacement> replicas;
    for (std::size_t i = 0; i < pipelines.size(); ++i) {
      if (pipelines[i].stages[at[i]].last_layer < *begin) ++at[i];
      replicas.push_back({pipelines.size() == 1 ? 0 : pipelines[i].microbatches, pipelines[i].stages[at[i]].devices});
    }
    const StagePlacement whole{0, *begin, *std::next(begin) - 1};
    for (const auto& part : over_layers_of(view, parts_of(whole, parts))) {
      const auto more = stages_on(cost, part.first_layer, part.last_layer, replicas);
      stages.insert(stages.end(), more.begin(), more.end());
    }
  }
  return stages;
}

}  // namespace isobar::allocators
