#include "exec/stage/expert_passes.hpp"

#include "core/errors.hpp"
#include "core/failure.hpp"
#include "exec/device/autocast.hpp"
#include "exec/device/memory_meter.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

namespace isobar::exec {

namespace {

const DividedExperts& experts_of(const LayerModule& module)
{
  const DividedExperts* const experts = module.experts();
  ensure(experts != nullptr, "a layer whose experts are divided has some");
  return *experts;
}

at::Tensor leaf_of(const at::Tensor& tensor)
{
  return tensor.detach().requires_grad_();
}

/// A part of autograd's graph.
struct Piece {
  Tensors inputs;   // leaves
  Tensors outputs;  // roots
};

/// Adds the gradients of a piece's leaves.
void go_backward(const Tensors& outputs, const Tensors& gradients)
{
  Tensors roots, of_roots;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    of_roots.push_back(gradients[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, of_roots);
}

at::Tensor gradient_of(const at::Tensor& leaf)
{
  return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf);
}

}  // namespace

struct ExpertPasses::MicroBatch {
  bool keeps = true;  // for a backward pass
  RoutedTokens routed;
  at::Tensor residual;
  ComputedExperts computed;
  Piece route, compute, combine;
  at::Tensor residual_gradient, weight_gradient, shared_gradient, token_gradient;
};

ExpertPasses::ExpertPasses(const Workload& workload, const StageOptions& options, const LayerModule& module,
                           std::string name)
    : workload_(workload), options_(options), experts_(experts_of(module)), name_(std::move(name))
{
}

ExpertPasses::~ExpertPasses() = default;

ExpertPasses::MicroBatch& ExpertPasses::in_flight(std::uint64_t microbatch)
{
  const std::lock_guard lock(mutex_);
  return *in_flight_.at(microbatch);
}

void ExpertPasses::forget(std::uint64_t microbatch)
{
  const std::lock_guard lock(mutex_);
  in_flight_.erase(microbatch);
  changed_.notify_all();
}

template <typename IsOver>
void ExpertPasses::await(IsOver is_over)
{
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_over() || is_cancelled_; });
  if (!is_cancelled_) return;
  Failure failure;
  failure.kind = Failure::Kind::Cancelled;
  failure.text = "experts: another rank has failed";
  throw_failure(failure);
}

void ExpertPasses::await_gradients()
{
  await([&] { return in_flight_.empty(); });
}

void ExpertPasses::updated(std::uint64_t step)
{
  const std::lock_guard lock(mutex_);
  next_step_ = step + 1;
  changed_.notify_all();
}

void ExpertPasses::cancel() noexcept
{
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
  changed_.notify_all();
}

template <typename Work>
auto ExpertPasses::run(const MicroBatch& micro_batch, Work work) const
{
  const at::AutoGradMode mode(micro_batch.keeps);
  const Autocast autocast(workload_.dtype, options_.device);
  const MemoryPlace place(name_);
  return work();
}

std::pair<at::Tensor, at::Tensor> ExpertPasses::begin_forward(std::uint64_t step, std::uint64_t microbatch,
                                                              const Message& inputs, bool keeps)
{
  // The first step of a run has no update before it.
  if (keeps) await([&] { return step <= *(next_step_ = next_step_.value_or(step)); });
  auto made = std::make_unique<MicroBatch>();
  made->keeps = keeps;
  MicroBatch& own = *made;
  {
    const std::lock_guard lock(mutex_);
    in_flight_[microbatch] = std::move(made);
  }
  const at::Tensor residual = keeps ? leaf_of(inputs.tensors.at(0)) : inputs.tensors.at(0);
  RoutedTokens routed = run(own, [&] { return experts_.route(residual); });
  using Number = RoutedTokens::Number;
  const at::Tensor rows = routed.tensors[Number::Rows];
  own.route = {{residual}, {rows, routed.tensors[Number::Tokens], routed.tensors[Number::Weights]}};
  own.residual = residual.detach();
  routed.tensors[Number::Rows] = at::Tensor();
  own.routed = std::move(routed);
  return {rows.detach().contiguous(), own.routed.tensors[Number::Counts]};
}

at::Tensor ExpertPasses::compute(std::uint64_t microbatch, const at::Tensor& rows, const at::Tensor& counts)
{
  MicroBatch& own = in_flight(microbatch);
  const at::Tensor leaf = own.keeps ? leaf_of(rows) : rows;
  const at::Tensor& routed = own.routed.tensors[RoutedTokens::Tokens];
  const at::Tensor tokens = own.keeps ? leaf_of(routed) : routed;
  own.computed = run(own, [&] { return experts_.compute(leaf, counts, tokens); });
  own.compute = {{leaf, tokens}, own.computed.tensors};
  return own.computed.tensors[ComputedExperts::Rows].detach().contiguous();
}

Message ExpertPasses::end_forward(std::uint64_t microbatch, const at::Tensor& returned)
{
  MicroBatch& own = in_flight(microbatch);
  ComputedExperts computed = {{returned, own.computed.tensors[ComputedExperts::Shared]}};
  RoutedTokens routed = own.routed;
  at::Tensor& weights = routed.tensors[RoutedTokens::Weights];
  at::Tensor residual = own.residual;
  if (own.keeps) {
    residual = leaf_of(residual);
    weights = leaf_of(weights);
    for (auto& tensor : computed.tensors) {
      if (tensor.defined()) tensor = leaf_of(tensor);
    }
  }
  const at::Tensor output = run(own, [&] { return experts_.combine(computed, routed, residual); });
  own.combine = {
      {computed.tensors[ComputedExperts::Rows], residual, weights, computed.tensors[ComputedExperts::Shared]},
      {output}};
  own.routed = {};
  own.computed = {};
  own.residual = at::Tensor();
  Message message = message_of({output});
  if (!own.keeps) forget(microbatch);
  return message;
}

at::Tensor ExpertPasses::begin_backward(std::uint64_t microbatch, const Message& gradients)
{
  MicroBatch& own = in_flight(microbatch);
  Piece piece = std::exchange(own.combine, {});
  run(own, [&] { go_backward(piece.outputs, gradients.tensors); });
  own.residual_gradient = gradient_of(piece.inputs[1]);
  own.weight_gradient = gradient_of(piece.inputs[2]);
  if (piece.inputs[3].defined()) own.shared_gradient = gradient_of(piece.inputs[3]);
  return gradient_of(piece.inputs[0]).contiguous();
}

at::Tensor ExpertPasses::compute_backward(std::uint64_t microbatch, const at::Tensor& gradients)
{
  MicroBatch& own = in_flight(microbatch);
  Piece piece = std::exchange(own.compute, {});
  run(own, [&] { go_backward(piece.outputs, {gradients, own.shared_gradient}); });
  own.token_gradient = gradient_of(piece.inputs[1]);
  return gradient_of(piece.inputs[0]).contiguous();
}

Message ExpertPasses::end_backward(std::uint64_t microbatch, const at::Tensor& returned)
{
  MicroBatch& own = in_flight(microbatch);
  Piece piece = std::exchange(own.route, {});
  run(own, [&] { go_backward(piece.outputs, {returned, own.token_gradient, own.weight_gradient}); });
  const at::NoGradGuard no_graph;
  Message message;
  message.tensors = {gradient_of(piece.inputs[0]) + own.residual_gradient};
  message.differentiable = {false};
  forget(microbatch);
  return message;
}

}  // namespace isobar::exec
