#include "tests/exec/plain_loop.hpp"

#include "exec/batch.hpp"

#include <torch/torch.h>

namespace isobar::exec {

struct PlainLoop::Optimizer {
  std::unique_ptr<torch::optim::Optimizer> of_torch;
};

PlainLoop::PlainLoop(const Workload& workload, std::uint64_t seed, std::uint64_t microbatches)
    : workload_(workload), seed_(seed), microbatches_(microbatches), optimizer_(std::make_unique<Optimizer>())
{
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    layers_.push_back(make_layer_module(workload, i, seed, "cpu"));
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

double PlainLoop::step()
{
  Tensors losses;
  for (std::uint64_t microbatch = 0; microbatch < microbatches_; ++microbatch) {
    const RandomKey key{seed_, next_step_, microbatch};
    Tensors passed = synthetic_inputs(workload_, key, "cpu");
    for (auto& layer : layers_) passed = layer->forward(passed, key);
    const auto loss = loss_of(passed, synthetic_labels(workload_, key, "cpu"));
    (loss / static_cast<double>(microbatches_)).backward();
    losses.push_back(loss.detach());
  }
  if (const auto most = workload_.training.clip_norm) torch::nn::utils::clip_grad_norm_(parameters_, *most);
  optimizer_->of_torch->step();
  optimizer_->of_torch->zero_grad();
  ++next_step_;
  return at::stack(losses).to(at::kDouble).mean().item<double>();
}

}  // namespace isobar::exec
