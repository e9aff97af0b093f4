#include "core/model/product_recipe.hpp"

#include "core/compute/device_constants.hpp"
#include "core/compute/layer_memory.hpp"
#include "core/compute/layer_time.hpp"
#include "core/compute/transformer.hpp"
#include "core/errors.hpp"
#include "tests/support/thrown_message.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace isobar::compute::product_recipe_test {
namespace {

constexpr double tokens = 4096;
constexpr double hidden = 4096;
constexpr double inner = 14336;
constexpr double queries = 4096;
constexpr double keys = 1024;
constexpr std::size_t block = 1;

Workload llama(const std::string& recipe, const std::string& more = "")
{
  const std::string products = recipe.empty() ? "" : "matmul_dtype: " + recipe + "\n";
  return workload_from_text(
      "model: llama\nlayers: 4\nhidden: 4096\nheads: 32\nkv_heads: 8\nintermediate: 14336\nvocabulary: 128256\n"
      "sequence: 4096\nmicro_batch: 1\noptimizer: adam\ndtype: bf16\ncompute: operators\n"
      "framework: megatron-core-0.8\n" +
          products + more,
      "llama.yaml");
}

Workload mixture(const std::string& recipe)
{
  const std::string products = recipe.empty() ? "" : "matmul_dtype: " + recipe + "\n";
  return workload_from_text(
      "model: decoder\nlayers: 2\nhidden: 2048\nheads: 16\nvocabulary: 32000\nexperts: 16\ntop_k: 2\n"
      "expert_intermediate: 1024\nshared_intermediate: 1024\nsequence: 4096\noptimizer: adam\ndtype: bf16\n"
      "compute: operators\nframework: megatron-core-0.8\n" +
          products,
      "mixture.yaml");
}

/// No size loss.
DeviceConstants ideal(const std::string& type)
{
  DeviceConstants device = device_constants(type);
  device.products = {1, 0};
  return device;
}

Framework no_host()
{
  Framework framework = *framework_named("megatron-core-0.8").framework;
  framework.host_forward = framework.host_backward = framework.host_shards = framework.kernel_start = Seconds(0);
  return framework;
}

LayerTime time_of(const Workload& workload, std::size_t layer = block, const std::string& type = "B200-SXM-180GB",
                  const LayerDivision& division = {})
{
  return layer_time(workload, layer, ideal(type), no_host(), division);
}

TEST(ProductRecipe, HasTheNamesOfTransformerEngine)
{
  for (const auto& name : product_recipe_names()) EXPECT_EQ(name_of(*product_recipe_from_name(name)), name);
  EXPECT_EQ(product_recipe_from_name("fp8"), std::nullopt);
  EXPECT_EQ(name_of(ProductRecipe::None), "");
  EXPECT_THROW(costs_of(ProductRecipe::None), std::logic_error);
}

TEST(ProductRecipe, ComputesLinearsAtTheRateOfItsBitsAndTheHeadInSixteen)
{
  const auto plain = time_of(llama(""));
  for (const auto& [recipe, faster] :
       {std::pair{"fp8_delayed", 2.0}, {"fp8_cs", 2.0}, {"fp8_block", 2.0}, {"mxfp8", 2.0}, {"nvfp4", 4.0}}) {
    const auto time = time_of(llama(recipe));
    EXPECT_NEAR(plain.forward.products / time.forward.products, faster, 1e-9) << recipe;
    EXPECT_NEAR(plain.backward.products / time.backward.products, faster, 1e-9) << recipe;
    EXPECT_EQ(time.forward.attention, plain.forward.attention) << recipe;
    const std::size_t head = llama("").layers.size() - 1;
    EXPECT_EQ(time_of(llama(recipe), head).forward.products, time_of(llama(""), head).forward.products) << recipe;
  }
}

TEST(ProductRecipe, MovesInputsAndGradientsOfOutputsOnceMore)
{
  const auto device = ideal("B200-SXM-180GB");
  const double rate = 0.8 * device.memory_bandwidth.value;
  const double inputs = tokens * (hidden + queries + hidden + inner);
  const double outputs = tokens * (queries + 2 * keys + hidden + 2 * inner + hidden);
  const auto plain = time_of(llama(""));
  const auto more = [&](const std::string& recipe) {
    const auto time = time_of(llama(recipe));
    return std::pair((time.forward.memory_bound - plain.forward.memory_bound).value * rate,
                     (time.backward.memory_bound - plain.backward.memory_bound).value * rate);
  };
  // Read in 16 bits, written by rows and by columns; with one scale a tensor, read twice.
  EXPECT_NEAR(more("fp8_delayed").first / (inputs * (2 + 2)), 1, 1e-9);
  EXPECT_NEAR(more("fp8_delayed").second / (outputs * (2 + 2)), 1, 1e-9);
  EXPECT_NEAR(more("fp8_cs").first / (inputs * (4 + 2)), 1, 1e-9);
  EXPECT_NEAR(more("mxfp8").first / (inputs * (2 + 2 * 33.0 / 32)), 1, 1e-9);
  EXPECT_NEAR(more("nvfp4").first / (inputs * (4 + 2 * 0.5625)), 1, 1e-9);
}

TEST(ProductRecipe, StartsAKernelForEachTensorOrTwo)
{
  Framework framework = no_host();
  framework.kernel_start = Seconds(1e-6);
  framework.host_forward = Seconds(1);
  const auto of = [&](const std::string& recipe) {
    return layer_time(llama(recipe), block, ideal("B200-SXM-180GB"), framework, {});
  };
  EXPECT_NEAR((of("mxfp8").forward.starts - of("").forward.starts).value, 4e-6, 1e-12);  // of four linears
  EXPECT_NEAR((of("fp8_cs").forward.starts - of("").forward.starts).value, 8e-6, 1e-12);
  EXPECT_GT(of("mxfp8").forward.launch, of("").forward.launch);
}

TEST(ProductRecipe, StartsKernelsForEachExpertUnlessScalingIsDelayed)
{
  Framework framework = no_host();
  framework.kernel_start = Seconds(1e-6);
  const auto starts = [&](const std::string& recipe) {
    return layer_time(mixture(recipe), block, ideal("B200-SXM-180GB"), framework, {}).forward.starts.value;
  };
  // Two linears of 16 experts, two of attention and two of the shared expert.
  EXPECT_NEAR(starts("mxfp8") - starts(""), (2 * 16 + 4) * 1e-6, 1e-12);
  EXPECT_NEAR(starts("fp8_delayed") - starts(""), 6e-6, 1e-12);
}

TEST(ProductRecipe, CopiesWeightsOnceAStep)
{
  const auto device = ideal("B200-SXM-180GB");
  const double weights = hidden * (queries + 2 * keys) + queries * hidden + 3 * hidden * inner;
  const auto time = [&](const std::string& recipe, std::size_t shards) {
    return weight_copy_time(llama(recipe), block, shards, device, no_host()).value;
  };
  EXPECT_EQ(time("", 1), 0);
  EXPECT_NEAR(time("fp8_delayed", 1) / (weights * 4 / (0.8 * device.memory_bandwidth.value)), 1, 1e-9);
  EXPECT_NEAR(time("fp8_delayed", 4) / time("fp8_delayed", 1), 0.25, 1e-9);
}

TEST(ProductRecipe, LeavesRoutersAndGatesInSixteenBits)
{
  const auto linears = transformer_layer(mixture("mxfp8"), block, 1, no_host()).linears;
  // Two of attention; router, two of routed and two of the shared expert.
  ASSERT_EQ(linears.size(), 7U);
  for (std::size_t i = 0; i < linears.size(); ++i) EXPECT_EQ(linears[i].is_quantized, i != 2) << i;
}

TEST(ProductRecipe, KeepsInputsInEightBitsInPlaceOfSixteenWhereNothingElseKeepsThem)
{
  const auto kept = [](const Workload& workload, const LayerDivision& division = {}) {
    return layer_memory(workload, block, no_host(), division).kept.value;
  };
  // Inputs of the first product of each part and of the last one; attention keeps that of the second.
  const double change = tokens * (-hidden + queries - hidden - inner);
  EXPECT_NEAR(kept(llama("fp8_delayed")) - kept(llama("")), change, 1);
  const LayerDivision shards{.shards = 4, .divides_sequence = true};
  EXPECT_NEAR(kept(llama("fp8_delayed"), shards) - kept(llama(""), shards), change / 4, 1);
  const double number = 33.0 / 32;
  EXPECT_NEAR(kept(llama("mxfp8")) - kept(llama("")), tokens * (number * queries + (number - 2) * (2 * hidden + inner)),
              1);
  // The router keeps the state for the shared expert.
  constexpr double width = 2048;
  constexpr double expert = 1024;
  EXPECT_NEAR(kept(mixture("fp8_delayed")) - kept(mixture("")),
              tokens * (-width + width - 2 * (width + expert) + width - expert), 1);
}

TEST(ProductRecipe, HoldsBothCopiesOfWeights)
{
  const auto of = [](const std::string& recipe) { return state_of(no_host(), llama(recipe)).parameter; };
  const double weights = 4 * (hidden * (queries + 2 * keys) + queries * hidden + 3 * hidden * inner);
  const double part = weights / (weights + 2 * 128256 * hidden);
  EXPECT_NEAR(of("fp8_delayed") - of(""), 2 * part, 1e-3);
  EXPECT_NEAR(of("mxfp8") - of(""), 2 * 33.0 / 32 * part, 1e-3);
}

TEST(ProductRecipe, LosesBySizeWhatItsOperandsAndResultsMove)
{
  DeviceConstants device = device_constants("H100-SXM-80GB");
  device.products = {0.5, 100};
  const double twice = 1979.0 / 989;
  const auto time = [&](double m, double k) {
    return device.product_time(ProductRecipe::Fp8Delayed, m, 1e12, k, false).value / (2e12 * m * k / (1979e12 * 0.5));
  };
  EXPECT_NEAR(time(100, 1e12), 1 + twice / 2, 1e-6);  // operands of a byte
  EXPECT_NEAR(time(1e12, 100), 1 + twice, 1e-6);      // results of two bytes
}

TEST(ProductRecipe, IsRefusedOnDevicesWithoutItsProducts)
{
  const auto message = [](const std::string& recipe, const std::string& type) {
    return message_of([&] { time_of(llama(recipe), block, type); });
  };
  EXPECT_EQ(message("fp8_cs", "A100-SXM4-80GB"),
            "InputError workload llama: matmul_dtype: fp8_cs: A100-SXM4-80GB has no products in 8 bits; leave it out");
  EXPECT_EQ(message("mxfp8", "H100-SXM-80GB"),
            "InputError workload llama: matmul_dtype: mxfp8: H100-SXM-80GB has no products with scales of a few "
            "numbers; write fp8_delayed, fp8_cs or fp8_block");
}

TEST(ProductRecipe, IsOfModelsInSixteenBitsAndOfOperators)
{
  EXPECT_EQ(llama("mxfp8").recipe, ProductRecipe::Mxfp8);
  const auto message_with = [](const std::string& dtype) {
    return message_of([&] {
      workload_from_text(
          "model: gpt\nlayers: 1\nhidden: 64\nheads: 1\nvocabulary: 10\nsequence: 8\n"
          "matmul_dtype: mxfp8\n" +
              dtype,
          "x.yaml");
    });
  };
  EXPECT_EQ(message_with(""),
            "InputError x.yaml:7: matmul_dtype: mxfp8 is for models in 16 bits, not for float32; write dtype: bf16");
  EXPECT_EQ(message_with("dtype: bf16\n"),
            "InputError x.yaml:7: matmul_dtype: mxfp8 counts with compute: operators; write that, or leave it out");
}

}  // namespace
}  // namespace isobar::compute::product_recipe_test
