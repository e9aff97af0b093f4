#include "schedules/lowering/merged_shards.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"
#include "schedules/lowering/pipeline_program.hpp"

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::schedules {

ShardCollectiveTimes shard_collective_times(const Plan& plan, std::size_t stage, std::size_t layer,
                                            const Workload& workload, const Cluster& cluster)
{
  ShardCollectiveTimes times;
  const Stage& own = plan.stages.at(stage);
  const auto& shards = own.replicas.front().shards;
  if (shards.size() == 1) return times;
  std::vector<std::size_t> endpoints;
  for (const auto& shard : shards) endpoints.push_back(cluster.device_index(shard.device).value());
  const EndNetwork whole = network_of(cluster);
  const EndNetwork network = network_between(endpoints, whole);
  for (const auto& collective : shard_collectives(workload, boundaries_of(workload), layer, own.grid)) {
    if (is_before_pass(collective.role) && !needs_arrival(collective.role)) continue;  // beside the task before
    const auto groups = groups_along(own.grid, collective.axis, shards.size());
    const std::vector<Bytes> sizes(groups.front().size(), collective.size);
    Seconds& time = pass_of(collective.role) == ShardPass::Forward ? times.forward : times.backward;
    std::vector<std::string> sites;  // of a group; those of others lie alike
    for (const std::size_t shard : groups.front()) sites.push_back(shards[shard].site.value_or(""));
    const Algorithm algorithm = algorithm_of_shards(plan.sync.algorithm, sites);
    std::vector<Round> rounds;
    for (const Round& round : rounds_of(collective.opcode, sizes, algorithm, sites)) {
      Round& of_all = rounds.emplace_back();  // groups, beside each other
      for (const auto& group : groups) {
        for (Flow flow : round) {
          flow.from = group[flow.from];
          flow.to = group[flow.to];
          of_all.push_back(flow);
        }
      }
    }
    time += collective_time(rounds, network);
  }
  return times;
}

MergedShards merged_shards(const Plan& plan, const Workload& workload, const Cluster& cluster, bool has_replicas)
{
  constexpr double bytes_of_a_gradient = 4;
  MergedShards merged{plan, workload};
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
    const std::string& device = stage.replicas.front().shards.front().device;
    const FlopsPerSecond speed = cluster.devices[cluster.device_index(device).value()].speed_at(workload.dtype);
    for (std::size_t index = stage.first_layer; index <= stage.last_layer; ++index) {
      const Layer& layer = workload.layers[index];
      const bool is_inner = index > 0 && index + 1 < workload.layers.size();
      const auto key = std::tuple(device, layer.forward.value, layer.output.value, layer.gradient.value,
                                  is_inner ? std::size_t{0} : index + 1);
      const auto found = known.find(key);
      const ShardCollectiveTimes times =
          found != known.end()
              ? found->second
              : known.emplace(key, shard_collective_times(plan, i, index, workload, cluster)).first->second;
      Layer part = layer_of_shard(layer, stage, 0, 0);
      part.forward += speed * times.forward;
      part.backward += speed * times.backward;
      const double slices = static_cast<double>(stage.grid.blocks()) * (plan.transfers.sliced ? shards : 1);
      part.output = layer.output / slices;
      part.gradient = layer.gradient / slices;
      part.split.reset();
      part.work_of_shards.clear();
      merged.workload.layers[index] = std::move(part);
    }
    const bool continues = i > 0 && pipeline_stage[i] == pipeline_stage[i - 1] && !sums_apart;
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
