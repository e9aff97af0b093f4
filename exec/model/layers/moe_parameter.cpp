#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"
#include "exec/model/layers/model_layer.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

/// The parameters of mixtures of experts whose layers are operators.
namespace isobar::exec {

namespace {

using spmd::Operator;
using spmd::OperatorGraph;
using spmd::OperatorKind;

bool is_read(const OperatorGraph& graph, std::size_t tensor, std::size_t as_input, bool only_by_norms)
{
  return std::any_of(graph.operators.begin(), graph.operators.end(), [&](const Operator& node) {
    return node.inputs.size() > as_input && node.inputs[as_input] == tensor &&
           (node.kind == OperatorKind::LayerNorm || !only_by_norms);
  });
}

/// A parameter in the place of an operator, drawn as the layer that it belongs to draws it; other operators have none.
class OperatorLayer final : public ModelLayer {
 public:
  OperatorLayer(const LayerSetup& setup, const OperatorGraph& graph, const Operator& node, const TensorBlock& held)
      : ModelLayer(setup)
  {
    if (node.kind != OperatorKind::Parameter) return;
    const std::string name = node.name.substr(node.name.find('.') + 1);
    keep(add_with(first_values_of(graph, node), name, graph.tensors[node.outputs[0]].shape), held);
  }

  Tensors forward(const Tensors& /*inputs*/, const RandomKey& /*key*/) override
  {
    ensure(false, "operators are computed by their signatures");
    return {};
  }
};

}  // namespace

FirstValues first_values_of(const OperatorGraph& graph, const Operator& parameter)
{
  constexpr std::size_t weight = 1;
  constexpr std::size_t bias = 2;
  const std::size_t tensor = parameter.outputs[0];
  if (is_read(graph, tensor, bias, /*only_by_norms=*/false)) return FirstValues::Zeros;
  return is_read(graph, tensor, weight, /*only_by_norms=*/true) ? FirstValues::Ones : FirstValues::Drawn;
}

std::size_t layer_in_checkpoints(const Workload& workload, std::size_t layer)
{
  const auto graph = operator_graph_of(workload);
  return graph ? graph->operators.at(layer).layer : layer;
}

std::unique_ptr<LayerModule> make_operator_module(const Workload& workload, std::size_t layer, std::uint64_t seed,
                                                  const std::string& device, const TensorBlock& held)
{
  const auto graph = operator_graph_of(workload);
  ensure(graph.has_value(), "the layers of the workload are operators");
  const Operator& node = graph->operators.at(layer);
  LayerSetup setup{workload, node.layer, seed, device};
  for (std::size_t i = 0; i < layer; ++i) {
    const Operator& before = graph->operators[i];
    if (before.kind == OperatorKind::Parameter && before.layer == node.layer) ++setup.first_parameter;
  }
  return std::make_unique<OperatorLayer>(setup, *graph, node, held);
}

}  // namespace isobar::exec
