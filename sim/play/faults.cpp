#include "sim/play/faults.hpp"

#include "sim/play/collectives.hpp"

#include <fmt/format.h>

#include <set>
#include <stdexcept>

namespace isobar::sim {

namespace {

/// "rank 2": the ranks of a channel's ends that have not reached the lane's turn.
std::string missing_ranks(const LaneState& lane)
{
  constexpr std::size_t most = 8;
  std::set<std::size_t> ranks;
  if (lane.collective != nullptr) {
    for (const auto* end : lane.collective->ends) {
      if (end->state != TurnState::Joined) ranks.insert(end->rank);
    }
  } else {
    ranks.insert(lane.other_end->rank);
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  std::size_t count = 0;
  for (const auto rank : ranks) {
    if (++count > most) break;
    text += fmt::format("{}{}", count == 1 ? "" : ", ", rank);
  }
  if (ranks.size() > most) text += fmt::format(" and {} more", ranks.size() - most);
  return text;
}

/// What the lane's turn waits for.
std::string awaited(const LaneState& lane)
{
  if (lane.state == TurnState::Held) return fmt::format("the end of step {} of its rank", lane.step - 2);
  if (lane.state != TurnState::Waiting) return missing_ranks(lane);
  const Wait& wait = lane.turn.instruction.waits.begin()[lane.waits_over];
  std::string text = fmt::format("{} of its {}", wait.count, lane.job->program->lanes(lane.rank).at(wait.lane).name);
  if (wait.periods_back > 0) text += fmt::format(" in step {}", lane.turn.period - wait.periods_back);
  return text;
}

}  // namespace

InputError platform_fault(const Platform& platform, const std::string& what)
{
  return {platform.cluster().name, what};
}

InputError off_fault(const SimulationState& state, const std::string& what, const LaneState& lane, const Turn& turn)
{
  return platform_fault(
      state.platform, fmt::format("{} is off at {:.6g} s, and {} needs it; the hosts and links of a plan must stay on",
                                  what, (now() - state.begin).value, description(lane, turn)));
}

void require_host(const SimulationState& state, const LaneState& lane, const Turn& turn)
{
  const RankState& rank = rank_of(lane);
  if (!rank.host->is_on()) throw off_fault(state, "host " + rank.host->get_name(), lane, turn);
}

void require_machine(const SimulationState& state, const LaneState& lane, const Turn& turn)
{
  const RankState& rank = rank_of(lane);
  if (rank.machine == nullptr) {
    throw platform_fault(state.platform,
                         fmt::format("device {} is in no machine, and {} needs one; name it with the prop host",
                                     rank.host->get_name(), description(lane, turn)));
  }
  if (!rank.machine->host->is_on()) throw off_fault(state, "host " + rank.machine->host->get_name(), lane, turn);
}

void require_hop(const SimulationState& state, const LaneState& lane, const Turn& turn, const Hop& hop)
{
  for (const auto* host : {hop.from, hop.to}) {
    if (!host->is_on()) throw off_fault(state, "host " + host->get_name(), lane, turn);
  }
  for (const auto* link : hop.route.links) {
    if (!link->is_on()) throw off_fault(state, "link " + link->get_name(), lane, turn);
  }
}

void throw_fault_of_failed_activity(const SimulationState& state, const ActivityOwner& owner)
{
  const auto* stream = owner.is_stream ? static_cast<const Stream*>(&owner) : nullptr;
  const LaneState& lane = stream != nullptr ? *stream->sender : static_cast<const LaneState&>(owner);
  const Turn& turn = lane.under_way();
  if (stream != nullptr) {
    require_hop(state, lane, turn, *stream->hop);
  } else if (lane.engine == Engine::Host || is_copy(turn.instruction.opcode)) {
    require_machine(state, lane, turn);
  } else {
    require_host(state, lane, turn);
  }
  throw std::logic_error("SimGrid reported a failure of " + description(lane, turn));
}

std::string description(const LaneState& lane, const Turn& turn)
{
  const Instruction& instruction = turn.instruction;
  const bool is_of_tensors = instruction.payload == Payload::Activation || instruction.payload == Payload::Gradient;
  const bool has_microbatch = (is_pass(instruction.opcode) || !is_computation(instruction.opcode)) && is_of_tensors;
  return fmt::format("{}{}{} ({}rank {}, step {})", name_of(instruction.opcode),
                     is_computation(instruction.opcode) ? "" : fmt::format(" {}", name_of(instruction.payload)),
                     has_microbatch ? fmt::format(" of micro-batch {}", instruction.microbatch) : "",
                     lane.job->name.empty() ? "" : fmt::format("job {}, ", lane.job->name), lane.rank, turn.period);
}

std::string waiting_instructions(const SimulationState& state)
{
  constexpr int most = 20;
  std::string text;
  int count = 0;
  for (const auto& job : state.jobs) {
    for (const auto& rank : job.ranks) {
      for (const auto& lane : rank.lanes) {
        if (lane.state == TurnState::Over || ++count > most) continue;
        text += fmt::format("\n  {} waits for {}", description(lane, lane.turn), awaited(lane));
      }
    }
  }
  if (count > most) text += fmt::format("\n  and {} more", count - most);
  return text;
}

}  // namespace isobar::sim
