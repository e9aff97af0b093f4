#pragma once

#include "core/model/model_sizes.hpp"

#include <string>
#include <string_view>
#include <vector>

/// Modules of blocks that Megatron-Core recomputes by themselves: its option --recompute-modules
/// (megatron/core/transformer/transformer_config.py at 0.19.2).
namespace isobar::compute {

/// The names of the modules whose operators blocks have: all but those of delta nets and hyper-connections.
const std::vector<std::string>& recompute_module_names();

/// The operators of a module in each block of a gpt, llama or decoder, those of multi-token prediction last; none in
/// blocks without the module. Empty for other models and names.
std::vector<BlockOperators> operators_of_module(std::string_view module, const ModelSizes& model);

}  // namespace isobar::compute
