#include "schedules/lowering/replicas.hpp"

#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/lowering/partly_divided.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

namespace isobar::schedules {

namespace {

/// How many times a micro-batch may be looked up where stages divide them in different ways.
constexpr std::uint64_t most_look_ups = std::uint64_t{1} << 24;

/// The first shard of each replica of a plan: the others do what it does.
std::vector<PlacedShard> first_shards(const Plan& plan)
{
  std::vector<PlacedShard> placed = placed_shards(plan);
  std::erase_if(placed, [](const PlacedShard& each) { return each.shard > 0; });
  return placed;
}

/// The replicas of a plan, and which of them pass micro-batches to each other.
class Pipelines {
 public:
  explicit Pipelines(const Plan& plan)
      : plan_(plan), placed_(first_shards(plan)), patterns_(microbatch_patterns(plan)), pipeline_of_(placed_.size())
  {
    std::iota(pipeline_of_.begin(), pipeline_of_.end(), std::size_t{0});
    std::size_t first = 0;
    for (const auto& stage : plan.stages) {
      first_of_stage_.push_back(first);
      first += stage.replicas.size();
    }
    for (std::size_t stage = 1; stage < plan.stages.size(); ++stage) join(stage);
  }

  /// The replicas of each pipeline, as indices of placed().
  std::vector<std::vector<std::size_t>> pipelines()
  {
    std::map<std::size_t, std::vector<std::size_t>> by_root;
    for (std::size_t i = 0; i < placed_.size(); ++i) by_root[root_of(i)].push_back(i);
    std::vector<std::vector<std::size_t>> result;
    for (auto& [root, members] : by_root) result.push_back(std::move(members));
    return result;
  }

  /// The first shard of each replica.
  const std::vector<PlacedShard>& placed() const { return placed_; }
  const MicrobatchPattern& pattern_of(std::size_t stage) const { return patterns_[stage]; }
  std::uint64_t microbatches_of(std::size_t index) const
  {
    return patterns_[placed_[index].stage].count(placed_[index].replica);
  }

 private:
  /// Joins the replicas of a stage with those of the stage before.
  void join(std::size_t stage)
  {
    const auto& before = patterns_[stage - 1];
    const auto& here = patterns_[stage];
    const auto unite_pair = [&](std::size_t from, std::size_t to) {
      unite(first_of_stage_[stage - 1] + from, first_of_stage_[stage] + to);
    };
    if (before == here) {
      for (std::size_t replica = 0; replica < here.replicas(); ++replica) unite_pair(replica, replica);
      return;
    }
    // Programs look at each micro-batch once for each replica of the two stages.
    const std::uint64_t replicas = before.replicas() + here.replicas();
    const std::uint64_t microbatches = plan_.goal.microbatches;
    if (microbatches > (most_look_ups - look_ups_) / replicas) {
      throw InputError(fmt::format("stages[{}].replicas", stage),
                       fmt::format("divide {} in another way than those of the stage before, too many to find the way "
                                   "of each; use the same counts, or fewer micro-batches",
                                   counted(microbatches, "micro-batch", "es")));
    }
    look_ups_ += microbatches * replicas;
    for (std::uint64_t m = 0; m < microbatches; ++m) unite_pair(before.replica_of(m), here.replica_of(m));
  }

  std::size_t root_of(std::size_t index)
  {
    while (pipeline_of_[index] != index) index = pipeline_of_[index] = pipeline_of_[pipeline_of_[index]];
    return index;
  }

  void unite(std::size_t a, std::size_t b)
  {
    a = root_of(a);
    b = root_of(b);
    pipeline_of_[std::max(a, b)] = std::min(a, b);
  }

