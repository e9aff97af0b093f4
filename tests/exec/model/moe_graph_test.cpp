#include "core/spmd/operator_graph.hpp"
#include "exec/model/loss.hpp"
#include "exec/spmd/operators.hpp"
#include "tests/exec/model/forward_passes.hpp"
#include "tests/support/small_models.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

/// The layers of a mixture of experts against the operator graph of the whole model.
namespace isobar::exec::moe_graph_test {
namespace {

using spmd::OperatorKind;
using testing_support::small_moes;

const RandomKey key = {.seed = 3, .step = 2, .microbatch = 4};

spmd::OperatorGraph graph_of(const Workload& workload)
{
  return make_operator_graph(std::get<spmd::MoeSizes>(workload.model), workload.micro_batch, 4);
}

/// The loss by the operators of the whole graph, with leaves of its own for the parameters of the layers.
struct GraphRun {
  GraphRun(const Workload& workload, const Modules& layers)
  {
    const spmd::OperatorGraph graph = graph_of(workload);
    OperatorSettings settings = {.dropout = workload.training.dropout, .seed = key.seed, .step = key.step};
    settings.top_k = std::get<spmd::MoeSizes>(workload.model).top_k;
    settings.first_sample = key.microbatch * workload.micro_batch;
    Tensors data = {synthetic_inputs(workload, key, "cpu")[0], synthetic_labels(workload, key, "cpu")};
    std::vector<std::size_t> used(layers.size(), 0);
    Tensors values(graph.tensors.size());
    std::size_t next_data = 0;
    for (const auto& node : graph.operators) {
      if (node.kind == OperatorKind::Data) {
        values[node.outputs[0]] = data.at(next_data++);
      } else if (node.kind == OperatorKind::Parameter) {
        const std::size_t number = used[node.layer]++;
        names.push_back(node.name);
        names_of_layers.push_back(workload.layers[node.layer].name + "." +
                                  layers[node.layer]->parameter_names().at(number));
        parameters.push_back(layers[node.layer]->parameters().at(number).detach().clone().requires_grad_());
        values[node.outputs[0]] = parameters.back();
      } else if (node.kind == OperatorKind::Output) {
        loss = values[node.inputs[0]];
      } else {
        Tensors inputs;
        for (const auto input : node.inputs) inputs.push_back(values[input]);
        const auto outputs = compute(graph, node, inputs, TensorBlock::whole(graph.tensors[node.outputs[0]]), settings);
        for (std::size_t k = 0; k < outputs.size(); ++k) {
          values[node.outputs[k]] = outputs[k].to(at::kFloat);
        }
      }
    }
    loss.backward();
  }

  at::Tensor loss;
  Tensors parameters;
  std::vector<std::string> names;
  std::vector<std::string> names_of_layers;
};

TEST(MoeLayers, HaveTheLossAndTheGradientsOfTheirGraph)
{
  for (const double dropout : {0.0, 0.3}) {
    for (const Workload& workload : small_moes(DType::Float32, dropout)) {
      const Modules layers = all_layers(workload);
      {
        const at::NoGradGuard no_graph;  // parameters with which the plain trunk's loss is not constant
        auto generator = at::globalContext().defaultGenerator(at::kCPU).clone();
        for (const auto& layer : layers) {
          for (const auto& parameter : layer->parameters()) parameter.uniform_(-0.5, 0.5, generator);
        }
      }
      const GraphRun expected(workload, layers);
      EXPECT_EQ(expected.names, expected.names_of_layers);
      const auto outputs = forward_all(workload, layers, synthetic_inputs(workload, key, "cpu"), key);
      const auto loss = loss_of(workload, outputs.back(), synthetic_labels(workload, key, "cpu"));
      EXPECT_NEAR(loss.item<double>(), expected.loss.item<double>(), 1e-4);
      loss.backward();
      std::size_t next = 0;
      for (const auto& layer : layers) {
        for (const auto& parameter : layer->parameters()) {
          EXPECT_TRUE(at::allclose(parameter.grad(), expected.parameters.at(next).grad(), 1e-4, 1e-5))
              << expected.names[next];
          ++next;
        }
      }
      EXPECT_EQ(next, expected.parameters.size());
    }
  }
}

}  // namespace
}  // namespace isobar::exec::moe_graph_test
