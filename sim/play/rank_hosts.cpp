#include "core/errors.hpp"
#include "sim/play/simulation.hpp"

#include <fmt/format.h>

namespace isobar::sim {

std::vector<RankHost> rank_hosts(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  std::vector<RankHost> ranks;
  for (const auto& name : devices_of(plan)) {
    const auto device = cluster.device_index(name);
    if (!device) {
      throw InputError(cluster.name,
                       fmt::format("there is no device {}; the plan was made for another platform", name));
    }
    ranks.push_back({name, cluster.devices[*device].speed_at(workload.dtype)});
  }
  if (cluster.data_server) ranks.push_back({*cluster.data_server, FlopsPerSecond(0)});
  return ranks;
}

}  // namespace isobar::sim
