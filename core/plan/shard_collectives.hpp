#pragma once

#include "core/model/layer_graph.hpp"
#include "core/model/workload.hpp"
#include "core/plan/shard_grid.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

/// The shards of a replica that meet: all, or those of a grid that differ in one coordinate.
enum class GridAxis : std::uint8_t { All, Row, Column, Depth };

/// The groups of shards that meet along an axis, each in the order of its coordinate. `shards`: of the replica.
std::vector<std::vector<std::size_t>> groups_along(const ShardGrid& grid, GridAxis axis, std::size_t shards);

/// A pass of a layer that collectives of shards stand before or after. A whole backward is both gradients.
enum class ShardPass : std::uint8_t { Forward, InputGradient, WeightGradient };

/// What a collective among shards is for.
enum class ShardRole : std::uint8_t {
  // Before a forward:
  NormSum,       ///< of what the layer's norm needs to know of all of a token
  InputGather,   ///< of the input of a product
  WeightGather,  ///< of its parameters
  // After it:
  OutputSum,   ///< of addends of its outputs; of a 1d head the loss terms are gathered instead
  LossGather,  ///< of what the loss needs to know of the other parts of the vocabulary
  // Before the gradient of the input is computed:
  GradientGather,     ///< of the gradient of the output
  WeightGatherAgain,  ///< as before the forward
  // After that:
  InputGradientSum,
  NormGradientSum,
  // Before the gradient of the parameters is computed:
  InputGatherAgain,
  // After that:
  WeightGradientSum
};
inline constexpr std::size_t shard_roles = 11;

/// The name of the lanes of a role: "gather inputs".
std::string_view name_of(ShardRole role);
ShardPass pass_of(ShardRole role);
/// Whether the pass needs what the collective brings, which otherwise needs what the pass makes.
bool is_before_pass(ShardRole role);
/// Whether it needs what comes from the neighbouring stage: the layer's input, or the gradient of its output.
bool needs_arrival(ShardRole role);

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

/// Why a grid cannot divide a layer; none if it can. Blocks are equal: of samples, heads and the inputs of products.
std::optional<std::string> why_not_divided(const Workload& workload, std::size_t layer, const ShardGrid& grid);

/// A layer as each shard of a grid computes and holds it. Parameters are rounded up.
Layer layer_of_grid(const Layer& layer, const ShardGrid& grid);

}  // namespace isobar
