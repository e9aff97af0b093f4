#pragma once

#include "core/model/workload.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/layer_module.hpp"

#include <memory>
#include <vector>

namespace isobar::exec {

using Modules = std::vector<std::unique_ptr<LayerModule>>;

/// All layers of a workload, on the CPU.
Modules all_layers(const Workload& workload, std::uint64_t seed = 1);

/// The outputs of each layer. Uses autocast if the dtype needs it.
std::vector<Tensors> forward_all(const Workload& workload, const Modules& layers, const Tensors& inputs,
                                 const RandomKey& key);
/// The outputs of one layer.
Tensors forward_one(const Workload& workload, LayerModule& layer, const Tensors& inputs, const RandomKey& key);

/// A parameter by its name.
const at::Tensor& parameter(const LayerModule& layer, const std::string& name);

double bytes_of(const Tensors& tensors);
bool same_bits(const Tensors& one, const Tensors& other);

}  // namespace isobar::exec
