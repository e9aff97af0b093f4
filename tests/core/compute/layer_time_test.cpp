#include "core/compute/layer_time.hpp"

#include "core/errors.hpp"
#include "tests/support/thrown_message.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace isobar::compute::layer_time_test {
namespace {
using testing::HasSubstr;

constexpr double hidden = 4096;
constexpr double sequence = 2048;
constexpr double batch = 2;
constexpr double tokens = batch * sequence;

Workload gpt(const std::string& more = "")
{
  std::string text =
      "model: gpt\nlayers: 4\nhidden: 4096\nheads: 32\nvocabulary: 51200\nsequence: 2048\n"
      "micro_batch: 2\noptimizer: adam\n" +
      more;
  if (more.find("dtype") == std::string::npos) text += "dtype: fp16\n";
  return workload_from_text(text, "gpt.yaml");
}

/// No size loss, everything at the nominal bandwidth or peak, and no host.
DeviceConstants ideal_device()
{
  DeviceConstants device = device_constants("A100-SXM4-80GB");
  device.products = {1, 0};
  device.fused_attention = 1;
  device.core_bandwidth = 1;
  return device;
}

/// Without times of the host and between kernels, and with PyTorch's norms.
Framework no_host()
{
  Framework framework = *framework_named("megatron-lm-2021").framework;
  framework.host_forward = framework.host_backward = framework.host_shards = framework.kernel_start = Seconds(0);
  framework.norm_speed = 1;
  return framework;
}

LayerTime time_of(const Workload& workload, std::size_t layer, LayerDivision division = {})
{
  return layer_time(workload, layer, device_constants("A100-SXM4-80GB"), no_host(), division);
}

constexpr std::size_t block = 1;

/// How much longer a backward pass of the first block takes with operators that run again.
double repeated(const std::string& operators)
{
  const std::string more = "unit: operator\ncompute: operators\nframework: megatron-lm-2021\n";
  const auto plain = gpt(more);
  const auto again = gpt(more + "recompute_operators: [\"0: " + operators + "\"]\n");
  double sum = 0;
  for (const std::size_t layer : {1, 2}) {
    sum += (time_of(again, layer).backward.total() - time_of(plain, layer).backward.total()).value;
  }
  return sum;
}

TEST(LayerTime, OfOperatorsThatRunAgainAddsWhatTheyTakeForward)
{
  const auto plain = gpt("unit: operator\n");
  const double attention = time_of(plain, 1).forward.total().value;
  const double feed_forward = time_of(plain, 2).forward.total().value;
  const std::string of_attention = "norm1 qkv scores softmax score_dropout context projection dropout1";
  EXPECT_NEAR(repeated(of_attention), attention, 1e-9 * attention);
  EXPECT_NEAR(repeated("norm2 up activation down dropout2"), feed_forward, 1e-9 * feed_forward);
  double sum = 0;
  for (const auto* each : {"norm1", "qkv", "scores", "softmax", "score_dropout", "context", "projection", "dropout1"}) {
    sum += repeated(each);
  }
  EXPECT_NEAR(sum, attention, 1e-9 * attention);
  const double core = time_of(gpt("unit: operator\n"), 1).forward.attention.value;
  EXPECT_NEAR(repeated("scores softmax score_dropout context"), core, 1e-9 * core) << "as attention: recomputed";
}

TEST(LayerTime, OfProductsIsTheirWorkOverTheRateThatTheyReach)
{
  const auto time = layer_time(gpt(), block, ideal_device(), no_host());
  const double forward = 24 * tokens * hidden * hidden / 312e12;
  EXPECT_NEAR(time.forward.products.value, forward, 1e-9 * forward);
  EXPECT_NEAR(time.backward.products.value, 2 * forward, 1e-9 * forward);
  EXPECT_NEAR(time.backward_weight.value, forward, 1e-9 * forward);
  EXPECT_EQ(time.forward.launch, Seconds(0));
}

TEST(LayerTime, OfFusedAttentionCountsHalfOfTheScores)
{
  const auto time = layer_time(gpt("attention: flash\n"), block, ideal_device(), no_host());
  const double forward = 2 * batch * sequence * sequence * hidden / 312e12;
  EXPECT_NEAR(time.forward.attention.value, forward, 1e-9 * forward);
  EXPECT_NEAR(time.backward.attention.value, 2.5 * forward, 1e-9 * forward);
}

TEST(LayerTime, OfUnfusedAttentionMovesEachScoreOftenEnough)
{
  const double scores = batch * 32 * sequence * sequence;
  const auto megatron = layer_time(gpt(), block, ideal_device(), no_host());
  EXPECT_NEAR(megatron.forward.attention.value, scores * (4 + 3) / 2039e9, 1e-9);
  EXPECT_NEAR(megatron.backward.attention.value, scores * (8 + 4) / 2039e9, 1e-9);
  const auto dropped = layer_time(gpt("dropout: 0.1\n"), block, ideal_device(), no_host());
  EXPECT_NEAR(dropped.forward.attention.value, scores * (4 + 3 + 5) / 2039e9, 1e-9);
  EXPECT_NEAR(dropped.backward.attention.value, scores * (8 + 4 + 5) / 2039e9, 1e-9);
  // Without Megatron's kernel, a mask and a softmax.
  Framework plain = no_host();
  plain.has_causal_softmax = false;
  const auto masked = layer_time(gpt(), block, ideal_device(), plain);
  EXPECT_NEAR(masked.forward.attention.value, scores * (4 + 8) / 2039e9, 1e-9);
}

TEST(LayerTime, OfUnfusedAttentionIsBoundByProductsOfWideHeads)
{
  DeviceConstants device = ideal_device();
  device.products.efficiency = 0.01;
  const auto time = layer_time(gpt(), block, device, no_host());
  const double scores = batch * 32 * sequence * sequence;
  EXPECT_NEAR(time.forward.attention.value, 4 * scores * 128 / 3.12e12 + scores * 3 / 2039e9, 1e-9);
}

TEST(LayerTime, OfMemoryBoundOperatorsIsTheirBytesOverTheBandwidthThatTheyReach)
{
  const auto time = layer_time(gpt(), block, ideal_device(), no_host());
  const double forward = tokens * hidden * (2 * 4 / 0.53 + 2 * 6 / 0.8 + 4 * 4 / 0.76) / 2039e9;
  const double backward = tokens * hidden * (2 * 6 / 0.24 + 2 * 6 / 0.8 + 4 * 6 / 0.60) / 2039e9;
  EXPECT_NEAR(time.forward.memory_bound.value, forward, 1e-9);
  EXPECT_NEAR(time.backward.memory_bound.value, backward, 1e-9);
}

TEST(LayerTime, OfNormsFollowsTheKernelsOfTheSoftware)
{
  Framework framework = no_host();
  framework.norm_speed = 2;
  const auto time = layer_time(gpt(), block, ideal_device(), framework);
  const double forward = tokens * hidden * (2 * 4 / 1.0 + 2 * 6 / 0.8 + 4 * 4 / 0.76) / 2039e9;  // no more than all
  const double backward = tokens * hidden * (2 * 6 / 0.48 + 2 * 6 / 0.8 + 4 * 6 / 0.60) / 2039e9;
  EXPECT_NEAR(time.forward.memory_bound.value, forward, 1e-9);
  EXPECT_NEAR(time.backward.memory_bound.value, backward, 1e-9);
  const auto dropped = layer_time(gpt("dropout: 0.1\n"), block, ideal_device(), framework);
  EXPECT_NEAR((dropped.backward.memory_bound - time.backward.memory_bound).value,
              tokens * hidden * (2 * 5 / 0.92 - 2 * 6 / 0.8) / 2039e9, 1e-9);
}

TEST(LayerTime, OfWhatMemoryBandwidthLimitsFollowsTheSystem)
{
  Framework framework = no_host();
  const auto shipped = layer_time(gpt(), block, ideal_device(), framework);
  framework.memory_speed = 0.5;
  const auto slow = layer_time(gpt(), block, ideal_device(), framework);
  EXPECT_NEAR(slow.forward.memory_bound / shipped.forward.memory_bound, 2, 1e-12);
  EXPECT_EQ(slow.forward.products, shipped.forward.products);
  EXPECT_NEAR(update_time(1e9, ideal_device(), framework) / update_time(1e9, ideal_device(), no_host()), 2, 1e-12);
}

TEST(LayerTime, HasTheStartsOfTheKernelsOfABlock)
{
  Framework framework = no_host();
  const auto without = layer_time(gpt(), block, ideal_device(), framework);
  framework.kernel_start = Seconds(1e-5);
  const auto time = layer_time(gpt(), block, ideal_device(), framework);
  EXPECT_NEAR((time.forward.total() - without.forward.total()).value, 28e-5, 1e-12);
  EXPECT_NEAR((time.backward.total() - without.backward.total()).value, 40e-5, 1e-12);
  const auto repeated = layer_time(with_recomputation(gpt(), {block}), block, ideal_device(), framework);
  EXPECT_NEAR(repeated.backward.starts.value, 68e-5, 1e-12);
}

TEST(LayerTime, OfProductsThatWereMeasuredAloneIsLongerInTraining)
{
  const auto& device = device_constants("L4");
  DeviceConstants in_training = device;
  in_training.are_products_alone = false;
  const auto time = [](const DeviceConstants& of) { return layer_time(gpt(), block, of, no_host()).forward.products; };
  EXPECT_NEAR(time(in_training) / time(device), 0.94, 1e-12);
  EXPECT_FALSE(device_constants("A100-SXM4-80GB").are_products_alone);
  Framework slow = no_host();
  slow.speed_in_training = 0.47;
  EXPECT_NEAR(layer_time(gpt(), block, device, slow).forward.products / time(device), 2, 1e-12);
  EXPECT_EQ(layer_time(gpt(), block, in_training, slow).forward.products, time(in_training));
}

TEST(LayerTime, OfABlockIsThatOfItsTwoOperators)
{
  for (const auto* attention : {"unfused", "recomputed", "fused"}) {
    const std::string keys = fmt::format("attention: {}\n", attention);
    for (const std::size_t shards : {1U, 4U}) {
      const LayerDivision division{.shards = shards};
      const auto whole = time_of(gpt(keys), block, division);
      const auto operators = gpt(keys + "unit: operator\n");
      const auto attend = time_of(operators, 1, division);
      const auto feed_forward = time_of(operators, 2, division);
      EXPECT_NEAR((attend.forward.total() + feed_forward.forward.total()).value, whole.forward.total().value, 1e-12);
      EXPECT_NEAR((attend.backward.total() + feed_forward.backward.total()).value, whole.backward.total().value, 1e-12);
      EXPECT_NEAR((attend.backward_weight + feed_forward.backward_weight).value, whole.backward_weight.value, 1e-12);
    }
  }
}

TEST(LayerTime, FallsWithMoreShardsButNeverBelowTheShare)
{
  for (const auto* attention : {"unfused", "fused"}) {
    const auto workload = gpt(fmt::format("attention: {}\n", attention));
    for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
      const auto alone = time_of(workload, layer);
      auto before = alone;
      for (const std::size_t shards : {2U, 4U, 8U, 16U}) {
        const auto now = time_of(workload, layer, {.shards = shards});
        const double share = 1.0 / static_cast<double>(shards);
        EXPECT_LE(now.forward.total(), before.forward.total()) << layer << " of " << shards;
        EXPECT_LE(now.backward.total(), before.backward.total()) << layer << " of " << shards;
        EXPECT_GE(now.forward.total(), alone.forward.total() * share) << layer << " of " << shards;
        EXPECT_GE(now.backward.total(), alone.backward.total() * share) << layer << " of " << shards;
        const auto sequential = time_of(workload, layer, {.shards = shards, .divides_sequence = true});
        EXPECT_LE(sequential.forward.total(), now.forward.total());
        before = now;
      }
    }
  }
}

