#include "exec/model/stage_optimizer.hpp"

#include "exec/device/tensor_slices.hpp"
#include "exec/model/stored_tensors.hpp"

#include <torch/torch.h>

#include <cstdint>
#include <stdexcept>
#include <utility>

namespace isobar::exec {

namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Workload& workload, const Tensors& parameters)
{
  const Training& training = workload.training;
  switch (workload.optimizer) {
    case Optimizer::Sgd:
      return std::make_unique<torch::optim::SGD>(
          parameters, torch::optim::SGDOptions(training.learning_rate).weight_decay(training.weight_decay));
    case Optimizer::Momentum:
      return std::make_unique<torch::optim::SGD>(
          parameters,
          torch::optim::SGDOptions(training.learning_rate).momentum(0.9).weight_decay(training.weight_decay));
    case Optimizer::Adam:
      return std::make_unique<torch::optim::Adam>(
          parameters, torch::optim::AdamOptions(training.learning_rate).weight_decay(training.weight_decay));
    case Optimizer::AdamW:
      return std::make_unique<torch::optim::AdamW>(
          parameters, torch::optim::AdamWOptions(training.learning_rate).weight_decay(training.weight_decay));
  }
  throw std::logic_error("unknown optimizer");
}

std::string state_name(const std::string& parameter, const std::string& kind)
{
  return parameter + ":" + kind;
}

}  // namespace

struct StageOptimizer::Impl {
  Impl(const Workload& workload, const Tensors& parameters)
      : kind(workload.optimizer), torch_optimizer(make_optimizer(workload, parameters))
  {
  }

  /// The state of a parameter by kind; the number of steps as an int64 scalar.
  NamedTensors state_of(const at::Tensor& parameter) const
  {
    const auto& states = torch_optimizer->state();
    const auto found = states.find(parameter.unsafeGetTensorImpl());
    if (found == states.end()) return {};
    const auto adam_state = [](const auto& state) -> NamedTensors {
      return {{"step", at::scalar_tensor(state.step(), at::kLong)},
              {"exp_avg", state.exp_avg()},
              {"exp_avg_sq", state.exp_avg_sq()}};
    };
    switch (kind) {
      case Optimizer::Sgd:
        return {};
      case Optimizer::Momentum: {
        const auto& state = static_cast<const torch::optim::SGDParamState&>(*found->second);
        if (!state.momentum_buffer().defined()) return {};
        return {{"momentum_buffer", state.momentum_buffer()}};
      }
      case Optimizer::Adam:
        return adam_state(static_cast<const torch::optim::AdamParamState&>(*found->second));
      case Optimizer::AdamW:
        return adam_state(static_cast<const torch::optim::AdamWParamState&>(*found->second));
    }
    throw std::logic_error("unknown optimizer");
  }

  Optimizer kind;
  std::unique_ptr<torch::optim::Optimizer> torch_optimizer;
};

StageOptimizer::StageOptimizer(const Workload& workload, const Tensors& parameters)
    : impl_(std::make_unique<Impl>(workload, parameters))
{
}
StageOptimizer::~StageOptimizer() = default;

void StageOptimizer::step()
{
  impl_->torch_optimizer->step();
}

std::vector<StoredTensor> StageOptimizer::state(const std::string& name, const at::Tensor& parameter) const
{
  std::vector<StoredTensor> all;
  for (const auto& [kind, tensor] : impl_->state_of(parameter)) all.push_back(stored(state_name(name, kind), tensor));
  return all;
}

void StageOptimizer::restore(const TensorSource& source, const std::string& name, const TensorPart& part,
                             const at::Tensor& parameter, std::size_t begin)
{
  const auto has = [&](const char* kind) { return source.find(state_name(name, kind)) != nullptr; };
  const auto read = [&](const char* kind) {
    return values_of(part, read_tensor(source, {state_name(name, kind), ElementType::F32, part.shape}))
        .narrow(0, static_cast<std::int64_t>(begin), parameter.numel())
        .reshape(parameter.sizes())
        .to(parameter.device(), /*non_blocking=*/false, /*copy=*/true);
  };
  auto& restored = impl_->torch_optimizer->state();
  const auto restore_adam = [&](auto parameter_state) {
    if (!has("exp_avg")) return;
    const auto steps = read_tensor(source, {state_name(name, "step"), ElementType::I64, {}});
    parameter_state->step(steps.template item<std::int64_t>());
    parameter_state->exp_avg(read("exp_avg"));
    parameter_state->exp_avg_sq(read("exp_avg_sq"));
    restored[parameter.unsafeGetTensorImpl()] = std::move(parameter_state);
  };
  switch (impl_->kind) {
    case Optimizer::Sgd:
      return;
    case Optimizer::Momentum: {
      if (!has("momentum_buffer")) return;
      auto parameter_state = std::make_unique<torch::optim::SGDParamState>();
      parameter_state->momentum_buffer(read("momentum_buffer"));
      restored[parameter.unsafeGetTensorImpl()] = std::move(parameter_state);
      return;
    }
    case Optimizer::Adam:
      return restore_adam(std::make_unique<torch::optim::AdamParamState>());
    case Optimizer::AdamW:
      return restore_adam(std::make_unique<torch::optim::AdamWParamState>());
  }
}

}  // namespace isobar::exec