  const Plan& plan_;
  std::vector<PlacedShard> placed_;
  std::vector<MicrobatchPattern> patterns_;
  std::vector<std::size_t> first_of_stage_;
  std::vector<std::size_t> pipeline_of_;  // a forest: each replica's parent
  std::uint64_t look_ups_ = 0;
};

/// The tasks that a task becomes: one of each of `parts`, forwards ascending and backwards descending.
std::vector<Slot> slots_over(const Slot& slot, std::vector<std::uint32_t> parts)
{
  if (slot.first.opcode != Opcode::Forward) std::reverse(parts.begin(), parts.end());
  std::vector<Slot> slots(parts.size(), slot);
  for (std::size_t i = 0; i < parts.size(); ++i) slots[i].first.part = parts[i];
  return slots;
}

/// How tasks over chunks of layers become tasks over their layers.
struct LayersOfChunks {
  std::vector<std::vector<std::uint32_t>> parts;  ///< of the rank, by chunk
  std::vector<bool> is_end;                       ///< by part: the first or the last layer of the model
};

/// Some parts of a pass, in its order: those at the ends of the model alone, and what is between them.
struct PassOfParts {
  std::vector<Slot> begin;
  std::vector<std::vector<Slot>> layers;  ///< by part; of a split backward both halves
  std::vector<Slot> end;
};

/// `passes`: a forward, a backward, or both halves of one.
PassOfParts pass_of_parts(std::span<const Slot> passes, const LayersOfChunks& chunks)
{
  PassOfParts made;
  std::vector<std::vector<Slot>> of_pass;
  for (const Slot& pass : passes) of_pass.push_back(slots_over(pass, chunks.parts.at(pass.first.part)));
  for (std::size_t i = 0; i < of_pass.front().size(); ++i) {
    std::vector<Slot> layer;
    for (const auto& slots : of_pass) layer.push_back(slots[i]);
    const bool is_end = chunks.is_end.at(layer.front().first.part);
    if (is_end) {
      auto& ends = made.layers.empty() ? made.begin : made.end;
      ends.insert(ends.end(), layer.begin(), layer.end());
    } else {
      made.layers.push_back(std::move(layer));
    }
  }
  return made;
}

/// The layers of a forward and those of a backward in turn, as Megatron-LM's combined_1f1b does them: the one computes
/// a layer while the other exchanges tokens before or after one. The ends of the model come before and after all
/// others.
std::vector<Slot> overlapped(std::span<const Slot> forward, std::span<const Slot> backward,
                             const LayersOfChunks& chunks)
{
  const PassOfParts there = pass_of_parts(forward, chunks);
  const PassOfParts back = pass_of_parts(backward, chunks);
  std::vector<Slot> slots;
  const auto add = [&slots](const std::vector<Slot>& more) { slots.insert(slots.end(), more.begin(), more.end()); };
  add(there.begin);
  add(back.begin);
  for (std::size_t i = 0; i < std::max(there.layers.size(), back.layers.size()); ++i) {
    if (i < there.layers.size()) add(there.layers[i]);
    if (i < back.layers.size()) add(back.layers[i]);
  }
  add(there.end);
  add(back.end);
  return slots;
}

/// An order over layers: each task of chunk k becomes one of each of its parts.
Order over_parts(const Order& order, const LayersOfChunks& chunks)
{
  std::vector<Run> runs;
  for (const auto& [times, slots] : order.runs()) {
    Run& run = runs.emplace_back();
    run.times = times;
    const std::span<const Slot> all(slots);
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::vector<Slot> made;
      if (all[i].overlaps) {
        ensure(i + 1 < all.size(), "a forward that overlaps comes before its backward");
        const std::size_t passes = all[i + 1].first.opcode == Opcode::BackwardInput ? 2 : 1;
        made = overlapped(all.subspan(i, 1), all.subspan(i + 1, passes), chunks);
        i += passes;
      } else {
        made = slots_over(all[i], chunks.parts.at(all[i].first.part));
      }
      run.slots.insert(run.slots.end(), made.begin(), made.end());
    }
  }
  return Order(std::move(runs));
}

/// The same where each part takes all micro-batches of a loop before the next part takes them.
Order part_by_part(const Order& order, const std::vector<std::vector<std::uint32_t>>& parts)
{
  std::vector<Run> runs;
  for (const auto& [times, slots] : order.runs()) {
    for (const auto& slot : slots) {
      for (const auto& each : slots_over(slot, parts.at(slot.first.part))) runs.push_back({times, {each}});
    }
  }
  return Order(std::move(runs));
}

class ReplicaOrders {
 public:
  explicit ReplicaOrders(const Plan& plan)
      : schedule_(require_schedule(plan.goal.schedule)),
        choice_(plan.goal.schedule),
        devices_(devices_of(plan)),
        pipelines_(plan),
        pipeline_stage_(pipeline_stages(plan)),
        has_exchanges_(has_exchanges(plan)),
        uses_machine_(devices_.size()),
        shards_of_(devices_.size()),
        orders_(devices_.size()),
        is_ordered_(devices_.size()),
        is_end_(devices_.size())
  {
    std::size_t first = 0;  // shard of the replica
    for (const auto& placed : placed_shards(plan)) {
      if (!plan.stages[placed.stage].residence.is_on_device()) uses_machine_[placed.rank] = true;
      if (placed.shard == 0) {
        first = placed.rank;
        shards_of_[first].clear();
      }
      shards_of_[first].push_back(placed.rank);
    }
    for (const auto& stage : plan.stages) first_device_of_stage_.push_back(stage.device());
    std::vector<std::uint32_t> parts(devices_.size(), 0);
    std::vector<std::optional<std::size_t>> last_stage(devices_.size());
    for (const auto& placed : pipelines_.placed()) {
      part_of_.push_back(parts[placed.rank]++);
      starts_chunk_.push_back(plan.stages[placed.stage].starts_chunk);
      is_end_[placed.rank].push_back(placed.stage == 0 || placed.stage + 1 == plan.stages.size());
      if (last_stage[placed.rank] == placed.stage) {
        throw InputError(
            fmt::format("stages[{}]", placed.stage),
            fmt::format("device {} has two of its replicas; give each its own", shown(devices_[placed.rank])));
      }
      last_stage[placed.rank] = placed.stage;
    }
  }