TEST(LayerTime, RecomputesWholeBlocksOrTheCoreOfAttention)
{
  const auto plain = time_of(gpt(), block);
  const auto full = time_of(with_recomputation(gpt(), {block}), block);
  EXPECT_NEAR(full.backward.total().value, (plain.backward.total() + plain.forward.total()).value, 1e-12);
  EXPECT_EQ(full.forward.total(), plain.forward.total());
  EXPECT_EQ(full.backward_weight, plain.backward_weight);
  const auto selective = time_of(gpt("attention: recomputed\n"), block);
  EXPECT_NEAR(selective.backward.total().value, (plain.backward.total() + plain.forward.attention).value, 1e-12);
  // The recomputed block recomputes the core with it, once.
  const auto both = time_of(with_recomputation(gpt("attention: recomputed\n"), {block}), block);
  EXPECT_NEAR(both.backward.total().value, full.backward.total().value, 1e-12);
}

TEST(LayerTime, WaitsForTheHostWhereKernelsAreShort)
{
  Framework framework = no_host();
  framework.host_forward = Seconds(1);
  framework.host_backward = Seconds(2);
  framework.host_shards = Seconds(0.5);
  const auto& device = device_constants("A100-SXM4-80GB");
  const auto both = [](const LayerTime& time) { return (time.forward.total() + time.backward.total()).value; };
  const auto time = layer_time(gpt(), block, device, framework);
  EXPECT_NEAR(both(time), 3, 1e-12);
  EXPECT_NEAR(time.backward.launch.value, 2 * time.forward.launch.value, 1e-12) << "in proportion of the host's time";
  EXPECT_EQ(time.forward.products, time_of(gpt(), block).forward.products);
  EXPECT_NEAR(both(layer_time(with_recomputation(gpt(), {block}), block, device, framework)), 4, 1e-12);
  // While the device is in collectives, the host issues kernels.
  LayerDivision division{.shards = 2, .forward_collectives = Seconds(0.25), .backward_collectives = Seconds(0.5)};
  EXPECT_NEAR(both(layer_time(gpt(), block, device, framework, division)), 4 - 0.75, 1e-12);
  division.backward_collectives = Seconds(10);
  EXPECT_EQ(layer_time(gpt(), block, device, framework, division).forward.launch, Seconds(0));
  // A forward pass whose kernels are long lets the host issue those of the backward pass ahead.
  framework.host_forward = Seconds(0);
  framework.host_backward = time_of(gpt(), block).backward.device() + 0.5 * time_of(gpt(), block).forward.device();
  EXPECT_EQ(layer_time(gpt(), block, device, framework).backward.launch, Seconds(0));
}

