#pragma once

#include "exec/data/dataset.hpp"
#include "exec/model/layer_module.hpp"

namespace isobar::exec {

/// Where micro-batches come from: a pure function of their key. By any number of threads at once.
class BatchSource {
 public:
  BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;
  virtual ~BatchSource() = default;

  /// The data that a micro-batch brings to the first layer, as `synthetic_inputs` says.
  virtual Tensors inputs(const RandomKey& key, const std::string& device) const = 0;
  /// What the loss compares the last layer's output with, as `synthetic_labels` says.
  virtual at::Tensor labels(const RandomKey& key, const std::string& device) const = 0;
};

/// The synthetic data below. `workload` must outlive it.
std::unique_ptr<BatchSource> synthetic_batches(const Workload& workload);

/// A dataset's samples, `microbatches` of a step: of an evaluation (no `drops` in the key) in the order of the file,
/// else as training takes them. Both must outlive it.
std::unique_ptr<BatchSource> dataset_batches(const Workload& workload, const Dataset& dataset,
                                             std::uint64_t microbatches);

/// The data that a micro-batch brings to the first layer: synthetic, from the key alone (drawn on the CPU, then moved).
/// `Workload::input` bytes.
/// bert: token ids, attention mask (1 for a token, 0 for padding; the padding at the end of a sample), segment ids,
/// each int64 [micro_batch, sequence] · gpt, llama: token ids, int64 [micro_batch, sequence] · resnet: images
/// [micro_batch, 3, image, image] in the workload's dtype.
/// @throws InputError when the workload lists its layers.
Tensors synthetic_inputs(const Workload& workload, const RandomKey& key, const std::string& device);

/// What the loss compares the last layer's output with, from the key alone: bert and resnet: a class for each sample,
/// int64 [micro_batch]; gpt and llama: the token that follows each, int64 [micro_batch, sequence].
/// @throws InputError when the workload lists its layers.
at::Tensor synthetic_labels(const Workload& workload, const RandomKey& key, const std::string& device);

/// The mean cross-entropy of what the last layer handed on, over all labels; a float32 scalar, computed in float32.
at::Tensor loss_of(const Tensors& outputs, const at::Tensor& labels);

}  // namespace isobar::exec
