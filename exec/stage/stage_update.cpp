#include "exec/stage/stage_update.hpp"

#include "exec/device/device.hpp"
#include "exec/device/tensor_slices.hpp"
#include "exec/stage/stored_tensors.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace isobar::exec {

namespace {

constexpr double first_loss_scale = 65536;
constexpr std::uint64_t good_steps_until_doubled = 2000;

}  // namespace

LossScale::LossScale(DType dtype) : is_adapted_(dtype == DType::Float16)
{
  if (is_adapted_) scale_ = first_loss_scale;
}

void LossScale::adapt(bool finite)
{
  if (!is_adapted_) return;
  good_steps_ = finite ? good_steps_ + 1 : 0;
  if (!finite) scale_ = std::max(1.0, scale_ / 2);
  if (good_steps_ == good_steps_until_doubled) {
    scale_ *= 2;
    good_steps_ = 0;
  }
}

std::vector<StoredTensor> LossScale::stored() const
{
  if (!is_adapted_) return {};
  return {exec::stored("loss_scale", at::tensor({scale_, static_cast<double>(good_steps_)}, at::kDouble))};
}

void LossScale::restore(const TensorSource& source)
{
  if (!is_adapted_ || source.find("loss_scale") == nullptr) return;
  const auto scale = read_tensor(source, {"loss_scale", ElementType::F64, {2}});
  scale_ = scale[0].item<double>();
  good_steps_ = static_cast<std::uint64_t>(scale[1].item<double>());
}

StageUpdate::StageUpdate(const Workload& workload, const StageOptions& options, const StageParameters& parameters)
    : workload_(workload),
      parameters_(parameters),
      optimizer_(parameters.updated().empty() ? nullptr
                                              : std::make_unique<StageOptimizer>(workload, parameters.updated())),
      loss_scale_(workload.dtype)
{
  if (options.residence.optimizer != Tier::Host) return;
  state_on_host_.emplace("cpu", size_of_state(), *options.machine_memory);
}

/// The sum of squares of each own gradient, and whether it is not finite: two float64 tensors on the stage's device.
Tensors StageUpdate::measured_gradients() const
{
  const bool is_divided = parameters_.is_divided();
  const auto& own = parameters_.own();
  Tensors squares, not_finite;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::size_t parameter = own[i].tensor;
    if (parameters_.is_copy(parameter)) continue;
    at::Tensor gradient = is_divided ? parameters_.updated()[i].grad() : parameters_.all()[parameter].grad();
    if (!gradient.defined() || (parameters_.is_shared(parameter) && !parameters_.is_first_shard())) continue;
    if (!is_divided) gradient = view_of(gradient.contiguous(), own[i]);
    squares.push_back(gradient.to(at::kDouble).square().sum());
    not_finite.push_back(at::isfinite(gradient).all().logical_not().to(at::kDouble));
  }
  if (squares.empty()) return {};
  return {at::stack(squares), at::stack(not_finite)};
}

void StageUpdate::add_gradient_facts(std::uint64_t step, GradientFacts& sums)
{
  const auto kept = [&] {
    const std::lock_guard lock(kept_facts_mutex_);
    return kept_facts_.extract(step);
  }();
  const Tensors both = on_cpu(kept.empty() ? measured_gradients() : kept.mapped());
  if (both.empty()) return;
  for (std::int64_t i = 0; i < both[0].numel(); ++i) {
    sums.sum_of_squares += both[0][i].item<double>() / (loss_scale_.value() * loss_scale_.value());
    sums.not_finite += both[1][i].item<double>();
  }
}

void StageUpdate::keep_gradient_facts(std::uint64_t step)
{
  if (!needs_gradient_sync(workload_)) return;
  Tensors facts = measured_gradients();
  const std::lock_guard lock(kept_facts_mutex_);
  kept_facts_[step] = std::move(facts);
}

/// The optimizer's step by the gradients of what this replica updates.
void StageUpdate::take_step(std::uint64_t step, const GradientFacts& reduced)
{
  if (optimizer_ && reduced.finite()) {
    double factor = 1 / loss_scale_.value();
    if (const auto most = workload_.training.clip_norm) {
      const double norm = std::sqrt(reduced.sum_of_squares);
      if (norm > *most) factor *= *most / norm;
    }
    if (factor != 1) {
      const at::NoGradGuard no_graph;
      for (const auto& parameter : parameters_.updated()) {
        if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
      }
    }
    optimizer_->step(learning_rate_at(workload_.training, step));
  }
  loss_scale_.adapt(reduced.finite());
}

void StageUpdate::update(std::uint64_t step, const GradientFacts& reduced)
{
  take_step(step, reduced);
  for (const auto* tensors : {&parameters_.updated(), &parameters_.all()}) {
    for (const auto& tensor : *tensors) tensor.mutable_grad().reset();
  }
}

void StageUpdate::update_on_machine(std::uint64_t step, const GradientFacts& reduced, const Place& gradients,
                                    const Place* state)
{
  const Tensors& updated = parameters_.updated();
  const Tensors memory = gradients.tensors(updated);
  for (std::size_t i = 0; i < updated.size(); ++i) updated[i].mutable_grad() = memory[i];
  const Place* const place = state != nullptr ? state : &*state_on_host_;
  if (state != nullptr) use_state(*state);
  take_step(step, reduced);
  keep_state_in(*place);
  for (const auto& parameter : updated) parameter.mutable_grad().reset();
}

PlaceSize StageUpdate::size_of_state() const
{
  return Layout(optimizer_ ? optimizer_->shapes_of_state() : Tensors()).size;
}

Tensors StageUpdate::state_in(const Place& place) const
{
  return place.tensors(optimizer_->shapes_of_state());
}

void StageUpdate::use_state(const Place& place)
{
  if (optimizer_) optimizer_->use_state(state_in(place));
}

bool StageUpdate::keep_state_in(const Place& place)
{
  return optimizer_ && optimizer_->keep_state_in(state_in(place));
}

void StageUpdate::keep_state_on_host()
{
  if (state_on_host_) keep_state_in(*state_on_host_);
}

}  // namespace isobar::exec
