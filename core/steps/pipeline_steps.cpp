// What the passes of a step wait for, and the messages between stages.

#include "core/steps/pipeline_steps.hpp"

#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/system_rules.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace isobar {

namespace {

constexpr double same_share = 1e-9;

}  // namespace

PipelineSteps::PipelineSteps(const Plan& plan, const Workload& workload, const Cluster& cluster,
                             const std::vector<std::vector<StagePass>>& passes, double stretch)
    : plan_(plan),
      workload_(workload),
      cluster_(cluster),
      order_(passes),
      stretch_(stretch),
      overlaps_gathers_(overlaps_gathers(plan)),
      group_(std::lcm(workload.context.degree, workload.experts.degree)),
      cuts_(boundaries_of(workload)),
      graph_(paths_between(plan, cluster)),
      holders_(holders_of(plan))
{
  for (const auto& name : devices_of(plan)) {
    Rank& rank = ranks_.emplace_back();
    rank.device = cluster.device_index(name).value();
    const Device& device = cluster.devices[rank.device];
    if (device.interference > 1) rank.pace = graph_.add_pace(device.interference);
  }
  add_seats();
  find_passes();
  find_takers();
  find_needs();
  find_tiers();
}

double PipelineSteps::play()
{
  const CountedStep counted = counted_step(plan_);
  for (std::uint64_t step = 0; step < counted.played(); ++step) {
    if (step > 0) graph_.begin_step();
    build_step();
  }
  const std::vector<double> ends = graph_.play();
  return ends.at(counted.before) - (counted.before > 0 ? ends.at(counted.before - 1) : 0);
}

void PipelineSteps::add_seats()
{
  first_seat_.resize(plan_.stages.size());
  for (const Holder& holder : holders_) {
    auto& of_stage = first_seat_[holder.stage];
    of_stage.push_back(seats_.size());
    for (const Part& part : holder.parts) {
      Seat seat;
      seat.stage = holder.stage;
      seat.replica = of_stage.size() - 1;
      seat.shard = static_cast<std::size_t>(&part - holder.parts.data());
      seat.shards = holder.parts.size();
      seat.rank = part.rank;
      const Stage& stage = plan_.stages[holder.stage];
      for (std::size_t k = stage.first_layer; k <= stage.last_layer; ++k) {
        const Layer& layer = workload_.layers[k];
        const PassTimes times =
            pass_times_of(plan_, holder, part, workload_, k, cluster_.devices[ranks_[part.rank].device]);
        seat.times.forward += times.forward;
        seat.times.backward += times.backward;
        seat.times.backward_weight += times.backward_weight;
        seat.parameters += isobar::parameters_of(plan_, holder, part, layer);
        if (layer.has_tied_copy) {
          seat.tied[layer.tied_to.value()] =
              held_part(plan_, holder, part, layer, static_cast<double>(layer.tied_parameters));
        }
        if (workload_.experts.divides()) seat.experts += experts_of(plan_, holder, part, layer);
        if (seat.shards > 1 && axis_of_copies(stage.grid, seat.shards).length > 1) {
          const auto divided = static_cast<double>(layer.split ? layer.split->parameters : 0);
          const bool is_grid = stage.grid.is_grid();
          seat.shared += is_grid ? isobar::parameters_of(plan_, holder, part, layer)
                                 : static_cast<double>(layer.parameters) - divided;
        }
      }
      ranks_[seat.rank].seats.push_back(seats_.size());
      seats_.push_back(std::move(seat));
    }
  }
  for (const Stage& stage : plan_.stages) {
    const auto& first = stage.replicas.front().shards;
    is_divided_alike_.push_back(std::all_of(stage.replicas.begin(), stage.replicas.end(), [&](const Replica& replica) {
      return std::equal(first.begin(), first.end(), replica.shards.begin(), replica.shards.end(),
                        [](const Shard& a, const Shard& b) { return std::abs(a.share - b.share) <= same_share; });
    }));
  }
}