  /// Of the first replicas, before its stages become parts.
  OrderedPipeline first_pipeline()
  {
    require_alike_pipelines();
    const Chain chain = chain_of(pipelines_.pipelines().front());
    return {chain.shape, orders_of_chain(chain)};
  }

  std::vector<Order> orders()
  {
    if (schedule_.takes_orders) require_alike_pipelines();
    if (const auto warm_up = given_numbers(); warm_up && warm_up->size() != devices_.size()) {
      throw InputError("schedule", fmt::format("warm_up has {} for {}; give one for each",
                                               counted(warm_up->size(), "number"), counted(devices_.size(), "device")));
    }
    for (const auto& members : pipelines_.pipelines()) {
      is_chain(members) ? order_chain(members) : order_each(members);
    }
    return std::move(orders_);
  }

 private:
  std::optional<std::vector<std::uint64_t>> given_numbers() const
  {
    const auto given = choice_.numbers.find("warm_up");
    return given == choice_.numbers.end() ? std::nullopt : std::optional(given->second);
  }

  bool is_chain(const std::vector<std::size_t>& members) const
  {
    return std::adjacent_find(members.begin(), members.end(), [&](std::size_t a, std::size_t b) {
             return pipelines_.placed()[a].stage == pipelines_.placed()[b].stage;
           }) == members.end();
  }

  [[noreturn]] void refuse_two_uses(std::size_t rank) const
  {
    throw InputError("stages", fmt::format("device {} has replicas of two pipelines, or of two stages of which one "
                                           "has more replicas than the other; give it those of one",
                                           shown(devices_[rank])));
  }

