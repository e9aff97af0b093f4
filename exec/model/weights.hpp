#pragma once

#include "core/model/workload.hpp"
#include "exec/files/tensor_source.hpp"
#include "exec/model/layer_module.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::exec {

/// Gives the module of layer `layer` its parameters from a Hugging Face model of the workload's sizes
/// (exec/files/huggingface_weights.hpp). Reads no other layer's.
/// @returns the names of those that are not there and stay as they were made: a new classifier's.
/// @throws InputError naming the tensor that is missing, or of another shape or type.
std::vector<std::string> load_weights(const Workload& workload, std::size_t layer, const TensorSource& weights,
                                      LayerModule& module);

}  // namespace isobar::exec
