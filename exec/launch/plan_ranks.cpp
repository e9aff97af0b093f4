#include "exec/launch/plan_ranks.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar::exec {

std::vector<std::string> devices_of_ranks(const Plan& plan)
{
  auto devices = devices_of(plan);
  if (plan.data_server) devices.push_back(*plan.data_server);
  return devices;
}

std::vector<std::string> names_of_ranks(const Plan& plan)
{
  std::vector<std::string> names;
  for (const auto& device : devices_of(plan)) names.push_back(fmt::format("rank {} ({})", names.size(), shown(device)));
  if (plan.data_server) names.push_back(fmt::format("rank {} (data server)", names.size()));
  return names;
}

std::vector<PlacedShard> replicas_of_rank(const Plan& plan, std::size_t rank)
{
  std::vector<PlacedShard> replicas = placed_shards(plan);
  std::erase_if(replicas, [rank](const PlacedShard& placed) { return placed.rank != rank; });
  return replicas;
}

std::size_t rank_of_loss(const Plan& plan)
{
  const auto replicas = placed_shards(plan);
  return std::find_if(replicas.begin(), replicas.end(),
                      [&](const PlacedShard& placed) { return placed.stage + 1 == plan.stages.size(); })
      ->rank;
}

}  // namespace isobar::exec