TEST(LayerTime, WaitsForTheHostInTheLayersOfABlockTogether)
{
  Framework framework = no_host();
  framework.host_forward = Seconds(1);
  framework.host_backward = Seconds(2);
  const auto& device = device_constants("A100-SXM4-80GB");
  const auto sum = [&](const Workload& workload, std::size_t first, std::size_t last) {
    Seconds all;
    for (std::size_t layer = first; layer <= last; ++layer) {
      const auto time = layer_time(workload, layer, device, framework);
      all += time.forward.total() + time.backward.total();
    }
    return all.value;
  };
  EXPECT_NEAR(sum(gpt("unit: operator\n"), 3, 4), 3, 1e-12);
  const auto bert = workload_from_text(
      "model: bert\nencoders: 2\nhidden: 1024\nheads: 16\nintermediate: 4096\nvocabulary: 30522\npositions: 512\n"
      "classes: 3\nsequence: 128\nmicro_batch: 32\ndtype: fp16\noptimizer: adam\n",
      "bert.yaml");
  EXPECT_NEAR(sum(bert, 4, 6), 3, 1e-12);
  framework.host_forward = framework.host_backward = Seconds(1e-9);
  EXPECT_EQ(layer_time(bert, 4, device, framework).forward.launch, Seconds(0));
}

