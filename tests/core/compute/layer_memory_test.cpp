#include "core/compute/layer_memory.hpp"

#include "core/errors.hpp"
#include "tests/support/thrown_message.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

namespace isobar::compute::layer_memory_test {
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

double kept(const Workload& workload, const LayerDivision& division = {}, std::size_t layer = block)
{
  return layer_memory(workload, layer, megatron(), division).kept.value;
}

// The formulas of Korthikanti et al. 2022, section 4.
TEST(LayerMemory, KeepsTheActivationsOfThePublishedFormulas)
{
  for (const double t : {1.0, 2.0, 8.0}) {
    const LayerDivision division{.shards = static_cast<std::size_t>(t)};
    const LayerDivision sequential{.shards = division.shards, .divides_sequence = true};
    EXPECT_NEAR(kept(gpt(), division), sbh * (10 + 24 / t + 5 * a * s / (h * t)), 1);
    EXPECT_NEAR(kept(gpt(), sequential), sbh / t * (34 + 5 * a * s / h), 1);
    const auto selective = gpt("dropout: 0.1\nattention: recomputed\n");
    EXPECT_NEAR(kept(selective, division), sbh * (10 + 24 / t), 1);
    const auto full = with_recomputation(gpt(), {block});
    EXPECT_NEAR(kept(full, division), 2 * sbh, 1);
    EXPECT_NEAR(kept(full, sequential), 2 * sbh / t, 1);
  }
}

TEST(LayerMemory, KeepsNoScoresOfFusedAttentionAndNoMasksWithoutDropout)
{
  EXPECT_NEAR(kept(gpt("attention: flash\n")), sbh * (8 + 24) + 4 * s * b * a, 1);
  EXPECT_NEAR(kept(gpt("")), sbh * (8 + 24 + 2 * a * s / h), 1);
}

TEST(LayerMemory, OfARecomputedBlockHasItsInputOnceAndAllOfItWhileItIsRecomputed)
{
  const auto in_halves = gpt("dropout: 0.1\nunit: operator\n");
  const double whole = kept(in_halves, {}, 1) + kept(in_halves, {}, 2);
  EXPECT_NEAR(whole, kept(gpt()), 1);
  const auto recomputed = with_recomputation(in_halves, {1, 2});
  for (const bool begins_stage : {false, true}) {
    const auto first = layer_memory(recomputed, 1, megatron(), {}, nullptr, begins_stage);
    const auto second = layer_memory(recomputed, 2, megatron(), {}, nullptr, begins_stage);
    EXPECT_NEAR(first.kept.value, 2 * sbh, 1);
    EXPECT_NEAR(second.kept.value, begins_stage ? 2 * sbh : 0, 1) << "it keeps what another device has sent";
    EXPECT_NEAR(first.workspace.value, whole, 1);
    EXPECT_NEAR(second.workspace.value, whole, 1);
  }
  const auto half = with_recomputation(in_halves, {2});
  EXPECT_NEAR(kept(half, {}, 2), 2 * sbh, 1);
  EXPECT_NEAR(layer_memory(half, 2, megatron()).workspace.value, kept(in_halves, {}, 2), 1);
}

/// Of the two halves of the first block.
double kept_with(const std::string& operators, const std::string& more = "dropout: 0.1\n", std::size_t shards = 1)
{
  const auto workload = gpt(more + "unit: operator\ncompute: operators\nframework: megatron-lm-2022\n" +
                            (operators.empty() ? "" : "recompute_operators: [\"0: " + operators + "\"]\n"));
  return kept(workload, {shards}, 1) + kept(workload, {shards}, 2);
}

TEST(LayerMemory, OfOperatorsThatRunAgainLacksWhatTheySave)
{
  const double scores = s * s * b * a;  // bytes of a mask
  for (const std::size_t shards : {1, 8}) {
    const auto t = static_cast<double>(shards);
    const double all = kept_with("", "dropout: 0.1\n", shards);
    const auto freed = [&](const std::string& operators) {
      return all - kept_with(operators, "dropout: 0.1\n", shards);
    };
    EXPECT_NEAR(freed("scores softmax score_dropout context"), 5 * scores / t, 1) << "as attention: recomputed";
    EXPECT_NEAR(freed("score_dropout context"), 3 * scores / t, 1) << "softmax keeps the probabilities";
    EXPECT_NEAR(freed("context"), 0, 1) << "it keeps what it reads";
    EXPECT_NEAR(freed("norm1"), 0, 1) << "the product after it keeps what it makes";
    EXPECT_NEAR(freed("norm1 qkv"), 2 * sbh, 1) << "the normalized input";
    EXPECT_NEAR(freed("norm2 up activation"), (2 + 8 / t) * sbh, 1) << "but the input of the last product";
    EXPECT_NEAR(freed("dropout2"), sbh - 2 * sbh, 1) << "a mask, but it keeps what it reads";
  }
  EXPECT_NEAR(kept_with("norm1 qkv scores softmax score_dropout context projection dropout1 norm2 up activation down "
                        "dropout2"),
              2 * sbh, 1)
      << "the input of the block alone";
}

TEST(LayerMemory, HasNoDropoutOfScoresBetweenNeighboursWhereNothingIsDropped)
{
  const double all = kept_with("", "");
  EXPECT_NEAR(all - kept_with("scores softmax context", ""), 2 * s * s * b * a, 1);
  EXPECT_EQ(kept_with("score_dropout", ""), all);
}

TEST(LayerMemory, OfOperatorsThatRunAgainHasWhatASegmentSavesWhileItRuns)
{
  const auto workload =
      gpt("dropout: 0.1\nunit: operator\ncompute: operators\nframework: megatron-lm-2022\n"
          "recompute_operators: [\"0: scores softmax score_dropout context up activation\"]\n");
  EXPECT_NEAR(layer_memory(workload, 1, megatron()).workspace.value, 5 * s * s * b * a, 1);
  EXPECT_NEAR(layer_memory(workload, 2, megatron()).workspace.value, 8 * sbh, 1);
  EXPECT_EQ(layer_memory(workload, 3, megatron()).workspace.value, 0) << "another block";
}

TEST(LayerMemory, OfAHeadHasTheLogitsOfOneMicroBatch)
{
  const auto workload = gpt();
  const std::size_t head = workload.layers.size() - 1;
  for (const std::size_t shards : {1, 4}) {
    EXPECT_NEAR(layer_memory(workload, head, megatron(), {shards}).workspace.value,
                10 * b * s * 51200 / static_cast<double>(shards), 1);
  }
}

TEST(LayerMemory, TakesMeasuredSizes)
{
  SailorSizes sizes{.name = "s.json", .layers = {{1, std::vector<SailorSize>(6, {100, Bytes(1000)})}}};
  const Framework& framework = *framework_named("megatron-deepspeed-2024").framework;
  EXPECT_NEAR(layer_memory(gpt(""), 2, framework, {}, &sizes).kept.value, 1.12 * 2 * 1000, 1e-6);
  EXPECT_NEAR(layer_memory(gpt("unit: operator\n"), 2, framework, {}, &sizes).kept.value, 1.12 * 2 * 500, 1e-6);
  sizes.layers[1].pop_back();
  EXPECT_EQ(message_of([&] { layer_memory(gpt(""), 1, framework, {}, &sizes); }),
            "InputError s.json: has 5 layers, and the workload has 6");
}

TEST(StateOf, HasWhatIsAllocatedOfAParameterAndNoReserve)
{
  Framework framework = megatron();
  framework.memory.reserved = 1.5;
  Workload single = gpt("");
  single.dtype = DType::Float32;
  EXPECT_EQ(state_of(framework, gpt("")).all(), 18);
  EXPECT_EQ(state_of(framework, single).all(), 16);
  EXPECT_EQ(state_of(framework, gpt("")).gathered, 2);
}

}  // namespace
}  // namespace isobar::compute::layer_memory_test
