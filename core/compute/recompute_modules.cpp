#include "core/compute/recompute_modules.hpp"

#include "core/model/decoder/decoder_parts.hpp"
#include "core/model/models.hpp"

#include <algorithm>

namespace isobar::compute {

namespace {

/// A norm before a product runs in the product's kernel, and so in its module, but before latent attention and before
/// experts (megatron/core/models/gpt/gpt_layer_specs.py).
std::vector<BlockOperator> listed_of_module(std::string_view module, const DecoderBlock& block)
{
  using enum BlockOperator;
  const bool is_latent = block.mixer == Mixer::Latent;
  const bool has_experts = block.feed_forward == FeedForward::Experts;
  if (module == "core_attn") {
    if (is_latent || decoder::is_attention(block.mixer)) return {Scores, Softmax, ScoreDropout, Context};
  } else if (module == "layernorm") {
    if (is_latent && has_experts) return {Norm1, Norm2};
    if (is_latent) return {Norm1};
    if (has_experts) return {Norm2};
  } else if (module == "mla_up_proj") {
    if (is_latent) return {QkvUp};
  } else if (module == "mlp") {
    if (block.feed_forward == FeedForward::Dense) return {Norm2, Up, Activation, Down};
  } else if (module == "moe") {
    if (has_experts) return {Router, Up, Activation, Down, SharedExperts};
  } else if (module == "moe_act") {
    if (has_experts) return {Activation};
  } else if (module == "shared_experts") {
    if (has_experts) return {SharedExperts};
  }
  return {};
}

BlockOperators operators_in(std::string_view module, const DecoderBlock& block, BlockOperators of_block)
{
  BlockOperators operators;
  for (const auto which : listed_of_module(module, block)) operators.add(which);
  return operators &= of_block;
}

std::vector<BlockOperators> of_uniform(std::string_view module, const DecoderSizes& parts, std::uint64_t layers)
{
  using enum BlockOperator;
  BlockOperators of_block = BlockOperators::uniform();
  if (parts.attention == Attention::Fused) {
    for (const auto which : {Scores, Softmax, ScoreDropout}) of_block.remove(which);
  }
  return std::vector(layers, operators_in(module, parts.blocks.front(), of_block));
}

}  // namespace

const std::vector<std::string>& recompute_module_names()
{
  static const std::vector<std::string> names = {"core_attn", "layernorm", "mla_up_proj",   "mlp",
                                                 "moe",       "moe_act",   "shared_experts"};
  return names;
}

std::vector<BlockOperators> operators_of_module(std::string_view module, const ModelSizes& model)
{
  if (std::ranges::find(recompute_module_names(), module) == recompute_module_names().end()) return {};
  if (const auto* gpt = std::get_if<GptSizes>(&model)) return of_uniform(module, decoder_parts_of(*gpt), gpt->layers);
  if (const auto* llama = std::get_if<LlamaSizes>(&model)) {
    return of_uniform(module, decoder_parts_of(*llama), llama->layers);
  }
  std::vector<BlockOperators> of_blocks;
  const auto* sizes = std::get_if<DecoderSizes>(&model);
  if (sizes == nullptr) return of_blocks;
  for (const auto* blocks : {&sizes->blocks, &sizes->mtp_blocks}) {
    for (const auto& block : *blocks) {
      of_blocks.push_back(operators_in(module, block, decoder::operators_of(*sizes, block)));
    }
  }
  return of_blocks;
}

}  // namespace isobar::compute
