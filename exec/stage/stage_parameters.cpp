#include "exec/stage/stage_parameters.hpp"

#include "core/errors.hpp"
#include "exec/device/device.hpp"
#include "exec/device/memory_meter.hpp"
#include "exec/files/checkpoint.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdint>

namespace isobar::exec {

StageParameters::StageParameters(const Workload& workload, const StageOptions& options, StageParameters* matrix_owner)
    : workload_(workload), options_(options), matrix_owner_(matrix_owner)
{
  for (std::size_t layer = options.first_layer; layer <= options.last_layer; ++layer) {
    layer_names_.push_back(fmt::format("layer {} ({})", layer, shown(workload.layers[layer].name)));
    const MemoryPlace place(layer_names_.back());
    modules_.push_back(make_module(layer));
    const auto& names = modules_.back()->parameter_names();
    const bool has_copy = workload.layers[layer].has_tied_copy;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool is_copy = has_copy && i + 1 == names.size();
      const std::size_t named = is_copy ? workload.layers[layer].tied_to.value() : layer;
      names_.push_back(checkpoint_name(layer_in_checkpoints(workload, named), names[i]));
      if (is_copy) copy_ = all_.size();
      if (layer == options.tied_layer && (has_copy ? is_copy : i == 0)) tied_ = all_.size();
      parts_.push_back(modules_.back()->parameter_parts()[i]);
      of_experts_.push_back(modules_.back()->part_of_experts(i));
      const bool is_on_one_shard = workload.experts.are_whole && is_of_experts(all_.size());
      shared_.push_back(options.has_shards && !is_on_one_shard && is_on_all_shards(layer, i));
      take_parameter(modules_.back()->parameters()[i]);
    }
  }
  if (!is_divided()) updated_ = all_;
  if (is_updated_by_machine()) keep_on_machine();
  ensure(!is_divided() || size_of(all_) == parameters_of_layers(), "a module has the parameters of its layer");
}

std::unique_ptr<LayerModule> StageParameters::make_module(std::size_t layer)
{
  if (!options_.operators.empty()) {
    return make_operator_module(workload_, layer, options_.seed, options_.device, held(layer).block);
  }
  std::size_t expert_part = options_.replica % workload_.experts.degree;
  if (workload_.experts.are_whole) expert_part = expert_part * equal_shards() + options_.shard;
  return make_layer_module(workload_, layer, options_.seed, options_.device, options_.units, module_tied_to(layer),
                           {.experts = expert_part, .sequence = options_.replica % workload_.context.degree});
}

bool StageParameters::is_on_all_shards(std::size_t layer, std::size_t parameter) const
{
  return options_.operators.empty() ? parts_of_one_unit(layer)[parameter].is_whole() : held(layer).is_replicated;
}

/// The module whose matrix a layer uses, too; null if there is none, or if it is not of this stage, as in a profile.
const LayerModule* StageParameters::module_tied_to(std::size_t layer)
{
  const auto& tied_to = workload_.layers[layer].tied_to;
  if (!tied_to || workload_.layers[layer].has_tied_copy) return nullptr;
  StageParameters* const has_it = *tied_to >= options_.first_layer ? this : matrix_owner_;
  if (has_it == nullptr) return nullptr;
  const LayerModule& module = has_it->module(*tied_to);
  tied_matrix_ = has_it->tied_matrix_ = &module.parameters().front();
  return &module;
}

/// Adds a parameter, and cuts the own part out of it. Of experts, those replicas divide it that have the same ones.
void StageParameters::take_parameter(const at::Tensor& parameter)
{
  const bool of_experts = is_of_experts(all_.size());
  const std::size_t degree = of_experts ? workload_.experts.degree : 1;
  std::vector<std::string> sites;
  for (std::size_t k = options_.replica % degree; k < options_.sites.size(); k += degree) {
    sites.push_back(options_.sites[k]);
  }
  // The values of the sum of the gradients, of which the first is the last stage's part of the loss.
  const std::size_t loss_values = !of_experts && options_.last_layer + 1 == workload_.layers.size() ? 1 : 0;
  const std::size_t tied = is_divided() && !of_experts ? size_of_tied() : 0;
  std::size_t first = loss_values;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (is_of_experts(i) == of_experts && !is_divided_alone(i)) first += static_cast<std::size_t>(all_[i].numel());
  }
  std::size_t values = loss_values + values_among(of_experts) - tied;
  if (is_divided_alone(all_.size())) {
    first = 0;
    values = tied;
  }
  // Where sites are not equal, replicas divide nothing but the work of the gradient facts.
  const Algorithm algorithm = are_equal_sites(sites) ? options_.sync.algorithm : Algorithm::Ring;
  ValueRange range = part_of_end(options_.replica / degree, sites.size(), values, algorithm, sites);
  if (!options_.is_divided_alike) {
    range = {0, options_.replica == 0 ? values : 0};
  }
  const std::size_t begin = std::max(range.begin, first);
  const std::size_t end = std::min(range.end, first + static_cast<std::size_t>(parameter.numel()));
  if (begin < end) own_.push_back({all_.size(), begin - first, end - first});
  all_.push_back(parameter);
  if (begin < end && is_divided()) {
    const at::Tensor part = view_of(parameter, own_.back());
    updated_.push_back(divides_parameters() ? part.clone() : part);
  }
  if (divides_parameters()) free_memory(parameter);
}

