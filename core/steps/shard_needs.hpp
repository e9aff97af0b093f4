#pragma once

#include "core/model/layer_graph.hpp"
#include "core/model/workload.hpp"
#include "core/plan/shard_grid.hpp"
#include "core/program/program.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

/// What the shards of a replica, and replicas that divide sequences or experts, bring each other for a layer. Internal
/// to core/check, and independent of core/plan/shard_collectives.hpp.
namespace isobar {

/// A pass of a layer; a whole backward is both gradients.
enum class NeedOf : std::uint8_t { Forward, InputGradient, WeightGradient };

/// Shards that meet: `length` of them, `stride` apart. All of a replica where they lie in no grid.
struct ShardAxis {
  std::size_t stride = 1;
  std::size_t length = 1;

  /// Which shards meet with shard number `shard`, by their first one.
  std::size_t first_of(std::size_t shard) const { return shard - shard / stride % length * stride; }
};

/// A collective before or after a pass. Those of a pass and side that carry the same payload follow each other.
struct ShardNeed {
  NeedOf pass = NeedOf::Forward;
  bool is_before = false;   // the pass needs it; else it needs the pass
  bool on_arrival = false;  // it needs what comes from the neighbouring stage; else it comes one task ahead
  Opcode opcode = Opcode::AllReduce;
  Payload payload = Payload::Activation;
  std::size_t lane = 0;  // those of a lane come one after the other, whatever they are for
  ShardAxis axis;
  double bytes = 0;           // of each shard (rounds_of)
  std::size_t replicas = 1;   // that many neighbouring ones meet: the same shard of each, or all along the axis
  bool goes_around = false;   // always in a ring
  bool is_of_tokens = false;  // that go to experts or come back
};

/// What `shards` shards need for a layer, in order. @throws std::logic_error for a layer that cannot be divided.
std::vector<ShardNeed> shard_needs(const Workload& workload, const Boundaries& cuts, std::size_t layer,
                                   const ShardGrid& grid, std::size_t shards);

/// What replicas of `shards` shards that divide sequences, experts or both need of each other for a layer, and, where
/// they bring each other tokens, of their own shards. Independent of core/plan/replica_exchanges.hpp. Those after a
/// pass come first.
std::vector<ShardNeed> replica_needs(const Workload& workload, std::size_t layer, std::size_t shards);

/// Along which axis shards have the same parameters; of length 1 if each has others.
ShardAxis axis_of_copies(const ShardGrid& grid, std::size_t shards);

}  // namespace isobar
