#include "exec/launch/plan_ranks.hpp"

#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"

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

std::vector<PlacedShard> shards_of_rank(const Plan& plan, std::size_t rank)
{
  std::vector<PlacedShard> shards = placed_shards(plan);
  std::erase_if(shards, [rank](const PlacedShard& placed) { return placed.rank != rank; });
  return shards;
}

std::size_t rank_of_loss(const Plan& plan)
{
  if (divides_operators(plan)) return 0;
  const auto shards = placed_shards(plan);
  return std::find_if(shards.begin(), shards.end(),
                      [&](const PlacedShard& placed) { return placed.stage + 1 == plan.stages.size(); })
      ->rank;
}

}  // namespace isobar::exec
