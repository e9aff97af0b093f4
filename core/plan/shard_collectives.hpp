#pragma once

#include "core/model/layer_graph.hpp"
#include "core/model/workload.hpp"
#include "core/plan/shard_grid.hpp"
#include "core/program/program.hpp"
#include "core/program/shard_role.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// The shards that meet: all of a replica, those of a grid that differ in one coordinate, the same one of the replicas
/// that divide a sequence or experts, or all of those that divide whole experts (core/plan/replica_exchanges.hpp).
enum class GridAxis : std::uint8_t { All, Row, Column, Depth, Context, Experts, WholeExperts };

/// The axes of a grid along which some of its shards meet.
std::vector<GridAxis> axes_of(const ShardGrid& grid);

/// Along which axis shards have parameters in common, whose gradients they add up once a step; none if each has others.
std::optional<GridAxis> shared_axis(const ShardGrid& grid);

/// The groups of shards of a replica that meet along an axis, each in the order of its coordinate. `shards`: of the
/// replica.
std::vector<std::vector<std::size_t>> groups_along(const ShardGrid& grid, GridAxis axis, std::size_t shards);

/// A collective among shards for one pass of a layer.
struct ShardCollective {
  ShardRole role = ShardRole::OutputSum;
  std::size_t product = 0;  ///< of Split::products
  Opcode opcode = Opcode::AllReduce;
  Payload payload = Payload::Activation;
  GridAxis axis = GridAxis::All;
  Bytes size;  ///< of each shard (rounds_of)
  Bytes held;  ///< what a shard has room for from its begin on: the blocks of others
};

/// The collectives among the shards of a replica for one layer. Those before or after the same pass that carry the same
/// kind of data follow each other in this order. O(products).
std::vector<ShardCollective> shard_collectives(const Workload& workload, const Boundaries& boundaries,
                                               std::size_t layer, const ShardGrid& grid);

/// How shards in these sites do what they do together: as replicas do over sites, where several of them are in each, or
/// in a ring.
Algorithm algorithm_of_shards(Algorithm of_replicas, const std::vector<std::string>& sites);

/// Why shards that lie so cannot divide a layer; none if they can. Blocks of a grid are equal: of samples, heads and
/// the inputs of products; with `sequence` parts of the sequence are.
std::optional<std::string> why_not_divided(const Workload& workload, std::size_t layer, const ShardGrid& grid);

/// A layer as each shard of a grid computes and holds it. Parameters are rounded up.
Layer layer_of_grid(const Layer& layer, const ShardGrid& grid);

}  // namespace isobar
