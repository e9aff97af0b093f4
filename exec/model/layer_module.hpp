#pragma once

#include "core/model/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace at {
class Tensor;
}

namespace isobar::exec {

using Tensors = std::vector<at::Tensor>;

/// Key of a layer's random numbers. They depend on nothing else: not on the split of the model, on threads, or on
/// whether a forward pass is a recomputation. Dropout is drawn on the layer's device: a CPU, a GPU and a GPU of another
/// model draw different masks from the same key.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t microbatch = 0;
  bool drops = true;  ///< false in an evaluation: no dropout
};

/// One executable layer of a workload, with `Layer::parameters` parameters and outputs of `Layer::output` bytes.
class LayerModule {
 public:
  LayerModule() = default;
  LayerModule(const LayerModule&) = delete;
  LayerModule& operator=(const LayerModule&) = delete;
  virtual ~LayerModule() = default;

  /// Computes the layer's outputs, in the workload's dtype, and records them for autograd.
  ///
  /// `inputs` are the previous layer's outputs; for the first layer, the inputs of a micro-batch
  /// (exec/model/batch.hpp). With dtype bf16 or fp16 the caller must have enabled autocast for the device, since
  /// parameters are float32. BERT's attention mask passes through as the same tensor, without a gradient. Batch
  /// normalisation counts every pass in its running statistics, including recomputed ones.
  virtual Tensors forward(const Tensors& inputs, const RandomKey& key) = 0;
  /// The parameters in a fixed order, always float32; autocast casts them to the workload's dtype.
  virtual const Tensors& parameters() const = 0;
  /// Names of the parameters within the layer, such as "query.weight", in the same order.
  virtual const std::vector<std::string>& parameter_names() const = 0;
};

/// Makes the module of layer `layer` on `device` ("cpu", "cuda:0").
///
/// Its parameters depend on seed and layer only (drawn on the CPU, then moved), so every split of a model begins with
/// the same parameters. Does not use torch's global generators.
/// @throws InputError when the workload lists its layers instead of naming a model, or is a llama with heads of an odd
/// width, which rotary positions cannot rotate.
std::unique_ptr<LayerModule> make_layer_module(const Workload& workload, std::size_t layer, std::uint64_t seed,
                                               const std::string& device);

}  // namespace isobar::exec
