// What the shards of a replica, and of replicas that divide sequences or experts, bring each other.

#include "core/steps/pipeline_steps.hpp"

#include "core/plan/shard_collectives.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar {

namespace {

constexpr double bytes_of_a_gradient = 4;

/// The last collectives of a pass so far, by side and payload.
std::size_t chain_of(const ShardNeed& need)
{
  return 2 * static_cast<std::size_t>(need.payload) + (need.is_before ? 1 : 0);
}
constexpr std::size_t chains = 2 * (static_cast<std::size_t>(Payload::Optimizer) + 1);

bool is_of(NeedOf need, Opcode pass)
{
  if (need == NeedOf::Forward) return pass == Opcode::Forward;
  const Opcode half = need == NeedOf::InputGradient ? Opcode::BackwardInput : Opcode::BackwardWeight;
  return pass == Opcode::Backward || pass == half;
}

}  // namespace

void PipelineSteps::find_needs()
{
  needs_.resize(seats_.size());
  for (std::size_t first = 0; first < seats_.size(); first += seats_[first].shards) {
    const Seat& seat = seats_[first];
    if (seat.replica % group_ != 0) continue;
    const Stage& stage = plan_.stages[seat.stage];
    ReplicaNeeds& own = needs_[first];
    if (group_ > 1 || workload_.experts.divides()) own.needs = replica_needs(workload_, stage.first_layer, seat.shards);
    if (seat.shards > 1) {
      // What follows a pass among replicas comes before that among shards; what precedes it, after.
      const auto before =
          std::find_if(own.needs.begin(), own.needs.end(), [](const auto& need) { return need.is_before; });
      const auto of_shards = shard_needs(workload_, cuts_, stage.first_layer, stage.grid, seat.shards);
      own.needs.insert(before, of_shards.begin(), of_shards.end());
    }
    for (const ShardNeed& need : own.needs) {
      auto& meetings = own.meetings.emplace_back();
      for (std::size_t i = 0; i < group_; i += need.replicas) {
        if (need.replicas > 1) {
          add_meetings_of_replicas(need, seat.stage, seat.replica + i, meetings);
        } else {
          add_meetings(need, seat.stage, seat.replica + i, meetings);
        }
      }
    }
  }
}

void PipelineSteps::add_meetings(const ShardNeed& need, std::size_t stage, std::size_t replica,
                                 std::vector<Meeting>& meetings)
{
  std::map<std::size_t, std::vector<std::size_t>> by_first;
  const std::size_t first = seat_at(stage, replica, 0);
  for (std::size_t shard = 0; shard < seats_[first].shards; ++shard) {
    by_first[need.axis.first_of(shard)].push_back(first + shard);
  }
  for (auto& [number, seats] : by_first) meetings.push_back(meeting_of(need, std::move(seats)));
}

/// The same shard of each of neighbouring replicas, or all of them.
void PipelineSteps::add_meetings_of_replicas(const ShardNeed& need, std::size_t stage, std::size_t replica,
                                             std::vector<Meeting>& meetings)
{
  const std::size_t together = need.axis.length;
  for (std::size_t first = 0; first < seats_[seat_at(stage, replica, 0)].shards; first += together) {
    std::vector<std::size_t> seats;
    for (std::size_t i = 0; i < need.replicas; ++i) {
      for (std::size_t k = 0; k < together; ++k) seats.push_back(seat_at(stage, replica + i, first + k));
    }
    meetings.push_back(meeting_of(need, std::move(seats)));
  }
}

PipelineSteps::Meeting PipelineSteps::meeting_of(const ShardNeed& need, std::vector<std::size_t> seats)
{
  const Ranks ranks = ranks_of(seats);
  const Algorithm algorithm = need.goes_around ? Algorithm::Ring : algorithm_among_shards(ranks);
  return {group_of(need.lane, ranks), rounds_for(need.opcode, ranks, need.bytes, algorithm), std::move(seats)};
}

Algorithm PipelineSteps::algorithm_among_shards(const Ranks& ranks) const
{
  std::vector<std::string> sites;
  for (const std::size_t rank : ranks) sites.push_back(cluster_.devices[ranks_[rank].device].site);
  return algorithm_of_shards(plan_.sync.algorithm, sites);
}

/// The shards of a replica, or of a group of replicas that divide sequences or experts, have all stages together that
/// they divide, in one order, so that of the first one is that of all.
void PipelineSteps::add_shard_collectives()
{
  for (const Rank& rank : ranks_) {
    if (rank.seats.empty()) continue;
    const Seat& first = seats_[rank.seats.front()];
    if (first.shard > 0 || first.replica % group_ != 0) continue;
    for (std::size_t position = 0; position < rank.passes.size(); ++position) {
      const std::size_t seat = rank.passes[position].seat;
      if (!needs_[seat].needs.empty()) add_shard_collectives(seat, position);
    }
  }
  if (overlaps_experts(plan_.goal.schedule)) order_exchanges();
}