  /// Sets the order of a rank and its other shards: each task of part k of `order` becomes one of each of `parts[k]`.
  void set_order(std::size_t rank, const Order& order, const std::vector<std::vector<std::uint32_t>>& parts)
  {
    if (is_ordered_[rank]) refuse_two_uses(rank);
    is_ordered_[rank] = true;
    // What passes through the device then does so once a step.
    const bool is_by_part = chain_schedule(choice_) == ChainSchedule::GPipe && uses_machine_[rank];
    const Order whole = is_by_part ? part_by_part(order, parts) : over_parts(order, {parts, is_end_[rank]});
    for (const std::size_t shard : shards_of_[rank]) orders_[shard] = whole;
  }

  /// A pipeline with one replica of each stage, as a chain of stages that the schedule orders.
  struct Chain {
    PipelineShape shape;
    std::vector<std::size_t> ranks;                                // of the plan, by local rank
    std::vector<std::vector<std::vector<std::uint32_t>>> becomes;  // parts of the plan, by local rank and part
    std::vector<std::string> devices_of_first;  // by local rank: those of the first replicas, which orders name
  };

  /// One order is that of all replicas.
  void require_alike_pipelines()
  {
    if (std::find(uses_machine_.begin(), uses_machine_.end(), true) != uses_machine_.end()) {
      throw InputError(
          "schedule", fmt::format("{} is for stages that live on their devices; use another schedule", schedule_.name));
    }
    for (const auto& members : pipelines_.pipelines()) {
      if (is_chain(members) && pipelines_.microbatches_of(members.front()) == pipelines_.microbatches_of(0)) continue;
      throw InputError("schedule", fmt::format("{} needs pipelines with one replica of each stage, all with as many "
                                               "micro-batches; use another schedule",
                                               schedule_.name));
    }
  }

  Chain chain_of(const std::vector<std::size_t>& members) const
  {
    Chain chain;
    auto& [shape, ranks, becomes, devices_of_first] = chain;
    shape.microbatches = pipelines_.microbatches_of(members.front());
    std::unordered_map<std::size_t, std::size_t> local_rank;
    std::optional<std::size_t> before;
    for (const std::size_t index : members) {
      const std::size_t rank = pipelines_.placed()[index].rank;
      const bool has_layers_as_parts = has_exchanges_ || shards_of_[rank].size() > 1;
      const bool joins_neighbours =
          schedule_.folding == Folding::OneEach || (has_layers_as_parts && !starts_chunk_[index]);
      const auto [entry, is_new] = local_rank.emplace(rank, ranks.size());
      if (is_new) {
        ranks.push_back(rank);
        shape.devices.push_back(devices_[rank]);
        devices_of_first.push_back(first_device_of_stage_[pipelines_.placed()[index].stage]);
        becomes.emplace_back();
      }
      if (before != rank || !joins_neighbours) {
        shape.rank_of_stage.push_back(entry->second);
        becomes[entry->second].emplace_back();
      }
      becomes[entry->second].back().push_back(part_of_[index]);
      before = rank;
    }
    return chain;
  }

  std::vector<Order> orders_of_chain(const Chain& chain) const
  {
    const auto& [shape, ranks, becomes, devices_of_first] = chain;
    ScheduleChoice choice = choice_;
    if (schedule_.takes_orders) {
      choice.orders.clear();
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        const auto order = choice_.orders.find(devices_of_first[i]);
        if (order != choice_.orders.end()) choice.orders[shape.devices[i]] = order->second;
      }
    }
    if (const auto warm_up = given_numbers()) {
      auto& own = choice.numbers["warm_up"];
      own.clear();
      for (const std::size_t rank : ranks) own.push_back((*warm_up)[rank]);
    }
    return schedule_.orders(shape, choice);
  }

