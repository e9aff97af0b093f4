#include "core/huggingface/decoder_reader.hpp"

#include "core/model/model_limits.hpp"
#include "core/text/separated.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace isobar::huggingface {

namespace {

constexpr std::uint64_t most_experts = std::uint64_t{1} << 16;

/// The names of activation functions.
const std::map<std::string, Activation>& activations()
{
  static const std::map<std::string, Activation> names = {{"silu", Activation::Silu},
                                                          {"swish", Activation::Silu},
                                                          {"gelu", Activation::Gelu},
                                                          {"gelu_python", Activation::Gelu},
                                                          {"gelu_new", Activation::GeluTanh},
                                                          {"gelu_fast", Activation::GeluTanh},
                                                          {"gelu_pytorch_tanh", Activation::GeluTanh},
                                                          {"relu", Activation::Relu},
                                                          {"relu2", Activation::SquaredRelu}};
  return names;
}

}  // namespace

void DecoderReader::read_sizes(const Defaults& defaults, Keys keys)
{
  keys_ = std::move(keys);
  const std::uint64_t layers = config_.size(named(keys_.layers), most_layers, defaults.layers);
  sizes().hidden = config_.size(named(keys_.hidden), widest, defaults.hidden);
  sizes().heads = config_.size(named(keys_.heads), widest, defaults.heads);
  sizes().kv_heads = read_kv_heads(defaults.kv_heads);
  const std::uint64_t width = defaults.head_width.value_or(std::max<std::uint64_t>(1, sizes().hidden / sizes().heads));
  sizes().head_width = keys_.head_width.empty() ? width : config_.count(keys_.head_width, widest, width);
  sizes().vocabulary = config_.size("vocab_size", largest_vocabulary, defaults.vocabulary);
  if (!keys_.intermediate.empty()) {
    sizes().intermediate = config_.size(keys_.intermediate, widest_intermediate, defaults.intermediate);
  }
  sizes().blocks.assign(layers, {});
  sizes().norm_epsilon = positive(keys_.epsilon, defaults.epsilon);
  read_.tied = config_.boolean("tie_word_embeddings", defaults.tied);
  read_.positions_key = keys_.positions;
  if (!keys_.positions.empty()) {
    read_.positions = config_.count(keys_.positions, longest_sequence, defaults.positions);
  }
  sizes().rope_theta = sizes().window_rope_theta = defaults.theta;
  if (config_.use() == ConfigUse::Costs) {  // for weights, settings of the training alone may have any value
    for (const char* key : {"attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "residual_dropout",
                            "embedding_dropout"}) {
      if (config_.has_value(key)) config_.accept_number(key, 0);
    }
  }
  demand_parts(keys_.kv_heads, sizes().kv_heads, named(keys_.heads), sizes().heads);
}

void DecoderReader::read_activation(const std::string& default_name)
{
  std::vector<std::string> known;
  for (const auto& [name, activation] : activations()) known.push_back(name);
  const std::string name = config_.text(keys_.activation, default_name);
  const auto found = activations().find(name);
  if (found != activations().end()) {
    sizes().activation = found->second;
  } else {
    config_.add_fault(keys_.activation,
                      fmt::format("{} is not supported (only {})", in_quotes(name), fmt::join(known, ", ")));
  }
}

RopeScaling read_rope_scaling(ConfigReader& rope)
{
  using Type = RopeScaling::Type;
  const std::string key = rope.has_value("rope_type") ? "rope_type" : "type";
  rope.accept_text(key, {"default", "linear", "llama3"}, {"dynamic", "yarn", "longrope"});
  RopeScaling scaling;
  scaling.type = rope_scaling_from_name(rope.text(key, "default")).value_or(Type::None);
  if (scaling.type == Type::None) return scaling;
  const auto positive = [&](const std::string& name, double default_value) {
    const double value = rope.number(name, default_value);
    if (value == 0) rope.add_fault(name, "is 0; write a positive number");
    return value;
  };
  scaling.factor = positive("factor", 1);
  if (scaling.type == Type::Linear) return scaling;
  scaling.low_frequency = positive("low_freq_factor", scaling.low_frequency);
  scaling.high_frequency = positive("high_freq_factor", scaling.high_frequency);
  scaling.original_positions =
      rope.count("original_max_position_embeddings", longest_sequence, scaling.original_positions);
  if (rope.is_right_so_far() && scaling.low_frequency >= scaling.high_frequency) {
    rope.add_fault("high_freq_factor",
                   fmt::format("{} is not above low_freq_factor, {}", scaling.high_frequency, scaling.low_frequency));
  }
  return scaling;
}

