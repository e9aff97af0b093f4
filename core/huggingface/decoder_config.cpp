#include "core/huggingface/decoder_config.hpp"

#include "core/model/decoder/decoder_file.hpp"
#include "core/model/model_limits.hpp"
#include "core/text/separated.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace isobar::huggingface {

namespace {

/// transformers' defaults for a model_type.
struct Defaults {
  std::uint64_t vocabulary = 32'000;
  std::uint64_t hidden = 4096;
  std::uint64_t intermediate = 11'008;
  std::uint64_t layers = 32;
  std::uint64_t heads = 32;
  std::optional<std::uint64_t> kv_heads = {};    ///< none: as many as heads
  std::optional<std::uint64_t> head_width = {};  ///< none: hidden_size over num_attention_heads, rounded down
  std::uint64_t positions = 2048;
  bool tied = false;
  double epsilon = 1e-6;
  double theta = 10'000;
};

/// The keys of a configuration, where they are not the usual ones; the second name is another one for the first.
struct Keys {
  std::pair<std::string, std::string> layers = {"num_hidden_layers", ""};
  std::pair<std::string, std::string> hidden = {"hidden_size", ""};
  std::pair<std::string, std::string> heads = {"num_attention_heads", ""};
  std::string kv_heads = "num_key_value_heads";  ///< "": there is none
  std::string head_width = "head_dim";           ///< likewise
  std::string intermediate = "intermediate_size";
  std::string positions = "max_position_embeddings";
  std::string epsilon = "rms_norm_eps";
  std::string activation = "hidden_act";
};

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

/// Reads one configuration.
class DecoderReader {
 public:
  static constexpr std::uint64_t most_layers = decoder::most_blocks_of_decoder;

  explicit DecoderReader(ConfigReader& config) : config_(config) {}

  DecoderConfig take() { return std::move(read_); }

  // What all types have

  void read_sizes(const Defaults& defaults, Keys keys = {})
  {
    keys_ = std::move(keys);
    const std::uint64_t layers = config_.size(named(keys_.layers), most_layers, defaults.layers);
    sizes().hidden = config_.size(named(keys_.hidden), widest, defaults.hidden);
    sizes().heads = config_.size(named(keys_.heads), widest, defaults.heads);
    sizes().kv_heads = read_kv_heads(defaults.kv_heads);
    const std::uint64_t width =
        defaults.head_width.value_or(std::max<std::uint64_t>(1, sizes().hidden / sizes().heads));
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
    for (const char* key : {"attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "residual_dropout",
                            "embedding_dropout"}) {
      if (config_.has_value(key)) config_.accept_number(key, 0);
    }
    demand_parts(keys_.kv_heads, sizes().kv_heads, named(keys_.heads), sizes().heads);
  }

  void read_activation(const std::string& default_name)
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

