#include "core/model/model_sizes.hpp"

#include "core/model/workload.hpp"
#include "tests/support/thrown_message.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::model_sizes_test {
namespace {

std::string fault_of(std::string_view text)
{
  std::vector<BlockOperators> of_blocks(4);
  try {
    add_block_operators(text, of_blocks);
  } catch (const std::invalid_argument& fault) {
    return fault.what();
  }
  return "";
}

TEST(BlockOperators, AreReadAsTheyAreWritten)
{
  std::vector<BlockOperators> of_blocks(7);
  add_block_operators("0-1,4: scores softmax", of_blocks);
  add_block_operators("3,6: norm1 dropout2", of_blocks);
  EXPECT_TRUE(of_blocks[4].has(BlockOperator::Softmax));
  EXPECT_FALSE(of_blocks[4].has(BlockOperator::Context));
  EXPECT_FALSE(of_blocks[2].any());
  const auto texts = text_of(of_blocks);
  EXPECT_EQ(texts, (std::vector<std::string>{"0-1,4: scores softmax", "3,6: norm1 dropout2"}));
  std::vector<BlockOperators> again(7);
  for (const auto& text : texts) add_block_operators(text, again);
  EXPECT_EQ(again, of_blocks);
}

TEST(BlockOperators, ListedTwiceAddUp)
{
  std::vector<BlockOperators> of_blocks(1);
  add_block_operators("0: scores", of_blocks);
  add_block_operators("0: context", of_blocks);
  EXPECT_EQ(text_of(of_blocks), std::vector<std::string>{"0: scores context"});
}

TEST(BlockOperators, SayWhatIsWrongWithAText)
{
  EXPECT_EQ(fault_of("0-3"), "\"0-3\" has no colon; write blocks and operators as \"0-5,9: scores softmax\"");
  EXPECT_EQ(fault_of("3-1: up"), "\"3-1\" names no blocks in order, such as 0-5,9");
  EXPECT_EQ(fault_of("1,1: up"), "\"1,1\" names no blocks in order, such as 0-5,9");
  EXPECT_EQ(fault_of(": up"), "\"\" names no blocks in order, such as 0-5,9");
  EXPECT_EQ(fault_of("2-4: up"), "block 4; there are 0 to 3");
  EXPECT_EQ(fault_of("0: upp"),
            "\"upp\" is no operator of a block; write norm1, qkv, qkv_up, scores, softmax, score_dropout, context, "
            "projection, dropout1, norm2, router, up, activation, down, shared_experts, dropout2");
  EXPECT_EQ(fault_of("0: up down up"), "\"0: up down up\" names up twice");
  EXPECT_EQ(fault_of("0: ").substr(0, 25), "\"0: \" names no operators;");
}

std::string message_of_file(const std::string& more)
{
  return message_of([&] {
    workload_from_text("model: gpt\nlayers: 4\nhidden: 64\nheads: 4\nvocabulary: 512\nsequence: 32\n" + more, "g.yaml");
  });
}

TEST(BlockOperators, OfAWorkloadGoWithTimesOfOperators)
{
  const std::string operators = "compute: operators\nframework: megatron-lm-2022\n";
  EXPECT_EQ(message_of_file(operators + "recompute_operators: [\"0-2: scores\", \"3: up\"]\n"), "no error");
  EXPECT_EQ(
      message_of_file("recompute_operators: [\"0: up\"]\n"),
      "InputError g.yaml:7: recompute_operators: goes with compute: operators, whose times are of operators; leave "
      "it out, or write that");
  EXPECT_EQ(message_of_file(operators + "attention: recomputed\nrecompute_operators: [\"0: up\"]\n"),
            "InputError g.yaml:10: recompute_operators: says more than attention: recomputed; leave one of them out");
  EXPECT_EQ(message_of_file(operators + "attention: fused\nrecompute_operators: [\"0: softmax\"]\n"),
            "InputError g.yaml:10: recompute_operators: fused attention is one operator, context; write that, or "
            "attention: unfused");
  EXPECT_EQ(message_of_file(operators + "recompute_operators: [\"4: up\"]\n"),
            "InputError g.yaml:9: recompute_operators: block 4; there are 0 to 3");
  EXPECT_EQ(message_of_file(operators + "recompute_operators: [\"1: qkv_up up router\"]\n"),
            "InputError g.yaml:9: recompute_operators: block 1 has no qkv_up, router; it has norm1, qkv, scores, "
            "softmax, score_dropout, context, projection, dropout1, norm2, up, activation, down, dropout2");
}

std::string message_of_decoder(const std::string& recomputed, const std::string& more = "")
{
  return message_of([&] {
    workload_from_text(
        "model: decoder\nlayers: 3\nhidden: 64\nheads: 4\nvocabulary: 512\nsequence: 32\n"
        "layer_types: [latent, latent, full]\nq_lora_rank: 16\nkv_lora_rank: 16\nqk_nope_head_dim: 8\n"
        "qk_rope_head_dim: 8\nv_head_dim: 8\nmlp_layer_types: [dense, experts, none]\n"
        "intermediate: 96\nexperts: 4\ntop_k: 2\nexpert_intermediate: 32\nshared_intermediate: 16\n"
        "compute: operators\nframework: megatron-bridge-2026\n" +
            more + "recompute_operators: [\"" + recomputed + "\"]\n",
        "d.yaml");
  });
}

TEST(BlockOperators, OfADecoderAreThoseOfEachBlock)
{
  EXPECT_EQ(message_of_decoder("0: norm1 qkv qkv_up context projection norm2 up activation down"), "no error");
  EXPECT_EQ(message_of_decoder("1: norm1 qkv qkv_up context projection norm2 router up activation down shared_experts"),
            "no error");
  EXPECT_EQ(message_of_decoder("2: norm1 qkv qkv_up context projection"), "no error");
  EXPECT_EQ(message_of_decoder("0-1: shared_experts"),
            "InputError d.yaml:21: recompute_operators: block 0 has no shared_experts; it has norm1, qkv, qkv_up, "
            "context, projection, norm2, up, activation, down");
  EXPECT_EQ(message_of_decoder("1-2: qkv_up up"),
            "InputError d.yaml:21: recompute_operators: block 2 has no up; it has norm1, qkv, qkv_up, context, "
            "projection");
  EXPECT_EQ(message_of_decoder("1: softmax", "attention: unfused\n"),
            "InputError d.yaml:22: recompute_operators: block 1 has no softmax; it has norm1, qkv, qkv_up, context, "
            "projection, norm2, router, up, activation, down, shared_experts");
  EXPECT_EQ(message_of_decoder("3: up"), "InputError d.yaml:21: recompute_operators: block 3; there are 0 to 2");
  EXPECT_EQ(message_of_decoder("3: up", "mtp_layers: 1\n"),
            "InputError d.yaml:22: recompute_operators: block 3 has no up; it has norm1, qkv, qkv_up, context, "
            "projection")
      << "the block that predicts further";
}

}  // namespace
}  // namespace isobar::model_sizes_test
