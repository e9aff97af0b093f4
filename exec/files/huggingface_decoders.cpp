#include "exec/files/huggingface_decoders.hpp"

#include "core/errors.hpp"
#include "core/names.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string_view>

namespace isobar::exec {

namespace {

constexpr NameTable<DecoderType, 7> types = {{{DecoderType::Llama, "llama"},
                                              {DecoderType::Mistral, "mistral"},
                                              {DecoderType::Qwen2, "qwen2"},
                                              {DecoderType::Qwen3, "qwen3"},
                                              {DecoderType::Qwen3Moe, "qwen3_moe"},
                                              {DecoderType::Mixtral, "mixtral"},
                                              {DecoderType::Gemma2, "gemma2"}}};

constexpr NameTable<DecoderType, 7> classes = {{{DecoderType::Llama, "LlamaForCausalLM"},
                                                {DecoderType::Mistral, "MistralForCausalLM"},
                                                {DecoderType::Qwen2, "Qwen2ForCausalLM"},
                                                {DecoderType::Qwen3, "Qwen3ForCausalLM"},
                                                {DecoderType::Qwen3Moe, "Qwen3MoeForCausalLM"},
                                                {DecoderType::Mixtral, "MixtralForCausalLM"},
                                                {DecoderType::Gemma2, "Gemma2ForCausalLM"}}};

bool all_blocks(const DecoderSizes& sizes, const std::function<bool(const DecoderBlock&)>& is_right)
{
  return std::all_of(sizes.blocks.begin(), sizes.blocks.end(), is_right);
}

bool all_have(const DecoderSizes& sizes, Mixer mixer)
{
  return all_blocks(sizes, [mixer](const auto& block) { return block.mixer == mixer; });
}

bool all_have(const DecoderSizes& sizes, FeedForward network)
{
  return all_blocks(sizes, [network](const auto& block) { return block.feed_forward == network; });
}

/// What all of the types have in common.
bool has_common_layers(const DecoderSizes& sizes)
{
  const bool is_right = all_blocks(sizes, [](const auto& block) {
    const bool has_attention = block.mixer == Mixer::Full || block.mixer == Mixer::Window;
    return has_attention && block.feed_forward != FeedForward::None && block.rotates;
  });
  const DecoderBiases& biases = sizes.biases;
  return is_right && sizes.mtp_blocks.empty() && sizes.norm == Norm::Rms && sizes.is_gated && !sizes.is_parallel &&
         !sizes.has_embedding_norm && sizes.positions == 0 && !sizes.has_output_gate && !sizes.has_sinks &&
         !sizes.has_shared_kv && sizes.q_rank == 0 && sizes.output_groups.count == 0 && sizes.streams == 1 &&
         sizes.rotated == 0 && (sizes.window == 0 || sizes.window_rope_theta == sizes.rope_theta) && !biases.experts &&
         !biases.router;
}

bool is_gemma2(const DecoderSizes& sizes)
{
  return all_have(sizes, FeedForward::Dense) && sizes.norm_place == NormPlace::Both && sizes.has_zero_centered_gamma &&
         sizes.embedding_scale == std::sqrt(static_cast<double>(sizes.hidden)) && sizes.head_norm == HeadNorm::None &&
         sizes.biases.qkv == sizes.biases.output && !sizes.biases.mlp;
}

std::optional<DecoderType> type_of_experts(const DecoderSizes& sizes)
{
  const ExpertSizes& experts = sizes.experts;
  const bool is_plain = experts.shared == 0 && experts.latent == 0 && experts.scores == RouterScores::Softmax &&
                        experts.scale == 1 && !sizes.biases.mlp;
  if (!is_plain || !(all_have(sizes, Mixer::Full) || all_have(sizes, Mixer::Window))) return std::nullopt;
  if (sizes.head_norm == HeadNorm::Head && sizes.biases.qkv == sizes.biases.output) return DecoderType::Qwen3Moe;
  const bool is_mixtral = sizes.head_norm == HeadNorm::None && all_have(sizes, FeedForward::Experts) &&
                          experts.normalizes && !sizes.biases.qkv && !sizes.biases.output;
  return is_mixtral ? std::optional(DecoderType::Mixtral) : std::nullopt;
}

std::optional<DecoderType> type_of_dense(const DecoderSizes& sizes)
{
  const DecoderBiases& biases = sizes.biases;
  if (sizes.head_norm == HeadNorm::Head) {
    return biases.qkv == biases.output && !biases.mlp ? std::optional(DecoderType::Qwen3) : std::nullopt;
  }
  if (sizes.head_norm != HeadNorm::None) return std::nullopt;
  if (biases.qkv && !biases.output && !biases.mlp) return DecoderType::Qwen2;
  if (all_have(sizes, Mixer::Full) && biases.qkv == biases.output) return DecoderType::Llama;
  const bool is_mistral = all_have(sizes, Mixer::Window) && !biases.qkv && !biases.output && !biases.mlp;
  return is_mistral ? std::optional(DecoderType::Mistral) : std::nullopt;
}

/// The sources of one layer, in the order of exec/model/layers.
class Sources {
 public:
  Sources(const DecoderSizes& sizes, DecoderType type) : sizes_(sizes), type_(type) {}

