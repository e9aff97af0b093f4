#include "sim/play/faults.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace isobar::sim {

InputError platform_fault(const Platform& platform, const std::string& what)
{
  return {platform.cluster().name, what};
}

InputError off_fault(const SimulationState& state, const std::string& what, const LaneState& lane,
                     const Instruction& instruction)
{
  return platform_fault(
      state.platform, fmt::format("{} is off at {:.6g} s, and {} needs it; the hosts and links of a plan must stay on",
                                  what, (now() - state.begin).value, description(lane, instruction, state.step)));
}

void require_host(const SimulationState& state, const RankState& rank, const LaneState& lane,
                  const Instruction& instruction)
{
  if (!rank.host_is_on) throw off_fault(state, "host " + rank.host->get_name(), lane, instruction);
}

void require_route(const SimulationState& state, const LaneState& send, const Instruction& instruction,
                   const Channel& channel)
{
  require_host(state, state.ranks[send.rank], send, instruction);
  require_host(state, state.ranks[channel.to], send, instruction);
  for (const auto* link : channel.route.links) {
    if (!link->is_on()) throw off_fault(state, "link " + link->get_name(), send, instruction);
  }
}

void throw_fault_of_failed_activity(const SimulationState& state, const LaneState& lane)
{
  const Instruction& instruction = lane.under_way();
  if (lane.uses_network()) {
    require_route(state, lane, instruction, *lane.arriving.channel);
  } else {
    require_host(state, state.ranks[lane.rank], lane, instruction);
  }
  throw std::logic_error("SimGrid reported a failure of " + description(lane, instruction, state.step));
}

std::string description(const LaneState& lane, const Instruction& instruction, std::uint64_t step)
{
  const bool has_microbatch = instruction.opcode != Opcode::Update && instruction.opcode != Opcode::AllReduce;
  return fmt::format("{}{} (rank {}, step {})",
                     is_transfer(instruction) ? name_of(lane.lane) : name_of(instruction.opcode),
                     has_microbatch ? fmt::format(" of micro-batch {}", instruction.microbatch) : "", lane.rank, step);
}

std::string waiting_instructions(const std::vector<RankState>& ranks, std::uint64_t step)
{
  constexpr int most = 20;
  std::string text;
  int count = 0;
  for (const auto& rank : ranks) {
    for (const auto& lane : rank.lanes) {
      if (lane.at_end() || ++count > most) continue;
      const Wait& wait = lane.turn.wait;
      const bool waits = rank.lane(wait.lane).completed < wait.count;
      text += fmt::format(
          "\n  {} waits for {}", description(lane, lane.turn, step),
          waits ? fmt::format("{} of its {}", wait.count, name_of(wait.lane)) : fmt::format("rank {}", lane.turn.peer));
    }
  }
  if (count > most) text += fmt::format("\n  and {} more", count - most);
  return text;
}

}  // namespace isobar::sim
