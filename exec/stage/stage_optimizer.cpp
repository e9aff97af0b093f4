#include "exec/stage/stage_optimizer.hpp"

#include "core/errors.hpp"
#include "exec/device/place.hpp"
#include "exec/device/tensor_slices.hpp"
#include "exec/stage/stored_tensors.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <map>
#include <utility>

namespace isobar::exec {

namespace {

/// What the optimizer keeps of a parameter.
struct ParameterState {
  std::int64_t steps = 0;
  Tensors moments = {};  // empty before the first step
};

/// A parameter, its gradient and its moments as vectors, for the kernels of LibTorch that update many of them at once.
struct Operands {
  at::Tensor parameter;
  at::Tensor gradient;
  Tensors moments;

  template <typename Change>
  Operands each(const Change& change) const
  {
    Operands result{change(parameter), change(gradient), {}};
    for (const auto& moment : moments) result.moments.push_back(change(moment));
    return result;
  }
  void set(const Operands& values) const
  {
    parameter.copy_(values.parameter);
    for (std::size_t i = 0; i < moments.size(); ++i) moments[i].copy_(values.moments[i]);
  }
};

/// The kernels for the processor compute the last values of a vector, if their number is no multiple of this one, in
/// another way, which rounds differently.
constexpr std::int64_t vector_unit = 64;

std::vector<std::string> moment_names(Optimizer kind)
{
  switch (kind) {
    case Optimizer::Sgd:
      return {};
    case Optimizer::Momentum:
      return {"momentum_buffer"};
    case Optimizer::Adam:
    case Optimizer::AdamW:
      return {"exp_avg", "exp_avg_sq"};
  }
  return {};
}

bool counts_steps(Optimizer kind)
{
  return kind == Optimizer::Adam || kind == Optimizer::AdamW;
}

std::string state_name(const std::string& parameter, const std::string& kind)
{
  return parameter + ":" + kind;
}

}  // namespace

struct StageOptimizer::Impl {
  Impl(const Workload& workload, Tensors of)
      : kind(workload.optimizer), training(workload.training), parameters(std::move(of)), names(moment_names(kind))
  {
    for (std::size_t i = 0; i < parameters.size(); ++i) numbers[parameters[i].unsafeGetTensorImpl()] = i;
    states.resize(parameters.size());
  }

  const ParameterState& state_of(const at::Tensor& parameter) const
  {
    return states[numbers.at(parameter.unsafeGetTensorImpl())];
  }
  ParameterState& state_of(const at::Tensor& parameter) { return states[numbers.at(parameter.unsafeGetTensorImpl())]; }

