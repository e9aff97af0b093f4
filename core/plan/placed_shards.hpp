#pragma once

#include "core/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// A shard of a replica of a stage on its device.
struct PlacedShard {
  std::size_t stage = 0;
  std::size_t replica = 0;
  std::size_t shard = 0;
  std::size_t rank = 0;
};

/// The shards of a plan, in the order of stages, replicas and shards. Ranks are the plan's devices, numbered by their
/// first appearance. The k-th shard of a rank is its part k.
std::vector<PlacedShard> placed_shards(const Plan& plan);
const Shard& shard_of(const Plan& plan, const PlacedShard& placed);

/// Whether the replicas of two stages have the same devices.
bool has_same_devices(const Stage& a, const Stage& b);

/// For each stage of a plan, the stage of its pipelines: neighbouring stages on the same devices are parts of one.
std::vector<std::size_t> pipeline_stages(const Plan& plan);

/// For each stage of a plan, its number in a file, where the layers of a stage with several shards, or whose replicas
/// divide sequences or experts, are one.
std::vector<std::size_t> numbers_in_file(const Plan& plan);

/// Whether one of the stages has several replicas, several shards, or either.
bool has_replicas(const std::vector<Stage>& stages);
bool has_shards(const std::vector<Stage>& stages);
/// Whether a device has a stage alone, and divides another one with other devices.
bool is_partly_divided(const std::vector<Stage>& stages);
bool has_shared_stages(const std::vector<Stage>& stages);
inline bool has_replicas(const Plan& plan)
{
  return has_replicas(plan.stages);
}
inline bool has_shards(const Plan& plan)
{
  return has_shards(plan.stages);
}
inline bool has_shared_stages(const Plan& plan)
{
  return has_shared_stages(plan.stages);
}

/// Whether a part lives elsewhere than on its device.
bool uses_machines(const Plan& plan);

/// Whether each device has one run of neighbouring layers, of which all pass each of its micro-batches one after
/// another: one stage, or neighbouring ones with as many micro-batches, which the schedules of a chain take as one.
bool takes_whole_runs(const Plan& plan);

/// The units of a layer that each shard of a replica computes: its share of them, rounded so that they sum to all, and
/// at least one. There are as many units as shards, or more.
std::vector<std::uint64_t> units_of_shards(std::uint64_t units, const Replica& replica);

/// Units of a layer (Split::units): begin..end-1 of all.
struct UnitRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 1;
  std::uint64_t all = 1;

  bool is_whole() const { return begin == 0 && end == all; }
  /// The part of what belongs to all units: `whole` is a multiple of their number.
  std::uint64_t part_of(std::uint64_t whole) const { return whole / all * (end - begin); }
  bool operator==(const UnitRange&) const = default;
};

/// The units of a layer that a shard of a replica computes, outside of grids; all, if it is the replica's only one.
UnitRange units_of_shard(const Layer& layer, const Replica& replica, std::size_t shard);
/// A layer as a shard of a replica of a stage computes and holds it: the layer itself, if it is the only one.
Layer layer_of_shard(const Layer& layer, const Stage& stage, std::size_t replica, std::size_t shard);
/// The parameters of a layer that each of several shards has, and of whose gradients each has an addend: of a 2.5d grid
/// all that a shard has, since others in its depth have the same.
std::uint64_t shared_parameters(const Layer& layer, const ShardGrid& grid = {});

/// What a plan says of a stage that cannot be, at a key of the stage.
struct StageFault {
  std::size_t stage = 0;
  std::string key;  ///< "replicas[0].shards"
  std::string text;
};
/// The first place where the shards of a stage do not fit each other or those of another stage; none if all do.
std::optional<StageFault> fault_of_shards(const std::vector<Stage>& stages);

/// The sites of shard `shard` of each replica of a stage, "" where a plan has none.
std::vector<std::string> sites_of(const Stage& stage, std::size_t shard);

/// Why the replicas of a stage, which lie in these sites, cannot divide what `sync` says; none if they can.
std::optional<std::string> why_not_divided(const Sync& sync, const Stage& stage, const std::vector<std::string>& sites);

/// @throws InputError naming `command` for a plan in which a stage lives elsewhere than on its devices.
void require_on_devices(const Plan& plan, const std::string& file, const std::string& command);

}  // namespace isobar
