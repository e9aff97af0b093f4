#include "sim/play/standstill.hpp"

#include "sim/play/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace isobar::sim {

namespace {

constexpr double standstill_rate = 1e-4;
constexpr double patience = 1000;  // times the nominal duration of what is under way

/// Nominal duration of what a lane computes, reads or writes, with its host or disk to itself.
Seconds nominal_time(const RankState& rank, const LaneState& lane)
{
  if (!lane.activity) return Seconds(0);
  const Instruction& instruction = lane.turn.instruction;
  if (instruction.opcode == Opcode::Read) return rank.machine_rates.read.time_of(instruction.size);
  if (instruction.opcode == Opcode::Write) return rank.machine_rates.write.time_of(instruction.size);
  return instruction.time / lane.rate;
}

/// Nominal duration of the first message of a stream, with its links to itself.
Seconds nominal_time(const Stream& stream)
{
  if (!stream.activity && stream.on_the_way.empty()) return Seconds(0);
  const Message& message = stream.activity ? stream.arriving : stream.on_the_way.front();
  const Route& route = stream.hop->route;
  return message.latency + Bytes(static_cast<double>(message.bytes)) / std::min(route.bandwidth, route.rate_cap);
}

/// "link up": the slowest link of the stream; its sender's host where there is none.
std::string slowest_resource(const Stream& stream)
{
  const auto& links = stream.hop->route.links;
  if (links.empty()) return "host " + stream.hop->from->get_name();
  const auto has_less = [](const auto* a, const auto* b) { return a->get_bandwidth() < b->get_bandwidth(); };
  return "link " + (*std::min_element(links.begin(), links.end(), has_less))->get_name();
}

InputError standstill_fault(const SimulationState& state, const std::string& what, const LaneState& lane)
{
  return platform_fault(
      state.platform,
      fmt::format("{} stands still: nothing has completed since {:.6g} s, and {} waits for it; let "
                  "its profile rise above 0 again",
                  what, (state.last_progress - state.begin).value, description(lane, lane.under_way())));
}

template <typename Visit>
void for_each_lane(const SimulationState& state, Visit visit)
{
  for (const auto& job : state.jobs) {
    for (const auto& rank : job.ranks) {
      for (const auto& lane : rank.lanes) visit(rank, lane);
    }
  }
}

}  // namespace

void hold_at_standstill(const sg4::Host& host)
{
  if (host.get_available_speed() > 0) return;
  sg4::Engine::get_instance()
      ->host_by_name(host.get_name())
      ->set_sharing_policy(sg4::Host::SharingPolicy::NONLINEAR,
                           [](double speed, int) { return std::max(speed, standstill_rate); });
}

bool hold_at_standstill(const sg4::Link& link)
{
  if (link.get_bandwidth() > 0) return false;
  sg4::Engine::get_instance()->link_by_name(link.get_name())->set_bandwidth(standstill_rate);
  return true;
}

void give_up_at_standstill(const SimulationState& state)
{
  Seconds nominal;
  for_each_lane(state, [&](const RankState& rank, const LaneState& lane) { nominal += nominal_time(rank, lane); });
  for (const auto& stream : state.streams) nominal += nominal_time(stream);
  if (now() - state.last_progress < std::max(week, patience * nominal)) return;
  for_each_lane(state, [&](const RankState& rank, const LaneState& lane) {
    if (!lane.activity) return;
    const sg4::Host& host = lane.engine == Engine::Device ? *rank.host : *rank.machine->host;
    throw standstill_fault(state, "host " + host.get_name(), lane);
  });
  for (const auto& stream : state.streams) {
    if (stream.activity) throw standstill_fault(state, slowest_resource(stream), *stream.sender);
  }
}

}  // namespace isobar::sim
