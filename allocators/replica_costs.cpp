#include "allocators/replica_costs.hpp"

#include "core/costs/layer_times.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/program/collective.hpp"
#include "core/program/round_time.hpp"
#include "schedules/lowering/replicas.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace isobar::allocators {

namespace {

constexpr Seconds never(std::numeric_limits<double>::infinity());

/// The time of a collective of data of `size` on each of the devices, in rings within and across their sites.
Seconds hierarchical_time(const std::vector<std::size_t>& devices, Opcode opcode, Bytes size, const Cluster& cluster)
{
  std::vector<std::string> sites;
  for (const std::size_t device : devices) sites.push_back(cluster.devices[device].site);
  EndNetwork whole = network_of(cluster);
  whole.shared_links = {};  // a bound, as other transfers may leave the flows no more
  return collective_time(rounds_of(opcode, std::vector(devices.size(), size), Algorithm::Hierarchical, sites),
                         network_between(devices, whole));
}

/// The time of a collective in a ring in which each device passes on `messages` messages of `size` together.
Seconds ring_time(const std::vector<std::size_t>& devices, double messages, Bytes size, const Cluster& cluster)
{
  Seconds start;
  Seconds slowest;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const Path path = cluster.path(devices[i], devices[(i + 1) % devices.size()]);
    start = std::max(start, cluster.devices[devices[i]].collective_start);
    slowest = std::max(slowest, messages * path.latency + size / path.bandwidth);
  }
  return start + slowest;
}

/// The number of a step's micro-batches that each pair of replicas of two neighbouring stages takes.
std::map<std::pair<std::size_t, std::size_t>, double> meetings(const MicrobatchPattern& before,
                                                               const MicrobatchPattern& here,
                                                               std::uint64_t microbatches)
{
  std::map<std::pair<std::size_t, std::size_t>, double> counts;
  if (before == here) {
    for (std::size_t replica = 0; replica < before.replicas(); ++replica) {
      counts[{replica, replica}] = static_cast<double>(before.count(replica));
    }
  } else {
    for (std::uint64_t m = 0; m < microbatches; ++m) counts[{before.replica_of(m), here.replica_of(m)}] += 1;
  }
  return counts;
}

}  // namespace

ReplicaCosts::ReplicaCosts(const Plan& plan, const std::vector<Order>& orders, const CostModel& cost)
    : goal_(plan.goal), ranks_(orders.size())
{
  const Cluster& cluster = cost.cluster();
  const auto patterns = schedules::microbatch_patterns(plan);
  std::vector<std::uint32_t> parts(orders.size(), 0);  // of each rank so far
  for (const auto& [stage, replica, shard, rank] : placed_shards(plan)) {
    const Stage& whole = plan.stages[stage];
    const auto first = whole.first_layer;
    const auto last = whole.last_layer;
    Shard costs;
    costs.rank = rank;
    costs.device = cluster.device_index(whole.replicas[replica].shards[shard].device).value();
    const bool splits_backward = orders[rank].count(Opcode::BackwardWeight, parts[rank]++) > 0;
    if (whole.replicas[replica].shards.size() == 1) {
      costs.times.forward = cost.forward_time(costs.device, first, last);
      costs.times.backward = cost.backward_time(costs.device, first, last);
      for (std::size_t layer = first; layer <= last && splits_backward; ++layer) {
        costs.times.weights += cost.weight_time(costs.device, layer);
      }
    } else {
      const LayerTimes part =
          times_of_shard(cost.workload(), first, cluster.devices[costs.device], whole, replica, shard);
      costs.times = {part.forward, part.backward, splits_backward ? part.backward_weight : Seconds(0)};
    }
    if (shard == 0) {
      Replica& next = replicas_.emplace_back();
      next.stage = stage;
      next.microbatches = static_cast<double>(patterns[stage].count(replica));
      next.weights = never;
      if (replica == patterns[stage].replica_of(0)) of_first_microbatch_.push_back(replicas_.size() - 1);
    }
    Replica& all = replicas_.back();
    const auto keep = [is_first = shard == 0, is_grid = whole.grid.is_grid()](Seconds& kept, Seconds time) {
      // A micro-batch may pass a grid on the quickest shards alone, as far as these do not meet the others.
      if (is_first || (is_grid ? time < kept : time > kept)) kept = time;
    };
    keep(all.forward, costs.times.forward);
    keep(all.backward, costs.times.backward);
    keep(all.input_gradient, costs.times.input_gradient());
    all.weights = std::min(all.weights, costs.times.weights);
    all.slowest = whole.grid.is_grid() ? std::max(all.slowest, costs.times.compute()) : all.forward + all.backward;
    if (stage == 0) {
      const TransferTimes input = cost.input_transfer(costs.device);
      if (shard == 0 || input.total() < all.input.total()) all.input = input;
    }
    all.shards.push_back(costs);
  }
  for (auto& replica : replicas_) add_sums(plan.stages[replica.stage], plan.sync.algorithm, replica, cost);
  add_ways(plan, patterns, cost);
}