TEST(LayerTime, HidesAllReducesBesideProductsWhereTheFrameworkDoes)
{
  const auto& device = device_constants("A100-SXM4-80GB");
  LayerDivision division{.shards = 8, .forward_collectives = Seconds(1e-6), .backward_collectives = Seconds(1e-6)};
  EXPECT_EQ(layer_time(gpt(), block, device, *framework_named("megatron-lm-2021").framework, division).hidden_backward,
            Seconds(0));
  const auto& newer = *framework_named("megatron-lm-2022").framework;
  EXPECT_NEAR(layer_time(gpt(), block, device, newer, division).hidden_backward.value, 0.8e-6, 1e-15);
  division.forward_collectives = Seconds(1);
  const auto time = layer_time(gpt(), block, device, newer, division);
  EXPECT_GT(time.hidden_backward, Seconds(0));
  EXPECT_LT(time.hidden_backward, time.backward_weight);
  division.divides_sequence = true;
  EXPECT_EQ(layer_time(gpt(), block, device, newer, division).hidden_backward, Seconds(0));
}

TEST(LayerTime, DependsOnTheDtype)
{
  const auto half = time_of(gpt(), block);
  const auto single = time_of(gpt("dtype: float32\n"), block);
  const auto rounded = time_of(gpt("dtype: float32\nmatmul_dtype: tf32\n"), block);
  EXPECT_EQ(rounded.forward.products, half.forward.products * 2);  // half of the peak
  EXPECT_GT(single.forward.products, rounded.forward.products);
  EXPECT_NEAR(rounded.forward.memory_bound.value, 2 * half.forward.memory_bound.value, 1e-12);
  EXPECT_GT(rounded.forward.attention, half.forward.attention * 2);  // Megatron's kernel is of 16 bits
}