  /// `rotated`: the part of each head that turns.
  void read_rotation(double rotated = 1)
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
        theta = read_rope(rope, theta, rotated);
        sizes().window_rope_theta = theta;
        continue;
      }
      for (const auto& [kind, own] :
           {std::pair("full_attention", &theta), std::pair("sliding_attention", &sizes().window_rope_theta)}) {
        if (!rope.has_value(kind)) continue;
        auto rope_of_kind = rope.mapping(kind);
        *own = read_rope(rope_of_kind, *own, rotated);
      }
    }
    if (rotated < 1) {
      sizes().rotated =
          std::max<std::uint64_t>(1, static_cast<std::uint64_t>(static_cast<double>(sizes().head_width) * rotated));
    }
  }

  /// A number of the model that Isobar's layers compute as `neutral`.
  void note_number(const std::string& key, double default_value, double neutral)
  {
    const double value = config_.number(key, default_value);
    if (value != neutral) config_.add_difference(key, fmt::format("{}", value), fmt::format("{}", neutral));
  }
  /// One that is absent in Isobar's layers. `default_value`: none for absent.
  void note_absent(const std::string& key, std::optional<double> default_value)
  {
    if (config_.has(key) ? !config_.has_value(key) : !default_value) return;
    config_.add_difference(key, fmt::format("{}", config_.number(key, default_value.value_or(0))), "null");
  }
  void note_text(const std::string& what, const std::string& value, const std::string& neutral)
  {
    config_.add_difference(what, value, neutral);
  }

  void set_all(Mixer mixer)
  {
    for (auto& block : sizes().blocks) block.mixer = mixer;
  }
  void set_rotates(bool rotates)
  {
    for (auto& block : sizes().blocks) block.rotates = rotates;
  }

  bool read_attention_bias(bool default_value, bool with_output)
  {
    const bool has_bias = config_.boolean("attention_bias", default_value);
    sizes().biases.qkv = has_bias;
    sizes().biases.output = has_bias && with_output;
    return has_bias;
  }

  // Kinds of layers

  /// layer_types, or what `by_default` gives for layers 0, 1, …
  void read_layer_types(const std::function<Mixer(std::uint64_t)>& by_default)
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

  /// The window of layers that have one: a null leaves them whole.
  void read_window(std::optional<std::uint64_t> default_value)
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

  /// Layers of which every `period`-th sees all tokens.
  static Mixer windows_but_every(std::uint64_t period, std::uint64_t layer)
  {
    return (layer + 1) % period == 0 ? Mixer::Full : Mixer::Window;
  }

  /// Windows of Qwen's: from layer max_window_layers on, with use_sliding_window.
  void read_qwen_windows()
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

  // Experts

  /// Layers with experts by their number.
  void set_experts(const std::function<bool(std::uint64_t)>& has_experts)
  {
    auto& blocks = sizes().blocks;
    for (std::uint64_t i = 0; i < blocks.size(); ++i) {
      blocks[i].feed_forward = has_experts(i) ? FeedForward::Experts : FeedForward::Dense;
    }
  }
  /// mlp_layer_types, or all layers but the first few.
  void read_first_dense(std::uint64_t default_value)
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
  /// Every decoder_sparse_step-th layer but those of mlp_only_layers.
  void read_sparse_steps()
  {
    const std::uint64_t step = config_.count("decoder_sparse_step", most_layers, 1);
    const auto dense = numbers("mlp_only_layers");
    set_experts([&](std::uint64_t layer) { return !dense.contains(layer) && (layer + 1) % step == 0; });
  }

  struct ExpertKeys {
    std::vector<std::string> count;  ///< the last one with a value counts
    std::string intermediate = "moe_intermediate_size";
  };
  void read_experts(const ExpertKeys& keys, std::uint64_t count, std::uint64_t per_token, std::uint64_t intermediate)
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
  /// DeepSeek's: several shared experts are one.
  void read_shared_experts(std::uint64_t default_value)
  {
    sizes().experts.shared =
        config_.whole("n_shared_experts", most_experts, default_value) * sizes().experts.intermediate;
  }
  void read_gated_shared_expert(std::uint64_t default_value)
  {
    ExpertSizes& experts = sizes().experts;
    experts.shared = config_.whole("shared_expert_intermediate_size", widest_intermediate, default_value);
    experts.has_shared_gate = experts.shared > 0;
  }
  /// Blocks of multi-token prediction.
  void read_predictions(std::uint64_t default_value)
  {
    const std::string key = config_.has_value("num_mtp_layers") ? "num_mtp_layers" : "num_nextn_predict_layers";
    read_.predicts_further = config_.whole(key, most_layers, default_value);
  }

  // Latent attention

  void read_latent(std::uint64_t q_rank, std::uint64_t kv_rank, std::uint64_t nope, std::uint64_t rope,
                   std::uint64_t value)
  {
    LatentSizes& latent = sizes().latent;
    set_all(Mixer::Latent);
    const bool compresses = config_.has_value("q_lora_rank") || !config_.has("q_lora_rank");
    latent.q_rank = compresses ? config_.count("q_lora_rank", widest, q_rank) : 0;
    latent.kv_rank = config_.size("kv_lora_rank", widest, kv_rank);
    latent.nope = config_.size("qk_nope_head_dim", widest, nope);
    latent.rope = config_.size("qk_rope_head_dim", widest, rope);
    latent.value = config_.size("v_head_dim", widest, value);
    sizes().head_width = sizes().kv_heads = 0;  // of other attention
    read_attention_bias(false, true);
  }

  // Values

  DecoderSizes& sizes() { return read_.sizes; }
  DecoderConfig& read() { return read_; }
  ConfigReader& config() { return config_; }
  const Keys& keys() const { return keys_; }
  std::string named(const std::pair<std::string, std::string>& names)
  {
    return names.second.empty() ? names.first : config_.named(names.first, names.second);
  }
  double positive(const std::string& key, double default_value)
  {
    const double value = config_.number(key, default_value);
    if (value == 0) config_.add_fault(key, "is 0");
    return value;
  }
  /// The numbers of an optional list.
  std::set<std::uint64_t> numbers(const std::string& key)
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
  bool has_length(const std::string& key, std::size_t length)
  {
    const std::size_t layers = sizes().blocks.size();
    if (length == layers) return true;
    if (config_.is_right_so_far()) {
      config_.add_fault(key, fmt::format("lists {} layers; {} is {}", length, named(keys_.layers), layers));
    }
    return false;
  }
  void demand_parts(const std::string& key, std::uint64_t parts, const std::string& of, std::uint64_t whole)
  {
    if (!key.empty()) config_.demand_parts(key, parts, of, whole);
  }

 private:
  std::uint64_t read_kv_heads(std::optional<std::uint64_t> default_value)
  {
    if (keys_.kv_heads.empty()) return default_value.value_or(sizes().heads);
    // A null means as many as heads, unlike a missing key.
    if (config_.has(keys_.kv_heads) || !default_value) return config_.count(keys_.kv_heads, widest, sizes().heads);
    return config_.size(keys_.kv_heads, widest, *default_value);
  }

  /// The base of one kind of layers; `rotated` changes too.
  double read_rope(ConfigReader& rope, double theta, double& rotated)
  {
    for (const char* key : {"rope_type", "type"}) {
      if (const auto type = rope.text(key, "default"); type != "default") rope.add_difference(key, type, "default");
    }
    const double own = rope.number("rope_theta", theta);
    if (own == 0) rope.add_fault("rope_theta", "is 0");
    rotated = rope.number("partial_rotary_factor", rotated);
    return own;
  }

  template <typename Value>
  void add_unknown_type(const std::string& key, const std::string& type, const std::map<std::string, Value>& names)
  {
    std::vector<std::string> known;
    for (const auto& [name, value] : names) known.push_back(name);
    config_.add_fault(key, fmt::format("{} is not supported (only {})", in_quotes(type), fmt::join(known, ", ")));
  }

  static constexpr std::uint64_t most_experts = std::uint64_t{1} << 16;
  ConfigReader& config_;
  DecoderConfig read_;
  Keys keys_;
};

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
  for (const char* key : {"embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"}) {
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
  read.note_text("embedding", "scaled by the root of hidden_size", "by 1");
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
  read.note_text("embedding", "scaled by the root of hidden_size", "by 1");
}