void ReplicaCosts::add_sums(const Stage& stage, Algorithm of_replicas, Replica& replica, const CostModel& cost)
{
  if (replica.shards.size() == 1 || stage.grid.form != ShardGrid::Form::OneD) return;
  std::vector<std::size_t> devices;
  for (const auto& shard : replica.shards) devices.push_back(shard.device);
  std::vector<std::string> sites;
  for (const std::size_t device : devices) sites.push_back(cost.cluster().devices[device].site);
  const bool is_ring = algorithm_of_shards(of_replicas, sites) == Algorithm::Ring;
  const auto others = static_cast<double>(devices.size() - 1);
  const double sent = 2 * others / static_cast<double>(devices.size());  // of the bytes that are summed up
  const auto all_reduce = [&](Bytes size) {
    return is_ring ? ring_time(devices, 2 * others, sent * size, cost.cluster())
                   : hierarchical_time(devices, Opcode::AllReduce, size, cost.cluster());
  };
  const std::size_t layer = stage.first_layer;
  const Split& split = *cost.workload().layers[layer].split;
  if (!split.gathered) {
    replica.output_sum = all_reduce(split.exchanged_fraction * cost.boundary_output(layer + 1));
  } else {
    const Bytes gathered = split.exchanged_fraction * *split.gathered;
    replica.output_sum = is_ring ? ring_time(devices, others, others * gathered, cost.cluster())
                                 : hierarchical_time(devices, Opcode::AllGather, gathered, cost.cluster());
  }
  if (replica.stage > 0) {
    replica.input_gradient_sum = all_reduce(split.exchanged_fraction * cost.boundary_gradient(layer));
  }
}

void ReplicaCosts::add_ways(const Plan& plan, const std::vector<MicrobatchPattern>& patterns, const CostModel& cost)
{
  // Of the transfers by which the shards of one replica, in turns, bring those of another the same bytes.
  const auto quickest = [](const std::vector<Shard>& from, const std::vector<Shard>& to, const auto& transfer) {
    std::optional<TransferTimes> least;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const auto on_same =
          std::find_if(from.begin(), from.end(), [&](const Shard& shard) { return shard.device == to[i].device; });
      const std::size_t sender = on_same != from.end() ? to[i].device : from[i % from.size()].device;
      const TransferTimes each = sender == to[i].device ? TransferTimes() : transfer(sender, to[i].device);
      if (!least || each.total() < least->total()) least = each;
    }
    return *least;
  };
  std::size_t begin = 0;  // of the stage's replicas
  for (std::size_t stage = 0; stage + 1 < plan.stages.size(); ++stage) {
    const std::size_t next = begin + plan.stages[stage].replicas.size();
    const std::size_t layer = plan.stages[stage + 1].first_layer;
    for (const auto& [pair, count] : meetings(patterns[stage], patterns[stage + 1], plan.goal.microbatches)) {
      const auto& from = replicas_[begin + pair.first].shards;
      const auto& to = replicas_[next + pair.second].shards;
      const bool is_sliced = plan.transfers.sliced && from.size() == to.size();
      const auto parts = static_cast<double>(is_sliced ? to.size() : plan.stages[stage].grid.blocks());
      const auto part_of = [parts](TransferTimes whole) { return TransferTimes{whole.latency, whole.data / parts}; };
      Way way{next + pair.second, count, {}, {}};
      way.output = quickest(from, to, [&](std::size_t sender, std::size_t receiver) {
        return part_of(cost.output_transfer(sender, receiver, layer));
      });
      way.gradient = quickest(to, from, [&](std::size_t sender, std::size_t receiver) {
        return part_of(cost.gradient_transfer(receiver, sender, layer));
      });
      // What is sent is summed up before; that occupies no lane of transfers.
      way.output.latency += replicas_[begin + pair.first].output_sum;
      way.gradient.latency += replicas_[next + pair.second].input_gradient_sum;
      replicas_[begin + pair.first].ways.push_back(way);
    }
    begin = next;
  }
}

std::vector<ReplicaCosts::Detour> ReplicaCosts::detours() const
{
  std::vector<Detour> detours(replicas_.size(), {never, never, never});
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    const Replica& replica = replicas_[i];
    if (replica.stage == 0) detours[i] = {counted(replica.input.total()), never, Seconds(0)};
    for (const auto& way : replica.ways) {
      Detour& to = detours[way.to];
      to.there = std::min(to.there, detours[i].there + replica.forward + counted(way.output.total()));
      to.back = std::min(to.back, counted(way.gradient.total()) + replica.input_gradient + detours[i].back);
    }
  }
  for (std::size_t i = replicas_.size(); i-- > 0;) {
    const bool waits = !sums_loss_with_gradients(goal_.schedule);  // for the others' parts of the loss
    if (replicas_[i].ways.empty()) detours[i].round = waits ? counted(replicas_[i].output_sum) : Seconds(0);
    for (const auto& way : replicas_[i].ways) {
      const Replica& to = replicas_[way.to];
      detours[i].round = std::min(detours[i].round, counted(way.output.total()) + to.forward + detours[way.to].round +
                                                        to.input_gradient + counted(way.gradient.total()));
    }
  }
  return detours;
}

