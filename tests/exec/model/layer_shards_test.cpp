#include "exec/device/tensor_slices.hpp"
#include "exec/model/batch.hpp"
#include "exec/model/layer_module.hpp"
#include "exec/model/loss.hpp"
#include "tests/exec/model/small_decoders.hpp"
#include "tests/exec/model/small_models.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec::layer_shards_test {
namespace {

constexpr std::uint64_t seed = 7;
const RandomKey key{seed, 3, 1};

/// Ranges of the units of a layer, one for each of the shards with these shares.
std::vector<UnitRange> ranges_of(const Layer& layer, const std::vector<double>& shares)
{
  Replica replica;
  for (const double share : shares) replica.shards.push_back({"", share});
  std::vector<UnitRange> ranges;
  for (std::size_t shard = 0; shard < shares.size(); ++shard) ranges.push_back(units_of_shard(layer, replica, shard));
  return ranges;
}

struct Passed {
  at::Tensor output;
  at::Tensor input_gradient;
};

/// A forward and a backward pass of one module, from the same input and output gradient each time.
Passed passed(const Workload& workload, std::size_t layer, LayerModule& module)
{
  at::manual_seed(5);
  Tensors inputs = synthetic_inputs(workload, key, "cpu");
  if (layer > 0) inputs = {at::randn({2, 8, 24}).requires_grad_()};
  const at::Tensor output = module.forward(inputs, key).at(0);
  at::manual_seed(6);
  output.backward(at::randn_like(output));
  return {output.detach(), inputs.front().grad()};
}

bool is_close(const at::Tensor& one, const at::Tensor& other)
{
  return at::allclose(one, other, /*rtol=*/1e-4, /*atol=*/1e-5);
}

class LayersOfShards : public testing::TestWithParam<std::pair<std::string, std::vector<double>>> {
 protected:
  static Workload workload()
  {
    const std::string& name = GetParam().first;
    if (name == "llama") return small_llama_by_operators();
    if (name != "gpt") {
      return small_decoder(keys_of_kind(name), "unit: operator", {{"micro_batch", "2"}, {"sequence", "8"}});
    }
    Workload workload = small_gpt_by_operators();
    workload.training.dropout = 0.3;
    return workload;
  }
};

TEST_P(LayersOfShards, AddUpToTheLayerThatTheyDivide)
{
  const Workload model = workload();
  for (std::size_t layer = 0; layer + 1 < model.layers.size(); ++layer) {
    SCOPED_TRACE(model.layers[layer].name);
    const auto whole = make_layer_module(model, layer, seed, "cpu");
    const Passed expected = passed(model, layer, *whole);
    at::Tensor output = at::zeros_like(expected.output);
    at::Tensor input_gradient = layer > 0 ? at::zeros_like(expected.input_gradient) : at::Tensor();
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : whole->parameters()) gradients.push_back(at::zeros_like(parameter));
    for (const UnitRange& units : ranges_of(model.layers[layer], GetParam().second)) {
      const auto shard = make_layer_module(model, layer, seed, "cpu", units);
      const Passed addend = passed(model, layer, *shard);
      output += addend.output;
      if (layer > 0) input_gradient += addend.input_gradient;
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        const at::Tensor& own = shard->parameters()[i];
        const TensorPart& part = shard->parameter_parts()[i];
        EXPECT_TRUE(at::equal(own.flatten(), values_of(part, whole->parameters()[i])));
        if (!own.grad().defined()) continue;
        at::Tensor of_whole = at::zeros_like(gradients[i]).view({-1, static_cast<std::int64_t>(part.period)});
        const auto length = static_cast<std::int64_t>(part.end - part.begin);
        of_whole.narrow(1, static_cast<std::int64_t>(part.begin), length).copy_(own.grad().view({-1, length}));
        gradients[i] += of_whole.view_as(gradients[i]);
      }
    }
    EXPECT_TRUE(is_close(output, expected.output));
    if (layer > 0) {
      EXPECT_TRUE(is_close(input_gradient, expected.input_gradient));
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(is_close(gradients[i], whole->parameters()[i].grad())) << whole->parameter_names()[i];
    }
  }
}

