#pragma once

#include "core/model/workload.hpp"
#include "exec/files/tensor_source.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/evaluation_sums.hpp"
#include "exec/model/message.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

/// What one stage is to train.
struct StageOptions {
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;           ///< inclusive
  std::vector<std::size_t> recomputed;  ///< layers that keep their input alone until the backward pass, sorted
  std::uint64_t microbatches = 1;       ///< of a step: each one's loss counts 1/microbatches
  std::uint64_t seed = 1;
  std::string device = "cpu";            ///< "cpu", "cuda:0"
  const BatchSource* batches = nullptr;  ///< of labels; of the last stage alone
};

/// What stages add up before they update where needs_gradient_sync(workload): sums over all parameters of all stages.
struct GradientFacts {
  double sum_of_squares = 0;  ///< of the gradients, unscaled
  double not_finite = 0;      ///< parameters with a gradient that is not finite

  bool finite() const { return not_finite == 0; }
};

/// The layers of one stage, trained: forward and backward by micro-batch, then one update. One thread at a time.
///
/// fp16 scales the loss by 2^16, halved when a gradient is not finite (that step is left out) and doubled after 2,000
/// good steps; every stage comes to the same scale, since all see the same facts (Micikevicius et al. 2018, "Mixed
/// Precision Training", section 3.2).
class StageModel {
 public:
  StageModel(const Workload& workload, const StageOptions& options);
  ~StageModel();
  StageModel(const StageModel&) = delete;
  StageModel& operator=(const StageModel&) = delete;

  /// The first stage's inputs are a micro-batch's data. Keeps what backward needs. The last stage's outputs stay here:
  /// it computes the loss and returns an empty message.
  Message forward(std::uint64_t step, std::uint64_t microbatch, Message inputs);
  /// From the gradients of what `forward` returned (of the last stage: none) to those of its inputs.
  Message backward(std::uint64_t microbatch, const Message& gradients);
  /// On a GPU the calling thread waits until its queue has come so far.
  GradientFacts gradient_facts() const;
  /// The optimizer's step, by the facts of all stages together, which count only where needs_gradient_sync(workload);
  /// then gradients are forgotten.
  void update(const GradientFacts& agreed);

  /// Mean loss of the micro-batches since the last call, a float64 scalar where the stage is. The last stage alone has
  /// one.
  at::Tensor take_loss();
  /// Forward alone: without dropout, and nothing is kept but the last stage's sums, which compare with `batches`.
  Message evaluate(const BatchSource& batches, std::uint64_t step, std::uint64_t microbatch, const Message& inputs);
  /// Sums since the last call. Waits for the device. The last stage alone has some.
  EvaluationSums take_evaluation();

  /// The name of a parameter with an element that is not finite, "" where all are. Waits for the device.
  std::string not_finite() const;
  /// What training goes on from: each parameter as "layers.3.query.weight", what the optimizer keeps of it as
  /// "layers.3.query.weight:exp_avg", and of the first stage fp16's "loss_scale". Copies, whole when it returns.
  std::vector<StoredTensor> state() const;
  /// Takes such tensors over; whoever wrote them may have had other layers. State that the optimizer has not got there
  /// begins anew. @throws InputError naming a tensor that is missing or of another shape or type.
  void restore(const TensorSource& source);
  /// Takes the parameters of a Hugging Face model. @returns the names of those that it has not got, a classifier's,
  /// which stay as they were made. @throws InputError naming a tensor that is missing otherwise, or of another shape or
  /// type.
  std::vector<std::string> load(const TensorSource& weights);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace isobar::exec
