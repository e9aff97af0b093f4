#include "sim/platform/routes.hpp"

#include "sim/platform/simgrid_compat.hpp"
#include "sim/scan/prescan.hpp"

#include <algorithm>
#include <limits>

namespace isobar::sim {

namespace {

constexpr BytesPerSecond unlimited_bandwidth(std::numeric_limits<double>::infinity());

/// How often a link carries each byte: as often as it occurs in the route. A FATPIPE counts once, as in SimGrid.
double loads_of(const std::vector<sg4::Link*>& links, const sg4::Link* link)
{
  return link->is_shared() ? static_cast<double>(std::count(links.begin(), links.end(), link)) : 1;
}

}  // namespace

Routes::Routes(const PlatformScan& scan)
{
  const auto* engine = sg4::Engine::get_instance();
  for (const auto& [name, link] : scan.profiled_links) {
    nominal_[engine->link_by_name(name)] = {link.latency, link.bandwidth};
  }
  for (const auto& [name, bytes] : scan.zone_in_flight) {
    const auto* zone = engine->netzone_by_name_or_null(name);
    for (const auto* link : links_within(*zone)) in_flight_[link] = bytes;
    // Links of an inner zone are not its own.
    for (const auto* child : zone->get_children()) {
      for (const auto* link : links_within(*child)) in_flight_.erase(link);
    }
  }
  for (const auto& [name, bytes] : scan.link_in_flight) in_flight_[engine->link_by_name(name)] = bytes;
}

Seconds Routes::latency(const sg4::Host& from, const sg4::Host& to, std::vector<sg4::Link*>& links) const
{
  double now = 0;
  from.route_to(&to, links, &now);
  if (nominal_.empty()) return Seconds(now);
  for (const auto* link : links) {
    const auto nominal = nominal_.find(link);
    if (nominal != nominal_.end()) now += nominal->second.latency.value - link->get_latency();
  }
  return Seconds(now);
}

BytesPerSecond Routes::nominal_bandwidth(const sg4::Link* link) const
{
  const auto nominal = nominal_.find(link);
  return nominal == nominal_.end() ? BytesPerSecond(link->get_bandwidth()) : nominal->second.bandwidth;
}

/// Bandwidth that a transfer over the route gets from a link.
BytesPerSecond Routes::share(const Route& route, const sg4::Link* link) const
{
  return nominal_bandwidth(link) / loads_of(route.links, link);
}

std::vector<SharedLink> Routes::shared_links(const Route& route) const
{
  std::vector<SharedLink> shared;
  for (auto link = route.links.begin(); link != route.links.end(); ++link) {
    if (std::find(route.links.begin(), link, *link) != link) continue;
    shared.push_back(
        {(*link)->get_name(), nominal_bandwidth(*link), loads_of(route.links, *link), !(*link)->is_shared()});
  }
  return shared;
}

Seconds Routes::latency_now(const Route& route) const
{
  Seconds latency = route.latency;
  if (nominal_.empty()) return latency;
  for (const auto* link : route.links) {
    const auto nominal = nominal_.find(link);
    if (nominal != nominal_.end()) latency += Seconds(link->get_latency()) - nominal->second.latency;
  }
  return std::max(latency, Seconds(0));
}

BytesPerSecond Routes::bandwidth_with(const Route& route, const std::string& name, double factor) const
{
  BytesPerSecond bandwidth = unlimited_bandwidth;
  for (const auto* link : route.links) {
    bandwidth = std::min(bandwidth, share(route, link) * (link->get_name() == name ? factor : 1));
  }
  return bandwidth;
}

Route Routes::between(const sg4::Host& from, const sg4::Host& to) const
{
  Route route;
  route.latency = latency(from, to, route.links);
  route.bandwidth = route.rate_cap = unlimited_bandwidth;
  Bytes least_in_flight(std::numeric_limits<double>::infinity());
  for (const auto* link : route.links) {
    route.bandwidth = std::min(route.bandwidth, share(route, link));
    const auto window = in_flight_.find(link);
    if (window != in_flight_.end()) least_in_flight = std::min(least_in_flight, window->second);
  }
  if (least_in_flight.value < std::numeric_limits<double>::infinity()) {
    std::vector<sg4::Link*> back;
    const Seconds round_trip = route.latency + latency(to, from, back);
    if (round_trip.value > 0) route.rate_cap = least_in_flight / round_trip;
  }
  return route;
}

}  // namespace isobar::sim