void DecoderReader::read_rotation(double rotated)
{
  double& theta = sizes().rope_theta;
  theta = positive("rope_theta", theta);
  sizes().window_rope_theta = theta;
  rotated = config_.number("partial_rotary_factor", rotated);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config_.has_value(key)) continue;
    auto rope = config_.mapping(key);
    const bool is_by_kind = rope.has_value("full_attention") || rope.has_value("sliding_attention");
    if (!is_by_kind) {
      sizes().rope_scaling = read_rope_scaling(rope);
      theta = read_rope(rope, theta, rotated);
      sizes().window_rope_theta = theta;
      continue;
    }
    for (const auto& [kind, own] :
         {std::pair("full_attention", &theta), std::pair("sliding_attention", &sizes().window_rope_theta)}) {
      if (!rope.has_value(kind)) continue;
      auto rope_of_kind = rope.mapping(kind);
      // Isobar's layers of both kinds have the same scale.
      if (const auto scaled = rope_of_kind.text("rope_type", "default"); scaled != "default") {
        rope_of_kind.add_difference("rope_type", scaled, "default");
      }
      *own = read_rope(rope_of_kind, *own, rotated);
    }
  }
  if (rotated < 1) {
    sizes().rotated =
        std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(sizes().head_width) * rotated));
  }
}

void DecoderReader::note_number(const std::string& key, double default_value, double neutral)
{
  const double value = config_.number(key, default_value);
  if (value != neutral) config_.add_difference(key, fmt::format("{}", value), fmt::format("{}", neutral));
}

void DecoderReader::note_absent(const std::string& key, std::optional<double> default_value)
{
  if (config_.has(key) ? !config_.has_value(key) : !default_value) return;
  config_.add_difference(key, fmt::format("{}", config_.number(key, default_value.value_or(0))), "null");
}

void DecoderReader::note_text(const std::string& what, const std::string& value, const std::string& neutral)
{
  config_.add_difference(what, value, neutral);
}

void DecoderReader::set_all(Mixer mixer)
{
  for (auto& block : sizes().blocks) block.mixer = mixer;
}

void DecoderReader::set_rotates(bool rotates)
{
  for (auto& block : sizes().blocks) block.rotates = rotates;
}

bool DecoderReader::read_attention_bias(bool default_value, bool with_output)
{
  const bool has_bias = config_.boolean("attention_bias", default_value);
  sizes().biases.qkv = has_bias;
  sizes().biases.output = has_bias && with_output;
  return has_bias;
}

void DecoderReader::read_gemma_scales(std::optional<double> score_cap, std::optional<double> logit_cap)
{
  constexpr double query_scale = 256;
  sizes().has_zero_centered_gamma = true;
  sizes().embedding_scale = std::sqrt(static_cast<double>(sizes().hidden));
  const double scale = positive("query_pre_attn_scalar", query_scale);
  if (scale != static_cast<double>(sizes().head_width)) sizes().query_scale = scale;
  sizes().score_cap = number_or_none("attn_logit_softcapping", score_cap);
  sizes().logit_cap = number_or_none("final_logit_softcapping", logit_cap);
}

void DecoderReader::read_layer_types(const std::function<Mixer(std::uint64_t)>& by_default)
{
  static const std::map<std::string, Mixer> names = {{"full_attention", Mixer::Full},
                                                     {"sliding_attention", Mixer::Window},
                                                     {"chunked_attention", Mixer::Chunk},
                                                     {"linear_attention", Mixer::DeltaNet}};
  auto& blocks = sizes().blocks;
  if (!config_.has_value("layer_types")) {
    for (std::uint64_t i = 0; i < blocks.size(); ++i) blocks[i].mixer = by_default(i);
    return;
  }
  const auto types = config_.texts("layer_types");
  if (!has_length("layer_types", types.size())) return;
  for (std::uint64_t i = 0; i < blocks.size(); ++i) {
    const auto found = names.find(types[i]);
    if (found == names.end()) return add_unknown_type("layer_types", types[i], names);
    blocks[i].mixer = found->second;
  }
}

void DecoderReader::read_window(std::optional<std::uint64_t> default_value)
{
  const std::string key = "sliding_window";
  auto& blocks = sizes().blocks;
  const bool is_window =
      std::any_of(blocks.begin(), blocks.end(), [](const auto& block) { return block.mixer == Mixer::Window; });
  if (!is_window) return;
  if (config_.has(key) ? config_.has_value(key) : default_value.has_value()) {
    sizes().window = config_.count(key, longest_sequence, default_value.value_or(1));
    return;
  }
  for (auto& block : blocks) {
    if (block.mixer == Mixer::Window) block.mixer = Mixer::Full;
  }
}

