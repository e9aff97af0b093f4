#include "core/errors.hpp"
#include "exec/model/layers/model_layer.hpp"
#include "exec/spmd/operators.hpp"

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

/// Transformers with mixtures of experts, as core/spmd describes them.
namespace isobar::exec {

namespace {

using spmd::MoeSizes;
using spmd::Operator;
using spmd::OperatorGraph;
using spmd::OperatorKind;

bool is_of_loss(const Operator& node)
{
  return node.kind == OperatorKind::LogSoftmax || node.kind == OperatorKind::Sum;
}

/// The operators of one layer.
struct LayerGraph {
  OperatorGraph graph;
  std::vector<Operator> parameters;
  std::vector<Operator> operators;  ///< in their order, those of the loss left out
  std::size_t received = 0;         ///< the tensor that the layer reads of the one before, or of the data
  std::size_t passed = 0;           ///< the tensor that it gives to the next one, or to the loss
};

/// The first tensor that is read in a layer; in the first one, the data.
std::size_t received_by(const OperatorGraph& graph, std::size_t layer)
{
  if (layer == 0) return 0;
  return std::find_if(graph.operators.begin(), graph.operators.end(),
                      [layer](const Operator& node) { return node.layer == layer && !node.inputs.empty(); })
      ->inputs.front();
}

/// Of a model of any size, from the graph of two blocks, since blocks repeat after two. Names are those of the model.
LayerGraph graph_of_layer(const LayerSetup& setup, MoeSizes sizes)
{
  constexpr std::size_t period = 2;
  const bool is_head = setup.layer + 1 == spmd::layers_of(sizes);
  sizes.layers = std::min<std::uint64_t>(sizes.layers, period);
  const std::size_t head = spmd::layers_of(sizes) - 1;
  const std::size_t layer = is_head ? head : setup.layer == 0 ? 0 : 1 + (setup.layer - 1) % period;

  LayerGraph made;
  made.graph = spmd::make_operator_graph(sizes, setup.workload.micro_batch, size_of(setup.workload.dtype));
  made.received = received_by(made.graph, layer);
  if (!is_head) made.passed = received_by(made.graph, layer + 1);
  for (Operator node : made.graph.operators) {
    if (node.layer != layer || node.kind == OperatorKind::Data) continue;
    if (is_of_loss(node)) {
      made.passed = node.inputs.front();
      break;  // what follows belongs to it
    }
    node.name = setup.workload.layers[setup.layer].name + node.name.substr(node.name.find('.'));
    (node.kind == OperatorKind::Parameter ? made.parameters : made.operators).push_back(std::move(node));
  }
  return made;
}

class MoeLayer final : public ModelLayer {
 public:
  MoeLayer(const LayerSetup& setup, const MoeSizes& sizes)
      : ModelLayer(setup),
        layer_(graph_of_layer(setup, sizes)),
        samples_(setup.workload.micro_batch),
        last_readers_(layer_.graph.tensors.size())
  {
    settings_.top_k = sizes.top_k;
    settings_.device = setup.device;
    for (const Operator& parameter : layer_.parameters) add(parameter);
    for (std::size_t i = 0; i < layer_.operators.size(); ++i) {
      for (const std::size_t input : layer_.operators[i].inputs) last_readers_[input] = i;
    }
    last_readers_[layer_.passed] = layer_.operators.size();
  }

  Tensors forward(const Tensors& inputs, const RandomKey& key) override
  {
    OperatorSettings settings = settings_;
    settings.dropout = key.drops ? dropout() : 0;
    settings.seed = key.seed;
    settings.step = key.step;
    settings.first_sample = key.microbatch * samples_;
    Tensors values(layer_.graph.tensors.size());
    values[layer_.received] = inputs.at(0);
    for (std::size_t i = 0; i < layer_.parameters.size(); ++i) values[layer_.parameters[i].outputs[0]] = parameter(i);
    for (std::size_t i = 0; i < layer_.operators.size(); ++i) {
      const Operator& node = layer_.operators[i];
      Tensors read;
      for (const std::size_t input : node.inputs) {
        read.push_back(values[input]);
        if (last_readers_[input] == i) values[input].reset();
      }
      const Tensors made = compute(layer_.graph, node, read, TensorBlock::whole(tensor(node.outputs[0])), settings);
      for (std::size_t k = 0; k < made.size(); ++k) values[node.outputs[k]] = in_dtype(made[k]);
    }
    return {values[layer_.passed]};
  }

 private:
  const spmd::Tensor& tensor(std::size_t index) const { return layer_.graph.tensors[index]; }

  void add(const Operator& parameter)
  {
    const std::string name = parameter.name.substr(parameter.name.find('.') + 1);
    add_with(first_values_of(layer_.graph, parameter), name, tensor(parameter.outputs[0]).shape);
  }

  LayerGraph layer_;
  std::uint64_t samples_;
  std::vector<std::size_t> last_readers_;  // by tensor: the operator after which it is not needed
  OperatorSettings settings_;
};

}  // namespace

std::unique_ptr<LayerModule> make_layer(const LayerSetup& setup, const MoeSizes& sizes)
{
  if (sizes.parity) {
    throw InputError(fmt::format("workload {}", shown(setup.workload.name)),
                     "parity: true has the published operators, which are only searched; leave it out to execute");
  }
  if (sizes.routing != spmd::Routing{}) {
    throw InputError(
        fmt::format("workload {}", shown(setup.workload.name)),
        "experts of layers that execute have slots for each sample; leave capacity_samples and by_index out");
  }
  if (sizes.by_operator) {
    throw InputError(fmt::format("workload {}", shown(setup.workload.name)),
                     "unit: operator has layers that only plans that divide operators execute; leave it out");
  }
  return std::make_unique<MoeLayer>(setup, sizes);
}

}  // namespace isobar::exec
