#pragma once

#include <list>
#include <memory>

namespace at {
class Tensor;
}

namespace isobar::exec {

/// The matrix products of a micro-batch, whose parameters get their gradients after the backward pass has computed
/// those of all inputs (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2).
///
/// The backward pass through a recorded product computes the gradient of its input, and keeps the input and the
/// gradient of the output. `add_gradients` computes the gradients of the weight and the bias from these, by the kernels
/// of an ordinary backward pass, so they have the same bits.
class DeferredProducts {
 public:
  DeferredProducts();
  ~DeferredProducts();
  DeferredProducts(const DeferredProducts&) = delete;
  DeferredProducts& operator=(const DeferredProducts&) = delete;

  /// For its lifetime, `products` records the products that this thread computes; none are recorded if it is null.
  class Scope {
   public:
    /// `products` must outlive it.
    explicit Scope(const std::shared_ptr<DeferredProducts>& products);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    const std::shared_ptr<DeferredProducts>* before_;
  };
  /// Whether this thread is in a Scope that records.
  static bool are_recorded();
  /// at::linear, recorded: input times the transposed weight, plus the bias unless it is undefined. Only in such a
  /// Scope. `weight` and `bias` must be leaves of autograd's graph.
  static at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

  /// Adds the gradients of the parameters of all products that the backward pass has come through, in its order. Frees
  /// what was kept for each.
  void add_gradients();

 private:
  struct Kept;
  class Node;

  std::list<Kept> kept_;
};

}  // namespace isobar::exec