void PipelineSteps::find_passes()
{
  for (std::size_t number = 0; number < ranks_.size(); ++number) {
    Rank& rank = ranks_[number];
    rank.passes.reserve(order_.at(number).size());
    std::unordered_map<std::size_t, std::size_t> seat_of_stage;
    for (const std::size_t seat : rank.seats) seat_of_stage[seats_[seat].stage] = seat;
    for (const StagePass& pass : order_[number]) {
      const auto found = seat_of_stage.find(pass.stage);
      ensure(found != seat_of_stage.end(), "a device computes its own stages");
      RankPass& own = rank.passes.emplace_back();
      own.opcode = pass.opcode;
      own.seat = found->second;
      own.microbatch = pass.microbatch;
      Seat& seat = seats_[own.seat];
      const std::size_t position = rank.passes.size() - 1;
      if (pass.opcode == Opcode::Forward) seat.forwards.push_back(position);
      if (pass.opcode == Opcode::Backward || pass.opcode == Opcode::BackwardInput) seat.backwards.push_back(position);
      if (pass.opcode == Opcode::Backward || pass.opcode == Opcode::BackwardWeight) seat.gradients.push_back(position);
    }
  }
}

/// Finds who takes which micro-batch.
void PipelineSteps::find_takers()
{
  takers_.assign(plan_.stages.size(), std::vector<Taker>(plan_.goal.microbatches));
  const bool has_orders_each = is_partly_divided(plan_.stages);
  for (Seat& seat : seats_) {
    const std::size_t part = seat.replica % group_;
    if (seat.shard > 0 || part > 0) {
      const Seat& first = seats_[seat_at(seat.stage, seat.replica - part, 0)];
      const bool is_alike =
          seat.forwards == first.forwards && seat.backwards == first.backwards && seat.gradients == first.gradients;
      ensure(is_alike || (part == 0 && has_orders_each),
             "shards of a replica, and replicas that divide sequences or experts, order their passes alike");
      if (!is_alike) find_own_positions(seat);
    }
    if (seat.shard > 0) continue;
    const auto& passes = ranks_[seat.rank].passes;
    const auto of_pass = [&](std::size_t position) -> Taker& {
      return takers_[seat.stage].at(passes[position].microbatch);
    };
    for (const std::size_t position : seat.forwards) {
      of_pass(position).replica = static_cast<std::uint32_t>(seat.replica);
      of_pass(position).at.forward = static_cast<std::uint32_t>(position);
    }
    for (const std::size_t position : seat.backwards) {
      of_pass(position).at.backward = static_cast<std::uint32_t>(position);
    }
    for (const std::size_t position : seat.gradients) {
      of_pass(position).at.gradient = static_cast<std::uint32_t>(position);
    }
  }
}

void PipelineSteps::find_own_positions(Seat& seat) const
{
  const auto& passes = ranks_[seat.rank].passes;
  seat.own.resize(plan_.goal.microbatches);
  const auto set = [&](const std::vector<std::size_t>& positions, std::uint32_t Positions::*of) {
    for (const std::size_t position : positions) {
      seat.own.at(passes[position].microbatch).*of = static_cast<std::uint32_t>(position);
    }
  };
  set(seat.forwards, &Positions::forward);
  set(seat.backwards, &Positions::backward);
  set(seat.gradients, &Positions::gradient);
}

void PipelineSteps::build_step()
{
  keep_nodes_of_step();
  add_passes();
  add_shard_collectives();
  if (sums_loss_with_gradients(plan_.goal.schedule)) sum_loss_with_gradients();
  add_messages();
  if (plan_.transfers.blocking) block();
  if (plan_.sync.sharded == Sharding::Parameters) add_gathers_for_passes();
  if (plan_.sync.each_microbatch) add_microbatch_sums();
  add_shared_sums();
  if (!plan_.sync.each_microbatch) add_sums();
  add_tied_sums();
  add_facts();
  add_tiers();
  wait_for_updates();
  if (plan_.sync.sharded == Sharding::Optimizer || plan_.sync.sharded == Sharding::Gradients) {
    add_gathers_after_updates();
  }
  end_step();
}

double PipelineSteps::seconds_of(const RankPass& pass) const
{
  const Seat& seat = seats_[pass.seat];
  if (pass.opcode == Opcode::Backward) return seat.times.backward;
  if (pass.opcode == Opcode::BackwardInput) return seat.times.backward - seat.times.backward_weight;
  if (pass.opcode == Opcode::BackwardWeight) return seat.times.backward_weight;
  return seat.times.forward;
}

/// Lets a computation be the next one of a device.
PipelineSteps::Node PipelineSteps::add_next(Rank& rank, double seconds)
{
  const Node node = graph_.add_computation(seconds * stretch_, rank.pace, rank.slows);
  note(static_cast<std::size_t>(&rank - ranks_.data()), node);
  if (rank.ready) graph_.add_wait(node, *rank.ready);
  rank.ready = node;
  return node;
}

