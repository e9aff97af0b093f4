#include "core/huggingface/decoder_types.hpp"
#include "core/model/model_limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::huggingface {

namespace {

// Mixtures of experts

void read_mixtral(DecoderReader& read)
{
  Keys keys;
  keys.intermediate = "";
  read.read_sizes({.kv_heads = 8, .positions = 131'072, .epsilon = 1e-5, .theta = 1'000'000}, keys);
  read.read_activation("silu");
  read.read_rotation();
  read.set_all(Mixer::Window);
  read.read_window({});
  read.set_experts([](std::uint64_t) { return true; });
  read.read_experts({{"num_local_experts", "num_experts"}, "intermediate_size"}, 8, 2, 14'336);
  read.sizes().experts.normalizes = true;
}

void read_qwen2_moe(DecoderReader& read)
{
  read.read_sizes({.vocabulary = 151'936,
                   .hidden = 2048,
                   .intermediate = 5632,
                   .layers = 24,
                   .heads = 16,
                   .kv_heads = 16,
                   .positions = 32'768});
  read.read_activation("silu");
  read.read_rotation();
  ConfigReader& config = read.config();
  constexpr std::uint64_t end_of_windows = 28;
  const bool uses = config.boolean("use_sliding_window", false);
  const std::uint64_t end = config.whole("max_window_layers", longest_sequence, end_of_windows);
  read.read_layer_types(
      [&](std::uint64_t layer) { return uses && layer % 2 == 0 && layer < end ? Mixer::Window : Mixer::Full; });
  read.read_window(4096);
  read.sizes().biases.qkv = config.boolean("qkv_bias", true);
  read.read_sparse_steps();
  read.read_experts({{"num_experts", "num_local_experts"}}, 60, 4, 1408);
  read.read_router(RouterScores::Softmax, false);
  read.read_gated_shared_expert(5632);
}

void read_qwen3_moe(DecoderReader& read)
{
  read.read_sizes({.vocabulary = 151'936,
                   .hidden = 2048,
                   .intermediate = 6144,
                   .layers = 24,
                   .heads = 32,
                   .kv_heads = 4,
                   .positions = 32'768});
  read.read_activation("silu");
  read.read_rotation();
  if (read.config().boolean("use_sliding_window", false)) {
    read.set_all(Mixer::Window);
    read.read_window(4096);
  }
  read.sizes().head_norm = HeadNorm::Head;
  read.read_attention_bias(false, true);
  read.read_sparse_steps();
  read.read_experts({{"num_experts", "num_local_experts"}}, 128, 8, 768);
  read.read_router(RouterScores::Softmax, false);
}

void read_qwen3_next(DecoderReader& read)
{
  read.read_sizes({.vocabulary = 151'936,
                   .hidden = 2048,
                   .intermediate = 5632,
                   .layers = 48,
                   .heads = 16,
                   .kv_heads = 2,
                   .head_width = 256,
                   .positions = 32'768});
  read.read_activation("silu");
  read.read_rotation(0.25);
  ConfigReader& config = read.config();
  const std::uint64_t period = config.count("full_attention_interval", longest_sequence, 4);
  read.read_layer_types(
      [period](std::uint64_t layer) { return (layer + 1) % period == 0 ? Mixer::Full : Mixer::DeltaNet; });
  DecoderSizes& sizes = read.sizes();
  sizes.delta_net = {
      config.count("linear_num_key_heads", widest, 16), config.count("linear_num_value_heads", widest, 32),
      config.count("linear_key_head_dim", widest, 128), config.count("linear_value_head_dim", widest, 128),
      config.count("linear_conv_kernel_dim", 1024, 4)};
  config.demand_parts("linear_num_key_heads", sizes.delta_net.key_heads, "linear_num_value_heads",
                      sizes.delta_net.value_heads);
  sizes.has_output_gate = true;
  sizes.has_zero_centered_gamma = true;
  sizes.head_norm = HeadNorm::Head;
  read.read_attention_bias(false, true);
  read.read_sparse_steps();
  read.read_experts({{"num_experts", "num_local_experts"}}, 512, 10, 512);
  read.read_router(RouterScores::Softmax, true);
  read.read_gated_shared_expert(512);
}

void read_deepseek_v2(DecoderReader& read)
{
  read.read_sizes({.vocabulary = 102'400});
  read.read_activation("silu");
  read.read_rotation();
  read.read_latent(1536, 512, 128, 64, 128);
  read.read_first_dense(0);
  read.read_experts({{"n_routed_experts", "num_experts"}}, 64, 1, 1407);
  read.read_router(RouterScores::Softmax, false, 1);
  read.read_groups(1, 1);
  read.read_shared_experts(2);
  read.sizes().biases.mlp = read.config().boolean("mlp_bias", false);
}

void read_deepseek_v3(DecoderReader& read)
{
  read.read_sizes(
      {.vocabulary = 129'280, .hidden = 7168, .intermediate = 18'432, .layers = 61, .heads = 128, .positions = 4096});
  read.read_activation("silu");
  read.read_rotation();
  read.read_latent(1536, 512, 128, 64, 128);
  read.read_first_dense(3);
  read.read_experts({{"n_routed_experts", "num_local_experts"}}, 256, 8, 2048);
  constexpr double scale = 2.5;
  read.read_router(RouterScores::Sigmoid, true, scale);
  read.read_groups(8, 4);
  read.read_shared_experts(1);
  read.read_predictions(1);
}

/// How each layer of DeepSeek-V4 sees others: layer_types, compress_ratios of older files, or transformers' default.
void read_deepseek_v4_mixers(DecoderReader& read)
{
  static const std::map<std::string, Mixer> of_types = {{"compressed_sparse_attention", Mixer::CompressedSparse},
                                                        {"heavily_compressed_attention", Mixer::HeavilyCompressed},
                                                        {"sliding_attention", Mixer::Window}};
  static const std::map<std::string, Mixer> of_ratios = {
      {"0", Mixer::Window}, {"4", Mixer::CompressedSparse}, {"128", Mixer::HeavilyCompressed}};
  auto& blocks = read.sizes().blocks;
  for (const auto& [key, kinds] : {std::pair("layer_types", &of_types), std::pair("compress_ratios", &of_ratios)}) {
    if (!read.config().has_value(key)) continue;
    std::vector<std::string> known;
    for (const auto& [name, mixer] : *kinds) known.push_back(name);
    const auto names = read.names_of_layers(key, known);
    for (std::uint64_t i = 0; i < names.size(); ++i) blocks[i].mixer = kinds->at(names[i]);
    return;
  }
  for (std::uint64_t i = 0; i < blocks.size(); ++i) {
    blocks[i].mixer = i < 2 || i % 2 == 0 ? Mixer::HeavilyCompressed : Mixer::CompressedSparse;
  }
}

/// The tokens of an entry: compress_rates, or the key of older files, which wins.
std::uint64_t read_compress_rate(ConfigReader& config, const std::string& type, const std::string& older,
                                 std::uint64_t default_value)
{
  constexpr std::uint64_t most_tokens = std::uint64_t{1} << 16;
  if (config.has_value(older) || !config.has_value("compress_rates")) {
    return config.count(older, most_tokens, default_value);
  }
  auto rates = config.mapping("compress_rates");
  return rates.count(type, most_tokens);
}

/// Attention of DeepSeek-V4, whose kinds of layers are known.
void read_deepseek_v4_attention(DecoderReader& read)
{
  ConfigReader& config = read.config();
  DecoderSizes& sizes = read.sizes();
  const auto has = [&](Mixer mixer) {
    return std::ranges::any_of(sizes.blocks, [mixer](const auto& block) { return block.mixer == mixer; });
  };
  config.demand_number("num_key_value_heads", 1, 1);
  sizes.has_shared_kv = sizes.has_sinks = true;
  sizes.head_norm = HeadNorm::WeightedKeys;
  sizes.q_rank = config.size("q_lora_rank", widest, 1024);
  sizes.output_groups = {config.count("o_groups", widest, 8), config.count("o_lora_rank", widest, 1024)};
  config.demand_parts("o_groups", sizes.output_groups.count, "num_attention_heads", sizes.heads);
  sizes.window = config.count("sliding_window", longest_sequence, 128);
  if (has(Mixer::CompressedSparse)) {
    sizes.compression.sparse = read_compress_rate(config, "compressed_sparse_attention", "compress_rate_csa", 4);
    sizes.indexer = {config.count("index_n_heads", widest, 64), config.count("index_head_dim", widest, 128),
                     config.count("index_topk", longest_sequence, 512)};
  }
  if (has(Mixer::HeavilyCompressed)) {
    sizes.compression.heavy = read_compress_rate(config, "heavily_compressed_attention", "compress_rate_hca", 128);
  }
}

/// Rotary positions of DeepSeek-V4: those of layers with entries have a base of their own, and may be scaled.
void read_deepseek_v4_rotation(DecoderReader& read)
{
  constexpr double rotated_by_default = 64.0 / 512;
  constexpr double theta_of_entries = 160'000;
  constexpr double theta_of_windows = 10'000;
  ConfigReader& config = read.config();
  DecoderSizes& sizes = read.sizes();
  const auto width = static_cast<double>(sizes.head_width);
  double rotated = rotated_by_default;
  if (config.has_value("qk_rope_head_dim")) {
    rotated = static_cast<double>(config.count("qk_rope_head_dim", widest)) / width;
  }
  rotated = config.number("partial_rotary_factor", rotated);
  double of_windows = read.positive("rope_theta", theta_of_windows);
  sizes.rope_theta = read.positive("compress_rope_theta", theta_of_entries);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.has_value(key)) continue;
    auto rope = config.mapping(key);
    if (!rope.has_value("main") || !rope.has_value("compress")) {
      sizes.rope_scaling = read_rope_scaling(rope);
      continue;
    }
    auto own = rope.mapping("main");
    auto of_entries = rope.mapping("compress");
    of_windows = DecoderReader::read_rope(own, of_windows, rotated);
    sizes.rope_theta = DecoderReader::read_rope(of_entries, sizes.rope_theta, rotated);
    sizes.rope_scaling = read_rope_scaling(of_entries);
  }
  const bool has_windows =
      std::ranges::any_of(sizes.blocks, [](const auto& block) { return block.mixer == Mixer::Window; });
  sizes.window_rope_theta = has_windows ? of_windows : sizes.rope_theta;
  if (rotated < 1) sizes.rotated = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(width * rotated));
}

void read_deepseek_v4_experts(DecoderReader& read)
{
  ConfigReader& config = read.config();
  ExpertSizes& experts = read.sizes().experts;
  read.set_experts([](std::uint64_t) { return true; });
  read.read_experts(
      {{"n_routed_experts", "num_local_experts"}, config.named("moe_intermediate_size", "intermediate_size")}, 256, 6,
      2048);
  config.demand_number("n_shared_experts", 1, 1);
  experts.shared = experts.intermediate;
  read.sizes().biases.mlp = config.boolean("mlp_bias", false);
  experts.normalizes = true;
  constexpr double scale = 1.5;
  experts.scale = read.positive("routed_scaling_factor", scale);
  const std::string scores = config.text("scoring_func", "sqrtsoftplus");
  experts.scores = router_scores_from_name(scores).value_or(RouterScores::Sigmoid);
  if (scores == "sqrtsoftplus") {
    read.note_text("scoring_func", scores, "sigmoid");
  } else if (!router_scores_from_name(scores)) {
    config.add_fault("scoring_func",
                     fmt::format("{} is not supported (only softmax, sigmoid, sqrtsoftplus)", in_quotes(scores)));
  }
  std::uint64_t hashed = std::min<std::uint64_t>(read.sizes().blocks.size(),
                                                 config.whole("num_hash_layers", DecoderReader::most_layers, 3));
  if (config.has_value("mlp_layer_types")) {
    const auto names = read.names_of_layers("mlp_layer_types", {"hash_moe", "moe"});
    hashed = static_cast<std::uint64_t>(std::ranges::count(names, "hash_moe"));
  }
  if (hashed > 0) read.note_text("mlp_layer_types", fmt::format("hash_moe in {} layers", hashed), "moe");
}

/// One head of keys that are values, too; of each layer a window, and of most of them entries of several tokens before
/// it; residuals of several streams. num_nextn_predict_layers is not in transformers' models.
void read_deepseek_v4(DecoderReader& read)
{
  Keys keys;
  keys.kv_heads = "";
  keys.intermediate = "";
  read.read_sizes(
      {.vocabulary = 129'280, .layers = 43, .heads = 64, .kv_heads = 1, .head_width = 512, .positions = 1'048'576},
      keys);
  read.read_activation("silu");
  read_deepseek_v4_mixers(read);
  read_deepseek_v4_attention(read);
  read_deepseek_v4_rotation(read);
  read_deepseek_v4_experts(read);
  constexpr std::uint64_t most_streams = 16;
  read.sizes().streams = read.config().count("hc_mult", most_streams, 4);
  read.note_absent("swiglu_limit", 10);
  read.read_predictions(1);
}

void read_glm4_moe(DecoderReader& read)
{
  read.read_sizes({.vocabulary = 151'552,
                   .intermediate = 10'944,
                   .layers = 46,
                   .heads = 96,
                   .kv_heads = 8,
                   .positions = 131'072,
                   .epsilon = 1e-5});
  read.read_activation("silu");
  read.read_rotation(0.5);
  if (read.config().boolean("use_qk_norm", false)) read.sizes().head_norm = HeadNorm::Head;
  read.read_attention_bias(false, false);
  read.read_first_dense(1);
  read.read_experts({{"n_routed_experts", "num_local_experts"}}, 128, 8, 1408);
  read.read_router(RouterScores::Sigmoid, true, 1);
  read.read_groups(1, 1);
  read.read_shared_experts(1);
  read.read_predictions(1);
}

void read_glm_moe_dsa(DecoderReader& read)
{
  read.read_sizes({.vocabulary = 154'880,
                   .hidden = 6144,
                   .intermediate = 12'288,
                   .layers = 78,
                   .heads = 64,
                   .kv_heads = 64,
                   .positions = 202'752,
                   .epsilon = 1e-5});
  read.read_activation("silu");
  read.read_rotation();
  read.read_latent(2048, 512, 192, 64, 256);
  ConfigReader& config = read.config();
  read.sizes().indexer = {config.count("index_n_heads", widest, 32), config.count("index_head_dim", widest, 128),
                          config.count("index_topk", longest_sequence, 2048)};
  config.demand_number("index_topk_freq", 1, 1);
  config.demand_nothing("index_topk_pattern", "layers that share an indexer");
  if (config.has_value("indexer_types")) {
    const auto types = config.texts("indexer_types");
    if (std::any_of(types.begin(), types.end(), [](const auto& type) { return type != "full"; })) {
      config.add_fault("indexer_types", "lists layers that share an indexer, which is not supported (only full)");
    }
  }
  read.read_first_dense(3);
  read.read_experts({{"n_routed_experts", "num_local_experts"}}, 256, 8, 2048);
  constexpr double scale = 2.5;
  read.read_router(RouterScores::Sigmoid, true, scale);
  read.read_groups(1, 1);
  read.read_shared_experts(1);
  read.read_predictions(0);
}

void read_gpt_oss(DecoderReader& read)
{
  Keys keys;
  keys.intermediate = "";
  read.read_sizes({.vocabulary = 201'088,
                   .hidden = 2880,
                   .layers = 36,
                   .heads = 64,
                   .kv_heads = 8,
                   .head_width = 64,
                   .positions = 131'072,
                   .epsilon = 1e-5,
                   .theta = 150'000},
                  keys);
  read.read_activation("silu");
  read.read_rotation();
  read.read_layer_types([](std::uint64_t layer) { return layer % 2 == 0 ? Mixer::Window : Mixer::Full; });
  read.read_window(128);
  read.read_attention_bias(true, true);
  read.sizes().has_sinks = true;
  read.sizes().biases.experts = read.sizes().biases.router = true;
  read.set_experts([](std::uint64_t) { return true; });
  read.read_experts({{"num_local_experts", "num_experts"}, "intermediate_size"}, 128, 4, 2880);
  read.sizes().experts.normalizes = true;  // a softmax over the chosen experts
  read.note_absent("swiglu_limit", 7);
}

void read_llama4(DecoderReader& read)
{
  Keys keys;
  keys.intermediate = "intermediate_size_mlp";
  read.read_sizes({.vocabulary = 202'048,
                   .hidden = 5120,
                   .intermediate = 16'384,
                   .layers = 48,
                   .heads = 40,
                   .kv_heads = 8,
                   .head_width = 128,
                   .positions = 131'072,
                   .epsilon = 1e-5,
                   .theta = 500'000},
                  keys);
  read.read_activation("silu");
  read.read_rotation();
  ConfigReader& config = read.config();
  auto& blocks = read.sizes().blocks;
  const std::uint64_t interval = config.count("no_rope_layer_interval", longest_sequence, 4);
  for (std::uint64_t i = 0; i < blocks.size(); ++i) blocks[i].rotates = (i + 1) % interval != 0;
  if (config.has_value("no_rope_layers")) {
    const auto rotates = config.texts("no_rope_layers");  // 1 for layers with rotary positions
    if (!rotates.empty() && read.has_length("no_rope_layers", rotates.size())) {
      for (std::uint64_t i = 0; i < blocks.size(); ++i) blocks[i].rotates = rotates[i] != "0";
    }
  }
  const bool has_chunks = !config.has("attention_chunk_size") || config.has_value("attention_chunk_size");
  read.read_layer_types(
      [&](std::uint64_t layer) { return has_chunks && blocks[layer].rotates ? Mixer::Chunk : Mixer::Full; });
  if (std::any_of(blocks.begin(), blocks.end(), [](const auto& block) { return block.mixer == Mixer::Chunk; })) {
    read.sizes().chunk = config.count("attention_chunk_size", longest_sequence, 8192);
  }
  if (config.boolean("use_qk_norm", true)) read.sizes().head_norm = HeadNorm::Unweighted;
  read.read_attention_bias(false, true);
  const std::uint64_t step = config.count("interleave_moe_layer_step", longest_sequence, 1);
  const bool lists = config.has_value("moe_layers");
  const auto listed = read.numbers("moe_layers");
  read.set_experts([&](std::uint64_t layer) { return lists ? listed.contains(layer) : (layer + 1) % step == 0; });
  read.read_experts({{"num_local_experts"}, "intermediate_size"}, 16, 1, 8192);
  read.sizes().experts.shared = read.sizes().experts.intermediate;
  read.sizes().experts.scores = RouterScores::Sigmoid;
  read.note_text("router", "scales the inputs of experts", "their outputs");
  const bool norms_some = read.sizes().head_norm != HeadNorm::None &&
                          std::ranges::any_of(blocks, [](const auto& block) { return !block.rotates; });
  if (norms_some) read.note_text("use_qk_norm", "of layers with rotary positions", "of all");
  if (config.boolean("attn_temperature_tuning", true)) {
    read.note_text("attn_temperature_tuning", "true", "false");
  }
}

// Hybrids

/// The parts of Nemotron's layers: each has one.
std::optional<DecoderBlock> nemotron_block(const std::string& type)
{
  if (type == "linear_attention" || type == "mamba" || type == "M")
    return DecoderBlock{Mixer::Mamba2, FeedForward::None, false};
  if (type == "full_attention" || type == "attention" || type == "*")
    return DecoderBlock{Mixer::Full, FeedForward::None, false};
  if (type == "moe" || type == "E") return DecoderBlock{Mixer::None, FeedForward::Experts, false};
  if (type == "mlp" || type == "-") return DecoderBlock{Mixer::None, FeedForward::Dense, false};
  return std::nullopt;
}

void read_nemotron_blocks(DecoderReader& read)
{
  ConfigReader& config = read.config();
  std::string key = "hybrid_override_pattern";
  std::vector<std::string> types = {"linear_attention", "moe", "full_attention", "mlp"};  // transformers' default
  for (const char* list : {"layers_block_type", "layer_types"}) {
    if (!config.has_value(list)) continue;
    key = list;
    types = config.texts(key);
  }
  if (key == "hybrid_override_pattern" && config.has_value(key)) {
    types.clear();
    for (const char letter : config.text(key, "")) types.emplace_back(1, letter);
  }
  read.sizes().blocks.clear();
  for (const auto& type : types) {
    const auto block = nemotron_block(type);
    if (!block) {
      config.add_fault(key, fmt::format("{} is no kind of layer (only M, E, * and -, or linear_attention, moe, "
                                        "full_attention and mlp)",
                                        in_quotes(type)));
      return;
    }
    read.sizes().blocks.push_back(*block);
  }
  if (types.empty() || types.size() > DecoderReader::most_layers) {
    config.add_fault(key,
                     fmt::format("names {} layers; 1 to {} are supported", types.size(), DecoderReader::most_layers));
  }
}

void read_nemotron_h(DecoderReader& read)
{
  Keys keys;
  keys.epsilon = "layer_norm_epsilon";
  keys.activation = "mlp_hidden_act";
  keys.intermediate = "";
  read.read_sizes({.vocabulary = 131'072, .kv_heads = 8, .head_width = 128, .positions = 4096, .epsilon = 1e-5}, keys);
  read.read_activation("relu2");
  read_nemotron_blocks(read);
  ConfigReader& config = read.config();
  DecoderSizes& sizes = read.sizes();
  const auto has = [&](auto is_right) { return std::any_of(sizes.blocks.begin(), sizes.blocks.end(), is_right); };
  sizes.is_gated = false;
  sizes.biases.mlp = config.boolean("mlp_bias", false);
  if (has([](const auto& block) { return block.feed_forward == FeedForward::Dense; })) {
    sizes.intermediate = config.size("intermediate_size", widest_intermediate, 21'504);
  }
  if (has([](const auto& block) { return block.feed_forward == FeedForward::Experts; })) {
    read.read_experts({{"n_routed_experts", "num_local_experts"}}, 8, 2, 7688);
    read.read_router(RouterScores::Sigmoid, true, 1);
    read.read_groups(1, 1);
    sizes.experts.shared = config.count("moe_shared_expert_intermediate_size", widest_intermediate, 7688);
    if (config.has_value("moe_latent_size")) sizes.experts.latent = config.count("moe_latent_size", widest);
  }
  if (has([](const auto& block) { return block.mixer == Mixer::Mamba2; })) {
    const auto groups = config.named("n_groups", "mamba_n_groups");
    const auto kernel = config.named("conv_kernel", "mamba_d_conv");
    sizes.mamba2 = {config.size("mamba_num_heads", widest, 128), config.size("mamba_head_dim", widest, 64),
                    config.size("ssm_state_size", widest, 128), config.count(groups, widest, 8),
                    config.count(kernel, 1024, 4)};
    config.demand_parts(groups, sizes.mamba2.groups, "mamba_num_heads", sizes.mamba2.heads);
    sizes.biases.convolution = config.boolean(config.named("use_conv_bias", "mamba_conv_bias"), true);
    sizes.biases.mamba = config.boolean("use_bias", false);
  }
  if (!has([](const auto& block) { return block.mixer == Mixer::Full; })) {
    sizes.heads = sizes.kv_heads = sizes.head_width = 0;
  }
  read.read_predictions(0);
}

constexpr std::array<DecoderType, 13> mixtures = {{{"deepseek_v2", read_deepseek_v2},
                                                   {"deepseek_v3", read_deepseek_v3},
                                                   {"deepseek_v4", read_deepseek_v4},
                                                   {"glm4_moe", read_glm4_moe},
                                                   {"glm_moe_dsa", read_glm_moe_dsa},
                                                   {"gpt_oss", read_gpt_oss},
                                                   {"kimi_k2", read_deepseek_v3},
                                                   {"llama4_text", read_llama4},
                                                   {"mixtral", read_mixtral},
                                                   {"nemotron_h", read_nemotron_h},
                                                   {"qwen2_moe", read_qwen2_moe},
                                                   {"qwen3_moe", read_qwen3_moe},
                                                   {"qwen3_next", read_qwen3_next}}};

}  // namespace

std::span<const DecoderType> mixture_types()
{
  return mixtures;
}

}  // namespace isobar::huggingface