/// Where passes overlap, a device exchanges tokens in the order in which its passes let them: before a pass not before
/// it has computed the one before it of the same direction, and if another device makes what the pass reads, after all
/// that comes before the pass.
void PipelineSteps::order_exchanges()
{
  using Turn = std::tuple<std::size_t, std::size_t, std::size_t>;
  for (Rank& rank : ranks_) {
    std::map<Turn, TokenExchange> ordered;
    std::array<std::size_t, 2> computed{};  // passes until the end of the last one of each direction
    for (std::size_t position = 0; position < rank.passes.size(); ++position) {
      const Opcode opcode = rank.passes[position].opcode;
      if (opcode == Opcode::BackwardWeight) continue;
      std::size_t& until = computed.at(opcode == Opcode::Forward ? 0 : 1);
      const auto before = rank.exchanges.find({position, 1});
      const auto after = rank.exchanges.find({position, 0});
      const auto made = made_at(rank, position);
      const std::size_t turn = made ? std::max(*made + 1, until) : position;
      if (before != rank.exchanges.end()) ordered.emplace(Turn{turn, 1, position}, before->second);
      if (after != rank.exchanges.end()) ordered.emplace(Turn{position + 1, 0, position}, after->second);
      until = position + 1;
    }
    std::optional<Node> last;
    for (const auto& [turn, exchange] : ordered) {
      if (last) graph_.add_wait(exchange.first, *last);
      last = exchange.last;
    }
  }
}

/// Where a device makes what one of its passes reads; none where another device does, or where the replicas of the
/// other stage take other micro-batches.
std::optional<std::size_t> PipelineSteps::made_at(const Rank& rank, std::size_t position) const
{
  const RankPass& pass = rank.passes[position];
  const Seat& seat = seats_[pass.seat];
  const bool is_forward = pass.opcode == Opcode::Forward;
  if (!is_forward && seat.stage + 1 == plan_.stages.size()) return takers_[seat.stage][pass.microbatch].at.forward;
  if (is_forward && seat.stage == 0) return std::nullopt;
  const std::size_t other = is_forward ? seat.stage - 1 : seat.stage + 1;
  if (replicas_of(other) != replicas_of(seat.stage)) return std::nullopt;
  const std::size_t first = seat_at(other, seat.replica, 0);
  const Seat& maker = seats_[first + seat.shard % seats_[first].shards];
  if (&ranks_[maker.rank] != &rank) return std::nullopt;
  const Taker& taker = takers_[other][pass.microbatch];
  return is_forward ? taker.at.forward : taker.at.backward;
}

bool PipelineSteps::exchanges_tokens(const Seat& seat) const
{
  const auto& needs = needs_[seat_at(seat.stage, seat.replica - seat.replica % group_, 0)].needs;
  return std::any_of(needs.begin(), needs.end(), [](const ShardNeed& need) { return need.is_of_tokens; });
}

void PipelineSteps::add_shard_collectives(std::size_t first_seat, std::size_t position)
{
  const ReplicaNeeds& own = needs_[first_seat];
  const Opcode opcode = ranks_[seats_[first_seat].rank].passes[position].opcode;
  // The last ones so far of each chain and seat, of a whole backward for each gradient.
  std::array<std::array<std::vector<std::optional<Node>>, chains>, 3> before;
  for (std::size_t i = 0; i < own.needs.size(); ++i) {
    const ShardNeed& need = own.needs[i];
    if (!is_of(need.pass, opcode)) continue;
    auto& last = before[static_cast<std::size_t>(need.pass)][chain_of(need)];
    last.resize(group_ * seats_[first_seat].shards);
    for (const Meeting& meeting : own.meetings[i]) add_meeting(need, meeting, position, last);
  }
}

/// Where a seat has the pass that the first shard of its replica has at a position.
std::size_t PipelineSteps::position_of(const Seat& seat, const RankPass& pass, std::size_t position) const
{
  if (seat.own.empty()) return position;
  const Positions& own = seat.own[pass.microbatch];
  if (pass.opcode == Opcode::Forward) return own.forward;
  return pass.opcode == Opcode::BackwardWeight ? own.gradient : own.backward;
}