Mixer DecoderReader::windows_but_every(std::uint64_t period, std::uint64_t layer)
{
  return (layer + 1) % period == 0 ? Mixer::Full : Mixer::Window;
}

void DecoderReader::read_qwen_windows()
{
  constexpr std::uint64_t first = 28;
  constexpr std::uint64_t window = 4096;
  const bool uses = config_.boolean("use_sliding_window", false);
  const std::uint64_t begin = config_.whole("max_window_layers", most_layers, first);
  read_layer_types([&](std::uint64_t layer) { return uses && layer >= begin ? Mixer::Window : Mixer::Full; });
  if (uses) return read_window(window);
  for (auto& block : sizes().blocks) {
    if (block.mixer == Mixer::Window) block.mixer = Mixer::Full;
  }
}

void DecoderReader::set_experts(const std::function<bool(std::uint64_t)>& has_experts)
{
  auto& blocks = sizes().blocks;
  for (std::uint64_t i = 0; i < blocks.size(); ++i) {
    blocks[i].feed_forward = has_experts(i) ? FeedForward::Experts : FeedForward::Dense;
  }
}

void DecoderReader::read_first_dense(std::uint64_t default_value)
{
  if (config_.has_value("mlp_layer_types")) {
    static const std::map<std::string, bool> names = {{"dense", false}, {"sparse", true}};
    const auto types = config_.texts("mlp_layer_types");
    if (!has_length("mlp_layer_types", types.size())) return;
    for (const auto& type : types) {
      if (!names.contains(type)) return add_unknown_type("mlp_layer_types", type, names);
    }
    return set_experts([&](std::uint64_t layer) { return names.at(types[layer]); });
  }
  const std::uint64_t dense = config_.whole("first_k_dense_replace", most_layers, default_value);
  set_experts([dense](std::uint64_t layer) { return layer >= dense; });
}

void DecoderReader::read_sparse_steps()
{
  const std::uint64_t step = config_.count("decoder_sparse_step", most_layers, 1);
  const auto dense = numbers("mlp_only_layers");
  set_experts([&](std::uint64_t layer) { return !dense.contains(layer) && (layer + 1) % step == 0; });
}

void DecoderReader::read_experts(const ExpertKeys& keys, std::uint64_t count, std::uint64_t per_token,
                                 std::uint64_t intermediate)
{
  std::string key = keys.count.front();
  for (const auto& other : keys.count) {
    if (config_.has_value(other)) key = other;
  }
  ExpertSizes& experts = sizes().experts;
  experts.count = config_.size(key, most_experts, count);
  experts.per_token = config_.size("num_experts_per_tok", most_experts, per_token);
  experts.intermediate = config_.size(keys.intermediate, widest_intermediate, intermediate);
  if (config_.is_right_so_far() && experts.per_token > experts.count) {
    config_.add_fault("num_experts_per_tok",
                      fmt::format("{} is more than {}, {}", config_.stated("num_experts_per_tok", experts.per_token),
                                  key, config_.stated(key, experts.count)));
  }
}

void DecoderReader::read_router(RouterScores scores, bool normalizes, std::optional<double> scale)
{
  ExpertSizes& experts = sizes().experts;
  experts.scores = scores;
  experts.normalizes = config_.choice("norm_topk_prob", normalizes);
  if (scale) experts.scale = positive("routed_scaling_factor", *scale);
}

void DecoderReader::read_groups(std::uint64_t groups, std::uint64_t chosen)
{
  const std::uint64_t all = config_.count("n_group", most_experts, groups);
  const std::uint64_t of_token = config_.count("topk_group", most_experts, chosen);
  if (config_.is_right_so_far() && of_token > all) {
    config_.add_fault("topk_group", fmt::format("{} is more than n_group, {}", config_.stated("topk_group", of_token),
                                                config_.stated("n_group", all)));
  }
  if (of_token < all) config_.add_difference("topk_group", fmt::format("{} of {}", of_token, all), "all groups");
}

void DecoderReader::read_shared_experts(std::uint64_t default_value)
{
  sizes().experts.shared =
      config_.whole("n_shared_experts", most_experts, default_value) * sizes().experts.intermediate;
}

void DecoderReader::read_gated_shared_expert(std::uint64_t default_value)
{
  ExpertSizes& experts = sizes().experts;
  experts.shared = config_.whole("shared_expert_intermediate_size", widest_intermediate, default_value);
  experts.has_shared_gate = experts.shared > 0;
}