  void add(const std::string& ours, std::vector<std::uint64_t> shape, std::vector<std::string> theirs)
  {
    sources_.push_back({.ours = ours, .shape = std::move(shape), .theirs = std::move(theirs)});
  }

  void add_product(const std::string& ours, std::uint64_t from, std::uint64_t to, const std::string& theirs,
                   bool has_bias)
  {
    add(ours + ".weight", {to, from}, {theirs + ".weight"});
    if (has_bias) add(ours + ".bias", {to}, {theirs + ".bias"});
  }

  void add_attention(const std::string& prefix)
  {
    const bool is_gemma = type_ == DecoderType::Gemma2;
    const std::uint64_t hidden = sizes_.hidden;
    const std::uint64_t queries = sizes_.heads * sizes_.head_width;
    const std::uint64_t keys = sizes_.kv_heads * sizes_.head_width;
    const bool has_bias = sizes_.biases.qkv;
    const std::string attention = prefix + "self_attn.";
    add("attention_norm", {hidden}, {prefix + "input_layernorm.weight"});
    add_product("query", hidden, queries, attention + "q_proj", has_bias);
    add_product("key", hidden, keys, attention + "k_proj", has_bias);
    add_product("value", hidden, keys, attention + "v_proj", has_bias);
    add_product("output", queries, hidden, attention + "o_proj", sizes_.biases.output);
    if (sizes_.head_norm == HeadNorm::Head) {
      add("query_norm", {sizes_.head_width}, {attention + "q_norm.weight"});
      add("key_norm", {sizes_.head_width}, {attention + "k_norm.weight"});
    }
    if (is_gemma) add("attention_output_norm", {hidden}, {prefix + "post_attention_layernorm.weight"});
  }

  void add_feed_forward(const std::string& prefix, FeedForward network)
  {
    const bool is_gemma = type_ == DecoderType::Gemma2;
    const std::string norm = is_gemma ? "pre_feedforward_layernorm" : "post_attention_layernorm";
    add("feed_forward_norm", {sizes_.hidden}, {prefix + norm + ".weight"});
    if (network == FeedForward::Experts) {
      add_experts(prefix);
    } else {
      add_product("gate", sizes_.hidden, sizes_.intermediate, prefix + "mlp.gate_proj", sizes_.biases.mlp);
      add_product("up", sizes_.hidden, sizes_.intermediate, prefix + "mlp.up_proj", sizes_.biases.mlp);
      add_product("down", sizes_.intermediate, sizes_.hidden, prefix + "mlp.down_proj", sizes_.biases.mlp);
    }
    if (is_gemma) add("feed_forward_output_norm", {sizes_.hidden}, {prefix + "post_feedforward_layernorm.weight"});
  }

  std::vector<WeightSource> take() { return std::move(sources_); }

 private:
  void add_experts(const std::string& prefix)
  {
    const bool is_mixtral = type_ == DecoderType::Mixtral;
    const std::string mixture = prefix + (is_mixtral ? "block_sparse_moe." : "mlp.");
    const std::uint64_t inner = sizes_.experts.intermediate;
    add_product("router", sizes_.hidden, sizes_.experts.count, mixture + "gate", false);
    add_stack("experts.gate", sizes_.hidden, inner, mixture, is_mixtral ? "w1" : "gate_proj");
    add_stack("experts.up", sizes_.hidden, inner, mixture, is_mixtral ? "w3" : "up_proj");
    add_stack("experts.down", inner, sizes_.hidden, mixture, is_mixtral ? "w2" : "down_proj");
  }