  /// Orders a pipeline with one replica of each stage.
  void order_chain(const std::vector<std::size_t>& members)
  {
    const Chain chain = chain_of(members);
    const auto orders = orders_of_chain(chain);
    for (std::size_t i = 0; i < orders.size(); ++i) set_order(chain.ranks[i], orders[i], chain.becomes[i]);
  }

  /// Orders a pipeline in which a stage has several replicas, each replica by itself.
  void order_each(const std::vector<std::size_t>& all_members)
  {
    if (schedule_.folding != Folding::OneEach) {
      throw InputError("schedule", fmt::format("{} needs pipelines with one replica of each stage; give all stages "
                                               "replicas with the same micro-batches",
                                               schedule_.name));
    }
    if (overlaps_experts(choice_)) {
      throw InputError("schedule",
                       "overlap_experts needs pipelines with one replica of each stage; give all stages "
                       "replicas with the same micro-batches");
    }
    // Neighbouring stages on the same devices count as one.
    std::vector<std::size_t> members;
    std::unordered_map<std::size_t, std::vector<std::uint32_t>> parts_of_rank;
    for (const std::size_t index : all_members) {
      const PlacedShard& placed = pipelines_.placed()[index];
      const bool is_first = placed.stage == 0 || pipeline_stage_[placed.stage] != pipeline_stage_[placed.stage - 1];
      if (is_first) members.push_back(index);
      if (is_first && !parts_of_rank[placed.rank].empty()) refuse_two_uses(placed.rank);
      parts_of_rank[placed.rank].push_back(part_of_[index]);
    }
    std::map<std::size_t, std::uint64_t> replicas_of_stage;
    for (const std::size_t index : members) ++replicas_of_stage[pipelines_.placed()[index].stage];
    std::uint64_t all = 0;  // micro-batches of the pipeline
    for (const std::size_t index : members) {
      if (pipelines_.placed()[index].stage == pipelines_.placed()[members.front()].stage) {
        all += pipelines_.microbatches_of(index);
      }
    }
    // From the last stage to the first. `ahead` is how far, in micro-batches of the step, a replica of the stage after
    // forwards beyond the one that it takes back.
    std::uint64_t ahead = 0;
    std::uint64_t ahead_here = 0;
    std::uint64_t after = 0;  // replicas of the stages after
    for (std::size_t i = members.size(); i-- > 0;) {
      const auto& [stage, replica, shard, rank] = pipelines_.placed()[members[i]];
      if (i + 1 < members.size() && pipelines_.placed()[members[i + 1]].stage != stage) {
        ahead = std::exchange(ahead_here, 0);
        after += replicas_of_stage.at(pipelines_.placed()[members[i + 1]].stage);
      }
      const std::uint64_t own = pipelines_.microbatches_of(members[i]);
      const std::uint64_t before = members.size() - after - replicas_of_stage.at(stage);
      const auto seen = [&](std::uint64_t replicas) { return (replicas * own + all - 1) / all; };
      const MicrobatchPattern& pattern = pipelines_.pattern_of(stage);
      const std::uint64_t needed = most_within(pattern, replica, ahead);
      Order order = order_within(seen(before), seen(after), own, rank);
      if (warm_up_of(order) < needed) order = order_within(seen(before), needed, own, rank);
      const std::uint64_t warm_up = warm_up_of(order);
      if (warm_up < needed) {
        throw InputError("schedule",
                         fmt::format("warm_up of device {} is {}, so that it and replicas of the next stage "
                                     "would wait for each other; give at least {}",
                                     shown(devices_[rank]), warm_up, needed));
      }
      ahead_here = std::max(ahead_here, span_of(pattern, replica, warm_up));
      set_order(rank, order, {parts_of_rank.at(rank)});
    }
  }

  /// The forwards before the first backward and the one that it takes back.
  static std::uint64_t warm_up_of(const Order& order)
  {
    const auto opcode = order.count(Opcode::Backward, 0) > 0 ? Opcode::Backward : Opcode::BackwardInput;
    return order.position_of(order.nth(opcode, 0, 0)) - 1;
  }

