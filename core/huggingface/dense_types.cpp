#include "core/huggingface/decoder_types.hpp"
#include "core/model/model_limits.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <string>

namespace isobar::huggingface {

namespace {

// Llama's kind

void read_llama(DecoderReader& read)
{
  read.read_sizes({});
  read.read_activation("silu");
  read.read_rotation();
  read.read_attention_bias(false, true);
  read.sizes().biases.mlp = read.config().boolean("mlp_bias", false);
}

void read_mistral(DecoderReader& read)
{
  read.read_sizes({.intermediate = 14'336, .kv_heads = 8, .positions = 131'072});
  read.read_activation("silu");
  read.read_rotation();
  read.set_all(Mixer::Window);
  read.read_window(4096);
}

void read_qwen2(DecoderReader& read)
{
  read.read_sizes({.vocabulary = 151'936, .intermediate = 22'016, .kv_heads = 32, .positions = 32'768});
  read.read_activation("silu");
  read.read_rotation();
  read.read_qwen_windows();
  read.sizes().biases.qkv = true;
}

void read_qwen3(DecoderReader& read)
{
  read.read_sizes(
      {.vocabulary = 151'936, .intermediate = 22'016, .kv_heads = 32, .head_width = 128, .positions = 32'768});
  read.read_activation("silu");
  read.read_rotation();
  read.read_qwen_windows();
  read.sizes().head_norm = HeadNorm::Head;
  read.read_attention_bias(false, true);
}

void read_granite(DecoderReader& read)
{
  read_llama(read);
  read.sizes().embedding_scale = read.positive("embedding_multiplier", 1);
  for (const char* key : {"logits_scaling", "residual_multiplier", "attention_multiplier"}) {
    read.note_number(key, 1, 1);
  }
}

void read_phi3(DecoderReader& read)
{
  read.read_sizes({.vocabulary = 32'064, .hidden = 3072, .intermediate = 8192, .positions = 4096, .epsilon = 1e-5});
  read.read_activation("silu");
  read.read_rotation();
  read.set_all(Mixer::Window);
  read.read_window({});
}

void read_glm4(DecoderReader& read)
{
  read.read_sizes({.vocabulary = 151'552,
                   .intermediate = 13'696,
                   .layers = 40,
                   .kv_heads = 2,
                   .head_width = 128,
                   .positions = 131'072,
                   .epsilon = 1.5625e-7});
  read.read_activation("silu");
  read.read_rotation(0.5);
  read.sizes().norm_place = NormPlace::Both;
  read.read_attention_bias(true, false);
}

void read_olmo(DecoderReader& read)
{
  Keys keys;
  keys.epsilon = "layer_norm_eps";  // transformers fixes it
  read.read_sizes({.vocabulary = 50'304, .epsilon = 1e-5}, keys);
  read.read_activation("silu");
  read.read_rotation();
  read.sizes().norm = Norm::LayerWithoutWeights;
  read.read_attention_bias(false, true);
  read.note_absent("clip_qkv", {});
}

void read_olmo2(DecoderReader& read)
{
  read.read_sizes({.vocabulary = 50'304, .epsilon = 1e-5});
  read.read_activation("silu");
  read.read_rotation();
  read.sizes().norm_place = NormPlace::After;
  read.sizes().head_norm = HeadNorm::AllHeads;
  read.read_attention_bias(false, true);
}

void read_olmo3(DecoderReader& read)
{
  read.read_sizes({.vocabulary = 50'304, .epsilon = 1e-5, .theta = 500'000});
  read.read_activation("silu");
  read.read_rotation();
  read.read_layer_types([](std::uint64_t layer) { return DecoderReader::windows_but_every(4, layer); });
  read.read_window(4096);
  read.sizes().norm_place = NormPlace::After;
  read.sizes().head_norm = HeadNorm::AllHeads;
  read.read_attention_bias(false, true);
}

// Gemma

void read_gemma(DecoderReader& read)
{
  read.read_sizes({.vocabulary = 256'000,
                   .hidden = 3072,
                   .intermediate = 24'576,
                   .layers = 28,
                   .heads = 16,
                   .kv_heads = 16,
                   .head_width = 256,
                   .positions = 8192,
                   .tied = true});
  read.read_activation("gelu_pytorch_tanh");
  read.read_rotation();
  read.read_attention_bias(false, true);
  read.sizes().has_zero_centered_gamma = true;
  read.sizes().embedding_scale = std::sqrt(static_cast<double>(read.sizes().hidden));
}

/// `period`: one layer of that many sees all tokens.
void read_later_gemma(DecoderReader& read, std::uint64_t vocabulary, std::uint64_t positions, std::uint64_t period)
{
  Keys keys;
  keys.activation = "hidden_activation";
  read.read_sizes({.vocabulary = vocabulary,
                   .hidden = 2304,
                   .intermediate = 9216,
                   .layers = 26,
                   .heads = 8,
                   .kv_heads = 4,
                   .head_width = 256,
                   .positions = positions,
                   .tied = true},
                  keys);
  read.read_activation("gelu_pytorch_tanh");
  read.read_layer_types([period](std::uint64_t layer) { return DecoderReader::windows_but_every(period, layer); });
  read.read_window(4096);
  read.sizes().norm_place = NormPlace::Both;
  read.read_attention_bias(false, true);
}

void read_gemma2(DecoderReader& read)
{
  read_later_gemma(read, 256'000, 8192, 2);
  read.read_rotation();
  constexpr double score_cap = 50;
  constexpr double logit_cap = 30;
  read.read_gemma_scales(score_cap, logit_cap);
}

void read_gemma3(DecoderReader& read)
{
  constexpr double global_theta = 1'000'000;
  constexpr double local_theta = 10'000;
  const std::uint64_t period = read.config().count("sliding_window_pattern", longest_sequence, 6);
  read_later_gemma(read, 262'208, 131'072, period);
  read.sizes().rope_theta = global_theta;
  read.read_rotation();
  if (!read.config().has_value("rope_parameters")) {
    read.sizes().window_rope_theta = read.positive("rope_local_base_freq", local_theta);
  }
  read.sizes().head_norm = HeadNorm::Head;
  read.read_gemma_scales({}, {});
  read.config().demand_boolean("use_bidirectional_attention", false);
}

// Other dense ones

/// `theta` of rotary positions.
void read_any_cohere(DecoderReader& read, double theta, const std::string& head_width)
{
  Keys keys;
  keys.epsilon = "layer_norm_eps";
  keys.head_width = head_width;
  read.read_sizes({.vocabulary = 256'000,
                   .hidden = 8192,
                   .intermediate = 22'528,
                   .layers = 40,
                   .heads = 64,
                   .positions = 8192,
                   .tied = true,
                   .epsilon = 1e-5,
                   .theta = theta},
                  keys);
  read.read_activation("silu");
  read.read_rotation();
  read.sizes().norm = Norm::LayerWithoutBias;
  read.sizes().norm_place = NormPlace::Shared;
  read.sizes().is_parallel = true;
  read.read_attention_bias(false, true);
  read.note_number("logit_scale", 0.0625, 1);
}

void read_cohere(DecoderReader& read)
{
  read_any_cohere(read, 500'000, "head_dim");
  if (read.config().boolean("use_qk_norm", false)) read.sizes().head_norm = HeadNorm::EachHead;
}

void read_cohere2(DecoderReader& read)
{
  read_any_cohere(read, 10'000, "");
  const std::uint64_t period = read.config().count("sliding_window_pattern", longest_sequence, 4);
  read.read_layer_types([period](std::uint64_t layer) { return DecoderReader::windows_but_every(period, layer); });
  read.read_window(4096);
  for (auto& block : read.sizes().blocks) block.rotates = block.mixer == Mixer::Window;
}

void read_stablelm(DecoderReader& read)
{
  Keys keys;
  keys.epsilon = "layer_norm_eps";
  keys.head_width = "";
  read.read_sizes(
      {.vocabulary = 50'304, .hidden = 2560, .intermediate = 6912, .kv_heads = 32, .positions = 4096, .epsilon = 1e-5},
      keys);
  read.read_activation("silu");
  read.read_rotation(0.25);
  DecoderSizes& sizes = read.sizes();
  sizes.norm = Norm::Layer;
  sizes.biases.qkv = read.config().boolean("use_qkv_bias", false);
  if (read.config().boolean("qk_layernorm", false)) sizes.head_norm = HeadNorm::EachHead;
  sizes.is_parallel = read.config().boolean("use_parallel_residual", false);
  if (sizes.is_parallel) sizes.norm_place = NormPlace::Shared;
}

void read_starcoder2(DecoderReader& read)
{
  Keys keys;
  keys.epsilon = "norm_epsilon";
  read.read_sizes({.vocabulary = 49'152,
                   .hidden = 3072,
                   .intermediate = 12'288,
                   .layers = 30,
                   .heads = 24,
                   .kv_heads = 2,
                   .positions = 4096,
                   .tied = true,
                   .epsilon = 1e-5},
                  keys);
  read.read_activation("gelu_pytorch_tanh");
  read.read_rotation();
  read.set_all(Mixer::Window);
  read.read_window({});
  read.sizes().norm = Norm::Layer;
  read.sizes().is_gated = false;
  DecoderBiases& biases = read.sizes().biases;
  biases.qkv = biases.output = biases.mlp = read.config().boolean("use_bias", true);
}

void read_gpt_neox(DecoderReader& read)
{
  Keys keys;
  keys.kv_heads = "";
  keys.head_width = "";
  keys.epsilon = "layer_norm_eps";
  read.read_sizes(
      {.vocabulary = 50'432, .hidden = 6144, .intermediate = 24'576, .layers = 44, .heads = 64, .epsilon = 1e-5}, keys);
  read.read_activation("gelu");
  read.sizes().rope_theta = read.positive("rotary_emb_base", read.sizes().rope_theta);
  constexpr double rotated = 0.25;
  read.read_rotation(read.config().number("rotary_pct", rotated));
  read.sizes().norm = Norm::Layer;
  read.sizes().is_gated = false;
  read.sizes().is_parallel = read.config().boolean("use_parallel_residual", true);
  read.read_attention_bias(true, true);
  read.sizes().biases.mlp = true;
}

void read_mpt(DecoderReader& read)
{
  Keys keys;
  keys.layers = {"n_layers", "num_hidden_layers"};
  keys.hidden = {"d_model", "hidden_size"};
  keys.heads = {"n_heads", "num_attention_heads"};
  keys.kv_heads = keys.head_width = keys.intermediate = "";
  keys.positions = "max_seq_len";
  keys.epsilon = "layer_norm_epsilon";
  read.read_sizes({.vocabulary = 50'368, .hidden = 2048, .layers = 24, .heads = 16, .tied = true, .epsilon = 1e-5},
                  keys);
  read.config().demand_number("expansion_ratio", 4, 4);  // transformers builds no other
  read.sizes().intermediate = 4 * read.sizes().hidden;
  read.sizes().activation = Activation::Gelu;
  read.sizes().is_gated = false;
  read.sizes().norm = Norm::LayerWithoutBias;
  read.set_rotates(false);
  read.note_text("attn_config", "alibi", "positions of none");
}

void read_bloom(DecoderReader& read)
{
  Keys keys;
  keys.layers = {"n_layer", "num_hidden_layers"};
  keys.hidden = {"hidden_size", "n_embed"};
  keys.heads = {"n_head", "num_attention_heads"};
  keys.kv_heads = keys.head_width = keys.intermediate = keys.positions = "";
  keys.epsilon = "layer_norm_epsilon";
  read.read_sizes({.vocabulary = 250'880, .hidden = 64, .layers = 2, .heads = 8, .tied = true, .epsilon = 1e-5}, keys);
  DecoderSizes& sizes = read.sizes();
  sizes.intermediate = 4 * sizes.hidden;
  sizes.activation = Activation::GeluTanh;
  sizes.is_gated = false;
  sizes.norm = Norm::Layer;
  sizes.has_embedding_norm = true;
  sizes.biases.qkv = sizes.biases.output = sizes.biases.mlp = true;
  read.set_rotates(false);
  read.note_text("positions", "alibi", "none");
}

void read_falcon(DecoderReader& read)
{
  Keys keys;
  keys.hidden = {"hidden_size", "n_embed"};
  keys.kv_heads = keys.head_width = keys.intermediate = "";
  keys.epsilon = "layer_norm_epsilon";
  keys.activation = "activation";
  read.read_sizes({.vocabulary = 65'024, .hidden = 4544, .heads = 71, .tied = true, .epsilon = 1e-5}, keys);
  read.read_activation("gelu");
  read.read_rotation();
  ConfigReader& config = read.config();
  DecoderSizes& sizes = read.sizes();
  config.demand_parts("num_attention_heads", sizes.heads, "hidden_size", sizes.hidden);
  sizes.intermediate = config.count("ffn_hidden_size", widest_intermediate, 4 * sizes.hidden);
  const bool is_new = config.boolean("new_decoder_architecture", false);
  if (is_new) {
    sizes.kv_heads = config.count("num_kv_heads", widest, sizes.heads);
    config.demand_parts("num_kv_heads", sizes.kv_heads, "num_attention_heads", sizes.heads);
  } else if (config.boolean("multi_query", true)) {
    sizes.kv_heads = 1;
  }
  sizes.is_gated = false;
  sizes.norm = Norm::Layer;
  sizes.is_parallel = config.boolean("parallel_attn", true);
  const std::uint64_t norms = config.whole("num_ln_in_parallel_attn", 2, is_new ? 2 : 1);
  if (sizes.is_parallel && norms != 2) sizes.norm_place = NormPlace::Shared;
  sizes.biases.qkv = sizes.biases.output = sizes.biases.mlp = config.boolean("bias", false);
  if (config.boolean("alibi", false)) {
    read.set_rotates(false);
    read.note_text("positions", "alibi", "none");
  }
}

void read_opt(DecoderReader& read)
{
  constexpr std::uint64_t offset = 2;  // of transformers' positions
  Keys keys;
  keys.kv_heads = keys.head_width = "";
  keys.intermediate = "ffn_dim";
  keys.epsilon = "layer_norm_eps";  // transformers fixes it
  keys.activation = "activation_function";
  read.read_sizes({.vocabulary = 50'272,
                   .hidden = 768,
                   .intermediate = 3072,
                   .layers = 12,
                   .heads = 12,
                   .tied = true,
                   .epsilon = 1e-5},
                  keys);
  read.read_activation("relu");
  ConfigReader& config = read.config();
  DecoderSizes& sizes = read.sizes();
  constexpr double dropout = 0.1;
  read.note_number("dropout", dropout, 0);
  sizes.positions = *read.read().positions + offset;
  sizes.is_gated = false;
  sizes.norm = config.boolean("layer_norm_elementwise_affine", true) ? Norm::Layer : Norm::LayerWithoutWeights;
  sizes.biases.qkv = sizes.biases.output = sizes.biases.mlp = config.boolean("enable_bias", true);
  read.set_rotates(false);
  config.demand_boolean("do_layer_norm_before", true);
  config.demand_boolean("_remove_final_layer_norm", false);
  const auto hidden = static_cast<double>(sizes.hidden);
  config.demand_number("word_embed_proj_dim", hidden, hidden);
}

constexpr std::array<DecoderType, 22> dense = {{{"bloom", read_bloom},
                                                {"cohere", read_cohere},
                                                {"cohere2", read_cohere2},
                                                {"falcon", read_falcon},
                                                {"gemma", read_gemma},
                                                {"gemma2", read_gemma2},
                                                {"gemma3_text", read_gemma3},
                                                {"glm4", read_glm4},
                                                {"gpt_neox", read_gpt_neox},
                                                {"granite", read_granite},
                                                {"llama", read_llama},
                                                {"mistral", read_mistral},
                                                {"mpt", read_mpt},
                                                {"olmo", read_olmo},
                                                {"olmo2", read_olmo2},
                                                {"olmo3", read_olmo3},
                                                {"opt", read_opt},
                                                {"phi3", read_phi3},
                                                {"qwen2", read_qwen2},
                                                {"qwen3", read_qwen3},
                                                {"stablelm", read_stablelm},
                                                {"starcoder2", read_starcoder2}}};

}  // namespace

std::span<const DecoderType> dense_types()
{
  return dense;
}

}  // namespace isobar::huggingface
