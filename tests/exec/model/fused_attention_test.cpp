#include "exec/model/layer_module.hpp"
#include "exec/run/profile.hpp"
#include "tests/support/small_models.hpp"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

/// Fused attention against attention by its formula: the same numbers, and less memory for the backward pass.
namespace isobar::exec::fused_attention_test {
namespace {

using testing_support::shipped_workload;
using testing_support::small_model;
using testing_support::with_attention;

constexpr std::size_t attention_layer = 1;

template <typename Sizes>
double heads_of(const Sizes& sizes)
{
  if constexpr (requires { sizes.heads; }) return static_cast<double>(sizes.heads);
  return 0;
}

class FusedAttention : public testing::TestWithParam<const char*> {};

/// The layer's outputs for some input, and the gradients of the sum of their squares.
Tensors results(const Workload& workload)
{
  const auto module = make_layer_module(workload, attention_layer, 1, "cpu");
  const auto batch = static_cast<std::int64_t>(workload.micro_batch);
  const auto sequence = static_cast<std::int64_t>(workload.sequence);
  const auto width = static_cast<std::int64_t>(workload.layers.front().gradient.value) / (4 * batch * sequence);
  auto generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(7);
  const auto hidden = at::randn({batch, sequence, width}, generator).requires_grad_();
  auto mask = at::ones({batch, sequence});
  mask.slice(1, sequence - 2).zero_();
  const auto outputs = module->forward({hidden, mask}, {});
  outputs[0].square().sum().backward();
  Tensors found = {outputs[0].detach(), hidden.grad()};
  for (const auto& parameter : module->parameters()) found.push_back(parameter.grad());
  return found;
}

TEST_P(FusedAttention, GivesTheSameOutputsAndGradients)
{
  const auto model = small_model(shipped_workload(GetParam()));
  const auto unfused = results(with_attention(model, Attention::Unfused, 13));
  const auto fused = results(with_attention(model, Attention::Fused, 13));
  ASSERT_EQ(fused.size(), unfused.size());
  for (std::size_t i = 0; i < fused.size(); ++i) {
    EXPECT_TRUE(at::allclose(fused[i], unfused[i], 1e-4, 1e-5)) << i << ": " << (fused[i] - unfused[i]).abs().max();
  }
}

/// Measured bytes that the layer keeps for the backward pass.
double kept_by(const Workload& workload)
{
  ProfileOptions options;
  options.repetitions = 1;
  return measure_profile(workload, options).layers[attention_layer].activations.value;
}

TEST_P(FusedAttention, KeepsNoProbabilities)
{
  const auto model = small_model(shipped_workload(GetParam()));
  const auto fused = with_attention(model, Attention::Fused, 256);
  const auto unfused = with_attention(model, Attention::Unfused, 256);
  const double kept = kept_by(fused);
  const double predicted = fused.layers[attention_layer].activations.value;
  EXPECT_LT(kept, 1.5 * predicted);
  EXPECT_GT(kept, 0.5 * predicted);
  const double heads = std::visit([](const auto& sizes) { return heads_of(sizes); }, model.model);
  const double probabilities = 4 * static_cast<double>(fused.micro_batch) * heads * 256 * 256;
  EXPECT_GT(kept_by(unfused) - kept, 0.9 * probabilities);
}

INSTANTIATE_TEST_SUITE_P(Models, FusedAttention, testing::Values("bert10", "gpt2_124m", "llama_8b"));

}  // namespace
}  // namespace isobar::exec::fused_attention_test
