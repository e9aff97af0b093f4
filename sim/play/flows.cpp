#include "sim/play/flows.hpp"

#include "core/errors.hpp"
#include "sim/play/standstill.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace isobar::sim {

namespace {

/// The current bandwidth of the narrowest link; infinite without links.
BytesPerSecond narrowest_now(const Route& route)
{
  double narrowest = std::numeric_limits<double>::infinity();
  for (const auto* link : route.links) narrowest = std::min(narrowest, link->get_bandwidth());
  return BytesPerSecond(narrowest);
}

}  // namespace

void Flows::start(LaneState& send, std::uint64_t bytes)
{
  const Channel& channel = *send.arriving.channel;
  const Route& route = channel.route;
  const auto comm = sg4::Comm::sendto_init(state_.ranks[send.rank].host, state_.ranks[channel.to].host);
  comm->set_payload_size(bytes);
  comm->set_data(&send);
  send.activity = comm;
  const bool is_capped = std::isfinite(route.rate_cap.value);
  send.fixed_bound = BytesPerSecond(std::numeric_limits<double>::infinity());
  if (is_capped || bound_is_fixed_at_start(route.latency.value)) {
    send.fixed_bound = std::min(narrowest_now(route), route.rate_cap);
  }
  // Neither 3.32 nor 4.1 obeys Comm::set_rate between hosts; both limit a flow to gamma / (2 x latency).
  if (is_capped) sg4::Engine::set_config(window_option, 2 * (route.latency * route.rate_cap).value);
  start_activity(comm);
  if (is_capped) sg4::Engine::set_config(window_option, 0.0);
}

void Flows::bandwidth_changed(const sg4::Link& link)
{
  if (hold_at_standstill(link) || !channels_.carries_data(link)) return;
  for (auto& rank : state_.ranks) {
    for (auto& lane : rank.lanes) {
      if (!lane.activity || !lane.uses_network() || std::isinf(lane.fixed_bound.value)) continue;
      const Route& route = lane.arriving.channel->route;
      if (std::find(route.links.begin(), route.links.end(), &link) == route.links.end()) continue;
      if (lane.fixed_bound >= std::min(narrowest_now(route), route.rate_cap)) continue;
      const double remaining = std::ceil(lane.activity->get_remaining());
      cancelled_.push_back(std::move(lane.activity));
      cancelled_.back()->cancel();
      start(lane, static_cast<std::uint64_t>(remaining));
    }
  }
}

sg4::ActivityPtr Flows::release_cancelled(const sg4::Activity& activity)
{
  const auto found = std::find(cancelled_.begin(), cancelled_.end(), &activity);
  ensure(found != cancelled_.end(), "an activity ended that was never started");
  sg4::ActivityPtr released = std::move(*found);
  cancelled_.erase(found);
  return released;
}

}  // namespace isobar::sim
