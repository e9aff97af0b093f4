#include "exec/model/weights.hpp"

#include "core/errors.hpp"
#include "exec/files/huggingface_weights.hpp"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <span>

namespace isobar::exec {

std::vector<std::string> load_weights(const Workload& workload, std::size_t layer, const TensorSource& weights,
                                      LayerModule& module)
{
  const auto sources = weight_sources(workload, layer);
  const auto& parameters = module.parameters();
  ensure(sources.size() == parameters.size(), "a layer has as many parameters as sources of weights");
  std::vector<std::string> missing;
  const at::NoGradGuard no_graph;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto values = at::empty(parameters[i].sizes(), at::kFloat);
    const std::span into(values.mutable_data_ptr<float>(), static_cast<std::size_t>(values.numel()));
    if (read_weight(weights, sources[i], into)) {
      parameters[i].copy_(values);
    } else {
      missing.push_back(module.parameter_names()[i]);
    }
  }
  return missing;
}

}  // namespace isobar::exec
