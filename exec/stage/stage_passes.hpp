#pragma once

#include "core/model/workload.hpp"
#include "exec/device/message.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/layer_module.hpp"
#include "exec/model/loss.hpp"
#include "exec/stage/stage_parameters.hpp"
#include "exec/stage/stage_update.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

/// The passes of a StageModel. Internal to exec/model.
namespace isobar::exec {

class DeferredProducts;
class RecomputedTensors;

/// The forward and backward passes of a stage, what micro-batches keep between these, and the losses of the last stage.
class StagePasses {
 public:
  /// `matrix_owner`: those of StageOptions::has_matrix; null if there is none. All arguments must outlive this.
  StagePasses(const Workload& workload, const StageOptions& options, const StageParameters& parameters,
              const LossScale& loss_scale, StagePasses* matrix_owner);
  StagePasses(const StagePasses&) = delete;
  StagePasses& operator=(const StagePasses&) = delete;

  // As in StageModel, but for parameters that have been gathered and stay so:
  Message forward(std::uint64_t step, std::uint64_t microbatch, Message passed);
  void restore_inputs(std::uint64_t microbatch, const Message& inputs);
  Message backward(std::uint64_t microbatch, const Message& gradients);
  Message backward_input(std::uint64_t microbatch, const Message& gradients);
  void backward_weight(std::uint64_t microbatch);
  Message take_kept(std::uint64_t microbatch);
  void give_kept(std::uint64_t microbatch, const Message& kept);
  at::Tensor take_loss();
  Message evaluate(const BatchSource& batches, std::uint64_t step, std::uint64_t microbatch, const Message& inputs);
  void count(const Message& statistics);
  EvaluationSums take_evaluation();

 private:
  /// Layers in one piece of autograd's graph: consecutive layers that keep their activations, or one that recomputes
  /// them.
  struct Segment {
    std::size_t first_layer = 0;
    std::size_t last_layer = 0;  // inclusive
    bool recomputed = false;
  };

  /// What a segment, or the loss after the last one, keeps of a micro-batch until its backward pass.
  struct Piece {
    Tensors inputs;   // leaves of the graph
    Tensors outputs;  // roots of the graph; empty if it is recomputed
  };

  struct MicroBatch {
    RandomKey key;
    std::vector<Piece> pieces;
    std::shared_ptr<DeferredProducts> products;     // null unless backward passes are split
    std::shared_ptr<RecomputedTensors> recomputed;  // null unless shards divide the sequence
  };

  static std::vector<Segment> segments_of(const StageOptions& options);

  bool is_first() const { return options_.first_layer == 0; }
  bool is_last() const { return options_.last_layer + 1 == workload_.layers.size(); }
  bool is_shard() const { return !options_.units.is_whole(); }
  /// The number of the first word of the shard's part of the vocabulary, whose units are words.
  std::uint64_t first_word() const { return options_.units.begin; }
  /// The factor of a micro-batch's loss: its part of the step's loss, scaled.
  double factor_of_loss() const { return loss_scale_.value() / static_cast<double>(options_.microbatches); }

  Tensors run(const Segment& segment, const Tensors& inputs, const RandomKey& key,
              const std::shared_ptr<DeferredProducts>& products);
  Message forward_loss(MicroBatch& in_flight, const Message& outputs);
  Message gradient_of_statistics(const at::Tensor& gathered);

  const Workload& workload_;
  const StageOptions& options_;
  const StageParameters& parameters_;
  const LossScale& loss_scale_;
  StagePasses* matrix_owner_;
  std::vector<Segment> segments_;
  std::string backward_place_;
  std::string weights_place_;
  std::map<std::uint64_t, MicroBatch> in_flight_batches_;
  std::map<std::uint64_t, std::shared_ptr<DeferredProducts>> deferred_;  // between the parts of a split backward pass
  std::map<std::uint64_t, Tensors> other_gradients_;  // of the tied matrix, one by micro-batch, from the other stage
  Tensors losses_;                                    // since the last take_loss
  Tensors evaluations_;                               // since the last take_evaluation: float64 [3], as EvaluationSums
};

}  // namespace isobar::exec