  void add_stack(const std::string& ours, std::uint64_t from, std::uint64_t to, const std::string& mixture,
                 const std::string& theirs)
  {
    const std::uint64_t count = sizes_.experts.count;
    add(ours + ".weight", {count * to, from}, {});
    for (std::uint64_t expert = 0; expert < count; ++expert) {
      sources_.back().stacked.push_back(fmt::format("{}experts.{}.{}.weight", mixture, expert, theirs));
    }
  }

  const DecoderSizes& sizes_;
  DecoderType type_;
  std::vector<WeightSource> sources_;
};

/// Collects the entries of a configuration.
class Entries {
 public:
  void add(const std::string& key, std::string json) { entries_.emplace_back(key, std::move(json)); }
  void add_text(const std::string& key, std::string_view text) { add(key, fmt::format("\"{}\"", text)); }
  void add_count(const std::string& key, std::uint64_t count) { add(key, fmt::to_string(count)); }
  void add_number(const std::string& key, double number) { add(key, fmt::format("{}", number)); }
  void add_truth(const std::string& key, bool is_true) { add(key, is_true ? "true" : "false"); }
  /// null where there is none.
  void add_optional(const std::string& key, double number) { number > 0 ? add_number(key, number) : add(key, "null"); }
  ConfigEntries take() { return std::move(entries_); }

