// What replicas gather and add up, and the updates.

#include "core/steps/pipeline_steps.hpp"

#include "core/costs/layer_times.hpp"
#include "core/errors.hpp"
#include "core/model/dtype.hpp"
#include "core/program/collective.hpp"

#include <algorithm>

namespace isobar {

namespace {

constexpr double float32 = 4;

/// Lanes of collectives among replicas; those for the passes of a stage have its number added.
constexpr std::size_t lane_of_sums = ~std::size_t{0} - 1;
constexpr std::size_t lane_of_facts = ~std::size_t{0} - 2;
constexpr std::size_t lane_of_updated = ~std::size_t{0} - 3;
constexpr std::size_t lane_of_ties = std::size_t{4} << 40;  // with the layer that has the matrix
constexpr std::size_t lane_of_forwards = std::size_t{1} << 40;
constexpr std::size_t lane_of_backwards = std::size_t{2} << 40;
constexpr std::size_t lane_of_gradients = std::size_t{3} << 40;
constexpr std::size_t lanes_of_experts = std::size_t{1} << 44;  // added to those for passes

}  // namespace

PipelineSteps::Ranks PipelineSteps::ranks_of(const std::vector<std::size_t>& seats) const
{
  Ranks ranks;
  for (const std::size_t seat : seats) ranks.push_back(seats_[seat].rank);
  return ranks;
}

std::size_t PipelineSteps::group_of(std::size_t lane, const Ranks& ranks)
{
  const auto [group, is_new] = groups_.try_emplace({lane, ranks}, 0);
  if (!is_new) return group->second;
  std::vector<std::size_t> ends;
  std::vector<std::size_t> slows;
  double start = 0;
  for (const std::size_t rank : ranks) {
    ends.push_back(ranks_[rank].device);
    start = std::max(start, cluster_.devices[ranks_[rank].device].collective_start.value);
    if (ranks_[rank].pace) slows.push_back(*ranks_[rank].pace);
  }
  group->second = graph_.add_group(std::move(ends), start, std::move(slows));
  return group->second;
}

std::size_t PipelineSteps::rounds_for(Opcode opcode, const Ranks& ranks, double bytes, Algorithm algorithm)
{
  // Only sites tell ranks apart.
  const Ranks key = algorithm == Algorithm::Hierarchical ? ranks : Ranks(ranks.size());
  const auto [rounds, is_new] = rounds_.try_emplace({opcode, algorithm, bytes, key}, 0);
  if (!is_new) return rounds->second;
  std::vector<std::string> sites;
  for (const std::size_t rank : ranks) sites.push_back(cluster_.devices[ranks_[rank].device].site);
  rounds->second = graph_.add_rounds(rounds_of(opcode, std::vector(ranks.size(), Bytes(bytes)), algorithm, sites));
  return rounds->second;
}

PipelineSteps::Node PipelineSteps::add_collective(std::size_t lane, Opcode opcode, const Ranks& ranks, double bytes,
                                                  Algorithm algorithm)
{
  const Node node = graph_.add_collective(group_of(lane, ranks), rounds_for(opcode, ranks, bytes, algorithm));
  for (const std::size_t rank : ranks) note(rank, node);
  return node;
}

// --- parameters for passes -------------------------------------------------------------------------------------------

void PipelineSteps::add_gathers_for_passes()
{
  for (std::size_t stage = 0; stage < plan_.stages.size(); ++stage) {
    add_gathers_for(stage, &Seat::forwards);
    add_gathers_for(stage, &Seat::backwards);
  }
}

/// Replicas bring each other their parts of the parameters for each of these passes of a stage.
void PipelineSteps::add_gathers_for(std::size_t stage, std::vector<std::size_t> Seat::*passes)
{
  const std::size_t lane = (passes == &Seat::forwards ? lane_of_forwards : lane_of_backwards) + stage;
  std::map<std::pair<std::size_t, std::size_t>, Node> before;  // by seat and pass: the gather of what are no experts
  for (const auto& [seats, are_experts] : all_copies(stage)) {
    const Seat& first = seats_[seats.front()];
    const double bytes =
        parameters_of(first, are_experts) * size_of(plan_.sync.gathered) / static_cast<double>(seats.size());
    for (std::size_t i = 0; i < (first.*passes).size(); ++i) {
      const Node gather = add_collective(lane + (are_experts ? lanes_of_experts : 0), Opcode::AllGather,
                                         ranks_of(seats), bytes, plan_.sync.algorithm);
      for (const std::size_t each : seats) {
        const Rank& rank = ranks_[seats_[each].rank];
        const std::size_t position = (seats_[each].*passes).at(i);
        graph_.add_wait(rank.passes[position].node, gather);
        if (const auto ahead = one_task_ahead(rank, position)) graph_.add_wait(gather, *ahead);
        if (are_experts) graph_.add_wait(gather, before.at({each, i}));
        before[{each, i}] = gather;
      }
    }
  }
}

// --- sums of gradients -----------------------------------------------------------------------------------------------

/// Those with the last stage first. Of two whose first stage is the same, the one of experts comes after the other.
std::vector<PipelineSteps::Bucket> PipelineSteps::buckets() const
{
  std::vector<Bucket> all;
  add_buckets(false, all);
  add_buckets(true, all);
  std::stable_sort(all.begin(), all.end(),
                   [](const Bucket& a, const Bucket& b) { return a.stages.back() > b.stages.back(); });
  return all;
}

void PipelineSteps::add_buckets(bool of_experts, std::vector<Bucket>& all) const
{
  double filled = 0;
  bool is_open = false;  // the last of them
  const auto has_same_devices = [&](std::size_t a, std::size_t b) {
    const auto& some = first_seat_[a];
    const auto& others = first_seat_[b];
    const auto same_ranks = [&](std::size_t x, std::size_t y) {
      if (seats_[x].shards != seats_[y].shards) return false;
      for (std::size_t k = 0; k < seats_[x].shards; ++k) {
        if (seats_[x + k].rank != seats_[y + k].rank) return false;
      }
      return true;
    };
    return std::equal(some.begin(), some.end(), others.begin(), others.end(), same_ranks);
  };
  std::vector<std::size_t> between;  // without experts, since the last with some
  for (std::size_t stage = plan_.stages.size(); stage-- > 0;) {
    is_open = is_open && stage + 1 < plan_.stages.size() && has_same_devices(stage, stage + 1);
    if (of_experts && is_open && !adds_experts(stage)) between.push_back(stage);
    if (of_experts ? !adds_experts(stage) : replicas_of(stage) == 1) continue;
    if (!is_open || filled >= plan_.sync.bucket.value) {
      all.push_back({{}, of_experts});
      is_open = true;
      filled = 0;
      between.clear();
    }
    auto& stages = all.back().stages;
    stages.insert(stages.end(), between.begin(), between.end());
    between.clear();
    stages.push_back(stage);
    double largest = 0;
    for (const std::size_t first : first_seat_[stage]) {
      for (std::size_t k = 0; k < seats_[first].shards; ++k) {
        largest = std::max(largest, parameters_of(seats_[first + k], of_experts) * float32);
      }
    }
    filled += largest;
  }
}

/// The collectives of a bucket. Where replicas are not divided alike, all devices have what is not divided in common,
/// and one shard of each replica has each piece between two places at which a replica cuts the units of a layer.
std::vector<PipelineSteps::Sum> PipelineSteps::sums_of(const Bucket& bucket) const
{
  const double bytes = size_of(plan_.sync.summed);
  const std::size_t first_stage = bucket.stages.back();
  std::vector<Sum> sums;
  if (is_divided_alike_[first_stage]) {
    for (auto& copies : copies_of(first_stage, bucket.of_experts)) {
      const Seat& first = seats_[copies.seats.front()];
      Sum& sum = sums.emplace_back(Sum{copies.seats, 0});
      for (const std::size_t stage : bucket.stages) {
        const Seat& seat = seats_[seat_at(stage, first.replica, first.shard)];
        sum.bytes += parameters_of(seat, bucket.of_experts) * bytes;
      }
    }
    return sums;
  }
  Sum shared;
  for (const std::size_t first : first_seat_[first_stage]) {
    for (std::size_t k = 0; k < seats_[first].shards; ++k) shared.seats.push_back(first + k);
  }
  std::map<std::vector<std::size_t>, double> pieces;  // by the shard of each replica
  for (const std::size_t stage : bucket.stages) {
    const Layer& layer = workload_.layers[plan_.stages[stage].first_layer];
    const auto divided = static_cast<double>(layer.split ? layer.split->parameters : 0);
    const double units = layer.split ? static_cast<double>(layer.split->units) : 1;
    shared.bytes += (static_cast<double>(layer.parameters) - divided) * bytes;
    std::vector<std::vector<double>> ends;  // of the units of each shard of each replica
    for (const Holder& holder : holders_) {
      if (holder.stage != stage) continue;
      auto& own = ends.emplace_back(units_of(holder, layer));
      for (std::size_t k = 1; k < own.size(); ++k) own[k] += own[k - 1];
    }
    std::vector<std::size_t> shards(ends.size(), 0);
    for (double begin = 0; begin < units;) {
      double end = units;
      for (std::size_t r = 0; r < ends.size(); ++r) end = std::min(end, ends[r][shards[r]]);
      pieces[shards] += (end - begin) / units * divided * bytes;
      for (std::size_t r = 0; r < ends.size(); ++r) shards[r] += ends[r][shards[r]] == end ? 1 : 0;
      begin = end;
    }
  }
  sums.push_back(std::move(shared));
  for (const auto& [shards, size] : pieces) {
    Sum& sum = sums.emplace_back();
    for (std::size_t r = 0; r < shards.size(); ++r) sum.seats.push_back(seat_at(first_stage, r, shards[r]));
    sum.bytes = size;
  }
  return sums;
}

/// The replicas of a stage add up their gradients, the last stage first. The sums of a device follow each other.
void PipelineSteps::add_sums()
{
  for (const auto& bucket : buckets()) {
    for (const Sum& sum : sums_of(bucket)) add_sum(sum, bucket.stages);
    for (const std::size_t stage : bucket.stages) {
      for (const std::size_t first : first_seat_[stage]) {
        for (std::size_t k = 0; k < seats_[first].shards; ++k) {
          Seat& seat = seats_[first + k];
          seat.sums.push_back(ranks_[seat.rank].last_sum.value());
        }
      }
    }
  }
}

void PipelineSteps::add_sum(const Sum& sum, const std::vector<std::size_t>& stages)
{
  const Opcode opcode = is_divided(stages.back()) ? Opcode::ReduceScatter : Opcode::AllReduce;
  const Node node = add_collective(lane_of_sums, opcode, ranks_of(sum.seats), sum.bytes, plan_.sync.algorithm);
  for (const std::size_t number : sum.seats) {
    const Seat& first = seats_[number];
    for (const std::size_t stage : stages) {
      const Seat& seat = seats_[seat_at(stage, first.replica, first.shard)];
      graph_.add_wait(node, ranks_[seat.rank].passes[seat.gradients.back()].weights);
      for (const Node before : seat.before_sum) graph_.add_wait(node, before);
    }
    if (plan_.transfers.blocking) wait_for_sends_of_last(node, first);
    auto& last = ranks_[first.rank].last_sum;
    if (last) graph_.add_wait(node, *last);
    last = node;
  }
}

/// Where transfers block, a sum also waits until what the last backward has made is sent, or added up among shards.
void PipelineSteps::wait_for_sends_of_last(Node sum, const Seat& seat)
{
  const RankPass& last = ranks_[seat.rank].passes[seat.gradients.back()];
  if (last.opcode != Opcode::Backward) return;
  for (const Node send : last.sends) graph_.add_wait(sum, send);
  if (last.sends.empty()) graph_.add_wait(sum, last.made);
}

/// The gradients of each micro-batch are added up after its backward. Those of a device follow each other in the order
/// of its passes.
void PipelineSteps::add_microbatch_sums()
{
  std::vector<std::vector<std::pair<std::size_t, Node>>> of_rank(ranks_.size());  // by the position of the pass
  for (std::size_t stage = 0; stage < plan_.stages.size(); ++stage) {
    for (const auto& [seats, are_experts] : all_copies(stage)) {
      const Seat& first = seats_[seats.front()];
      const double bytes = parameters_of(first, are_experts) * size_of(plan_.sync.summed);
      const std::size_t lane = lane_of_gradients + stage + (are_experts ? lanes_of_experts : 0);
      for (std::size_t i = 0; i < first.gradients.size(); ++i) {
        const Node sum = add_collective(lane, Opcode::ReduceScatter, ranks_of(seats), bytes, plan_.sync.algorithm);
        for (const std::size_t each : seats) {
          Seat& seat = seats_[each];
          const std::size_t position = seat.gradients.at(i);
          graph_.add_wait(sum, ranks_[seat.rank].passes[position].weights);
          of_rank[seat.rank].emplace_back(position, sum);
          if (i + 1 == first.gradients.size()) seat.sums.push_back(sum);
        }
      }
    }
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    auto& sums = of_rank[rank];
    std::sort(sums.begin(), sums.end());
    for (std::size_t i = 1; i < sums.size(); ++i) graph_.add_wait(sums[i].second, sums[i - 1].second);
    if (!sums.empty()) ranks_[rank].last_sum = sums.back().second;
  }
}

std::size_t PipelineSteps::stage_of_layer(std::size_t layer) const
{
  std::size_t stage = 0;
  while (plan_.stages[stage].last_layer < layer) ++stage;
  return stage;
}

/// Devices of several stages that have a copy of a matrix add up its gradients, when those of the replicas of their own
/// stages are added up: each replica and shard with the same ones of the other stages. Of divided gradients they have
/// a part each.
void PipelineSteps::add_tied_sums()
{
  std::map<std::size_t, std::vector<std::size_t>> copies;  // layers with a copy, by the layer with the matrix
  for (std::size_t k = 0; k < workload_.layers.size(); ++k) {
    if (workload_.layers[k].has_tied_copy) copies[workload_.layers[k].tied_to.value()].push_back(k);
  }
  for (const auto& [owner, layers] : copies) {
    const std::size_t first = stage_of_layer(owner);
    for (std::size_t replica = 0; replica < replicas_of(first); ++replica) {
      const std::size_t shards = seats_[seat_at(first, replica, 0)].shards;
      for (std::size_t shard = 0; shard < shards; ++shard) {
        std::vector<std::size_t> seats = {seat_at(first, replica, shard)};
        for (const std::size_t layer : layers) seats.push_back(seat_at(stage_of_layer(layer), replica, shard));
        const double parts = is_divided(first) ? static_cast<double>(replicas_of(first)) : 1;
        const double bytes = seats_[seats.back()].tied.at(owner) * size_of(plan_.sync.summed) / parts;
        const Node sum =
            add_collective(lane_of_ties + owner, Opcode::AllReduce, ranks_of(seats), bytes, Algorithm::Ring);
        for (const std::size_t number : seats) {
          Seat& seat = seats_[number];
          Rank& rank = ranks_[seat.rank];
          graph_.add_wait(sum, rank.passes[seat.gradients.back()].weights);
          for (const Node before : seat.before_sum) graph_.add_wait(sum, before);
          if (plan_.transfers.blocking) wait_for_sends_of_last(sum, seat);
          if (rank.last_sum) graph_.add_wait(sum, *rank.last_sum);
          rank.last_sum = sum;
          seat.sums.push_back(sum);
        }
      }
    }
  }
}

/// All devices agree on what clipping and loss scaling need to know.
void PipelineSteps::add_facts()
{
  facts_.reset();
  if (!needs_gradient_sync(workload_) || ranks_.size() == 1) return;
  Ranks all;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) all.push_back(rank);
  facts_ = add_collective(lane_of_facts, Opcode::AllReduce, all, gradient_sync_size.value, Algorithm::Ring);
  for (const Rank& rank : ranks_) {
    if (!rank.passes.empty()) graph_.add_wait(*facts_, rank.passes.back().node);
    if (rank.last_sum) graph_.add_wait(*facts_, *rank.last_sum);
    for (const Node last : rank.last_gradients) graph_.add_wait(*facts_, last);
  }
}

