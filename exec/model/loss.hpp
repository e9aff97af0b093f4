#pragma once

#include "exec/model/layer_module.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace isobar::exec {

/// Result of an evaluation: sums over all labels that are not ignored.
struct EvaluationSums {
  double loss = 0;     ///< cross-entropy, in nats
  double labels = 0;   ///< number of labels
  double correct = 0;  ///< labels that are the most likely class or token
};

/// The loss of a micro-batch from the last layer's outputs: a float32 scalar, computed in float32. Float32 logits lose
/// their values: their memory becomes that of their gradient.
///
/// Mean cross-entropy over all labels that are not ignored. Model moe has the loss of its graph (core/spmd): the sum of
/// the cross-entropies or, with the plain trunk, of the outputs.
at::Tensor loss_of(const Workload& workload, const Tensors& outputs, const at::Tensor& labels);
/// The sums of EvaluationSums, float64 [3].
at::Tensor evaluation_of(const at::Tensor& logits, const at::Tensor& labels);

// The same of logits that several shards have parts of. Each reduces its part to a few values a label, its statistics,
// and all gather those of all parts (Shoeybi et al., Megatron-LM, 2019, section 3).

/// The statistics of a part, float32 [2, labels], with autograd's graph: the logarithm of the sum of the exponentials,
/// and the logit of the label; minus infinity for a label that is not in the part or not counted.
/// @param logits [..., words] of words `first` and following
/// @param labels int64, as many as rows of logits; negative ones are not counted
at::Tensor statistics_of(const at::Tensor& logits, const at::Tensor& labels, std::uint64_t first);
/// The same, and a third row by which `evaluation_of` tells whether the label is the most likely word.
at::Tensor evaluated_statistics_of(const at::Tensor& logits, const at::Tensor& labels, std::uint64_t first);

/// The mean cross-entropy over all labels, and its gradient for the statistics of one part.
/// @param statistics of all parts, float32 [parts, 2, labels]
std::pair<at::Tensor, at::Tensor> loss_of_parts(const at::Tensor& statistics, std::size_t part);

/// The sums of EvaluationSums. `statistics`: of all parts, float32 [parts, 3, labels].
at::Tensor evaluation_of(const at::Tensor& statistics);

}  // namespace isobar::exec