/// Makes the machine's parameters of those on the device.
void StageParameters::keep_on_machine()
{
  const at::NoGradGuard no_graph;
  on_machine_.emplace("cpu", Layout(all_).size, *options_.machine_memory, is_gpu(options_.device));
  updated_ = on_machine_->tensors(all_);
  for (std::size_t i = 0; i < all_.size(); ++i) {
    updated_[i].copy_(all_[i]);
    if (passes()) free_memory(all_[i]);
  }
}

std::size_t StageParameters::parameters_of_layers() const
{
  std::size_t count = 0;
  for (std::size_t layer = options_.first_layer; layer <= options_.last_layer; ++layer) {
    if (options_.operators.empty()) {
      count += parameters_of(workload_.layers[layer], options_.units);
    } else if (workload_.layers[layer].parameters > 0) {
      count += static_cast<std::size_t>(c10::multiply_integers(held(layer).block.size));
    }
  }
  return count;
}

/// The parameters of the matrix of StageOptions::tied_layer.
std::size_t StageParameters::size_of_tied() const
{
  if (!options_.tied_layer) return 0;
  const auto& layers = workload_.layers;
  const auto uses_it = std::find_if(layers.begin(), layers.end(), [&](const Layer& layer) {
    return layer.tied_to == layers[*options_.tied_layer].tied_to.value_or(*options_.tied_layer);
  });
  return static_cast<std::size_t>(options_.units.part_of(uses_it->tied_parameters));
}

/// The values of all parameters, of experts or others. Where devices divide experts, the stage has one layer.
std::size_t StageParameters::values_among(bool of_experts) const
{
  if (!workload_.experts.divides()) return parameters_of_layers();
  const LayerModule& module = *modules_.back();
  std::size_t values = 0;
  for (std::size_t i = 0; i < module.parameters().size(); ++i) {
    const bool is_of_kind = (module.part_of_experts(i) != nullptr) == of_experts;
    if (is_of_kind) values += static_cast<std::size_t>(module.parameters()[i].numel());
  }
  return values;
}

std::size_t StageParameters::updates() const
{
  const bool has_experts =
      std::any_of(of_experts_.begin(), of_experts_.end(), [](const TensorPart* part) { return part != nullptr; });
  return is_divided() && has_experts && has_copies() ? 2 : 1;
}

std::vector<TensorPart> StageParameters::parts_of_one_unit(std::size_t layer) const
{
  return module(layer).parts_of({0, 1, workload_.layers[layer].split.value().units});
}

Tensors StageParameters::gradients()
{
  Tensors gradients;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (is_of_experts(i) || is_divided_alone(i)) continue;
    at::Tensor& gradient = all_[i].mutable_grad();
    ensure(gradient.defined() || !is_divided(), "a parameter of a divided optimizer has a gradient");
    if (!gradient.defined()) continue;
    gradient = gradient.contiguous();
    gradients.push_back(gradient);
  }
  return gradients;
}

Tensors StageParameters::divided_tied_gradient()
{
  return tied_ && is_divided() ? Tensors{gradient_or_zeros(*tied_)} : Tensors();
}

Tensors StageParameters::tied_gradient()
{
  if (!tied_) return {};
  if (!is_divided()) return {gradient_or_zeros(*tied_)};
  const auto is_of_it = [&](const TensorSlice& slice) { return slice.tensor == *tied_; };
  const auto own = std::find_if(own_.begin(), own_.end(), is_of_it);
  if (own == own_.end()) return {};
  return {updated_[static_cast<std::size_t>(own - own_.begin())].grad()};
}

Tensors StageParameters::expert_gradients()
{
  Tensors gradients;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (is_of_experts(i)) gradients.push_back(gradient_or_zeros(i));
  }
  return gradients;
}