/// Adds the passes of each device, and then its updates, one for each of its stages.
void PipelineSteps::add_passes()
{
  for (Rank& rank : ranks_) {
    for (RankPass& pass : rank.passes) {
      pass.node = pass.made = pass.weights = add_next(rank, seconds_of(pass));
      const auto& gather = seats_[pass.seat].last_gather;
      if (pass.opcode == Opcode::Forward && gather) graph_.add_wait(pass.node, *gather);
      pass.takers.clear();
      pass.sends.clear();
    }
    rank.exchanges.clear();
    rank.first_update.reset();
    rank.last_sum.reset();
    rank.last_gradients.clear();
    for (const std::size_t number : rank.seats) {
      Seat& seat = seats_[number];
      seat.before_sum.clear();
      seat.sums.clear();
      seat.last_update = seat.update;
      if (plan_.stages[seat.stage].residence.optimizer != Tier::Device) continue;
      seat.update = add_next(rank, update_seconds(seat));
      if (!rank.first_update) rank.first_update = seat.update;
    }
  }
}

// --- messages --------------------------------------------------------------------------------------------------------

/// Lets a pass, or what it needs of other shards before it, wait for what comes from the neighbouring stage.
void PipelineSteps::arrive(Rank& rank, std::size_t position, Node node)
{
  const RankPass& pass = rank.passes[position];
  for (const Node taker : pass.takers) graph_.add_wait(taker, node);
  if (pass.takers.empty() && pass.node != node) graph_.add_wait(pass.node, node);
}

void PipelineSteps::add_messages()
{
  if (plan_.data_server) add_inputs();
  for (const Seat& seat : seats_) {
    if (seat.stage + 1 < plan_.stages.size()) add_messages_of(seat, seat.stage + 1, true);
    if (seat.stage > 0) add_messages_of(seat, seat.stage - 1, false);
    if (seat.stage + 1 < plan_.stages.size()) continue;
    if (sums_loss_with_gradients(plan_.goal.schedule)) continue;
    if (seat.shards == 1 && needs_[seat_at(seat.stage, seat.replica - seat.replica % group_, 0)].needs.empty())
      continue;
    Rank& rank = ranks_[seat.rank];
    for (const std::size_t position : seat.forwards) {
      const RankPass& pass = rank.passes[position];
      arrive(rank, positions_of(seat, pass.microbatch).backward, pass.made);
    }
  }
}

/// One input is on its way while another one is forwarded.
void PipelineSteps::add_inputs()
{
  constexpr std::size_t buffers = 2;
  for (std::size_t number = 0; number < seats_.size() && seats_[number].stage == 0; ++number) {
    Seat& seat = seats_[number];
    Rank& rank = ranks_[seat.rank];
    if (!seat.input) seat.input = graph_.add_stream(cluster_.data_server_index(), rank.device);
    for (const std::size_t position : seat.forwards) {
      const Node message = graph_.add_message(*seat.input, cuts_.output.front().value);
      note(seat.rank, message);
      note(ranks_.size(), message);
      if (seat.taken.size() >= buffers) graph_.add_wait(message, seat.taken[seat.taken.size() - buffers]);
      arrive(rank, position, message);
      seat.taken.push_back(rank.passes[position].node);
    }
  }
}

/// In how many parts what crosses the cut before a stage travels.
double PipelineSteps::parts_between(std::size_t stage) const
{
  const ShardGrid& grid = plan_.stages[stage].grid;
  return grid.form == ShardGrid::Form::OneD ? 1 : static_cast<double>(grid.blocks());
}

/// Whether a seat brings what it makes to one of a neighbouring stage: to that on its own rank, and where no seat of
/// its replica is on the other's rank, shards take turns.
bool PipelineSteps::brings(const Seat& from, const Seat& to) const
{
  if (from.rank == to.rank) return true;
  const auto first = seats_.begin() + static_cast<std::ptrdiff_t>(seat_at(from.stage, from.replica, 0));
  const bool has_it = from.shards != to.shards && std::any_of(first, first + static_cast<std::ptrdiff_t>(from.shards),
                                                              [&](const Seat& other) { return other.rank == to.rank; });
  return !has_it && from.shard == to.shard % from.shards;
}