  /// The most micro-batches of a replica among the `distance` of the step that follow one of its own.
  static std::uint64_t most_within(const MicrobatchPattern& pattern, std::size_t replica, std::uint64_t distance)
  {
    const std::uint64_t own = pattern.count(replica);
    std::uint64_t most = 0;
    std::uint64_t last = 0;  // index of the last one within the distance
    for (std::uint64_t index = 0; index < std::min(own, pattern.period()); ++index) {
      while (last + 1 < own && pattern.nth(replica, last + 1) <= pattern.nth(replica, index) + distance) ++last;
      most = std::max(most, last - index);
    }
    return most;
  }

  /// The largest distance, in micro-batches of the step, from one of a replica to the one `further` on.
  static std::uint64_t span_of(const MicrobatchPattern& pattern, std::size_t replica, std::uint64_t further)
  {
    const std::uint64_t own = pattern.count(replica);
    std::uint64_t longest = 0;
    for (std::uint64_t index = 0; index < std::min(own, pattern.period()); ++index) {
      const std::uint64_t to = std::min(index + further, own - 1);
      longest = std::max(longest, pattern.nth(replica, to) - pattern.nth(replica, index));
    }
    return longest;
  }

  /// The order of the device between those numbers of others in a chain.
  Order order_within(std::uint64_t before, std::uint64_t after, std::uint64_t microbatches, std::size_t rank) const
  {
    PipelineShape shape;
    shape.microbatches = microbatches;
    for (std::size_t i = 0; i <= before + after; ++i) {
      shape.devices.push_back(fmt::to_string(i));
      shape.rank_of_stage.push_back(i);
    }
    ScheduleChoice choice = choice_;
    if (const auto warm_up = given_numbers()) choice.numbers["warm_up"].assign(before + after + 1, (*warm_up)[rank]);
    return schedule_.orders(shape, choice)[before];
  }

  const Schedule& schedule_;
  const ScheduleChoice& choice_;
  std::vector<std::string> devices_;
  Pipelines pipelines_;
  std::vector<std::size_t> pipeline_stage_;          // of each stage
  std::vector<std::string> first_device_of_stage_;   // the first shard of its first replica
  bool has_exchanges_;                               // among replicas, so that each layer is a part
  std::vector<bool> uses_machine_;                   // by rank
  std::vector<std::vector<std::size_t>> shards_of_;  // by rank of a first shard: the ranks of all
  std::vector<std::uint32_t> part_of_;               // of each placed replica
  std::vector<bool> starts_chunk_;                   // likewise: Stage::starts_chunk
  std::vector<Order> orders_;                        // by rank
  std::vector<bool> is_ordered_;
  std::vector<std::vector<bool>> is_end_;  // by rank and part: the first or the last of the plan's stages
};

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> stages_of_pipeline(const Plan& plan)
{
  const auto numbers = numbers_in_file(plan);
  const auto* schedule = find_schedule(plan.goal.schedule.name);
  const bool is_one_each = schedule == nullptr || schedule->folding == Folding::OneEach;
  std::vector<std::pair<std::size_t, std::size_t>> stages;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const bool is_part = i > 0 && (numbers[i] == numbers[i - 1] ||
                                   (is_one_each && has_same_devices(plan.stages[i - 1], plan.stages[i])));
    if (is_part) {
      stages.back().second = i;
    } else {
      stages.emplace_back(i, i);
    }
  }
  return stages;
}

std::vector<MicrobatchPattern> microbatch_patterns(const Plan& plan)
{
  std::vector<MicrobatchPattern> patterns;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    std::vector<std::uint64_t> counts;
    for (const auto& replica : plan.stages[i].replicas) {
      counts.push_back(replica.microbatches > 0 ? replica.microbatches : plan.goal.microbatches);
    }
    const std::uint64_t all = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    ensure(all == plan.goal.microbatches, "the replicas of a stage take all micro-batches");
    try {
      patterns.emplace_back(std::move(counts));
    } catch (const InputError& fault) {
      throw InputError(fmt::format("stages[{}].replicas", i), fault.what());
    }
  }
  return patterns;
}

