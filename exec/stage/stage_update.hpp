#pragma once

#include "core/model/workload.hpp"
#include "exec/files/tensor_source.hpp"
#include "exec/stage/stage_optimizer.hpp"
#include "exec/stage/stage_parameters.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

/// The updates of a StageModel. Internal to exec/model.
namespace isobar::exec {

/// The factor of the loss and so of all gradients, which StageModel describes; 1 unless the dtype is fp16.
class LossScale {
 public:
  explicit LossScale(DType dtype);

  double value() const { return scale_; }
  /// Follows a step, whose gradients were all finite or not.
  void adapt(bool finite);

  /// The tensor that checkpoints store; none if the scale is fixed.
  std::vector<StoredTensor> stored() const;
  void restore(const TensorSource& source);

 private:
  bool is_adapted_;
  double scale_ = 1;
  std::uint64_t good_steps_ = 0;
};

/// Updates what a replica updates of its parameters: measures, clips and unscales the gradients, and owns the
/// optimizer.
class StageUpdate {
 public:
  /// All arguments must outlive it.
  StageUpdate(const Workload& workload, const StageOptions& options, const StageParameters& parameters);
  StageUpdate(const StageUpdate&) = delete;
  StageUpdate& operator=(const StageUpdate&) = delete;

  // As in StageModel:
  void add_gradient_facts(std::uint64_t step, GradientFacts& sums);
  void keep_gradient_facts(std::uint64_t step);
  void update(std::uint64_t step, const GradientFacts& reduced);
  void update_on_machine(std::uint64_t step, const GradientFacts& reduced, const Place& gradients, const Place* state);
  PlaceSize size_of_state() const;
  void use_state(const Place& place);
  bool keep_state_in(const Place& place);

  /// Copies a state that the optimizer has restored to its place on the host, if it lives there.
  void keep_state_on_host();

  LossScale& loss_scale() { return loss_scale_; }
  const LossScale& loss_scale() const { return loss_scale_; }
  /// Only if the replica updates a parameter.
  StageOptimizer& optimizer() const { return *optimizer_; }

 private:
  Tensors measured_gradients() const;
  void take_step(std::uint64_t step, const GradientFacts& reduced);
  Tensors state_in(const Place& place) const;

  const Workload& workload_;
  const StageParameters& parameters_;
  const std::unique_ptr<StageOptimizer> optimizer_;  // null if the replica updates no parameter
  std::optional<Place> state_on_host_;
  LossScale loss_scale_;
  std::mutex kept_facts_mutex_;
  std::map<std::uint64_t, Tensors> kept_facts_;  // by step
};

}  // namespace isobar::exec
