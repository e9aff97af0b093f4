#include "schedules/lowering/merged_shards.hpp"

#include "core/costs/layer_times.hpp"
#include "core/costs/shard_collective_times.hpp"
#include "core/plan/placed_shards.hpp"

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::schedules {

MergedShards merged_shards(const Plan& plan, const Workload& workload, const Cluster& cluster, bool has_replicas)
{
  constexpr double bytes_of_a_gradient = 4;
  MergedShards merged{plan, workload};
  merged.workload.times.clear();
  const auto shards = static_cast<double>(plan.stages.front().replicas.front().shards.size());
  double parameters = 0;
  for (const auto& layer : workload.layers) parameters += static_cast<double>(layer.parameters);
  const bool has_one_sum = plan.sync.bucket >= Bytes(bytes_of_a_gradient * parameters);
  const bool sums_apart = has_replicas && (plan.sync.sharded != Sharding::None || !has_one_sum);
  const auto pipeline_stage = pipeline_stages(plan);
  merged.plan.stages.clear();
  merged.plan.transfers.sliced = false;
  // By device, work, what is sent, and kind.
  std::map<std::tuple<std::string, double, double, double, std::size_t>, ShardCollectiveTimes> known;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    const std::string& name = stage.replicas.front().shards.front().device;
    const Device& device = cluster.devices[cluster.device_index(name).value()];
    auto& own_times = merged.workload.times[device.type];
    own_times.resize(workload.layers.size());
    for (std::size_t index = stage.first_layer; index <= stage.last_layer; ++index) {
      const Layer& layer = workload.layers[index];
      const bool is_inner = index > 0 && index + 1 < workload.layers.size();
      const auto key = std::tuple(device.name, times_on(workload, index, device).forward.value, layer.output.value,
                                  layer.gradient.value, is_inner ? std::size_t{0} : index + 1);
      const auto found = known.find(key);
      const ShardCollectiveTimes times =
          found != known.end()
              ? found->second
              : known.emplace(key, shard_collective_times(plan, i, index, workload, cluster)).first->second;
      const LayerTimes shard = times_of_shard(workload, index, device, stage, 0, 0);
      own_times[index] = {{device.pace * (shard.forward + times.forward),
                           device.pace * (shard.backward + times.backward), device.pace * shard.backward_weight},
                          device.pace * shard.update};
      Layer part = layer_of_shard(layer, stage, 0, 0);
      const double slices = static_cast<double>(stage.grid.blocks()) * (plan.transfers.sliced ? shards : 1);
      part.output = layer.output / slices;
      part.gradient = layer.gradient / slices;
      part.split.reset();
      merged.workload.layers[index] = std::move(part);
    }
    const bool continues = i > 0 && pipeline_stage[i] == pipeline_stage[i - 1] && !stage.starts_chunk && !sums_apart;
    if (continues) {
      merged.plan.stages.back().last_layer = stage.last_layer;
      continue;
    }
    Stage& own = merged.plan.stages.emplace_back(stage);
    own.grid = {};
    own.splits.clear();
    for (auto& replica : own.replicas) {
      replica.shards.resize(1);
      replica.shards.front().share = 1;
    }
  }
  merged.workload.prices = nullptr;
  return merged;
}

}  // namespace isobar::schedules
