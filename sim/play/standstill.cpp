#include "sim/play/standstill.hpp"

#include "sim/play/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace isobar::sim {

namespace {

constexpr double standstill_rate = 1e-4;
constexpr double patience = 1000;  // times the nominal duration of what is under way

/// Nominal duration of what the lane has under way, with its host or links to itself; of messages, the first one.
Seconds nominal_time(const RankState& rank, const LaneState& lane)
{
  if (!lane.uses_network()) return lane.running ? lane.turn.work / rank.speed : Seconds(0);
  if (!lane.activity && lane.on_the_way.empty()) return Seconds(0);
  const Message& message = lane.activity ? lane.arriving : lane.on_the_way.front();
  const Route& route = message.channel->route;
  return message.latency + Bytes(static_cast<double>(message.bytes)) / std::min(route.bandwidth, route.rate_cap);
}

/// "link up", "host a": the slowest resource of the lane's activity.
std::string slowest_resource(const RankState& rank, const LaneState& lane)
{
  if (!lane.uses_network() || lane.arriving.channel->route.links.empty()) return "host " + rank.host->get_name();
  const auto& links = lane.arriving.channel->route.links;
  const auto has_less = [](const auto* a, const auto* b) { return a->get_bandwidth() < b->get_bandwidth(); };
  return "link " + (*std::min_element(links.begin(), links.end(), has_less))->get_name();
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
  for (const auto& rank : state.ranks) {
    for (const auto& lane : rank.lanes) nominal += nominal_time(rank, lane);
  }
  if (now() - state.last_progress < std::max(week, patience * nominal)) return;
  for (const auto& rank : state.ranks) {
    for (const auto& lane : rank.lanes) {
      if (!lane.activity) continue;
      throw platform_fault(
          state.platform,
          fmt::format("{} stands still: nothing has completed since {:.6g} s, and {} waits for it; let its profile "
                      "rise above 0 again",
                      slowest_resource(rank, lane), (state.last_progress - state.begin).value,
                      description(lane, lane.under_way(), state.step)));
    }
  }
}

}  // namespace isobar::sim
