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

/// What a layer's random numbers follow from, so that they do not depend on how the model is split, on threads, or on
/// whether a forward pass is the first or a recomputation. Dropout is drawn where the layer is: CPU and GPU, and GPUs
/// of different models, draw different masks from the same key.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint64_t microbatch = 0;
  bool drops = true;  ///< false in an evaluation: no dropout
};

/// One layer of a workload, to be computed: as many parameters as `Layer::parameters` says, and as many bytes handed on
/// as `Layer::output`.
class LayerModule {
 public:
  LayerModule() = default;
  LayerModule(const LayerModule&) = delete;
  LayerModule& operator=(const LayerModule&) = delete;
  virtual ~LayerModule() = default;

  /// What the layer hands on, in the workload's dtype, from what the layer before handed on (the first layer: the data
  /// of a micro-batch, exec/model/batch.hpp). Records for autograd as usual. The attention mask of BERT passes through
  /// without a gradient; what passes through is the same tensor, not a copy. Where the dtype is bf16 or fp16 the caller
  /// has switched autocast on for the device; parameters and activations do not go together otherwise. Batch
  /// normalisation counts every pass in its running statistics, a recomputed one too.
  virtual Tensors forward(const Tensors& inputs, const RandomKey& key) = 0;
  /// In float32, whatever the workload's dtype (autocast casts), in a fixed order.
  virtual const Tensors& parameters() const = 0;
  /// The same, each with its name within the layer, such as "query.weight".
  virtual const std::vector<std::string>& parameter_names() const = 0;
};

/// The module of layer `layer`, on `device` ("cpu", "cuda:0"). Its parameters follow from seed and layer alone (made on
/// the CPU, then moved), so that any split of a model begins as the same model.
/// Drawn from streams of its own: torch's global generators are left alone.
/// @throws InputError when the workload lists its layers instead of naming a model, or is a llama with heads of an odd
/// width, which rotary positions cannot turn.
std::unique_ptr<LayerModule> make_layer_module(const Workload& workload, std::size_t layer, std::uint64_t seed,
                                               const std::string& device);

}  // namespace isobar::exec