/// Sends what the passes of a seat make to those of a neighbouring stage that take the same micro-batches.
void PipelineSteps::add_messages_of(const Seat& from, std::size_t to_stage, bool is_forward)
{
  const std::size_t later = std::max(from.stage, to_stage);
  const std::size_t cut = plan_.stages[later].first_layer;
  const double whole = (is_forward ? cuts_.output : cuts_.gradient).at(cut).value;
  Rank& rank = ranks_[from.rank];
  for (const std::size_t position : is_forward ? from.forwards : from.backwards) {
    RankPass& pass = rank.passes[position];
    const Taker& taker = takers_[to_stage][pass.microbatch];
    const std::size_t shards = seats_[seat_at(to_stage, taker.replica, 0)].shards;
    const bool is_sliced = plan_.transfers.sliced && shards == from.shards && parts_between(later) == 1;
    const double bytes = whole / (is_sliced ? static_cast<double>(shards) : parts_between(later));
    for (std::size_t shard = 0; shard < shards; ++shard) {
      const std::size_t number = seat_at(to_stage, taker.replica, shard);
      if (!brings(from, seats_[number])) continue;
      Rank& to = ranks_[seats_[number].rank];
      const Positions at = positions_of(seats_[number], pass.microbatch);
      const std::size_t taken = is_forward ? at.forward : at.backward;
      if (&to == &rank) {
        arrive(to, taken, pass.made);
        continue;
      }
      const auto own = static_cast<std::uint64_t>(&from - seats_.data());
      const std::uint64_t key = own << 32 | static_cast<std::uint64_t>(number);
      const auto [stream, is_new] = streams_.try_emplace(key, 0);
      if (is_new) stream->second = graph_.add_stream(rank.device, to.device);
      const Node message = graph_.add_message(stream->second, bytes);
      note(from.rank, message);
      note(seats_[number].rank, message);
      graph_.add_wait(message, pass.made);
      pass.sends.push_back(message);
      arrive(to, taken, message);
    }
  }
}

/// Lets each computation wait until what the one before it has made is sent, or added up where it is not sent. Where
/// passes overlap, tokens are on their way meanwhile.
void PipelineSteps::block()
{
  for (Rank& rank : ranks_) {
    for (std::size_t position = 0; position < rank.passes.size(); ++position) {
      const RankPass& pass = rank.passes[position];
      if (pass.opcode == Opcode::BackwardWeight) continue;
      const bool is_last = position + 1 == rank.passes.size();
      const auto next = is_last ? rank.first_update : std::optional(rank.passes[position + 1].node);
      if (!next) continue;
      for (const Node send : pass.sends) graph_.add_wait(*next, send);
      const bool overlaps = overlaps_experts(plan_.goal.schedule) && exchanges_tokens(seats_[pass.seat]);
      if (pass.sends.empty() && pass.made != pass.node && !overlaps) graph_.add_wait(*next, pass.made);
    }
  }
}

bool PipelineSteps::is_divided(std::size_t stage) const
{
  return plan_.sync.sharded != Sharding::None && replicas_of(stage) > 1;
}

std::vector<PipelineSteps::Copies> PipelineSteps::copies_of(std::size_t stage, bool of_experts) const
{
  const std::size_t parts = of_experts ? workload_.experts.degree : 1;
  std::vector<Copies> all;
  for (std::size_t shard = 0; shard < seats_[first_seat_[stage].front()].shards; ++shard) {
    for (std::size_t part = 0; part < parts; ++part) {
      Copies& copies = all.emplace_back(Copies{{}, of_experts});
      for (std::size_t replica = part; replica < replicas_of(stage); replica += parts) {
        copies.seats.push_back(seat_at(stage, replica, shard));
      }
    }
  }
  return all;
}

bool PipelineSteps::adds_experts(std::size_t stage) const
{
  const bool has_copies = replicas_of(stage) > workload_.experts.degree;
  return has_copies && seats_[first_seat_[stage].front()].experts > 0;
}

std::vector<PipelineSteps::Copies> PipelineSteps::all_copies(std::size_t stage) const
{
  if (replicas_of(stage) == 1) return {};
  auto all = copies_of(stage, false);
  if (!adds_experts(stage)) return all;
  const auto of_experts = copies_of(stage, true);
  all.insert(all.end(), of_experts.begin(), of_experts.end());
  return all;
}

}  // namespace isobar
