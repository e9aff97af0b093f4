#pragma once

#include "exec/model/layer_module.hpp"

#include <functional>
#include <vector>

namespace isobar::exec {

/// Tensors of a micro-batch that autograd has saved, but that have no memory from the end of its forward pass to the
/// begin of its backward pass, when they are computed again.
class RecomputedTensors {
 public:
  RecomputedTensors() = default;
  RecomputedTensors(const RecomputedTensors&) = delete;
  RecomputedTensors& operator=(const RecomputedTensors&) = delete;

  /// For its lifetime, `tensors` has those that this thread adds; none are added if it is null.
  class Scope {
   public:
    explicit Scope(RecomputedTensors* tensors);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    RecomputedTensors* before_;
  };

  using Operation = std::function<at::Tensor(const at::Tensor& input)>;

  /// Adds a tensor, which has its storage to itself, and how to make it again with the same values. In no Scope it does
  /// nothing.
  static void add(const at::Tensor& tensor, std::function<at::Tensor()> make);
  /// `operation` of `input`, and adds the result. What it computes on the way is not kept: the backward pass computes
  /// it again. In no Scope it is the operation alone.
  static at::Tensor result_of(const Operation& operation, const at::Tensor& input);

  /// Frees the memory of all tensors.
  void free();
  /// Computes them again, in the order in which they were added. What they are made of has its memory again.
  void restore();

 private:
  Tensors tensors_;
  std::vector<std::function<at::Tensor()>> makes_;  // by tensor
};

}  // namespace isobar::exec
