#include "exec/spmd/gating.hpp"

#include "core/errors.hpp"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <limits>

namespace isobar::exec {

namespace {

/// Where each token's choice has its slot.
/// @param chosen 1 for each token's expert, int64 [samples, sequence, experts]
/// @param taken slots of each expert that others have, int64 [samples, 1, experts]
/// @returns bool [samples, sequence, experts, capacity]
at::Tensor slots_of(const at::Tensor& chosen, const at::Tensor& taken, std::int64_t capacity)
{
  const at::Tensor place = ((chosen.cumsum(1) - 1 + taken) * chosen).sum(-1, /*keepdim=*/true);
  const at::Tensor in_place = place == at::arange(capacity, chosen.options());
  return chosen.to(at::kBool).unsqueeze(-1).logical_and(in_place.unsqueeze(-2));
}

at::Tensor one_hot(const at::Tensor& expert, const at::Tensor& gates)
{
  return (expert.unsqueeze(-1) == at::arange(gates.size(-1), expert.options())).to(at::kLong);
}

}  // namespace

Tensors gating(const at::Tensor& tokens, const at::Tensor& weight, std::int64_t capacity, std::uint64_t top_k)
{
  ensure(top_k == 1 || top_k == 2, "a token goes to one or two experts");
  const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::autocast_dispatch_keyset);
  const auto dtype =
      at::elementSize(tokens.scalar_type()) < at::elementSize(at::kFloat) ? at::kFloat : tokens.scalar_type();
  const at::Tensor gates = at::softmax(at::matmul(tokens.to(dtype), weight.to(dtype)), -1);
  const auto gate_of = [&gates](const at::Tensor& expert) {
    return gates.gather(-1, expert.unsqueeze(-1)).unsqueeze(-1);  // [samples, sequence, 1, 1]
  };
  const at::Tensor first = gates.detach().argmax(-1);
  const at::Tensor chosen = one_hot(first, gates);
  const at::Tensor none = at::zeros_like(chosen.narrow(1, 0, 1));
  at::Tensor mask = slots_of(chosen, none, capacity);
  at::Tensor weights = gate_of(first) * mask;
  if (top_k == 2) {
    constexpr double never = -std::numeric_limits<double>::infinity();
    const at::Tensor second = gates.detach().masked_fill(chosen.to(at::kBool), never).argmax(-1);
    const at::Tensor slots = slots_of(one_hot(second, gates), chosen.sum(1, /*keepdim=*/true), capacity);
    weights = (weights + gate_of(second) * slots) / (gate_of(first) + gate_of(second));
    mask = mask.logical_or(slots);
  }
  return {mask.to(tokens.scalar_type()), weights.to(tokens.scalar_type())};
}

}  // namespace isobar::exec
