#pragma once

#include "core/plan/plan.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// A replica of a stage on its device.
struct PlacedReplica {
  std::size_t stage = 0;
  std::size_t replica = 0;
  std::size_t rank = 0;
};

/// The replicas of a plan whose replicas have a shard each, in the order of stages and replicas. Ranks are the plan's
/// devices, numbered by their first appearance. The k-th replica of a rank is its part k.
std::vector<PlacedReplica> placed_replicas(const Plan& plan);

/// For each stage of a plan, the stage of its pipelines: neighbouring stages on the same devices are parts of one.
std::vector<std::size_t> pipeline_stages(const Plan& plan);

/// Whether one of the stages has several replicas.
bool has_replicas(const std::vector<Stage>& stages);
inline bool has_replicas(const Plan& plan)
{
  return has_replicas(plan.stages);
}

/// Why the replicas of a stage, which lie in these sites, cannot divide what `sync` says; none if they can.
std::optional<std::string> why_not_divided(const Sync& sync, const Stage& stage, const std::vector<std::string>& sites);

/// @throws InputError naming `command` for a plan in which a stage has several replicas.
void require_single_replicas(const Plan& plan, const std::string& file, const std::string& command);

}  // namespace isobar