 private:
  ConfigEntries entries_;
};

std::string_view activation_of(Activation activation)
{
  switch (activation) {
    case Activation::Silu:
      return "silu";
    case Activation::Gelu:
      return "gelu";
    case Activation::GeluTanh:
      return "gelu_pytorch_tanh";
    case Activation::Relu:
      return "relu";
    default:
      return "relu2";
  }
}

std::string layer_types_of(const DecoderSizes& sizes)
{
  std::vector<std::string_view> kinds;
  for (const auto& block : sizes.blocks) {
    kinds.push_back(block.mixer == Mixer::Window ? "\"sliding_attention\"" : "\"full_attention\"");
  }
  return fmt::format("[{}]", fmt::join(kinds, ", "));
}

void add_windows(Entries& config, const DecoderSizes& sizes, DecoderType type)
{
  const bool has_windows = sizes.window > 0;
  const std::string window = has_windows ? fmt::to_string(sizes.window) : "null";
  switch (type) {
    case DecoderType::Qwen2:
    case DecoderType::Qwen3:
      config.add("layer_types", layer_types_of(sizes));
      [[fallthrough]];
    case DecoderType::Qwen3Moe:
      config.add_truth("use_sliding_window", has_windows);
      config.add("sliding_window", window);
      break;
    case DecoderType::Gemma2:
      config.add("layer_types", layer_types_of(sizes));
      if (has_windows) config.add("sliding_window", window);
      break;
    case DecoderType::Mistral:
    case DecoderType::Mixtral:
      config.add("sliding_window", window);
      break;
    default:
      break;
  }
}

void add_experts(Entries& config, const DecoderSizes& sizes, DecoderType type)
{
  const ExpertSizes& experts = sizes.experts;
  config.add_count("num_experts_per_tok", experts.per_token);
  if (type == DecoderType::Mixtral) {
    config.add_count("num_local_experts", experts.count);
    config.add_count("intermediate_size", experts.intermediate);
    return;
  }
  config.add_count("num_experts", experts.count);
  config.add_count("moe_intermediate_size", experts.intermediate);
  config.add_truth("norm_topk_prob", experts.normalizes);
  std::vector<std::size_t> dense;
  for (std::size_t i = 0; i < sizes.blocks.size(); ++i) {
    if (sizes.blocks[i].feed_forward == FeedForward::Dense) dense.push_back(i);
  }
  config.add("mlp_only_layers", fmt::format("[{}]", fmt::join(dense, ", ")));
}

}  // namespace

std::vector<std::string> decoder_type_names()
{
  return isobar::names_in(types);
}

std::optional<DecoderType> decoder_type_of(const DecoderSizes& sizes)
{
  if (!has_common_layers(sizes)) return std::nullopt;
  if (is_gemma2(sizes)) return DecoderType::Gemma2;
  const bool is_scaled = sizes.embedding_scale != 1 || sizes.query_scale != 0 || sizes.score_cap != 0 ||
                         sizes.logit_cap != 0 || sizes.has_zero_centered_gamma;
  if (is_scaled || sizes.norm_place != NormPlace::Before) return std::nullopt;
  return all_have(sizes, FeedForward::Dense) ? type_of_dense(sizes) : type_of_experts(sizes);
}

std::vector<WeightSource> decoder_sources(const DecoderSizes& sizes, DecoderType type, std::size_t layer)
{
  using Kind = DecoderLayer::Kind;
  const std::string words = "model.embed_tokens.weight";
  const auto [kind, block] = decoder_layer(layer, sizes);
  Sources sources(sizes, type);
  if (kind == Kind::Embedding) {
    sources.add("words", {sizes.vocabulary, sizes.hidden}, {words});
  } else if (kind == Kind::Head) {
    sources.add("norm", {sizes.hidden}, {"model.norm.weight"});
    if (!sizes.tied) sources.add("words.weight", {sizes.vocabulary, sizes.hidden}, {"lm_head.weight", words});
  } else {
    const auto prefix = fmt::format("model.layers.{}.", block);
    if (kind != Kind::FeedForward) sources.add_attention(prefix);
    if (kind != Kind::Attention) sources.add_feed_forward(prefix, decoder_block(sizes, block).feed_forward);
  }
  return sources.take();
}

ConfigEntries decoder_config(const DecoderSizes& sizes, DecoderType type, std::uint64_t positions)
{
  Entries config;
  config.add("architectures", fmt::format("[\"{}\"]", isobar::name_in(classes, type)));
  config.add_text("model_type", isobar::name_in(types, type));
  config.add_count("hidden_size", sizes.hidden);
  config.add_count("num_hidden_layers", sizes.blocks.size());
  config.add_count("num_attention_heads", sizes.heads);
  config.add_count("num_key_value_heads", sizes.kv_heads);
  config.add_count("head_dim", sizes.head_width);
  if (sizes.intermediate > 0) config.add_count("intermediate_size", sizes.intermediate);
  if (sizes.experts.count > 0) add_experts(config, sizes, type);
  config.add_count("vocab_size", sizes.vocabulary);
  config.add_count("max_position_embeddings", positions);
  config.add_text(type == DecoderType::Gemma2 ? "hidden_activation" : "hidden_act", activation_of(sizes.activation));
  config.add_number("rms_norm_eps", sizes.norm_epsilon);
  config.add_number("rope_theta", sizes.rope_theta);
  config.add("rope_scaling", rope_scaling_config(sizes.rope_scaling));
  add_windows(config, sizes, type);
  const bool has_bias_key = type == DecoderType::Llama || type == DecoderType::Qwen3 || type == DecoderType::Qwen3Moe ||
                            type == DecoderType::Gemma2;
  if (has_bias_key) config.add_truth("attention_bias", sizes.biases.qkv);
  if (type == DecoderType::Llama) config.add_truth("mlp_bias", sizes.biases.mlp);
  if (type == DecoderType::Gemma2) {
    config.add_number("query_pre_attn_scalar",
                      sizes.query_scale > 0 ? sizes.query_scale : static_cast<double>(sizes.head_width));
    config.add_optional("attn_logit_softcapping", sizes.score_cap);
    config.add_optional("final_logit_softcapping", sizes.logit_cap);
  }
  return config.take();
}

std::string rope_scaling_config(const RopeScaling& scaling)
{
  if (scaling.type == RopeScaling::Type::None) return "null";
  std::string of_llama;
  if (scaling.type == RopeScaling::Type::Llama3) {
    of_llama = fmt::format(R"(, "low_freq_factor": {}, "high_freq_factor": {}, "original_max_position_embeddings": {})",
                           scaling.low_frequency, scaling.high_frequency, scaling.original_positions);
  }
  return fmt::format(R"({{"rope_type": "{}", "factor": {}{}}})", name_of(scaling.type), scaling.factor, of_llama);
}

}  // namespace isobar::exec
