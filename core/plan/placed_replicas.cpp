#include "core/plan/placed_replicas.hpp"

#include "core/errors.hpp"
#include "core/program/collective.hpp"

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

std::vector<std::size_t> pipeline_stages(const Plan& plan)
{
  const auto is_on_same_devices = [](const Stage& a, const Stage& b) {
    return std::equal(a.replicas.begin(), a.replicas.end(), b.replicas.begin(), b.replicas.end(),
                      [](const Replica& one, const Replica& other) {
                        return std::equal(
                            one.shards.begin(), one.shards.end(), other.shards.begin(), other.shards.end(),
                            [](const Shard& shard, const Shard& of_other) { return shard.device == of_other.device; });
                      });
  };
  std::vector<std::size_t> stages;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const bool is_part = i > 0 && is_on_same_devices(plan.stages[i - 1], plan.stages[i]);
    stages.push_back(i == 0 ? 0 : stages.back() + (is_part ? 0 : 1));
  }
  return stages;
}

bool has_replicas(const std::vector<Stage>& stages)
{
  return std::any_of(stages.begin(), stages.end(), [](const Stage& stage) { return stage.replicas.size() > 1; });
}

std::optional<std::string> why_not_divided(const Sync& sync, const Stage& stage, const std::vector<std::string>& sites)
{
  if (sync.sharded == Sharding::None) return std::nullopt;
  if (sync.algorithm == Algorithm::Hierarchical && !are_equal_sites(sites)) {
    return fmt::format(
        "{} with algorithm hierarchical needs as many replicas of a stage in each site; use ring, tree "
        "or direct",
        name_of(sync.sharded));
  }
  const bool takes_alike = std::all_of(stage.replicas.begin(), stage.replicas.end(), [&](const Replica& replica) {
    return replica.microbatches == stage.replicas.front().microbatches;
  });
  if (sync.sharded == Sharding::Parameters && !takes_alike) {
    return "parameters, which replicas gather for each micro-batch, needs replicas that take as many; use gradients";
  }
  return std::nullopt;
}

void require_single_replicas(const Plan& plan, const std::string& file, const std::string& command)
{
  if (!has_replicas(plan)) return;
  throw InputError(
      file, fmt::format("stages: several replicas, which {} does not know yet; isobar verify, simulate, schedule show, "
                        "report and run do",
                        command));
}

}  // namespace isobar
