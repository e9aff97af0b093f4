#include "tests/exec/model/plain_loop.hpp"

#include "exec/model/batch.hpp"
#include "exec/model/loss.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/utils/clip_grad.h>

#include <ATen/autocast_mode.h>

#include <utility>

namespace isobar::exec {

/// LibTorch's kernels for the optimizer on whole parameters, padded to vectors of 64 values on the CPU, so that the
/// kernels round all values alike.
struct PlainLoop::Optimizer {
  Optimizer(const Workload& of, const Tensors& all) : workload(of), parameters(all)
  {
    for (const auto& parameter : parameters) {
      padded.push_back(pad(parameter.detach()));
      first_moments.push_back(at::zeros_like(padded.back()));
      second_moments.push_back(at::zeros_like(padded.back()));
    }
  }

  static at::Tensor pad(const at::Tensor& tensor)
  {
    const std::int64_t missing = tensor.is_cpu() ? (64 - tensor.numel() % 64) % 64 : 0;
    return missing == 0 ? tensor.view(-1) : at::constant_pad_nd(tensor.view(-1), {0, missing});
  }

  void step()
  {
    const at::NoGradGuard no_graph;
    const Training& of = workload.training;
    const double rate = learning_rate_at(of, static_cast<std::uint64_t>(steps));
    ++steps;
    Tensors gradients;
    for (const auto& parameter : parameters) gradients.push_back(pad(parameter.grad().contiguous()));
    const Tensors counts(parameters.size(), at::full({}, static_cast<float>(steps), gradients.front().options()));
    switch (workload.optimizer) {
      case isobar::Optimizer::AdamW:
        at::_fused_adamw_(padded, gradients, first_moments, second_moments, {}, counts, rate, of.beta1, of.beta2,
                          of.weight_decay, of.epsilon, false, false);
        break;
      case isobar::Optimizer::Adam:
        at::_fused_adam_(padded, gradients, first_moments, second_moments, {}, counts, rate, of.beta1, of.beta2,
                         of.weight_decay, of.epsilon, false, false);
        break;
      case isobar::Optimizer::Momentum:
        at::_fused_sgd_(padded, gradients, first_moments, of.weight_decay, of.momentum, rate, 0, false, false, false);
        break;
      case isobar::Optimizer::Sgd:
        at::_fused_sgd_(padded, gradients, {}, of.weight_decay, 0, rate, 0, false, false, false);
        break;
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!padded[i].is_alias_of(parameters[i])) {
        parameters[i].copy_(padded[i].narrow(0, 0, parameters[i].numel()).view_as(parameters[i]));
      }
      parameters[i].mutable_grad().reset();
    }
  }

  const Workload& workload;
  Tensors parameters;
  Tensors padded;  // of the parameters' memory where nothing is missing
  Tensors first_moments;
  Tensors second_moments;
  std::int64_t steps = 0;
};

PlainLoop::PlainLoop(const Workload& workload, std::uint64_t model_seed, std::uint64_t microbatches, std::string device)
    : workload_(workload), seed_(model_seed), microbatches_(microbatches), device_(std::move(device))
{
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    const auto& tied_to = workload.layers[i].tied_to;
    const LayerModule* tied = tied_to ? layers_[*tied_to].get() : nullptr;
    layers_.push_back(make_layer_module(workload, i, model_seed, device_, {}, tied));
    for (const auto& parameter : layers_.back()->parameters()) parameters_.push_back(parameter);
  }
  optimizer_ = std::make_unique<Optimizer>(workload, parameters_);
}

PlainLoop::~PlainLoop() = default;

at::Tensor PlainLoop::loss_of_micro_batch(const RandomKey& key)
{
  const auto type = at::Device(device_).type();
  const bool is_mixed = workload_.dtype == DType::BFloat16;
  at::autocast::set_autocast_enabled(type, is_mixed);
  if (is_mixed) at::autocast::set_autocast_dtype(type, at::kBFloat16);
  Tensors passed = synthetic_inputs(workload_, key, device_);
  for (auto& layer : layers_) passed = layer->forward(passed, key);
  at::autocast::set_autocast_enabled(type, false);
  at::autocast::clear_cache();
  return loss_of(workload_, passed, synthetic_labels(workload_, key, device_));
}

double PlainLoop::step(Order order)
{
  Tensors losses(microbatches_);
  for (std::uint64_t i = 0; i < microbatches_; ++i) {
    const std::uint64_t microbatch = order == Order::Ascending ? i : microbatches_ - 1 - i;
    const RandomKey key{seed_, next_step_, microbatch};
    const at::Tensor loss = loss_of_micro_batch(key);
    (loss / static_cast<double>(microbatches_)).backward();
    losses[microbatch] = loss.detach();
  }
  if (const auto most = workload_.training.clip_norm) torch::nn::utils::clip_grad_norm_(parameters_, *most);
  optimizer_->step();
  ++next_step_;
  return at::stack(losses).to(at::kDouble).mean().item<double>();
}

}  // namespace isobar::exec
