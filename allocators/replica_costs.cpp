#include "allocators/replica_costs.hpp"

#include "schedules/lowering/replicas.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace isobar::allocators {

namespace {

constexpr Seconds never(std::numeric_limits<double>::infinity());

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
  for (const auto& [stage, replica, rank] : placed_replicas(plan)) {
    const auto& [first, last, replicas] = plan.stages[stage];
    const std::size_t device = cluster.device_index(replicas[replica].shards.front().device).value();
    Replica costs;
    costs.stage = stage;
    costs.rank = rank;
    costs.microbatches = static_cast<double>(patterns[stage].count(replica));
    costs.forward = cost.forward_work(first, last) / cost.speed(device);
    costs.backward = cost.backward_work(first, last) / cost.speed(device);
    if (stage == 0) costs.input = cost.input_transfer(device);
    if (orders[rank].count(Opcode::BackwardWeight, parts[rank]++) > 0) {
      for (std::size_t layer = first; layer <= last; ++layer) {
        costs.weights += cost.workload().layers[layer].backward_weight / cost.speed(device);
      }
    }
    if (replica == patterns[stage].replica_of(0)) of_first_microbatch_.push_back(replicas_.size());
    replicas_.push_back(std::move(costs));
  }
  add_ways(plan, patterns, cost);
}

void ReplicaCosts::add_ways(const Plan& plan, const std::vector<MicrobatchPattern>& patterns, const CostModel& cost)
{
  const auto device_of = [&](std::size_t stage, std::size_t replica) {
    return cost.cluster().device_index(plan.stages[stage].replicas[replica].shards.front().device).value();
  };
  std::size_t begin = 0;  // of the stage's replicas
  for (std::size_t stage = 0; stage + 1 < plan.stages.size(); ++stage) {
    const std::size_t next = begin + plan.stages[stage].replicas.size();
    const std::size_t layer = plan.stages[stage + 1].first_layer;
    for (const auto& [pair, count] : meetings(patterns[stage], patterns[stage + 1], plan.goal.microbatches)) {
      Way way{next + pair.second, count, {}, {}};
      const std::size_t from = device_of(stage, pair.first);
      const std::size_t to = device_of(stage + 1, pair.second);
      if (from != to) {
        way.output = cost.output_transfer(from, to, layer);
        way.gradient = cost.gradient_transfer(from, to, layer);
      }
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
      to.back = std::min(to.back, counted(way.gradient.total()) + replica.input_gradient() + detours[i].back);
    }
  }
  for (std::size_t i = replicas_.size(); i-- > 0;) {
    if (replicas_[i].ways.empty()) detours[i].round = Seconds(0);
    for (const auto& way : replicas_[i].ways) {
      const Replica& to = replicas_[way.to];
      detours[i].round = std::min(detours[i].round, counted(way.output.total()) + to.forward + detours[way.to].round +
                                                        to.input_gradient() + counted(way.gradient.total()));
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
    const Seconds alone = there + replica.forward + round + replica.input_gradient() + back + last_weights;
    const auto busy = [&](double microbatches, Seconds each) {
      least = std::max(least, alone + (microbatches - 1) * each);
    };
    busy(replica.microbatches, std::max(replica.forward, replica.input_gradient()));
    if (replica.stage == 0) busy(replica.microbatches, counted(replica.input.data));
    for (const auto& way : replica.ways) {
      const Seconds over_it = counted(way.output.total()) + replicas_[way.to].forward + detours[way.to].round +
                              replicas_[way.to].input_gradient() + counted(way.gradient.total());
      const Seconds each = counted(std::max(way.output.data, way.gradient.data));
      least = std::max(least, alone - round + over_it + (way.microbatches - 1) * each);
    }
    Device& device = devices[replica.rank];
    device.begin = std::min(device.begin, there);
    device.back = std::min(device.back, back);
    device.compute += replica.microbatches * replica.compute();
    device.passes += replica.microbatches * (replica.forward + replica.input_gradient());
  }
  for (const auto& device : devices) {
    least = std::max({least, device.begin + device.compute, device.begin + device.passes + device.back + last_weights});
  }
  return least;
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
    cost[i] = CostModel::stage_cost(communication, replica.compute(), sent[i]);
    cost_of_device[replica.rank] += replica.microbatches / all * cost[i];
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
    predicted.sequential += replica.compute();
    for (const auto& way : replica.ways) {
      if (way.to != of_first_microbatch_[stage + 1]) continue;
      predicted.sequential += way.output.total() + way.gradient.total();
    }
  }
  predicted.pipeline = CostModel::objective_of(Objective::Pipeline, goal_.microbatches, predicted.bottleneck, sum);
  return predicted;
}

}  // namespace isobar::allocators