void read_gemma2(DecoderReader& read)
{
  read_later_gemma(read, 256'000, 8192, 2);
  read.read_rotation();
  read.note_number("query_pre_attn_scalar", 256, static_cast<double>(read.sizes().head_width));
  read.note_absent("attn_logit_softcapping", 50);
  read.note_absent("final_logit_softcapping", 30);
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
  read.note_number("query_pre_attn_scalar", 256, static_cast<double>(read.sizes().head_width));
  read.note_absent("attn_logit_softcapping", {});
  read.note_absent("final_logit_softcapping", {});
  read.config().demand_boolean("use_bidirectional_attention", false);
}

// Other dense ones

void read_cohere(DecoderReader& read)
{
  Keys keys;
  keys.epsilon = "layer_norm_eps";
  read.read_sizes({.vocabulary = 256'000,
                   .hidden = 8192,
                   .intermediate = 22'528,
                   .layers = 40,
                   .heads = 64,
                   .positions = 8192,
                   .tied = true,
                   .epsilon = 1e-5,
                   .theta = 500'000},
                  keys);
  read.read_activation("silu");
  read.read_rotation();
  read.sizes().norm = Norm::LayerWithoutBias;
  read.sizes().norm_place = NormPlace::Shared;
  read.sizes().is_parallel = true;
  read.read_attention_bias(false, true);
  if (read.config().boolean("use_qk_norm", false)) read.sizes().head_norm = HeadNorm::EachHead;
  read.note_number("logit_scale", 0.0625, 1);
}

void read_cohere2(DecoderReader& read)
{
  Keys keys;
  keys.epsilon = "layer_norm_eps";
  keys.head_width = "";
  read.read_sizes({.vocabulary = 256'000,
                   .hidden = 8192,
                   .intermediate = 22'528,
                   .layers = 40,
                   .heads = 64,
                   .positions = 8192,
                   .tied = true,
                   .epsilon = 1e-5},
                  keys);
  read.read_activation("silu");
  read.read_rotation();
  const std::uint64_t period = read.config().count("sliding_window_pattern", longest_sequence, 4);
  read.read_layer_types([period](std::uint64_t layer) { return DecoderReader::windows_but_every(period, layer); });
  read.read_window(4096);
  for (auto& block : read.sizes().blocks) block.rotates = block.mixer == Mixer::Window;
  read.sizes().norm = Norm::LayerWithoutBias;
  read.sizes().norm_place = NormPlace::Shared;
  read.sizes().is_parallel = true;
  read.read_attention_bias(false, true);
  read.note_number("logit_scale", 0.0625, 1);
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
  sizes.head_norm = HeadNorm::Head;
  read.read_attention_bias(false, true);
  read.read_sparse_steps();
  read.read_experts({{"num_experts", "num_local_experts"}}, 512, 10, 512);
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
  read.read_shared_experts(1);
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

/// A model_type and its reader.
struct Type {
  std::string_view name;
  void (*read)(DecoderReader&);
};

constexpr std::array<Type, 34> types = {{{"bloom", read_bloom},
                                         {"cohere", read_cohere},
                                         {"cohere2", read_cohere2},
                                         {"deepseek_v2", read_deepseek_v2},
                                         {"deepseek_v3", read_deepseek_v3},
                                         {"falcon", read_falcon},
                                         {"gemma", read_gemma},
                                         {"gemma2", read_gemma2},
                                         {"gemma3_text", read_gemma3},
                                         {"glm4", read_glm4},
                                         {"glm4_moe", read_glm4_moe},
                                         {"glm_moe_dsa", read_glm_moe_dsa},
                                         {"gpt_neox", read_gpt_neox},
                                         {"gpt_oss", read_gpt_oss},
                                         {"granite", read_granite},
                                         {"kimi_k2", read_deepseek_v3},
                                         {"llama", read_llama},
                                         {"llama4_text", read_llama4},
                                         {"mistral", read_mistral},
                                         {"mixtral", read_mixtral},
                                         {"mpt", read_mpt},
                                         {"nemotron_h", read_nemotron_h},
                                         {"olmo", read_olmo},
                                         {"olmo2", read_olmo2},
                                         {"olmo3", read_olmo3},
                                         {"opt", read_opt},
                                         {"phi3", read_phi3},
                                         {"qwen2", read_qwen2},
                                         {"qwen2_moe", read_qwen2_moe},
                                         {"qwen3", read_qwen3},
                                         {"qwen3_moe", read_qwen3_moe},
                                         {"qwen3_next", read_qwen3_next},
                                         {"stablelm", read_stablelm},
                                         {"starcoder2", read_starcoder2}}};

/// Sets what no block uses to nothing, so that a workload file has no key of it.
void leave_out_unused(DecoderSizes& sizes)
{
  const auto has = [&](FeedForward network) {
    return std::any_of(sizes.blocks.begin(), sizes.blocks.end(),
                       [network](const auto& block) { return block.feed_forward == network; });
  };
  if (!has(FeedForward::Dense)) sizes.intermediate = 0;
  if (!has(FeedForward::Experts)) sizes.experts = {};
}

}  // namespace

std::vector<std::string> decoder_types()
{
  std::vector<std::string> names;
  for (const auto& type : types) names.emplace_back(type.name);
  return names;
}

DecoderConfig read_decoder(ConfigReader& config, const std::string& type)
{
  DecoderReader reader(config);
  const auto found = std::find_if(types.begin(), types.end(), [&](const auto& each) { return each.name == type; });
  found->read(reader);
  DecoderConfig read = reader.take();
  leave_out_unused(read.sizes);
  return read;
}

}  // namespace isobar::huggingface
