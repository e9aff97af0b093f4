#pragma once

#include "core/model/model_sizes.hpp"
#include "core/model/workload.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace isobar {

inline constexpr double token = 8;    ///< bytes of an int64
inline constexpr double moments = 8;  ///< bytes of a token's mean and deviation

/// Sizes of one generated layer, for one micro-batch. The layer's gradient is as large as `output`.
struct LayerSizes {
  std::string name;
  std::uint64_t parameters = 0;
  double multiply_adds = 0;
  /// The multiply_adds of products without parameters of the layer: the scores of attention and their use.
  double score_multiply_adds = 0;
  double recomputed_multiply_adds = 0;  ///< forward ones that the backward pass repeats
  double activations = 0;               ///< bytes
  double output = 0;                    ///< bytes
  /// Bytes that the executor's kernels keep from forward until backward, and, beyond these and the gradients of input
  /// and output, the most that a pass holds at once. Plans count them where they exceed `activations`
  /// (Layer::workspace).
  double kept = 0;
  double passing = 0;
  std::optional<Split> split = {};
  std::optional<Experts> experts = {};
};

/// What the executor's kernels hold beside tensors of the workload's dtype, for a micro-batch; docs/costs.md#workspace.
/// Parameters and their gradients are float32, and matrix products have the workload's dtype.
class KernelMemory {
 public:
  explicit KernelMemory(const Workload& workload)
      : element_(size_of(workload.dtype)),
        sequence_(static_cast<double>(workload.sequence)),
        drops_(workload.training.dropout > 0)
  {
  }

  bool casts() const { return element_ < float32; }
  bool drops() const { return drops_; }
  /// The copy of weights in the workload's dtype, which is kept.
  double cast(double weights) const { return casts() ? element_ * weights : 0; }
  /// A copy of elements in float32, if they do not have that dtype.
  double in_float32(double elements) const { return casts() ? float32 * elements : 0; }
  /// The mask of a dropout, which is kept.
  double mask(double elements) const { return drops_ ? elements : 0; }
  /// Scratch memory of a thread in the backward pass of LibTorch's fused attention on a CPU: scores of a block of
  /// queries and keys, and their gradients. Twice as much with casts, at most.
  double fused_attention() const
  {
    const double queries = std::min(sequence_, sequence_ >= 768 ? 256.0 : sequence_ >= 192 ? 64.0 : 32.0);
    const double keys = std::min(sequence_, 512.0);
    return float32 * (2 * queries * keys + queries) * (casts() ? 2 : 1);
  }
  /// The backward pass of a matrix product, by the elements of its input and output: the gradients of the input and
  /// of the weights. With casts, the latter are made in the workload's dtype and then converted, when the input is
  /// freed.
  double product(double input, double output, double weights, double bias) const
  {
    const double scratch = element_ * (output + weights);  // of the product, at most
    return casts() ? std::max(element_ * (input + weights) + scratch, float32 * (weights + bias))
                   : element_ * input + float32 * (weights + bias);
  }

 private:
  static constexpr double float32 = 4;
  double element_;
  double sequence_;
  bool drops_;
};

/// Appends a layer that reads the previous layer; the first one reads the data.
inline Layer& append_layer(Workload& workload, LayerSizes sizes)
{
  Layer layer;
  layer.name = std::move(sizes.name);
  layer.forward = Flops(2 * sizes.multiply_adds);
  layer.backward = 2 * layer.forward + Flops(2 * sizes.recomputed_multiply_adds);
  layer.backward_weight = Flops(2 * (sizes.multiply_adds - sizes.score_multiply_adds));
  layer.parameters = sizes.parameters;
  layer.activations = Bytes(sizes.activations);
  layer.output = layer.gradient = Bytes(sizes.output);
  layer.workspace = Bytes(std::max(0.0, sizes.kept + sizes.passing - sizes.activations));
  layer.split = std::move(sizes.split);
  layer.experts = sizes.experts;
  if (!workload.layers.empty()) layer.inputs = {workload.layers.size() - 1};
  workload.layers.push_back(std::move(layer));
  return workload.layers.back();
}

/// Counts in each pass what is there beside its layer: what the first layer, which is not recomputed, keeps beyond its
/// activations, the loss, what the executor knows of the gradients of all parameters if their norm is clipped or the
/// loss scaled, and with casts scratch memory of matrix products. Call it when all layers are there.
inline void count_in_each_pass(Workload& workload, const LayerSizes& first)
{
  constexpr double numbers = 64;  // bytes of the loss and other single ones, at most
  constexpr double tensors = 16;  // of parameters in a layer, at most
  Bytes more(std::max(0.0, first.kept - first.activations) + numbers);
  if (needs_gradient_sync(workload)) more += gradient_sync_size * tensors * static_cast<double>(workload.layers.size());
  constexpr Bytes scratch{0x1p16};  // of a product of few weights; KernelMemory::product counts that of more
  if (KernelMemory(workload).casts()) more += scratch;
  for (auto& layer : workload.layers) layer.workspace += more;
}

}  // namespace isobar
