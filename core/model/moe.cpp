#include "core/model/models.hpp"
#include "core/spmd/operator_graph.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar {

namespace {

/// Adds to each layer's output the tensors that it makes and the next one reads; of the last layer, the loss. Data have
/// no gradient, and the causal mask is on every device.
void add_outputs(const spmd::OperatorGraph& graph, Workload& workload)
{
  const auto readers = graph.readers();
  for (std::size_t i = 0; i < graph.tensors.size(); ++i) {
    const spmd::Operator& producer = graph.operators[graph.tensors[i].producer];
    if (producer.kind == spmd::OperatorKind::CausalMask) continue;
    const bool leaves_layer = std::any_of(readers[i].begin(), readers[i].end(), [&](std::size_t reader) {
      const spmd::Operator& node = graph.operators[reader];
      return node.layer == producer.layer + 1 || node.kind == spmd::OperatorKind::Output;
    });
    if (!leaves_layer) continue;
    Layer& layer = workload.layers[producer.layer];
    layer.output += graph.tensors[i].size;
    if (producer.kind != spmd::OperatorKind::Data) layer.gradient += graph.tensors[i].size;
  }
}

void add_operator(const spmd::OperatorGraph& graph, const spmd::Operator& node, Layer& layer)
{
  layer.forward += node.forward;
  layer.backward += node.backward;
  layer.backward_weight += node.backward_weight;
  layer.activations += node.kept;
  if (node.kind == spmd::OperatorKind::Parameter) {
    layer.parameters += static_cast<std::uint64_t>(spmd::elements_of(graph.tensors[node.outputs[0]]));
  }
}

/// A layer for each operator, with the name, inputs and outputs of it.
void build_operators(const spmd::OperatorGraph& graph, Workload& workload)
{
  for (const auto& node : graph.operators) {
    Layer& layer = workload.layers.emplace_back();
    layer.name = node.name;
    for (const std::size_t tensor : node.inputs) {
      const std::size_t producer = graph.tensors[tensor].producer;
      const bool is_new = std::find(layer.inputs.begin(), layer.inputs.end(), producer) == layer.inputs.end();
      if (is_new) layer.inputs.push_back(producer);
    }
    for (const std::size_t tensor : node.outputs) {
      layer.output += graph.tensors[tensor].size;
      if (graph.has_gradient(tensor)) layer.gradient += graph.tensors[tensor].size;
    }
    add_operator(graph, node, layer);
  }
}

/// A layer for the embedding, each block and the head.
void build_blocks(const spmd::MoeSizes& sizes, const spmd::OperatorGraph& graph, Workload& workload)
{
  const std::size_t layers = spmd::layers_of(sizes);
  workload.layers.resize(layers);
  for (std::size_t i = 0; i < layers; ++i) {
    Layer& layer = workload.layers[i];
    layer.name = i == 0 ? "embedding" : i + 1 == layers ? "head" : fmt::format("layer{}", i - 1);
    if (i > 0) layer.inputs = {i - 1};
  }
  add_outputs(graph, workload);
  for (const auto& node : graph.operators) add_operator(graph, node, workload.layers[node.layer]);
}

}  // namespace

void build_moe(const spmd::MoeSizes& sizes, Workload& workload)
{
  constexpr double token_bytes = 8;
  const auto graph = spmd::make_operator_graph(sizes, workload.micro_batch, size_of(workload.dtype));
  if (sizes.by_operator) {
    build_operators(graph, workload);
  } else {
    build_blocks(sizes, graph, workload);
  }
  const auto tokens = static_cast<double>(workload.micro_batch * workload.sequence);
  workload.input = sizes.trunk == spmd::Trunk::Bert ? Bytes(token_bytes * tokens) : graph.tensors[0].size;
}

}  // namespace isobar
