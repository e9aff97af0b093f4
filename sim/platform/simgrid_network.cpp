#include "sim/platform/simgrid_network.hpp"

#include "core/errors.hpp"
#include "sim/platform/simgrid_compat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace isobar::sim {

namespace {

/// Endpoints up to which paths are cached (270 MB): the most devices that a search takes, and a data server.
constexpr std::size_t most_cached_endpoints = 4'097;

/// Likewise shared links (50 MB).
constexpr std::size_t most_cached_shared = 513;

constexpr Path unknown = {Seconds(-1), BytesPerSecond(0)};

}  // namespace

SimGridNetwork::SimGridNetwork(const std::vector<const ScannedHost*>& hosts, std::shared_ptr<const Routes> routes)
    : routes_(std::move(routes))
{
  for (const auto* host : hosts) hosts_.push_back(sg4::Engine::get_instance()->host_by_name(host->name));
}

Path SimGridNetwork::path(std::size_t from, std::size_t to) const
{
  if (from == to) return {Seconds(0), BytesPerSecond(std::numeric_limits<double>::infinity())};
  if (hosts_.size() > most_cached_endpoints) return find(from, to);
  if (paths_.empty()) paths_.assign(hosts_.size() * hosts_.size(), unknown);
  Path& path = paths_[from * hosts_.size() + to];
  if (path.latency < Seconds(0)) path = find(from, to);
  return path;
}

std::vector<std::string> SimGridNetwork::links(std::size_t from, std::size_t to) const
{
  std::vector<std::string> names;
  for (const auto* link : route(from, to).links) names.push_back(link->get_name());
  return names;
}

Path SimGridNetwork::path_with(std::size_t from, std::size_t to, const std::string& link, double factor) const
{
  if (from == to) return path(from, to);
  const auto found = route(from, to);
  return {found.latency, std::min(routes_->bandwidth_with(found, link, factor), found.rate_cap)};
}

std::vector<SharedLink> SimGridNetwork::shared_links(std::size_t from, std::size_t to) const
{
  if (from == to) return {};
  if (hosts_.size() > most_cached_shared) return routes_->shared_links(route(from, to));
  if (shared_links_.empty()) shared_links_.resize(hosts_.size() * hosts_.size());
  auto& links = shared_links_[from * hosts_.size() + to];
  if (!links) links = routes_->shared_links(route(from, to));
  return *links;
}

Route SimGridNetwork::route(std::size_t from, std::size_t to) const
{
  auto found = routes_->between(*hosts_[from], *hosts_[to]);
  if (found.missing()) {
    throw InputError(fmt::format("no route from {} to {}; every pair of devices needs one", hosts_[from]->get_cname(),
                                 hosts_[to]->get_cname()));
  }
  return found;
}

Path SimGridNetwork::find(std::size_t from, std::size_t to) const
{
  return route(from, to).path();
}

}  // namespace isobar::sim
