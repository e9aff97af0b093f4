#include "allocators/planners/sharded_layers.hpp"

#include "core/costs/layer_times.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/shard_collectives.hpp"

#include <string>

namespace isobar::allocators {

namespace {

/// What each shard of a group sends for a collective in a ring (rounds_of): messages, and their bytes together.
struct RingTraffic {
  double messages = 0;
  double bytes = 0;
};

RingTraffic ring_traffic(const ShardCollective& collective, const ShardGrid& grid, std::uint64_t shards)
{
  const auto ends = static_cast<double>(groups_along(grid, collective.axis, shards).front().size());
  const double others = ends - 1;
  switch (collective.opcode) {
    case Opcode::AllReduce:
      return {2 * others, 2 * others / ends * collective.size.value};
    case Opcode::ReduceScatter:
      return {others, others / ends * collective.size.value};
    default:  // AllGather
      return {others, others * collective.size.value};
  }
}

/// A stage of one layer whose only replica has that number of shards.
Stage stage_of(std::size_t layer, std::uint64_t shards, const ShardGrid& grid)
{
  Replica replica;
  replica.shards.assign(shards, Shard{.device = "", .share = 1 / static_cast<double>(shards)});
  return {layer, layer, {replica}, grid};
}

}  // namespace

ShardedLayers::ShardedLayers(const CostModel& cost, std::uint64_t shards, const ShardGrid& grid)
    : cost_(&cost), shards_(shards), part_of_boundary_(1 / static_cast<double>(grid.blocks()))
{
  for (auto* sums : {&work_, &update_, &parameters_, &resident_, &activations_, &messages_, &bytes_})
    sums->assign(1, 0);
  const auto append = [](std::vector<double>& sums, double value) { sums.push_back(sums.back() + value); };
  const Workload& workload = cost.workload();
  const Boundaries boundaries = boundaries_of(workload);
  const double bytes_per = bytes_per_parameter(workload);
  const Device& first = cost.cluster().devices.front();
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    const Layer& whole = workload.layers[i];
    // Units that are left over go to the first shards.
    const Stage stage = stage_of(i, shards, grid);
    const Layer part = shards == 1 ? whole : layer_of_shard(whole, stage, 0, 0);
    const LayerTimes times = times_of_shard(workload, i, first, stage, 0, 0);
    append(work_, ((times.forward + times.backward) * cost.speed(0)).value);
    append(update_, (times.update * cost.speed(0)).value);
    append(parameters_, static_cast<double>(part.parameters));
    append(resident_, cost.memory_ignores_schedule() ? cost.memory(i, i, 0).value
                                                     : static_cast<double>(part.parameters) * bytes_per);
    append(activations_, part.activations.value);
    RingTraffic traffic;
    if (shards > 1) {
      for (const auto& collective : shard_collectives(workload, boundaries, i, grid)) {
        const auto [messages, bytes] = ring_traffic(collective, grid, shards);
        traffic.messages += messages;
        traffic.bytes += bytes;
      }
    }
    append(messages_, traffic.messages);
    append(bytes_, traffic.bytes);
  }
}

Bytes ShardedLayers::memory(std::size_t first, std::size_t last, std::uint64_t in_flight) const
{
  if (shards_ == 1) return cost_->memory(first, last, in_flight);
  const double activations = cost_->memory_ignores_schedule() ? 0 : sum(activations_, first, last);
  const Bytes besides_layers = cost_->buffers(first) + cost_->buffers(last + 1) + cost_->workspace();
  return Bytes(sum(resident_, first, last) + static_cast<double>(in_flight) * activations) +
         besides_layers * part_of_boundary_;
}

}  // namespace isobar::allocators