namespace {

/// The order in which each pass of a stage is one of each of its parts.
Order through_parts(const Order& order, std::uint32_t parts)
{
  std::vector<Run> runs;
  for (const auto& run : order.runs()) {
    Run& longer = runs.emplace_back(Run{run.times, {}});
    for (const auto& slot : run.slots) {
      for (std::uint32_t i = 0; i < parts; ++i) {
        const std::uint32_t part = slot.first.opcode == Opcode::Forward ? i : parts - 1 - i;
        longer.slots.push_back({{slot.first.opcode, part, slot.first.microbatch}, slot.stride});
      }
    }
  }
  return Order(std::move(runs));
}

/// The orders of groups of devices that have the same parts, each as if it were one device. Under a schedule with one
/// stage on each device, all parts of a group are one stage.
std::vector<Order> orders_of_parts(const Plan& plan)
{
  const Schedule& schedule = require_schedule(plan.goal.schedule.name);
  if (schedule.splits_backward) {
    throw InputError("schedule",
                     fmt::format("{} splits backward passes, and devices that divide operators compute whole "
                                 "ones; use duplex, gpipe, 1f1b or sequential",
                                 schedule.name));
  }
  const auto group_of_stage = pipeline_stages(plan);
  PipelineShape shape;
  shape.microbatches = plan.goal.microbatches;
  std::vector<std::uint32_t> parts;  // of each group
  std::vector<std::size_t> ranks;    // likewise
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const std::size_t group = group_of_stage[i];
    const bool is_first = i == 0 || group_of_stage[i - 1] != group;
    if (is_first) {
      const auto& replicas = plan.stages[i].replicas;
      shape.devices.push_back(replicas.front().shards.front().device);
      parts.push_back(0);
      ranks.push_back(replicas.size() * replicas.front().shards.size());
    }
    ++parts.back();
    if (is_first || schedule.folding != Folding::OneEach) shape.rank_of_stage.push_back(group);
  }
  const std::vector<Order> of_group = schedule.orders(shape, plan.goal.schedule);
  std::vector<Order> orders;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const bool is_one_stage = schedule.folding == Folding::OneEach;
    orders.insert(orders.end(), ranks[i], is_one_stage ? through_parts(of_group[i], parts[i]) : of_group[i]);
  }
  return orders;
}

}  // namespace

std::vector<Order> orders_of(const Plan& plan)
{
  if (const auto fault = fault_of_overlap(plan)) throw InputError("schedule", *fault);
  if (divides_operators(plan)) return orders_of_parts(plan);
  if (is_partly_divided(plan.stages)) return orders_of_partly_divided(plan);
  if (has_shared_stages(plan) || uses_machines(plan)) return ReplicaOrders(plan).orders();
  return require_schedule(plan.goal.schedule.name).orders(shape_of(plan), plan.goal.schedule);
}

OrderedPipeline first_pipeline_of(const Plan& plan)
{
  if (const auto fault = fault_of_overlap(plan)) throw InputError("schedule", *fault);
  if (divides_operators(plan)) {
    throw InputError("schedule", "devices that divide operators have no orders of one device each");
  }
  if (is_partly_divided(plan.stages)) return first_partly_divided_pipeline(plan);
  if (has_shared_stages(plan) || uses_machines(plan)) return ReplicaOrders(plan).first_pipeline();
  return {shape_of(plan), require_schedule(plan.goal.schedule.name).orders(shape_of(plan), plan.goal.schedule)};
}

std::vector<Order> orders_of_first(const Plan& plan)
{
  return ReplicaOrders(plan).orders();
}

}  // namespace isobar::schedules
