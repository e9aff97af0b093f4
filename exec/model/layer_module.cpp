#include "exec/model/layer_module.hpp"

#include "core/errors.hpp"
#include "exec/model/model_layer.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <variant>

namespace isobar::exec {

namespace {

std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, std::monostate /*listed*/)
{
  refuse_listed_layers(setup.workload);
}

}  // namespace

void refuse_listed_layers(const Workload& workload)
{
  throw InputError(
      fmt::format("workload {}", shown(workload.name)),
      "its layers are listed, which gives their cost but not what they compute; name a model: bert, gpt, llama or "
      "resnet");
}

std::unique_ptr<LayerModule> make_layer_module(const Workload& workload, std::size_t layer, std::uint64_t seed,
                                               const std::string& device)
{
  ensure(layer < workload.layers.size(), "a layer module needs one of the workload's layers");
  const LayerSetup setup{workload, layer, seed, device};
  auto module = std::visit([&](const auto& sizes) { return make_layer(setup, sizes); }, workload.model);
  std::uint64_t parameters = 0;
  for (const auto& parameter : module->parameters()) parameters += static_cast<std::uint64_t>(parameter.numel());
  ensure(parameters == workload.layers[layer].parameters, "a layer module has as many parameters as its layer");
  return module;
}

}  // namespace isobar::exec
