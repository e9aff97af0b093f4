#include "core/errors.hpp"
#include "sim/play/simulation.hpp"

#include <fmt/format.h>

namespace isobar::sim {

std::vector<RankHost> rank_hosts(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  std::vector<RankHost> ranks;
  for (const auto& stage : plan.stages) {
    const auto device = cluster.device_index(stage.device());
    if (!device)
      throw InputError(cluster.name,
                       fmt::format("there is no device {}; the plan was made for another platform", stage.device()));
    ranks.push_back({stage.device(), cluster.devices[*device].speed_at(workload.dtype)});
  }
  if (cluster.data_server) ranks.push_back({*cluster.data_server, FlopsPerSecond(0)});
  return ranks;
}

}  // namespace isobar::sim
