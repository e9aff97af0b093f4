#pragma once

#include "core/model/workload.hpp"
#include "exec/files/tensor_source.hpp"
#include "exec/model/layer_module.hpp"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {

/// The workload's optimizer on some parameters, and its state as checkpoints store it. Not thread-safe.
class StageOptimizer {
 public:
  StageOptimizer(const Workload& workload, const Tensors& parameters);
  ~StageOptimizer();
  StageOptimizer(const StageOptimizer&) = delete;
  StageOptimizer& operator=(const StageOptimizer&) = delete;

  /// Updates the parameters by their gradients.
  void step(double learning_rate);

  /// Tensors of the shapes that the state has but for the number of steps: for each parameter as many.
  Tensors shapes_of_state() const;
  /// Lets the state of the parameters that have one be in `memory`, which has such shapes and their values.
  void use_state(const Tensors& memory);
  /// The same for a state that may lie elsewhere, which is copied there. Returns whether some of it did.
  bool keep_state_in(const Tensors& memory);

  /// The state of the parameter that checkpoints call `name`: tensors such as "NAME:exp_avg", and the number of steps
  /// as the int64 scalar "NAME:step". Empty before the first step. The thread waits for its own stream of a GPU.
  std::vector<StoredTensor> state(const std::string& name, const at::Tensor& parameter) const;
  /// Restores such a state of a parameter that checkpoints call `name`. `parameter` has the values of a part of it
  /// (read_part), from number `begin` of these. One that has no state in `source` keeps its initial state.
  /// @throws InputError naming a tensor that is missing or has another shape or type.
  void restore(const TensorSource& source, const std::string& name, const TensorPart* of_experts,
               const TensorPart& part, const at::Tensor& parameter, std::size_t begin);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
