#include "exec/model/stage_optimizer.hpp"

#include "core/errors.hpp"
#include "exec/device/place.hpp"
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
  Impl(const Workload& workload, const Tensors& of)
      : kind(workload.optimizer), parameters(of), torch_optimizer(make_optimizer(workload, of))
  {
  }

  std::size_t tensors_of_each() const
  {
    if (kind == Optimizer::Sgd) return 0;
    return kind == Optimizer::Momentum ? 1 : 2;
  }

  /// Where torch's optimizer has the tensors of a parameter's state; empty before its first step.
  std::vector<at::Tensor*> places_of(const at::Tensor& parameter)
  {
    auto& states = torch_optimizer->state();
    const auto found = states.find(parameter.unsafeGetTensorImpl());
    if (found == states.end()) return {};
    const auto of_adam = [](auto& state) { return std::vector<at::Tensor*>{&state.exp_avg(), &state.exp_avg_sq()}; };
    switch (kind) {
      case Optimizer::Sgd:
        return {};
      case Optimizer::Momentum: {
        at::Tensor& buffer = static_cast<torch::optim::SGDParamState&>(*found->second).momentum_buffer();
        return buffer.defined() ? std::vector<at::Tensor*>{&buffer} : std::vector<at::Tensor*>{};
      }
      case Optimizer::Adam:
        return of_adam(static_cast<torch::optim::AdamParamState&>(*found->second));
      case Optimizer::AdamW:
        return of_adam(static_cast<torch::optim::AdamWParamState&>(*found->second));
    }
    throw std::logic_error("unknown optimizer");
  }

  /// Calls `take` with each tensor of the state and its memory.
  template <typename Take>
  void place_state(const Tensors& memory, const Take& take)
  {
    ensure(memory.size() == parameters.size() * tensors_of_each(), "the state has all of its memory");
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto places = places_of(parameters[i]);
      for (std::size_t k = 0; k < places.size(); ++k) take(*places[k], memory[i * tensors_of_each() + k]);
    }
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
  Tensors parameters;
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

Tensors StageOptimizer::shapes_of_state() const
{
  Tensors shapes;
  for (const auto& parameter : impl_->parameters) shapes.insert(shapes.end(), impl_->tensors_of_each(), parameter);
  return shapes;
}

void StageOptimizer::use_state(const Tensors& memory)
{
  impl_->place_state(memory, [](at::Tensor& tensor, const at::Tensor& place) { tensor = place; });
}

bool StageOptimizer::keep_state_in(const Tensors& memory)
{
  bool has_moved = false;
  impl_->place_state(memory, [&](at::Tensor& tensor, const at::Tensor& place) {
    if (tensor.const_data_ptr() == place.const_data_ptr()) return;
    copy_memory(tensor, place);
    tensor = place;
    has_moved = true;
  });
  return has_moved;
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
