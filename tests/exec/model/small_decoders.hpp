#pragma once

#include "core/model/workload.hpp"

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec {

/// A decoder of three blocks, with these keys beside those that all have: "kv_heads: 2, qk_norm: head".
inline Workload small_decoder(const std::string& keys, const std::string& other_keys = "",
                              const WorkloadSettings& settings = {})
{
  return workload_from_text(fmt::format("{{model: decoder, layers: 3, hidden: 24, vocabulary: 37, micro_batch: 3, "
                                        "sequence: 7{}{}{}{}}}",
                                        keys.empty() ? "" : ", ", keys, other_keys.empty() ? "" : ", ", other_keys),
                            "decoder.yaml", settings);
}

/// Keys of a small decoder of each kind that executes, by what it shows.
inline std::vector<std::pair<std::string, std::string>> decoder_kinds()
{
  const std::string dense = "heads: 6, kv_heads: 3, intermediate: 20, ";
  const std::string experts = "heads: 4, experts: 5, top_k: 2, expert_intermediate: 10, ";
  const std::string latent =
      "layer_types: [latent], heads: 3, kv_lora_rank: 10, qk_nope_head_dim: 6, "
      "qk_rope_head_dim: 4, v_head_dim: 5, intermediate: 20, ";
  return {
      {"llama", dense + "rope_theta: 500000"},
      {"scaled", dense + "rope_type: llama3, rope_factor: 8, original_max_position_embeddings: 16"},
      {"linear", dense + "rope_type: linear, rope_factor: 4, rotary_dim: 2"},
      {"gpt",
       "heads: 6, intermediate: 20, norm: layer, activation: gelu_tanh, gated: false, rotary: false, "
       "positions: 9, biases: [qkv, output, mlp], tied: true"},
      {"windows", dense + "layer_types: [window, chunk, full], sliding_window: 3, attention_chunk: 2, head_dim: 8"},
      {"qwen3", dense + "qk_norm: head, head_dim: 8, biases: [qkv, output]"},
      {"olmo2", dense + "qk_norm: all_heads, norm_place: after"},
      {"cohere", dense + "qk_norm: each_head, norm: layer_without_bias, norm_place: shared, parallel: true"},
      {"unweighted", dense + "qk_norm: unweighted, norm: layer_without_weights, activation: relu"},
      {"neox", dense + "parallel: true, norm: layer, gated: false, activation: gelu, rotary_dim: 2, "
                       "biases: [qkv, output, mlp]"},
      {"gemma2", dense + "attention: unfused, norm_place: both, zero_centered_gamma: true, embedding_multiplier: 5, "
                         "query_pre_attn_scalar: 9, attn_logit_softcapping: 0.5, final_logit_softcapping: 0.1, "
                         "layer_types: [window, full, full], sliding_window: 3, window_rope_theta: 100, tied: true"},
      {"gated", dense + "attention_output_gate: true, embedding_norm: true"},
      {"gated_heads", dense + "attention_output_gate: true, head_dim: 6"},
      {"sinks", dense + "attention: unfused, attention_sinks: true, biases: [qkv, output]"},
      {"latent", latent + "q_lora_rank: 8, biases: [qkv, output]"},
      {"latent_queries", latent + "rotary: [true, false, true]"},
      {"hybrid", dense + "layer_types: [full, none, full], mlp_layer_types: [dense, dense, none], activation: relu2"},
      {"mixtral", experts + "norm_topk_prob: true"},
      {"deepseek", experts + "scoring_func: sigmoid, routed_scaling_factor: 2.5, shared_intermediate: 8, "
                             "mlp_layer_types: [dense, experts, experts], intermediate: 20"},
      {"qwen2_moe", experts + "norm_topk_prob: false, shared_intermediate: 8, shared_gate: true"},
      {"gpt_oss", experts + "biases: [qkv, output, experts, router]"},
      {"latent_experts", experts + "moe_latent_size: 12, gated: false, activation: relu2, biases: [mlp, experts], "
                                   "shared_intermediate: 8"},
  };
}

inline std::string keys_of_kind(const std::string& name)
{
  for (const auto& [kind, keys] : decoder_kinds()) {
    if (kind == name) return keys;
  }
  throw std::logic_error("no decoder " + name);
}

}  // namespace isobar::exec