// --- updates ---------------------------------------------------------------------------------------------------------

/// Replicas that divide the optimizer update a part each.
double PipelineSteps::update_seconds(const Seat& seat) const
{
  const Stage& stage = plan_.stages[seat.stage];
  const Device& device = cluster_.devices[ranks_[seat.rank].device];
  const bool is_typed = known_times(workload_, device.type) != nullptr;
  double time = 0;
  for (std::size_t k = stage.first_layer; k <= stage.last_layer; ++k) {
    const Layer& layer = workload_.layers[k];
    const double all = times_on(workload_, k, device).update.value;
    if (seat.shards == 1 || layer.parameters == 0) {
      time += all;
    } else if (stage.grid.is_grid() && (is_typed || layer.update)) {
      time += all / static_cast<double>(stage.grid.parameter_blocks());
    } else {
      time += all * seat.parameters / static_cast<double>(layer.parameters);
    }
  }
  if (is_divided(seat.stage)) {
    const auto replicas = static_cast<double>(replicas_of(seat.stage));
    const double copies = replicas / static_cast<double>(workload_.experts.degree);
    const double of_experts = seat.parameters > 0 ? seat.experts / seat.parameters : 0;
    time *= (1 - of_experts) / replicas + of_experts / copies;
  }
  return time;
}

void PipelineSteps::wait_for_updates()
{
  for (const Seat& seat : seats_) {
    if (!seat.update) continue;
    for (const Node sum : seat.sums) graph_.add_wait(*seat.update, sum);
    if (facts_) graph_.add_wait(*seat.update, *facts_);
  }
}

/// Replicas bring each other what they have updated, one stage of a device after another.
void PipelineSteps::add_gathers_after_updates()
{
  for (Rank& rank : ranks_) rank.last_after_update.reset();
  for (std::size_t stage = 0; stage < plan_.stages.size(); ++stage) {
    for (const auto& [seats, are_experts] : all_copies(stage)) {
      const double bytes =
          parameters_of(seats_[seats.front()], are_experts) * float32 / static_cast<double>(seats.size());
      const Node gather =
          add_collective(lane_of_updated, Opcode::AllGather, ranks_of(seats), bytes, plan_.sync.algorithm);
      for (const std::size_t each : seats) {
        Seat& seat = seats_[each];
        seat.last_gather = gather;
        graph_.add_wait(gather, seat.update.value());
        auto& last = ranks_[seat.rank].last_after_update;
        if (last) graph_.add_wait(gather, *last);
        last = gather;
      }
    }
  }
}

}  // namespace isobar