/// Shards of the last layer that take a micro-batch back before they know what the loss needs of others scale the
/// gradient of its input when they add it up, and that of the parameters when they make it.
void PipelineSteps::sum_loss_with_gradients()
{
  const std::size_t last = plan_.stages.size() - 1;
  for (const Seat& seat : seats_) {
    if (seat.stage != last) continue;
    auto& passes = ranks_[seat.rank].passes;
    for (const std::size_t position : seat.forwards) {
      const RankPass& forward = passes[position];
      const Positions at = positions_of(seat, forward.microbatch);
      graph_.add_wait(passes[at.backward].made, forward.made);
      graph_.add_wait(passes[at.gradient].node, forward.made);
    }
  }
}

void PipelineSteps::add_meeting(const ShardNeed& need, const Meeting& meeting, std::size_t first_position,
                                std::vector<std::optional<Node>>& before)
{
  const Node node = graph_.add_collective(meeting.group, meeting.rounds);
  const Rank& first_rank = ranks_[seats_[meeting.seats.front()].rank];
  for (const std::size_t number : meeting.seats) {
    const Seat& seat = seats_[number];
    Rank& rank = ranks_[seat.rank];
    const std::size_t position = position_of(seat, first_rank.passes[first_position], first_position);
    RankPass& pass = rank.passes[position];
    auto& last = before[seat.replica % group_ * seat.shards + seat.shard];
    note(seat.rank, node);
    if (need.is_of_tokens) {
      const std::size_t is_before = need.is_before ? 1 : 0;
      rank.exchanges.try_emplace({position, is_before}, TokenExchange{node, node}).first->second.last = node;
    }
    if (last) graph_.add_wait(node, *last);
    if (need.is_before) {
      graph_.add_wait(pass.node, node);
      if (need.on_arrival && !last) pass.takers.push_back(node);
      const auto ahead = need.on_arrival ? std::nullopt : one_task_ahead(rank, position);
      if (ahead) graph_.add_wait(node, *ahead);
    } else {
      if (!last) graph_.add_wait(node, pass.node);
      (need.pass == NeedOf::WeightGradient ? pass.weights : pass.made) = node;
    }
    last = node;
  }
}

/// What is gathered for a pass comes while the one before it runs, unless both are of one stage, or the plan's system
/// lets passes wait for it; for the first passes after the update of the step before.
std::optional<PipelineSteps::Node> PipelineSteps::one_task_ahead(const Rank& rank, std::size_t position) const
{
  const std::size_t seat = rank.passes[position].seat;
  if (position > 0) {
    const RankPass& before = rank.passes[position - 1];
    const bool is_own = before.seat == seat && before.opcode != Opcode::BackwardWeight;
    if (is_own || !overlaps_gathers_) return before.node;
  }
  return position > 1 ? std::optional(rank.passes[position - 2].node) : seats_[seat].last_update;
}

/// Once a step, shards add up the gradients of parameters that several of them have, those of the last stage first.
/// Where replicas have added them up and divided them after each micro-batch, each has its part.
void PipelineSteps::add_shared_sums()
{
  const bool has_shared = std::any_of(seats_.begin(), seats_.end(), [](const Seat& seat) { return seat.shared > 0; });
  constexpr std::size_t lane = ~std::size_t{0};
  for (std::size_t first = seats_.size(); first-- > 0;) {
    const Seat& seat = seats_[first];
    if (seat.shard > 0 || seat.shards == 1) continue;
    const ShardAxis axis = axis_of_copies(plan_.stages[seat.stage].grid, seat.shards);
    const bool adds_up = has_shared && axis.length > 1 && is_divided_alike_[seat.stage];
    std::map<std::size_t, std::vector<std::size_t>> meetings;
    for (std::size_t shard = 0; shard < seat.shards; ++shard) {
      meetings[axis.first_of(shard)].push_back(first + shard);
      Seat& own = seats_[first + shard];
      Rank& rank = ranks_[own.rank];
      const bool is_summed = plan_.sync.each_microbatch && !own.sums.empty();
      const Node last = is_summed ? own.sums.back() : rank.passes[own.gradients.back()].weights;
      own.before_sum.push_back(last);
      rank.last_gradients.push_back(last);
      if (!adds_up) own.sums.push_back(last);
    }
    for (const auto& [number, seats] : meetings) {
      if (!adds_up) break;
      const Ranks ranks = ranks_of(seats);
      const double parts = plan_.sync.each_microbatch ? static_cast<double>(replicas_of(seat.stage)) : 1;
      const Node sum = add_collective(lane, Opcode::AllReduce, ranks, seat.shared * bytes_of_a_gradient / parts,
                                      algorithm_among_shards(ranks));
      for (const std::size_t each : seats) {
        Seat& own = seats_[each];
        graph_.add_wait(sum, own.before_sum.front());
        own.before_sum.push_back(sum);
        own.sums.push_back(sum);
        ranks_[own.rank].last_gradients.push_back(sum);
      }
    }
  }
}

}  // namespace isobar