TEST_P(LayersOfShards, HaveTheLossOfTheWholeHead)
{
  const Workload model = workload();
  const std::size_t head = model.layers.size() - 1;
  const auto hidden = at::randn({2, 8, 24});
  at::Tensor labels = synthetic_labels(model, key, "cpu").clone();
  labels[0][3] = -100;  // is not counted
  const auto whole = make_layer_module(model, head, seed, "cpu");
  const at::Tensor input = hidden.clone().requires_grad_();
  const Tensors logits = whole->forward({input}, key);
  const at::Tensor evaluated_whole = evaluation_of(logits.at(0).detach(), labels);
  const at::Tensor expected = loss_of({}, logits, labels);
  expected.backward();

  const auto ranges = ranges_of(model.layers[head], GetParam().second);
  Tensors inputs;
  Tensors statistics;
  Tensors evaluated;
  for (const UnitRange& units : ranges) {
    inputs.push_back(hidden.clone().requires_grad_());
    const auto part = make_layer_module(model, head, seed, "cpu", units)->forward({inputs.back()}, key).at(0);
    statistics.push_back(statistics_of(part, labels, units.begin));
    evaluated.push_back(evaluated_statistics_of(part, labels, units.begin).detach());
  }
  const at::Tensor gathered = at::stack(statistics).detach();
  at::Tensor gradient = at::zeros_like(input);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto [loss, of_statistics] = loss_of_parts(gathered, i);
    EXPECT_NEAR(loss.item<float>(), expected.item<float>(), 1e-5);
    statistics[i].backward(of_statistics);
    gradient += inputs[i].grad();
  }
  EXPECT_TRUE(is_close(gradient, input.grad()));
  EXPECT_TRUE(is_close(evaluation_of(at::stack(evaluated)), evaluated_whole));
}

INSTANTIATE_TEST_SUITE_P(
    Shards, LayersOfShards,
    testing::Values(std::pair("gpt", std::vector{0.5, 0.5}), std::pair("gpt", std::vector{0.5, 0.2, 0.3}),
                    std::pair("llama", std::vector{0.7, 0.3}), std::pair("llama", std::vector{0.34, 0.33, 0.33}),
                    std::pair("windows", std::vector{0.7, 0.3}), std::pair("qwen3", std::vector{0.34, 0.33, 0.33}),
                    std::pair("unweighted", std::vector{0.7, 0.3}), std::pair("gated_heads", std::vector{0.7, 0.3}),
                    std::pair("sinks", std::vector{0.7, 0.3}), std::pair("latent", std::vector{0.7, 0.3}),
                    std::pair("deepseek", std::vector{0.5, 0.5}), std::pair("gpt_oss", std::vector{0.5, 0.25, 0.25}),
                    std::pair("qwen2_moe", std::vector{0.5, 0.5}), std::pair("latent_experts", std::vector{0.5, 0.5})),
    [](const auto& test) { return test.param.first + std::to_string(test.param.second.size()); });

TEST(Evaluations, CountsTheFirstOfEqualLogitsAsTheMostLikelyWord)
{
  // Ties within and across parts, whose words are 0 and 1, 2 and 3, 4 and 5.
  const at::Tensor logits = at::tensor({1., 3., 3., 0., 3., 3.}).repeat({6, 1}).to(at::kFloat);
  const at::Tensor labels = at::arange(6);
  Tensors statistics;
  for (const std::int64_t first : {0, 2, 4}) {
    statistics.push_back(
        evaluated_statistics_of(logits.narrow(1, first, 2), labels, static_cast<std::uint64_t>(first)));
  }
  EXPECT_TRUE(is_close(evaluation_of(at::stack(statistics)), evaluation_of(logits, labels)));
  EXPECT_EQ(evaluation_of(logits, labels)[2].item<double>(), 1);
}

}  // namespace
}  // namespace isobar::exec::layer_shards_test