/// The gradient of a parameter, contiguous; it becomes zeros if there is none.
at::Tensor StageParameters::gradient_or_zeros(std::size_t parameter)
{
  at::Tensor& gradient = all_[parameter].mutable_grad();
  gradient = gradient.defined() ? gradient.contiguous() : at::zeros_like(all_[parameter]);
  return gradient;
}

Tensors StageParameters::gradients(const UnitRange& units)
{
  const auto of_units = modules_.front()->parts_of(units);
  Tensors views;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (is_shared(i)) continue;
    const at::Tensor gradient = gradient_or_zeros(i);
    const TensorPart& own = parts_[i];
    const auto& [shape, begin, end, period] = of_units[i];
    const std::uint64_t first = own.is_whole() ? 0 : own.begin;
    const std::uint64_t width = own.is_whole() ? period : own.end - own.begin;
    views.push_back(gradient.view({-1, static_cast<std::int64_t>(width)})
                        .narrow(1, static_cast<std::int64_t>(begin - first), static_cast<std::int64_t>(end - begin)));
  }
  return views;
}

Tensors StageParameters::shared_gradients()
{
  Tensors shared;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (is_shared(i)) shared.push_back(gradient_or_zeros(i));
  }
  return shared;
}

void StageParameters::keep_own_gradients(bool of_experts)
{
  if (!is_divided()) return;
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const std::size_t parameter = own_[i].tensor;
    if (!is_among(of_experts, parameter)) continue;
    const auto slice = view_of(gradient_or_zeros(parameter), own_[i]);
    updated_[i].mutable_grad() = divides_gradients() ? slice.clone() : slice;
  }
  if (!divides_gradients()) return;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (is_among(of_experts, i)) all_[i].mutable_grad().reset();
  }
}

Tensors StageParameters::gather(bool of_experts)
{
  Tensors aliases;
  for (std::size_t i = 0; i < all_.size(); ++i) {
    if (is_of_experts(i) != of_experts || is_divided_alone(i)) continue;
    if (divides_parameters()) allocate_memory(all_[i]);
    aliases.push_back(alias_of(all_[i]));
  }
  for (std::size_t i = 0; i < own_.size() && divides_parameters(); ++i) {
    view_of(alias_of(all_[own_[i].tensor]), own_[i]).copy_(updated_[i]);
  }
  return aliases;
}

Tensors StageParameters::gather_tied()
{
  return tied_ && is_divided() ? Tensors{alias_of(all_[*tied_])} : Tensors();
}

void StageParameters::end_use()
{
  if (!divides_parameters()) return;
  for (const auto& parameter : all_) free_memory(parameter);
}

void StageParameters::change(std::size_t begin, std::size_t end, const std::function<void()>& write)
{
  const at::NoGradGuard no_graph;
  if (is_updated_by_machine()) return change_on_machine(begin, end, write);
  if (!divides_parameters()) return write();
  const auto is_changed = [&](const TensorSlice& slice) { return slice.tensor >= begin && slice.tensor < end; };
  for (std::size_t i = begin; i < end; ++i) allocate_memory(all_[i]);
  for (std::size_t i = 0; i < own_.size(); ++i) {
    if (is_changed(own_[i])) view_of(all_[own_[i].tensor], own_[i]).copy_(updated_[i]);
  }
  write();
  for (std::size_t i = 0; i < own_.size(); ++i) {
    if (is_changed(own_[i])) updated_[i].copy_(view_of(all_[own_[i].tensor], own_[i]));
  }
  for (std::size_t i = begin; i < end; ++i) free_memory(all_[i]);
}

void StageParameters::change_on_machine(std::size_t begin, std::size_t end, const std::function<void()>& write)
{
  for (std::size_t i = begin; i < end; ++i) {
    if (passes()) free_memory(all_[i]);  // which may be a place
    allocate_memory(all_[i]);
    copy_memory(updated_[i], alias_of(all_[i]));
  }
  write();
  for (std::size_t i = begin; i < end; ++i) {
    updated_[i].copy_(all_[i]);
    if (passes()) free_memory(all_[i]);
  }
}

std::string StageParameters::not_finite() const
{
  const at::NoGradGuard no_graph;
  const bool is_divided = divides_parameters();
  const Tensors& tensors = is_divided || is_updated_by_machine() ? updated_ : all_;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (at::isfinite(tensors[i]).all().item<bool>()) continue;
    return names_[is_divided ? own_[i].tensor : i];
  }
  return "";
}

}  // namespace isobar::exec
