#include "exec/model/layer_module.hpp"

#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "exec/device/tensor_slices.hpp"
#include "exec/files/huggingface_weights.hpp"
#include "exec/model/layers/model_layer.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <variant>

namespace isobar::exec {

namespace {

template <typename Sizes>
std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const Sizes& /*without modules*/)
{
  refuse_without_modules(setup.workload);
}

}  // namespace

void refuse_without_modules(const Workload& workload)
{
  throw InputError(fmt::format("workload {}", shown(workload.name)),
                   "its layers are listed, which gives their cost but not what they compute; name a model: bert, gpt, "
                   "llama, decoder, resnet or moe");
}

namespace {

void require_executable(const Workload& workload)
{
  const auto refuse = [&](const std::string& what) {
    throw InputError(fmt::format("workload {}", shown(workload.name)), what);
  };
  const auto recomputes = [](const auto& sizes) {
    if constexpr (requires { sizes.attention; }) return sizes.attention == Attention::Recomputed;
    return false;
  };
  if (std::visit(recomputes, workload.model)) {
    refuse("attention: recomputed is only simulated; write unfused or fused to execute, or recompute whole layers");
  }
  if (!workload.recompute_operators.empty()) {
    refuse("recompute_operators: is only simulated; leave it out to execute, or recompute whole layers");
  }
  if (workload.has_tf32_products) {
    refuse("matmul_dtype: tf32 is only simulated; leave it out to execute in float32");
  }
  if (workload.recipe != ProductRecipe::None) {
    refuse(fmt::format("matmul_dtype: {} is only simulated; leave it out to execute in {}", name_of(workload.recipe),
                       name_of(workload.dtype)));
  }
}

}  // namespace

std::unique_ptr<LayerModule> make_layer_module(const Workload& workload, std::size_t layer, std::uint64_t seed,
                                               const std::string& device, const UnitRange& units,
                                               const LayerModule* tied, const DevicePart& part)
{
  require_executable(workload);
  ensure(layer < workload.layers.size(), "a layer module needs one of the workload's layers");
  LayerSetup setup{workload, layer, seed, device, units, tied};
  const std::size_t shards = units.all / (units.end - units.begin);  // which have equal parts if devices divide experts
  setup.experts = {part.experts, part.experts + 1, workload.experts.parts(shards)};
  setup.sequence = {part.sequence, workload.context.degree};
  auto module = std::visit([&](const auto& sizes) { return make_layer(setup, sizes); }, workload.model);
  std::uint64_t parameters = 0;
  for (const auto& parameter : module->parameters()) parameters += static_cast<std::uint64_t>(parameter.numel());
  ensure(parameters == parameters_of(workload.layers[layer], units),
         "a layer module has as many parameters as its layer, or its part of them");
  return module;
}

std::uint64_t parameters_of(const Layer& layer, const UnitRange& units)
{
  if (units.is_whole()) return layer.parameters;
  ensure(layer.split.has_value(), "a layer without a split is not divided");
  return shared_parameters(layer) + units.part_of(layer.split->parameters);
}

std::vector<std::string> load_weights(const Workload& workload, std::size_t layer, const TensorSource& weights,
                                      LayerModule& module)
{
  auto sources = weight_sources(workload, layer);
  const Layer& own = workload.layers[layer];
  if (own.has_tied_copy) sources.push_back(weight_sources(workload, own.tied_to.value()).front());
  const auto& parameters = module.parameters();
  ensure(sources.size() == parameters.size(), "a layer has as many parameters as sources of weights");
  std::vector<std::string> missing;
  const at::NoGradGuard no_graph;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const TensorPart& part = module.parameter_parts()[i];
    const TensorPart* const of_experts = module.part_of_experts(i);
    const auto& shape = of_experts != nullptr ? of_experts->shape : part.shape;
    const auto values = at::empty(std::vector<std::int64_t>(shape.begin(), shape.end()), at::kFloat);
    const std::span into(values.mutable_data_ptr<float>(), static_cast<std::size_t>(values.numel()));
    if (read_weight(weights, sources[i], into)) {
      const auto own = of_experts != nullptr ? values_of(*of_experts, values) : values;
      parameters[i].copy_(values_of(part, own).view_as(parameters[i]));
    } else {
      missing.push_back(module.parameter_names()[i]);
    }
  }
  return missing;
}

}  // namespace isobar::exec
