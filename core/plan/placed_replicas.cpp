#include "core/plan/placed_replicas.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>

namespace isobar {

std::vector<PlacedReplica> placed_replicas(const Plan& plan)
{
  std::unordered_map<std::string, std::size_t> rank_of;
  std::vector<PlacedReplica> placed;
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const auto& replicas = plan.stages[stage].replicas;
    for (std::size_t replica = 0; replica < replicas.size(); ++replica) {
      ensure(replicas[replica].shards.size() == 1, "a replica of several shards has no schedule yet");
      const auto rank = rank_of.emplace(replicas[replica].shards.front().device, rank_of.size()).first->second;
      placed.push_back({stage, replica, rank});
    }
  }
  return placed;
}

bool has_replicas(const std::vector<Stage>& stages)
{
  return std::any_of(stages.begin(), stages.end(), [](const Stage& stage) { return stage.replicas.size() > 1; });
}

void require_single_replicas(const Plan& plan, const std::string& file, const std::string& command)
{
  if (!has_replicas(plan)) return;
  throw InputError(
      file,
      fmt::format("stages: several replicas, which {} does not know yet; isobar verify, simulate, report and run do",
                  command));
}

}  // namespace isobar
