#include "core/costs/layer_times.hpp"

#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"

#include <algorithm>

namespace isobar {

namespace {

LayerTimes at_speed(const LayerWork& work, FlopsPerSecond speed)
{
  ensure(speed.value > 0, "a device that computes has a speed");
  return {{work.forward / speed, work.backward / speed, work.backward_weight / speed}, work.update / speed};
}

LayerTimes at_pace(LayerTimes times, double pace)
{
  if (pace == 1) return times;
  const auto scale = [pace](ShardTimes& own) {
    for (Seconds* time : {&own.forward, &own.backward, &own.backward_weight}) *time = *time / pace;
  };
  scale(times);
  times.update = times.update / pace;
  for (auto& [shards, own] : times.of_shards) scale(own);
  return times;
}

LayerWork work_of(const Workload& workload, const Layer& layer)
{
  return {layer.forward, layer.backward, layer.backward_weight, update_work(workload, layer)};
}

bool has_equal_shares(const Replica& replica)
{
  const double share = replica.shards.front().share;
  return std::ranges::all_of(replica.shards, [share](const Shard& shard) { return shard.share == share; });
}

}  // namespace

LayerTimes times_on(const Workload& workload, std::size_t layer, const Device& device)
{
  const auto* const known = known_times(workload, device.type);
  if (known != nullptr) return at_pace(known->at(layer), device.pace);
  return at_speed(work_of(workload, workload.layers.at(layer)), device.speed_at(workload.dtype));
}

LayerTimes times_on(const Workload& workload, std::size_t first, std::size_t last, const Device& device)
{
  if (const auto* const known = known_times(workload, device.type)) {
    LayerTimes sum;
    for (std::size_t layer = first; layer <= last; ++layer) sum += known->at(layer);
    return at_pace(sum, device.pace);
  }
  LayerWork sum;
  for (std::size_t index = first; index <= last; ++index) {
    const Layer& layer = workload.layers.at(index);
    sum.forward += layer.forward;
    sum.backward += layer.backward;
    sum.backward_weight += layer.backward_weight;
    sum.update += update_work(workload, layer);
  }
  return at_speed(sum, device.speed_at(workload.dtype));
}

LayerTimes times_of_shard(const LayerTimes& whole, const Layer& layer, const Stage& stage, std::size_t replica,
                          std::size_t shard)
{
  const Replica& all = stage.replicas.at(replica);
  if (all.shards.size() == 1) return whole;
  const bool is_grid = stage.grid.is_grid();
  const UnitRange units = is_grid ? UnitRange{0, 1, stage.grid.blocks()} : units_of_shard(layer, all, shard);
  const double fraction = static_cast<double>(units.end - units.begin) / static_cast<double>(units.all);
  LayerTimes part{{fraction * whole.forward, fraction * whole.backward, fraction * whole.backward_weight}, {}};
  const auto known = whole.of_shards.find(all.shards.size());
  if (known != whole.of_shards.end() && !is_grid && has_equal_shares(all)) {
    static_cast<ShardTimes&>(part) = known->second;
  }
  part.update = whole.update;
  if (is_grid) {
    part.update = whole.update / static_cast<double>(stage.grid.parameter_blocks());
  } else if (layer.parameters > 0) {
    const Layer own = layer_of_shard(layer, stage, replica, shard);
    part.update = static_cast<double>(own.parameters) / static_cast<double>(layer.parameters) * whole.update;
  }
  return part;
}

LayerTimes times_of_shard(const Workload& workload, std::size_t layer, const Device& device, const Stage& stage,
                          std::size_t replica, std::size_t shard)
{
  const Layer& whole = workload.layers.at(layer);
  if (const auto* const known = known_times(workload, device.type)) {
    return at_pace(times_of_shard(known->at(layer), whole, stage, replica, shard), device.pace);
  }
  return at_speed(work_of(workload, layer_of_shard(whole, stage, replica, shard)), device.speed_at(workload.dtype));
}

FlopsPerSecond rate_of(const Workload& workload, const Device& device)
{
  const bool is_known = !workload.times.empty() && known_times(workload, device.type) != nullptr;
  return is_known ? FlopsPerSecond(device.pace) : device.speed_at(workload.dtype);
}

std::vector<LayerWork> work_of_layers(const Workload& workload, const std::vector<LayerTimes>* times)
{
  constexpr FlopsPerSecond one(1);
  std::vector<LayerWork> all;
  all.reserve(workload.layers.size());
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    if (times == nullptr) {
      all.push_back(work_of(workload, workload.layers[i]));
      continue;
    }
    const LayerTimes& own = times->at(i);
    all.push_back({own.forward * one, own.backward * one, own.backward_weight * one, own.update * one});
  }
  return all;
}

const std::vector<LayerTimes>* reference_times(const Workload& workload, const Cluster& cluster)
{
  return cluster.devices.empty() ? nullptr : known_times(workload, cluster.devices.front().type);
}

}  // namespace isobar
