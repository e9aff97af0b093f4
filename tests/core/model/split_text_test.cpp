#include "core/model/split_text.hpp"

#include "core/plan/shard_collectives.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace isobar::split_text_test {
namespace {

Workload llama_with(const std::string& kv_heads)
{
  return workload_from_text("model: llama\nlayers: 1\nhidden: 432\nheads: 12\nkv_heads: " + kv_heads +
                                "\nintermediate: 432\nvocabulary: 384\nsequence: 32\nmicro_batch: 9\noptimizer: adam\n"
                                "unit: operator\n",
                            "llama.yaml");
}

TEST(SplitText, CallsSharedKeysAndValuesByTheirName)
{
  const Workload shared = llama_with("4");
  EXPECT_EQ(units_in_words(shared, *shared.layers.at(1).split), "key/value heads");
  EXPECT_EQ(units_in_words(shared, *shared.layers.at(2).split), "columns");
  EXPECT_EQ(why_not_divided(shared, 1, {ShardGrid::Form::ThreeD, 3, 3}),
            "whose 4 key/value heads are to be a multiple of 3");
}

TEST(SplitText, CallsHeadsOfTheirOwnHeads)
{
  const Workload own = llama_with("12");
  EXPECT_EQ(units_in_words(own, *own.layers.at(1).split), "heads");
}

}  // namespace
}  // namespace isobar::split_text_test
