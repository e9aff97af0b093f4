#include "allocators/chain/needed_devices.hpp"

#include "allocators/search_clock.hpp"
#include "core/errors.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

namespace isobar::allocators {

namespace {

bool are_same(const Path& a, const Path& b)
{
  return a.latency == b.latency && a.bandwidth == b.bandwidth;
}

/// Whether exchanging two devices changes no cost.
bool are_alike(const CostModel& cost, bool counts_transfers, std::size_t a, std::size_t b)
{
  const Cluster& cluster = cost.cluster();
  if (!cost.computes_like(a, b) || cluster.devices[a].memory != cluster.devices[b].memory) return false;
  if (!counts_transfers) return true;
  const auto differ = [&](std::size_t from, std::size_t to, std::size_t other_from, std::size_t other_to) {
    return !are_same(cluster.path(from, to), cluster.path(other_from, other_to));
  };
  if (cluster.data_server && differ(cluster.data_server_index(), a, cluster.data_server_index(), b)) return false;
  if (differ(a, b, b, a)) return false;
  // From the neighbour on: what tells devices of two nodes apart is near them.
  for (std::size_t k = 1; k < cost.devices(); ++k) {
    const std::size_t other = (b + k) % cost.devices();
    if (other != a && (differ(a, other, b, other) || differ(other, a, other, b))) return false;
  }
  return true;
}

/// The kind of each device, numbered by their first devices.
std::vector<std::size_t> kinds_of_devices(const Problem& problem)
{
  const SearchClock clock(problem.limits);
  const bool counts_transfers = problem.goal.communication != Communication::None;
  std::vector<std::size_t> kinds;
  std::vector<std::size_t> firsts;  // by kind
  for (std::size_t device = 0; device < problem.cost.devices(); ++device) {
    const auto known = std::find_if(firsts.begin(), firsts.end(), [&](std::size_t first) {
      return !clock.is_over() && are_alike(problem.cost, counts_transfers, device, first);
    });
    kinds.push_back(static_cast<std::size_t>(known - firsts.begin()));
    if (known == firsts.end()) firsts.push_back(device);
  }
  return kinds;
}

/// By kind, up to `count` of them.
std::vector<bool> first_of_kinds(const std::vector<std::size_t>& kinds, std::size_t count)
{
  std::vector<bool> needed;
  std::vector<std::size_t> seen(kinds.size(), 0);  // by kind
  for (const std::size_t kind : kinds) needed.push_back(seen[kind]++ < count);
  return needed;
}

/// Those on which a placement of at most `count` devices ends that takes, after each device, the next one of a kind.
std::vector<bool> next_of_kinds(const std::vector<std::size_t>& kinds, std::size_t count)
{
  constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  std::vector<bool> needed;
  std::vector<std::size_t> fewest;                    // devices of such a placement, by its last one
  std::vector<std::size_t> last(kinds.size(), none);  // device so far, by kind
  for (std::size_t device = 0; device < kinds.size(); ++device) {
    std::size_t& former = last[kinds[device]];
    // The device before it is not before the former one of its kind, which would come next instead.
    fewest.push_back(1);
    if (former != none) {
      const auto begin = fewest.begin() + static_cast<std::ptrdiff_t>(former);
      fewest.back() += *std::min_element(begin, fewest.end() - 1);
    }
    former = device;
    needed.push_back(fewest.back() <= count);
  }
  return needed;
}

Cluster only(const Cluster& cluster, const std::vector<std::size_t>& devices)
{
  std::vector<std::string> others;
  for (std::size_t device = 0; device < cluster.devices.size(); ++device) {
    if (!std::binary_search(devices.begin(), devices.end(), device)) others.push_back(cluster.devices[device].name);
  }
  return without_devices(cluster, others, "devices");
}

}  // namespace

std::vector<std::size_t> needed_devices(const Problem& problem, DeviceOrder order)
{
  const std::size_t layers = problem.cost.layers();
  std::vector<bool> needed(problem.cost.devices(), true);
  if (needed.size() > layers) {
    const auto kinds = kinds_of_devices(problem);
    needed = order == DeviceOrder::Any ? first_of_kinds(kinds, layers) : next_of_kinds(kinds, layers);
    for (const auto& stage : problem.limits.start) needed[stage.device] = true;
  }
  std::vector<std::size_t> devices;
  for (std::size_t device = 0; device < needed.size(); ++device) {
    if (needed[device]) devices.push_back(device);
  }
  return devices;
}

Placement place_on_needed_devices(const Problem& problem, DeviceOrder order, Placement (*place)(const Problem&))
{
  const SearchClock clock(problem.limits);
  const auto devices = needed_devices(problem, order);
  if (devices.size() == problem.cost.devices()) return place(problem);
  const Cluster cluster = only(problem.cost.cluster(), devices);
  const CostModel cost = problem.cost.of(problem.cost.workload(), cluster);
  Problem smaller{cost, problem.goal, problem.limits};
  smaller.limits.time_limit = clock.left();
  for (auto& stage : smaller.limits.start) {
    const auto place_of_device = std::lower_bound(devices.begin(), devices.end(), stage.device);
    stage.device = static_cast<std::size_t>(place_of_device - devices.begin());
  }
  Placement placement = place(smaller);
  ensure(!placement.objective_bound, "a bound of fewer devices has no certificate of all");
  for (auto& stage : placement.stages) stage.device = devices[stage.device];
  for (auto& stages : placement.alternatives) {
    for (auto& stage : stages) stage.device = devices[stage.device];
  }
  return placement;
}

}  // namespace isobar::allocators
