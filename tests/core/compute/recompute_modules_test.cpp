#include "core/compute/recompute_modules.hpp"

#include "core/model/workload.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace isobar::compute::recompute_modules_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> texts_of(std::string_view module, const std::string& model)
{
  return text_of(operators_of_module(module, workload_from_text(model, "model.yaml").model));
}

TEST(RecomputeModules, OfADecoderAreOfTheBlocksThatHaveThem)
{
  const std::string model =
      "model: decoder\nlayers: 4\nhidden: 64\nheads: 4\nvocabulary: 512\nsequence: 32\n"
      "layer_types: [latent, latent, full, mamba2]\nq_lora_rank: 16\nkv_lora_rank: 16\nqk_nope_head_dim: 8\n"
      "qk_rope_head_dim: 8\nv_head_dim: 8\nmlp_layer_types: [dense, experts, experts, none]\nintermediate: 96\n"
      "experts: 4\ntop_k: 2\nexpert_intermediate: 32\nshared_intermediate: 16\nmamba_heads: 8\nmamba_head_dim: 16\n"
      "mamba_state: 32\nmamba_groups: 4\n";
  EXPECT_THAT(texts_of("core_attn", model), ElementsAre("0-2: context"));
  EXPECT_THAT(texts_of("layernorm", model), ElementsAre("0: norm1", "1: norm1 norm2", "2: norm2"));
  EXPECT_THAT(texts_of("mla_up_proj", model), ElementsAre("0-1: qkv_up"));
  EXPECT_THAT(texts_of("mlp", model), ElementsAre("0: norm2 up activation down"));
  EXPECT_THAT(texts_of("moe", model), ElementsAre("1-2: router up activation down shared_experts"));
  EXPECT_THAT(texts_of("moe_act", model), ElementsAre("1-2: activation"));
  EXPECT_THAT(texts_of("shared_experts", model), ElementsAre("1-2: shared_experts"));
  EXPECT_THAT(texts_of("gdn_norm_out", model), IsEmpty());
}

TEST(RecomputeModules, OfAGptAreItsAttentionCoreAndItsNetwork)
{
  const std::string model = "model: gpt\nlayers: 3\nhidden: 64\nheads: 4\nvocabulary: 512\nsequence: 32\n";
  EXPECT_THAT(texts_of("core_attn", model), ElementsAre("0-2: scores softmax score_dropout context"));
  EXPECT_THAT(texts_of("core_attn", model + "attention: fused\n"), ElementsAre("0-2: context"));
  EXPECT_THAT(texts_of("mlp", model), ElementsAre("0-2: norm2 up activation down"));
  EXPECT_THAT(texts_of("layernorm", model), IsEmpty()) << "it is in the kernel of the product after it";
}

}  // namespace
}  // namespace isobar::compute::recompute_modules_test
