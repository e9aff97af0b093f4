#include "tests/exec/model/plain_loop.hpp"

#include "exec/model/batch.hpp"
#include "exec/model/loss.hpp"

#include <torch/torch.h>

#include <ATen/autocast_mode.h>

#include <utility>

namespace isobar::exec {

struct PlainLoop::Optimizer {
  std::unique_ptr<torch::optim::Optimizer> of_torch;
};

PlainLoop::PlainLoop(const Workload& workload, std::uint64_t model_seed, std::uint64_t microbatches, std::string device)
    : workload_(workload),
      seed_(model_seed),
      microbatches_(microbatches),
      device_(std::move(device)),
      optimizer_(std::make_unique<Optimizer>())
{
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    const auto& tied_to = workload.layers[i].tied_to;
    const LayerModule* tied = tied_to ? layers_[*tied_to].get() : nullptr;
    layers_.push_back(make_layer_module(workload, i, model_seed, device_, {}, tied));
    for (const auto& parameter : layers_.back()->parameters()) parameters_.push_back(parameter);
  }
  const Training& training = workload.training;
  auto& optimizer = optimizer_->of_torch;
  if (workload.optimizer == isobar::Optimizer::AdamW) {
    optimizer = std::make_unique<torch::optim::AdamW>(
        parameters_, torch::optim::AdamWOptions(training.learning_rate).weight_decay(training.weight_decay));
  } else if (workload.optimizer == isobar::Optimizer::Adam) {
    optimizer = std::make_unique<torch::optim::Adam>(
        parameters_, torch::optim::AdamOptions(training.learning_rate).weight_decay(training.weight_decay));
  } else {
    const double momentum = workload.optimizer == isobar::Optimizer::Momentum ? 0.9 : 0;
    optimizer = std::make_unique<torch::optim::SGD>(
        parameters_,
        torch::optim::SGDOptions(training.learning_rate).momentum(momentum).weight_decay(training.weight_decay));
  }
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
  return loss_of(passed, synthetic_labels(workload_, key, device_));
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
  optimizer_->of_torch->step();
  optimizer_->of_torch->zero_grad();
  ++next_step_;
  return at::stack(losses).to(at::kDouble).mean().item<double>();
}

}  // namespace isobar::exec