TEST(LayerTime, OfAHeadHasThePaddedVocabularyAndItsLoss)
{
  EXPECT_EQ(padded_vocabulary(50257, 1), 50304U);
  EXPECT_EQ(padded_vocabulary(50257, 2), 50432U);
  EXPECT_EQ(padded_vocabulary(50257, 4), 50688U);
  EXPECT_EQ(padded_vocabulary(50257, 8), 51200U);
  EXPECT_EQ(padded_vocabulary(51200, 8), 51200U);
  const auto workload = gpt("");
  const std::size_t head = workload.layers.size() - 1;
  const auto time = layer_time(workload, head, ideal_device(), no_host());
  const double product = 2 * tokens * hidden * 51200 / 312e12;
  EXPECT_NEAR(time.forward.products.value, product, 1e-9 * product);
  EXPECT_NEAR(time.forward.memory_bound.value, (tokens * 51200 * 25 / 0.8 + tokens * hidden * 4 / 0.53) / 2039e9, 1e-9);
}

TEST(LayerTime, OfLlamaAndBertFollowsTheirProducts)
{
  const auto llama = workload_from_text(
      "model: llama\nlayers: 2\nhidden: 4096\nheads: 32\nkv_heads: 8\n"
      "intermediate: 14336\nvocabulary: 128256\nsequence: 2048\nmicro_batch: 2\n"
      "dtype: bf16\noptimizer: adam\n",
      "llama.yaml");
  const auto of_llama = layer_time(llama, block, ideal_device(), no_host());
  const double products = 2 * tokens * (hidden * (4096 + 2048) + hidden * hidden + 3 * hidden * 14336) / 312e12;
  EXPECT_NEAR(of_llama.forward.products.value, products, 1e-9 * products);
  EXPECT_NEAR(of_llama.forward.attention.value, 2 * batch * sequence * sequence * hidden / 312e12, 1e-9);

  const auto bert = workload_from_text(
      "model: bert\nencoders: 2\nhidden: 1024\nheads: 16\nintermediate: 4096\n"
      "vocabulary: 30522\npositions: 512\nclasses: 3\nsequence: 128\n"
      "micro_batch: 32\ndtype: fp16\noptimizer: adam\nattention: fused\n",
      "bert.yaml");
  const auto attention = layer_time(bert, 1, ideal_device(), no_host());
  const auto up = layer_time(bert, 2, ideal_device(), no_host());
  const double rows = 32 * 128;
  EXPECT_NEAR(attention.forward.products.value, 8 * rows * 1024 * 1024 / 312e12, 1e-12);
  EXPECT_NEAR(attention.forward.attention.value, 4 * 32 * 128.0 * 128 * 1024 / 312e12, 1e-12);  // of all scores
  EXPECT_NEAR(up.forward.products.value, 8 * rows * 1024 * 1024 / 312e12, 1e-12);
  EXPECT_GT(layer_time(bert, bert.layers.size() - 1, ideal_device(), no_host()).forward.products, Seconds(0));
}

