#include "core/compute/memory_need.hpp"

#include "core/errors.hpp"
#include "tests/support/thrown_message.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

namespace isobar::compute::memory_need_test {
namespace {

constexpr double s = 2048;
constexpr double b = 2;
constexpr double h = 4096;
constexpr double a = 32;
constexpr double sbh = s * b * h;
constexpr std::size_t block = 1;

Workload gpt(const std::string& more = "dropout: 0.1\n")
{
  return workload_from_text(
      "model: gpt\nlayers: 4\nhidden: 4096\nheads: 32\nvocabulary: 51200\nsequence: 2048\n"
      "micro_batch: 2\noptimizer: adam\ndtype: fp16\n" +
          more,
      "gpt.yaml");
}

const Framework& megatron()
{
  return *framework_named("megatron-lm-2022").framework;
}

Bytes kept(const Workload& workload, const LayerDivision& division)
{
  const auto with = [&](double in_flight) {
    const StageMemory stage{.first_layer = block, .last_layer = block, .division = division, .in_flight = in_flight};
    return memory_need(workload, megatron(), stage).allocated;
  };
  return with(2) - with(1);
}

// The formulas of Korthikanti et al. 2022, section 4.
TEST(MemoryNeed, KeepsTheActivationsOfThePublishedFormulas)
{
  for (const double t : {1.0, 2.0, 8.0}) {
    const LayerDivision division{.shards = static_cast<std::size_t>(t)};
    const LayerDivision sequential{.shards = division.shards, .divides_sequence = true};
    EXPECT_NEAR(kept(gpt(), division).value, sbh * (10 + 24 / t + 5 * a * s / (h * t)), 1);
    EXPECT_NEAR(kept(gpt(), sequential).value, sbh / t * (34 + 5 * a * s / h), 1);
    const auto selective = gpt("dropout: 0.1\nattention: recomputed\n");
    EXPECT_NEAR(kept(selective, division).value, sbh * (10 + 24 / t), 1);
    EXPECT_NEAR(kept(with_recomputation(gpt(), {block}), division).value, 2 * sbh, 1);
  }
}

TEST(MemoryNeed, KeepsNoScoresOfFusedAttentionAndNoMasksWithoutDropout)
{
  EXPECT_NEAR(kept(gpt("attention: flash\n"), {}).value, sbh * (8 + 24) + 4 * s * b * a, 1);
  EXPECT_NEAR(kept(gpt(""), {}).value, sbh * (8 + 24 + 2 * a * s / h), 1);
}

TEST(MemoryNeed, HoldsStateAndTheActivationsInFlight)
{
  Framework framework = megatron();
  framework.memory = {.state16 = {2, 4, 12}, .activations = 1, .reserved = 1.5, .context = Bytes(7)};
  const auto workload = gpt();
  const auto need = memory_need(workload, framework, {.first_layer = 1, .last_layer = 2, .in_flight = 3});
  const double parameters = 2 * (12 * h * h + 13 * h);
  const double expected = 18 * parameters + 3 * 2 * kept(workload, {}).value;
  EXPECT_NEAR(need.allocated.value, expected, 1);
  EXPECT_NEAR(need.reserved.value, 1.5 * expected, 1);
  EXPECT_NEAR(need.device.value, 1.5 * expected + 7, 1);
}

TEST(MemoryNeed, DividesStateAmongReplicas)
{
  const auto need = [](Sharding sharding) {
    Framework framework = megatron();
    framework.memory = {.state16 = {2, 4, 12}};
    return memory_need(gpt(), framework,
                       {.first_layer = 1, .last_layer = 1, .replicas = 4, .sharding = sharding, .in_flight = 0})
               .allocated.value /
           (12 * h * h + 13 * h);
  };
  EXPECT_NEAR(need(Sharding::None), 18, 1e-9);
  EXPECT_NEAR(need(Sharding::Optimizer), 6 + 12 / 4.0, 1e-9);
  EXPECT_NEAR(need(Sharding::Gradients), 2 + 16 / 4.0, 1e-9);
  EXPECT_NEAR(need(Sharding::Parameters), 18 / 4.0 + 2 * 2, 1e-9);  // and two layers gathered in 16 bits
}

TEST(MemoryNeed, OfALastStageHasTheLogitsOfOneMicroBatch)
{
  Framework framework = megatron();
  framework.memory = {.state16 = {2, 4, 12}, .logit = 10};
  const auto workload = gpt();
  const std::size_t head = workload.layers.size() - 1;
  const auto with = memory_need(workload, framework, {.first_layer = head, .last_layer = head, .in_flight = 2});
  framework.memory.logit = 0;
  const auto without = memory_need(workload, framework, {.first_layer = head, .last_layer = head, .in_flight = 2});
  EXPECT_NEAR((with.allocated - without.allocated).value, 10 * b * s * 51200, 1);
}

TEST(MemoryNeed, OfRecomputedBlocksHasOneOfThemInFull)
{
  Framework framework = megatron();
  framework.memory = {.state16 = {0, 0, 0}};
  const auto workload = with_recomputation(gpt(), {1, 2});
  const auto need = memory_need(workload, framework, {.first_layer = 1, .last_layer = 2, .in_flight = 3});
  EXPECT_NEAR(need.allocated.value, 3 * 2 * 2 * sbh + kept(gpt(), {}).value, 1);
}

TEST(MemoryNeed, TakesMeasuredSizes)
{
  SailorSizes sizes{.name = "s.json", .layers = {{1, std::vector<SailorSize>(6, {100, Bytes(1000)})}}};
  Framework framework = *framework_named("megatron-deepspeed-2024").framework;
  const auto workload = gpt("");
  const auto need = memory_need(workload, framework, {.first_layer = 0, .last_layer = 1, .in_flight = 3}, &sizes);
  EXPECT_NEAR(need.allocated.value, 2 * 100 * 20 + 1.12 * 3 * 2 * 2 * 1000, 1e-6);
  EXPECT_NEAR((need.device - need.allocated).value, 3.95e9, 1e-3);
  sizes.layers[1].pop_back();
  EXPECT_EQ(message_of([&] { memory_need(workload, framework, {}, &sizes); }),
            "InputError s.json: has sizes of 5 layers, and the workload has 6");
}

TEST(InterleavedInFlight, IsThatOfThePublishedFormulaOnTheFirstStage)
{
  for (const std::size_t chunks : {2, 3, 4}) {
    const double expected = 8 * (1 + 7.0 / (8.0 * static_cast<double>(chunks)));
    EXPECT_NEAR(interleaved_in_flight(0, 8, chunks, 100), expected, 1e-12);
  }
  EXPECT_NEAR(interleaved_in_flight(7, 8, 3, 100), 17.0 / 3, 1e-12);
}

TEST(InterleavedInFlight, IsNoMoreThanTheMicrobatchesOfAStep)
{
  EXPECT_EQ(interleaved_in_flight(0, 8, 2, 3), 3);
}

}  // namespace
}  // namespace isobar::compute::memory_need_test