void DecoderReader::read_predictions(std::uint64_t default_value)
{
  const std::string key = config_.has_value("num_mtp_layers") ? "num_mtp_layers" : "num_nextn_predict_layers";
  read_.predicts_further = config_.whole(key, most_layers, default_value);
}

void DecoderReader::read_latent(std::uint64_t q_rank, std::uint64_t kv_rank, std::uint64_t nope, std::uint64_t rope,
                                std::uint64_t value)
{
  LatentSizes& latent = sizes().latent;
  set_all(Mixer::Latent);
  const bool compresses = config_.has_value("q_lora_rank") || !config_.has("q_lora_rank");
  sizes().q_rank = compresses ? config_.count("q_lora_rank", widest, q_rank) : 0;
  latent.kv_rank = config_.size("kv_lora_rank", widest, kv_rank);
  latent.nope = config_.size("qk_nope_head_dim", widest, nope);
  latent.rope = config_.size("qk_rope_head_dim", widest, rope);
  latent.value = config_.size("v_head_dim", widest, value);
  sizes().head_width = sizes().kv_heads = 0;  // of other attention
  read_attention_bias(false, true);
}

std::string DecoderReader::named(const std::pair<std::string, std::string>& names)
{
  return names.second.empty() ? names.first : config_.named(names.first, names.second);
}

double DecoderReader::positive(const std::string& key, double default_value)
{
  const double value = config_.number(key, default_value);
  if (value == 0) config_.add_fault(key, "is 0; write a positive number");
  return value;
}

double DecoderReader::number_or_none(const std::string& key, std::optional<double> default_value)
{
  if (config_.has(key) ? !config_.has_value(key) : !default_value) return 0;
  return positive(key, default_value.value_or(0));
}

std::set<std::uint64_t> DecoderReader::numbers(const std::string& key)
{
  std::set<std::uint64_t> found;
  if (!config_.has_value(key)) return found;
  for (const auto& text : config_.texts(key)) {
    if (const auto number = count_from_text(text)) {
      found.insert(*number);
    } else {
      config_.add_fault(key, fmt::format("{} is not the number of a layer", in_quotes(text)));
    }
  }
  return found;
}

bool DecoderReader::has_length(const std::string& key, std::size_t length)
{
  const std::size_t layers = sizes().blocks.size();
  if (length == layers) return true;
  if (config_.is_right_so_far()) {
    config_.add_fault(key, fmt::format("lists {} layers; {} is {}", length, named(keys_.layers), layers));
  }
  return false;
}

std::vector<std::string> DecoderReader::names_of_layers(const std::string& key, const std::vector<std::string>& known)
{
  auto names = config_.texts(key);
  const std::size_t layers = sizes().blocks.size();
  if (names.size() < layers && !has_length(key, names.size())) return {};
  names.resize(layers);
  for (const auto& name : names) {
    if (std::ranges::find(known, name) != known.end()) continue;
    config_.add_fault(key, fmt::format("{} is not supported (only {})", in_quotes(name), fmt::join(known, ", ")));
    return {};
  }
  return names;
}

void DecoderReader::demand_parts(const std::string& key, std::uint64_t parts, const std::string& of,
                                 std::uint64_t whole)
{
  if (!key.empty()) config_.demand_parts(key, parts, of, whole);
}

std::uint64_t DecoderReader::read_kv_heads(std::optional<std::uint64_t> default_value)
{
  if (keys_.kv_heads.empty()) return default_value.value_or(sizes().heads);
  // A null means as many as heads, unlike a missing key.
  if (config_.has(keys_.kv_heads) || !default_value) return config_.count(keys_.kv_heads, widest, sizes().heads);
  return config_.size(keys_.kv_heads, widest, *default_value);
}

double DecoderReader::read_rope(ConfigReader& rope, double theta, double& rotated)
{
  const double own = rope.number("rope_theta", theta);
  if (own == 0) rope.add_fault("rope_theta", "is 0; write a positive number");
  rotated = rope.number("partial_rotary_factor", rotated);
  return own;
}

template <typename Value>
void DecoderReader::add_unknown_type(const std::string& key, const std::string& type,
                                     const std::map<std::string, Value>& names)
{
  std::vector<std::string> known;
  for (const auto& [name, value] : names) known.push_back(name);
  config_.add_fault(key, fmt::format("{} is not supported (only {})", in_quotes(type), fmt::join(known, ", ")));
}

}  // namespace isobar::huggingface