TEST(LayerTime, CountsTheParametersThatTheModelHas)
{
  const auto& framework = no_host();
  for (const auto* keys : {"", "unit: operator\n", "tied: true\n"}) {
    const auto workload = gpt(keys);
    for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
      EXPECT_EQ(parameters_of_shard(workload, layer, 1, framework),
                static_cast<double>(workload.layers[layer].parameters))
          << keys << layer;
    }
  }
  const auto workload = gpt();
  const double divided =
      12 * hidden * hidden + 7 * hidden;  // and biases of queries, keys, values and of the first linear
  EXPECT_EQ(parameters_of_shard(workload, block, 8, framework), divided / 8 + 6 * hidden);
}

TEST(LayerTime, TakesMeasuredOperatorsInPlaceOfConstants)
{
  OperatorTable table;
  table.device = "mine";
  table.dtype = DType::Float16;
  const auto seconds = [](const Product& product) { return Seconds(product.work().value / 100e12); };
  for (const std::uint64_t n : {4096U, 12288U, 16384U}) {
    const Product product{1, 4096, n, 4096, ProductLayout::TN};
    table.products.push_back({product, seconds(product)});
  }
  table.memory_bound[BoundOperator::Norm] = {BytesPerSecond(1e9), BytesPerSecond(2e9)};
  table.attention.push_back({1, 32, 2048, 128, Seconds(1e-3), Seconds(3e-3)});
  const auto workload = gpt("attention: flash\n");
  const auto& device = device_constants("A100-SXM4-80GB");
  const auto time = layer_time(workload, block, device, no_host(), {}, &table);
  const double products = 24 * tokens * hidden * hidden / 100e12;
  EXPECT_NEAR(time.forward.products.value, products / 0.94, 1e-9 * products);  // in training
  EXPECT_NEAR(time.forward.attention.value, 2e-3, 1e-12);                      // twice the samples
  EXPECT_NEAR(time.backward.attention.value, 6e-3, 1e-12);
  EXPECT_GT(time.forward.memory_bound, Seconds(2 * 4 * tokens * hidden / 1e9));
  table.attention.push_back({2, 16, 2048, 128, Seconds(1e-2), Seconds(3e-2)});
  table.attention.push_back({2, 32, 2048, 128, Seconds(5e-3), Seconds(7e-3)});
  EXPECT_NEAR(layer_time(workload, block, device, no_host(), {}, &table).forward.attention.value, 5e-3, 1e-12)
      << "of as many heads";
  EXPECT_NEAR(layer_time(workload, block, device, no_host(), {.shards = 2}, &table).backward.attention.value, 3e-3,
              1e-12);
  table.attention.resize(1);
  table.launch = Seconds(1e-3);
  EXPECT_NEAR(layer_time(workload, block, device, no_host(), {}, &table).forward.total().value,
              std::max(28e-3, time.forward.total().value), 1e-9);
  table.dtype = DType::Float32;
  table.tf32 = true;
  EXPECT_EQ(message_of([&] { layer_time(workload, block, device, no_host(), {}, &table); }),
            "InputError operators of mine: are measured in float32 with TF32, and the workload computes in fp16; "
            "measure them again");
}

TEST(LayerTime, RefusesLayersWithoutKnownOperators)
{
  const auto resnet = workload_from_text("model: resnet\ndepth: 50\nmicro_batch: 2\n", "resnet.yaml");
  EXPECT_THAT(
      message_of([&] { layer_time(resnet, 0, ideal_device(), no_host()); }),
      HasSubstr("has no operators that are known; compute: operators takes models bert, gpt, llama and decoder; use "
                "compute: rate"));
}

TEST(UpdateTime, IsTheBytesOfTheOptimizerOverTheBandwidth)
{
  EXPECT_NEAR(update_time(1e9, ideal_device(), no_host()).value, 36e9 / (2039e9 * 0.8), 1e-12);
}

TEST(GradientTime, IsTheBytesOfZeroingAndClippingOverTheBandwidth)
{
  EXPECT_EQ(gradient_time(1e9, ideal_device(), no_host()), Seconds(0));
  const auto& core = *framework_named("megatron-core-0.8").framework;
  EXPECT_NEAR(gradient_time(1e9, ideal_device(), core).value, 12e9 / (2039e9 * 0.8), 1e-12);
}

}  // namespace
}  // namespace isobar::compute::layer_time_test
