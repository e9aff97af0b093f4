#include "sim/play/simulation_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace isobar::sim {

bool has_on_the_way(const LaneState& send, const sg4::Link& link)
{
  return std::any_of(send.on_the_way.begin(), send.on_the_way.end(), [&link](const Message& message) {
    const auto& links = message.channel->route.links;
    return std::find(links.begin(), links.end(), &link) != links.end();
  });
}

void remove_timers(std::vector<RankState>& ranks)
{
  for (auto& rank : ranks) {
    for (auto& lane : rank.lanes) {
      if (lane.timer != nullptr) std::exchange(lane.timer, nullptr)->remove();
    }
  }
}

BytesPerSecond narrowest_now(const Route& route)
{
  double narrowest = std::numeric_limits<double>::infinity();
  for (const auto* link : route.links) narrowest = std::min(narrowest, link->get_bandwidth());
  return BytesPerSecond(narrowest);
}

Seconds nominal_time(const RankState& rank, const LaneState& lane)
{
  if (!lane.uses_network()) return lane.running ? lane.turn.work / rank.speed : Seconds(0);
  if (!lane.activity && lane.on_the_way.empty()) return Seconds(0);
  const Message& message = lane.activity ? lane.arriving : lane.on_the_way.front();
  const Route& route = message.channel->route;
  return message.latency + Bytes(static_cast<double>(message.bytes)) / std::min(route.bandwidth, route.rate_cap);
}

std::string what_stands_still(const RankState& rank, const LaneState& lane)
{
  if (!lane.uses_network() || lane.arriving.channel->route.links.empty()) return "host " + rank.host->get_name();
  const auto& links = lane.arriving.channel->route.links;
  const auto has_less = [](const auto* a, const auto* b) { return a->get_bandwidth() < b->get_bandwidth(); };
  return "link " + (*std::min_element(links.begin(), links.end(), has_less))->get_name();
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
