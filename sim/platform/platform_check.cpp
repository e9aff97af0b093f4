#include "sim/platform/platform_check.hpp"

#include "core/errors.hpp"
#include "sim/platform/limits.hpp"
#include "sim/platform/simgrid_compat.hpp"
#include "sim/platform/simgrid_message.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <exception>
#include <set>
#include <vector>

namespace isobar::sim {

namespace {

constexpr std::size_t most_checked_pairs = 16'384;

/// "; host NAME has no <host_link>, …" if one of two hosts lacks it.
std::string missing_host_link(const ScannedHost& from, const ScannedHost& to)
{
  if (!from.lacks_host_link && !to.lacks_host_link) return "";
  return fmt::format("; host {} has no <host_link>, which joins it to a zone with routing Cluster",
                     from.lacks_host_link ? from.name : to.name);
}

/// Checks one route after the other.
class RouteCheck {
 public:
  RouteCheck(const std::string& file, const Routes& routes, const ExpectFault& expect_fault)
      : file_(file), routes_(routes), expect_fault_(expect_fault)
  {
  }

  void check(const ScannedHost& from, const ScannedHost& to) const
  {
    // Devices are checked in their order, so the fault is in the line of `to`, the later one.
    const std::string place = place_of_host(file_, to);
    checked_route(routes_, from, to, place,
                  fmt::format("{}: no route from {}; every pair of devices needs one{}", place, from.name,
                              missing_host_link(from, to)),
                  expect_fault_);
  }

  void check_all_pairs(const std::vector<const ScannedHost*>& hosts) const
  {
    for (const auto* from : hosts) {
      for (const auto* to : hosts) {
        if (from != to) check(*from, *to);
      }
    }
  }

 private:
  const std::string& file_;
  const Routes& routes_;
  const ExpectFault& expect_fault_;
};

/// @throws InputError without a route.
Route found_route(const Routes& routes, const ScannedHost& from, const ScannedHost& to, const std::string& missing)
{
  const auto* engine = sg4::Engine::get_instance();
  Route route;
  try {
    route = routes.between(*engine->host_by_name(from.name), *engine->host_by_name(to.name));
  } catch (const std::exception& error) {
    throw InputError(fmt::format("{} (SimGrid: {})", missing, first_line_of_simgrid(error.what())));
  }
  if (route.missing()) throw InputError(missing);
  return route;
}

}  // namespace

Route checked_route(const Routes& routes, const ScannedHost& from, const ScannedHost& to, const std::string& place,
                    const std::string& missing, const ExpectFault& expect_fault)
{
  expect_fault(missing);
  Route route = found_route(routes, from, to, missing);
  if (!(route.latency.value >= 0 && route.latency <= most_latency)) {
    throw InputError(place, fmt::format("the latency from {} is {:.6g} s; it must be 0 to {:.0e} s", from.name,
                                        route.latency.value, most_latency.value));
  }
  for (const auto* link : route.links) {
    if (!is_rate(link->get_bandwidth())) {
      throw InputError(place,
                       fmt::format("link {} on the route from {} has {:.6g} B/s; a bandwidth must be 1 to 1e30 B/s",
                                   link->get_name(), from.name, link->get_bandwidth()));
    }
    if (link->get_sharing_policy() == sg4::Link::SharingPolicy::WIFI) {
      throw InputError(place, fmt::format("link {} on the route from {} is WIFI; a platform file cannot set its rates",
                                          link->get_name(), from.name));
    }
  }
  return route;
}

void check_speeds(const std::string& file, const Endpoints& endpoints)
{
  for (const auto* device : endpoints.devices) {
    const auto* host = sg4::Engine::get_instance()->host_by_name_or_null(device->name);
    const std::string place = place_of_host(file, *device);
    if (host == nullptr) throw InputError(place, "SimGrid did not create this host");
    if (!is_rate(host->get_speed())) {
      throw InputError(place,
                       fmt::format("its speed is {:.6g} FLOP/s; a speed must be 1 to 1e30 FLOP/s", host->get_speed()));
    }
  }
}

void check_routes(const std::string& file, const Endpoints& endpoints, const Routes& routes,
                  const ExpectFault& expect_fault)
{
  const RouteCheck pairs(file, routes, expect_fault);
  const auto all = endpoints.all();
  if (all.size() * all.size() <= most_checked_pairs) {
    pairs.check_all_pairs(all);
    return;
  }
  const auto& devices = endpoints.devices;
  std::vector<const ScannedHost*> one_per_zone;
  std::set<std::size_t> zones;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const ScannedHost& device = *devices[i];
    const ScannedHost& next = *devices[(i + 1) % devices.size()];
    pairs.check(device, next);
    pairs.check(next, device);
    if (endpoints.data_server != nullptr) pairs.check(*endpoints.data_server, device);
    const std::size_t pairs_with_zone = (zones.size() + 1) * (zones.size() + 1);
    if (pairs_with_zone <= most_checked_pairs && zones.insert(device.zone).second) one_per_zone.push_back(&device);
  }
  pairs.check_all_pairs(one_per_zone);
}

}  // namespace isobar::sim
