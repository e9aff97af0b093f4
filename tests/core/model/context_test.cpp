#include "core/model/sharding.hpp"

#include "core/model/layer_graph.hpp"
#include "tests/support/contexts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>

namespace isobar::context_test {
namespace {

using testing::Optional;
using testing_support::small_llama;

TEST(WithContext, GivesEachPartTheSameOfAllWorkAndDataAndAllParameters)
{
  const Workload whole = small_llama();
  constexpr double degree = 4;
  const Workload part = with_context(whole, {4, ContextExchange::AllGather});
  const Boundaries cuts = boundaries_of(whole);
  const Boundaries own_cuts = boundaries_of(part);
  ASSERT_EQ(part.layers.size(), whole.layers.size());
  for (std::size_t i = 0; i < whole.layers.size(); ++i) {
    const Layer& all = whole.layers[i];
    const Layer& own = part.layers[i];
    EXPECT_EQ(own.parameters, all.parameters);
    EXPECT_DOUBLE_EQ(degree * own.forward.value, all.forward.value);
    EXPECT_DOUBLE_EQ(degree * own.backward.value, all.backward.value);
    EXPECT_DOUBLE_EQ(degree * own.backward_weight.value, all.backward_weight.value);
    EXPECT_DOUBLE_EQ(degree * own.activations.value, all.activations.value);
    EXPECT_DOUBLE_EQ(degree * own.split->activations.value, all.split->activations.value);
    EXPECT_DOUBLE_EQ(degree * own_cuts.output[i].value, cuts.output[i].value);
    EXPECT_DOUBLE_EQ(degree * own_cuts.gradient[i].value, cuts.gradient[i].value);
  }
  EXPECT_DOUBLE_EQ(degree * samples_of_microbatch(part), samples_of_microbatch(whole));
}

TEST(WithContext, StaysWithOtherMicroBatchesAndRecomputation)
{
  const ContextParallelism context{2, ContextExchange::Ring};
  const Workload whole = with_recomputation(small_llama(), {1, 2});
  const Workload part = with_context(whole, context);
  EXPECT_EQ(part.recompute, whole.recompute);
  EXPECT_DOUBLE_EQ(2 * part.layers[1].activations.value, whole.layers[1].activations.value);
  const Workload larger = with_micro_batch(part, 2 * whole.micro_batch);
  EXPECT_EQ(larger.context, context);
  EXPECT_DOUBLE_EQ(larger.layers[1].forward.value, whole.layers[1].forward.value);
}

TEST(WithContext, OfOnePartIsTheWhole)
{
  const Workload whole = small_llama();
  const Workload part = with_context(whole, {});
  for (std::size_t i = 0; i < whole.layers.size(); ++i) {
    EXPECT_EQ(part.layers[i].forward, whole.layers[i].forward);
    EXPECT_EQ(part.layers[i].activations, whole.layers[i].activations);
  }
}

TEST(AttentionWidths, AreOfLayersWithAttentionAlone)
{
  const Workload llama = small_llama();
  for (const std::size_t layer : {0, 2, 4, 5}) EXPECT_FALSE(attention_widths(llama, layer)) << layer;
  for (const std::size_t layer : {1, 3}) {
    EXPECT_EQ(attention_widths(llama, layer)->queries, 1024);
    EXPECT_EQ(attention_widths(llama, layer)->keys, 512);
  }
}

TEST(WhyNotDivided, NamesWhatKeepsSequencesFromBeingDivided)
{
  const Workload llama = small_llama();
  const auto why = [](const Workload& workload, std::size_t degree, ContextExchange exchange, std::size_t shards) {
    return why_not_divided(workload, ContextParallelism{degree, exchange}, shards);
  };
  EXPECT_EQ(why(llama, 8, ContextExchange::AllToAll, 1), std::nullopt);
  EXPECT_EQ(why(llama, 1, ContextExchange::AllToAll, 32), std::nullopt);
  EXPECT_EQ(why(llama, 512, ContextExchange::Ring, 8), std::nullopt);
  EXPECT_THAT(why(llama, 3, ContextExchange::Ring, 1),
              Optional(std::string("sequences of 4096 tokens are not 6 equal chunks, two for each of 3 parts; use "
                                   "another degree")));
  EXPECT_THAT(why(llama, 4, ContextExchange::AllToAll, 4),
              Optional(std::string("all-to-all gives each of 4 parts of 4 shards whole heads of keys and values, and "
                                   "there are 8; use ring or all-gather")));
  EXPECT_THAT(why(llama, 32, ContextExchange::AllToAll, 1),
              Optional(std::string("all-to-all gives each of 32 parts of 1 shard whole heads, and there are 16; use "
                                   "ring or all-gather")));
  const Workload blocks = workload_from_text(
      "model: gpt\nlayers: 2\nhidden: 64\nheads: 4\nvocabulary: 512\nsequence: 64\nmicro_batch: 1\noptimizer: sgd\n",
      "gpt.yaml");
  EXPECT_THAT(why(blocks, 2, ContextExchange::Ring, 1),
              Optional(testing::HasSubstr("cannot be divided; a gpt, llama or decoder with unit: operator can")));
  const Workload entries = workload_from_text(
      "model: decoder\nlayers: 2\nhidden: 64\nheads: 4\nkv_heads: 1\nvocabulary: 512\nsequence: 64\nintermediate: 96\n"
      "layer_types: [heavily_compressed]\nsliding_window: 8\nshared_kv: true\ncompress_rate_hca: 8\nunit: operator\n",
      "v4.yaml");
  EXPECT_THAT(
      why(entries, 2, ContextExchange::Ring, 1),
      Optional(testing::HasSubstr("cannot be divided: layer type heavily_compressed sees entries of several tokens")));
  Workload by_rate = llama;
  by_rate.compute = ComputeModel::Rate;
  EXPECT_THAT(why(by_rate, 2, ContextExchange::Ring, 1),
              Optional(std::string("compute: rate does not know attention; write compute: operators and a framework")));
}

}  // namespace
}  // namespace isobar::context_test
