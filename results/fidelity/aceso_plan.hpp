#pragma once

#include "core/model/model_sizes.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::results {

/// A plan of Aceso (Liu et al., EuroSys 2024), as its search writes it, for a model of transformer blocks: an
/// embedding, 13 operators a block, the last normalisation and the head.
struct AcesoPlan {
  std::vector<std::size_t> tensor;         ///< devices that divide most operators of a stage, by stage
  std::vector<std::size_t> data;           ///< replicas of most operators of a stage
  std::vector<double> blocks;              ///< of each stage; decimals where a block is cut
  std::vector<BlockOperators> recomputed;  ///< by block, the operators that run again in the backward pass
};

/// Reads a plan: `num_ops_in_each_stage`, `num_gpus`, `model_parallel_size_of_each_op`,
/// `data_parallel_size_of_each_op` and `recompute_ops`, lists by stage, the last three of lists by operator.
/// @throws InputError naming file and key of every fault, among them a plan for another number of blocks.
AcesoPlan read_aceso_plan(const std::string& file, double blocks);

}  // namespace isobar::results
