#include "core/plan/nominal_rates.hpp"

#include "core/errors.hpp"

#include <cstddef>
#include <vector>

namespace isobar {

PlayerRates nominal_rates(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  PlayerRates rates;
  std::vector<std::size_t> endpoint_of_rank;
  for (const auto& name : devices_of(plan)) {
    const auto index = cluster.device_index(name);
    ensure(index.has_value(), "the devices of a checked plan are on its platform");
    endpoint_of_rank.push_back(*index);
    rates.speeds.push_back(cluster.devices[*index].speed_at(workload.dtype));
    rates.sites.push_back(cluster.devices[*index].site);
  }
  if (plan.data_server) {
    endpoint_of_rank.push_back(cluster.data_server_index());
    rates.speeds.emplace_back(0);
    rates.sites.emplace_back();
  }
  if (plan.goal.has_free_transfers()) return rates;
  rates.transfer = [endpoint_of_rank, network = cluster.network](std::size_t from, std::size_t to, Bytes size) {
    const Path path = network->path(endpoint_of_rank.at(from), endpoint_of_rank.at(to));
    return TransferTimes{path.latency, path.data_time(size)};
  };
  return rates;
}

}  // namespace isobar