  void step(double rate)
  {
    std::map<std::int64_t, std::vector<Operands>> by_steps;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!parameters[i].grad().defined()) continue;
      ParameterState& state = states[i];
      if (state.moments.empty()) {
        for (std::size_t k = 0; k < names.size(); ++k) state.moments.push_back(at::zeros_like(parameters[i]));
      }
      const Operands whole{parameters[i], parameters[i].grad().contiguous(), state.moments};
      by_steps[++state.steps].push_back(whole.each([](const at::Tensor& tensor) { return tensor.view(-1); }));
    }
    for (const auto& [steps, operands] : by_steps) update(rate, steps, operands);
  }

  void update(double rate, std::int64_t steps, const std::vector<Operands>& vectors) const
  {
    std::vector<Operands> updated;
    std::vector<std::pair<Operands, Operands>> ends;  // and what is updated in place of them
    for (const Operands& vector : vectors) {
      const std::int64_t size = vector.parameter.numel();
      const std::int64_t rest = vector.parameter.is_cpu() ? size % vector_unit : 0;
      if (rest < size) {
        updated.push_back(vector.each([&](const at::Tensor& values) { return values.narrow(0, 0, size - rest); }));
      }
      if (rest == 0) continue;
      const auto end = vector.each([&](const at::Tensor& values) { return values.narrow(0, size - rest, rest); });
      updated.push_back(end.each([&](const at::Tensor& values) {
        return at::constant_pad_nd(values, {0, vector_unit - rest});
      }));
      ends.emplace_back(end, updated.back().each([&](const at::Tensor& values) { return values.narrow(0, 0, rest); }));
    }
    if (!updated.empty()) update_vectors(rate, steps, updated);  // parameters may be empty slices
    for (const auto& [end, values] : ends) end.set(values);
  }

  /// `steps` includes this one.
  void update_vectors(double rate, std::int64_t steps, const std::vector<Operands>& vectors) const
  {
    Tensors of_parameters, gradients;
    std::vector<Tensors> moments(names.size());
    for (const Operands& vector : vectors) {
      of_parameters.push_back(vector.parameter);
      gradients.push_back(vector.gradient);
      for (std::size_t k = 0; k < names.size(); ++k) moments[k].push_back(vector.moments[k]);
    }
    if (!counts_steps(kind)) {
      at::_fused_sgd_(of_parameters, gradients, moments.empty() ? Tensors() : moments.front(), training.weight_decay,
                      kind == Optimizer::Momentum ? training.momentum : 0, rate, /*dampening=*/0, /*nesterov=*/false,
                      /*maximize=*/false, /*is_first_step=*/false);
      return;
    }
    const Tensors counts(vectors.size(), at::full({}, static_cast<float>(steps), gradients.front().options()));
    const auto update_by = [&](const auto& kernel) {
      kernel(of_parameters, gradients, moments[0], moments[1], Tensors(), counts, rate, training.beta1, training.beta2,
             training.weight_decay, training.epsilon, /*amsgrad=*/false, /*maximize=*/false);
    };
    if (kind == Optimizer::Adam) {
      update_by([](const auto&... values) { at::_fused_adam_(values...); });
    } else {
      update_by([](const auto&... values) { at::_fused_adamw_(values...); });
    }
  }

  /// Calls `take` with each tensor of the state and its memory.
  template <typename Take>
  void place_state(const Tensors& memory, const Take& take)
  {
    ensure(memory.size() == parameters.size() * names.size(), "the state has all of its memory");
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      Tensors& moments = states[i].moments;
      for (std::size_t k = 0; k < moments.size(); ++k) take(moments[k], memory[i * names.size() + k]);
    }
  }

  Optimizer kind;
  Training training;
  Tensors parameters;
  std::vector<std::string> names;  // of the moments
  std::vector<ParameterState> states;
  std::map<const at::TensorImpl*, std::size_t> numbers;  // of the parameters
};

StageOptimizer::StageOptimizer(const Workload& workload, const Tensors& parameters)
    : impl_(std::make_unique<Impl>(workload, parameters))
{
}
StageOptimizer::~StageOptimizer() = default;

void StageOptimizer::step(double learning_rate)
{
  const at::NoGradGuard no_graph;
  impl_->step(learning_rate);
}

Tensors StageOptimizer::shapes_of_state() const
{
  Tensors shapes;
  for (const auto& parameter : impl_->parameters) shapes.insert(shapes.end(), impl_->names.size(), parameter);
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
  const ParameterState& state = impl_->state_of(parameter);
  std::vector<StoredTensor> all;
  if (state.moments.empty()) return all;
  if (counts_steps(impl_->kind)) {
    all.push_back(stored(state_name(name, "step"), at::scalar_tensor(state.steps, at::kLong)));
  }
  for (std::size_t k = 0; k < state.moments.size(); ++k) {
    all.push_back(stored(state_name(name, impl_->names[k]), state.moments[k]));
  }
  return all;
}

void StageOptimizer::restore(const TensorSource& source, const std::string& name, const TensorPart* of_experts,
                             const TensorPart& part, const at::Tensor& parameter, std::size_t begin)
{
  const auto& names = impl_->names;
  if (names.empty() || source.find(state_name(name, names.front())) == nullptr) return;
  ParameterState& state = impl_->state_of(parameter);
  state.moments.clear();
  if (counts_steps(impl_->kind)) {
    state.steps = read_tensor(source, {state_name(name, "step"), ElementType::I64, {}}).item<std::int64_t>();
  }
  for (const auto& kind : names) {
    const auto whole = read_part(source, state_name(name, kind), of_experts, part);
    state.moments.push_back(whole.narrow(0, static_cast<std::int64_t>(begin), parameter.numel())
                                .reshape(parameter.sizes())
                                .to(parameter.device(), /*non_blocking=*/false, /*copy=*/true));
  }
}

}  // namespace isobar::exec
