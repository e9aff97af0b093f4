#pragma once

#include "exec/device/tensors.hpp"

#include <cstddef>

namespace isobar::exec {

/// Tokens on their way to experts that devices divide, by number.
struct RoutedTokens {
  enum Number : std::size_t {
    Rows,    ///< a token once for each of its experts, by expert: [copies, width]
    Counts,  ///< of the rows of each expert, int64 on the CPU
    Order,   ///< which copy each row is, of those token by token: int64 [copies]
    Tokens,  ///< normalized, [tokens, hidden]
    Weights  ///< of each token's experts, float32 [tokens, experts of a token]
  };
  Tensors tensors;
};

/// What a device computes of a layer between the exchanges of tokens, by number.
struct ComputedExperts {
  enum Number : std::size_t {
    Rows,   ///< [copies, width], in the order of those that have arrived
    Shared  ///< what the shared expert gives for the own tokens, [tokens, hidden]; undefined without one
  };
  Tensors tensors;
};

/// What a layer computes before, by and after experts that devices divide. In turn they are its forward pass.
class DividedExperts {
 public:
  DividedExperts() = default;
  DividedExperts(const DividedExperts&) = delete;
  DividedExperts& operator=(const DividedExperts&) = delete;
  virtual ~DividedExperts() = default;

  virtual RoutedTokens route(const at::Tensor& residual) const = 0;
  /// @param rows those that come to this device's experts, from one device after another, of each by expert
  /// @param counts int64 [devices, own experts] on the CPU
  virtual ComputedExperts compute(const at::Tensor& rows, const at::Tensor& counts, const at::Tensor& tokens) const = 0;
  /// @param computed what experts gave for the routed rows, in their order, and the shared expert
  virtual at::Tensor combine(const ComputedExperts& computed, const RoutedTokens& routed,
                             const at::Tensor& residual) const = 0;
};

}  // namespace isobar::exec
