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

std::vector<std::size_t> stages_of_rank(const Plan& plan, std::size_t rank)
{
  const auto devices = devices_of(plan);
  std::vector<std::size_t> stages;
  for (std::size_t stage = 0; rank < devices.size() && stage < plan.stages.size(); ++stage) {
    if (plan.stages[stage].device() == devices[rank]) stages.push_back(stage);
  }
  return stages;
}

std::size_t rank_of_last_stage(const Plan& plan)
{
  const auto devices = devices_of(plan);
  const auto found = std::find(devices.begin(), devices.end(), plan.stages.back().device());
  return static_cast<std::size_t>(found - devices.begin());
}

}  // namespace isobar::exec
