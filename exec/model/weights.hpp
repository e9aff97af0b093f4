#pragma once

#include "core/model/workload.hpp"
#include "exec/files/tensor_source.hpp"
#include "exec/model/layer_module.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::exec {

/// Loads the parameters of layer `layer` into its module from a Hugging Face model of the workload's sizes
/// (exec/files/huggingface_weights.hpp). Reads no other layer's.
/// @returns the names of parameters that the model lacks and that keep their initial values: a new classifier's.
/// @throws InputError naming a tensor that is missing or has another shape or type.
std::vector<std::string> load_weights(const Workload& workload, std::size_t layer, const TensorSource& weights,
                                      LayerModule& module);

}  // namespace isobar::exec