Seconds ReplicaCosts::least_step() const
{
  struct Device {
    Seconds begin = never;
    Seconds back = never;
    Seconds compute;
    Seconds passes;
    Seconds output_sums;
    Seconds gradient_sums;
  };
  std::vector<Device> devices(ranks_);
  const auto detours = this->detours();
  Seconds last_weights = never;
  for (const auto& replica : replicas_) {
    if (replica.stage == 0) last_weights = std::min(last_weights, replica.weights);
  }
  Seconds least;
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    const Replica& replica = replicas_[i];
    const auto& [there, round, back] = detours[i];
    // One micro-batch all the way, and what the replica or a lane of it takes for the others that use it.
    const Seconds alone = there + replica.forward + round + replica.input_gradient + back + last_weights;
    const auto busy = [&](double microbatches, Seconds each) {
      least = std::max(least, alone + (microbatches - 1) * each);
    };
    busy(replica.microbatches, std::max(replica.forward, replica.input_gradient));
    if (replica.stage == 0) busy(replica.microbatches, counted(replica.input.data));
    for (const auto& way : replica.ways) {
      const Seconds over_it = counted(way.output.total()) + replicas_[way.to].forward + detours[way.to].round +
                              replicas_[way.to].input_gradient + counted(way.gradient.total());
      const Seconds each = counted(std::max(way.output.data, way.gradient.data));
      least = std::max(least, alone - round + over_it + (way.microbatches - 1) * each);
    }
    for (const auto& [rank, place, times] : replica.shards) {
      Device& device = devices[rank];
      device.begin = std::min(device.begin, there);
      device.back = std::min(device.back, back);
      device.compute += replica.microbatches * times.compute();
      device.passes += replica.microbatches * (times.forward + times.input_gradient());
      device.output_sums += replica.microbatches * counted(replica.output_sum);
      device.gradient_sums += replica.microbatches * counted(replica.input_gradient_sum);
    }
  }
  for (const auto& device : devices) {
    least = std::max({least, device.begin + device.compute, device.begin + device.passes + device.back + last_weights,
                      device.begin + device.output_sums, device.begin + device.gradient_sums});
  }
  return least;
}

Seconds ReplicaCosts::busiest_device() const
{
  std::vector<Seconds> compute(ranks_);
  for (const auto& replica : replicas_) {
    for (const auto& shard : replica.shards) compute[shard.rank] += replica.microbatches * shard.times.compute();
  }
  return *std::max_element(compute.begin(), compute.end());
}

Predicted ReplicaCosts::formulas() const
{
  const auto communication =
      goal_.communication == Communication::Played ? Communication::Overlapped : goal_.communication;
  const auto all = static_cast<double>(goal_.microbatches);
  // What a replica sends per micro-batch of its own: on average, if it sends to several.
  std::vector<Seconds> sent(replicas_.size());
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    for (const auto& way : replicas_[i].ways) {
      sent[i] += way.microbatches / replicas_[i].microbatches * CostModel::counted(communication, way.output);
      sent[way.to] +=
          way.microbatches / replicas_[way.to].microbatches * CostModel::counted(communication, way.gradient);
    }
  }
  std::vector<Seconds> cost(replicas_.size());
  std::vector<Seconds> cost_of_device(ranks_);
  Predicted predicted;
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    const Replica& replica = replicas_[i];
    cost[i] = CostModel::stage_cost(communication, replica.slowest, sent[i]);
    for (const auto& shard : replica.shards) cost_of_device[shard.rank] += replica.microbatches / all * cost[i];
    if (replica.stage > 0) continue;
    const Seconds input =
        CostModel::stage_cost(communication, Seconds(0), CostModel::counted(communication, replica.input));
    predicted.bottleneck = std::max(predicted.bottleneck, replica.microbatches / all * input);
  }
  for (const Seconds each : cost_of_device) predicted.bottleneck = std::max(predicted.bottleneck, each);
  const Replica& first = replicas_[of_first_microbatch_.front()];
  Seconds sum = CostModel::stage_cost(communication, Seconds(0), CostModel::counted(communication, first.input));
  predicted.sequential = first.input.total();
  for (std::size_t stage = 0; stage < of_first_microbatch_.size(); ++stage) {
    const Replica& replica = replicas_[of_first_microbatch_[stage]];
    sum += cost[of_first_microbatch_[stage]];
    predicted.sequential += replica.slowest;
    for (const auto& way : replica.ways) {
      if (way.to != of_first_microbatch_[stage + 1]) continue;
      predicted.sequential += way.output.total() + way.gradient.total();
    }
  }
  predicted.pipeline = CostModel::objective_of(Objective::Pipeline, goal_.microbatches, predicted.bottleneck, sum);
  return predicted;
}

}  // namespace isobar::allocators
