#pragma once

#include "exec/data/dataset.hpp"
#include "exec/model/layer_module.hpp"

#include <cstddef>

namespace isobar::exec {

/// Source of micro-batches: a pure function of their key. Thread-safe.
class BatchSource {
 public:
  BatchSource() = default;
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;
  virtual ~BatchSource() = default;

  /// Inputs of the first layer for a micro-batch; shapes as in `synthetic_inputs`.
  virtual Tensors inputs(const RandomKey& key, const std::string& device) const = 0;
  /// Labels that the loss compares with the last layer's output; shapes as in `synthetic_labels`.
  virtual at::Tensor labels(const RandomKey& key, const std::string& device) const = 0;
};

/// Source of the synthetic data below. `workload` must outlive it.
std::unique_ptr<BatchSource> synthetic_batches(const Workload& workload);

/// Source of a dataset's samples, `microbatches` micro-batches per step. Samples come in training order, or in the
/// order of the file for an evaluation (`drops` is false in the key). `workload` and `dataset` must outlive it.
std::unique_ptr<BatchSource> dataset_batches(const Workload& workload, const Dataset& dataset,
                                             std::uint64_t microbatches);

/// The parts of the sequences of `whole`, which must outlive it: micro-batch m has part m modulo `parts` of those of
/// micro-batch m / `parts` (SequencePart).
std::unique_ptr<BatchSource> batches_in_parts(const BatchSource& whole, std::size_t parts);

/// Those of `whole`, which must outlive it, from micro-batch `first` of each step on.
std::unique_ptr<BatchSource> batches_from(const BatchSource& whole, std::uint64_t first);

/// Synthetic inputs of the first layer for a micro-batch, `Workload::input` bytes. A function of the key only: drawn on
/// the CPU, then moved to `device`.
///
/// bert: token ids, attention mask (1 for a token, 0 for padding at the end of a sample) and segment ids, each int64
/// [micro_batch, sequence] · gpt, llama, moe of bert: token ids, int64 [micro_batch, sequence] · resnet, moe of vit:
/// images [micro_batch, 3, image, image] in the workload's dtype · plain moe: hidden states [micro_batch, sequence,
/// hidden] in it.
/// @throws InputError when the workload lists its layers.
Tensors synthetic_inputs(const Workload& workload, const RandomKey& key, const std::string& device);

/// Synthetic labels of a micro-batch, a function of the key only.
///
/// bert, resnet, moe of vit: a class for each sample, int64 [micro_batch] · gpt, llama, moe of bert: the next token of
/// each token, int64 [micro_batch, sequence] · plain moe: none, int64 [0].
/// @throws InputError when the workload lists its layers.
at::Tensor synthetic_labels(const Workload& workload, const RandomKey& key, const std::string& device);

}  // namespace isobar::exec
