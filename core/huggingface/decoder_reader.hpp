#pragma once

#include "core/huggingface/decoder_config.hpp"
#include "core/model/decoder/decoder_file.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

/// What the configurations of several decoders have in common. Internal to core/huggingface.
namespace isobar::huggingface {

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

/// How a configuration's rotary positions are scaled; types other than default, linear and llama3 are differences, or
/// faults of weights.
RopeScaling read_rope_scaling(ConfigReader& rope);

/// Reads one configuration.
class DecoderReader {
 public:
  static constexpr std::uint64_t most_layers = decoder::most_blocks_of_decoder;

  explicit DecoderReader(ConfigReader& config) : config_(config) {}

  DecoderConfig take() { return std::move(read_); }

  // What all types have

  void read_sizes(const Defaults& defaults, Keys keys = {});

  void read_activation(const std::string& default_name);

  /// `rotated`: the part of each head that turns.
  void read_rotation(double rotated = 1);

  /// A number of the model that Isobar's layers compute as `neutral`.
  void note_number(const std::string& key, double default_value, double neutral);
  /// One that is absent in Isobar's layers. `default_value`: none for absent.
  void note_absent(const std::string& key, std::optional<double> default_value);
  void note_text(const std::string& what, const std::string& value, const std::string& neutral);

  void set_all(Mixer mixer);
  void set_rotates(bool rotates);

  bool read_attention_bias(bool default_value, bool with_output);
  /// Gemma's scores and logits. `score_cap`, `logit_cap`: none for absent.
  void read_gemma_scales(std::optional<double> score_cap, std::optional<double> logit_cap);

  // Kinds of layers

  /// layer_types, or what `by_default` gives for layers 0, 1, …
  void read_layer_types(const std::function<Mixer(std::uint64_t)>& by_default);

  /// The window of layers that have one: a null leaves them whole.
  void read_window(std::optional<std::uint64_t> default_value);

  /// Layers of which every `period`-th sees all tokens.
  static Mixer windows_but_every(std::uint64_t period, std::uint64_t layer);

  /// Windows of Qwen's: from layer max_window_layers on, with use_sliding_window.
  void read_qwen_windows();

  // Experts

  /// Layers with experts by their number.
  void set_experts(const std::function<bool(std::uint64_t)>& has_experts);
  /// mlp_layer_types, or all layers but the first few.
  void read_first_dense(std::uint64_t default_value);
  /// Every decoder_sparse_step-th layer but those of mlp_only_layers.
  void read_sparse_steps();

  struct ExpertKeys {
    std::vector<std::string> count;  ///< the last one with a value counts
    std::string intermediate = "moe_intermediate_size";
  };
  void read_experts(const ExpertKeys& keys, std::uint64_t count, std::uint64_t per_token, std::uint64_t intermediate);
  /// What makes weights of a router's logits, whose defaults are transformers': norm_topk_prob, and with `scale`
  /// routed_scaling_factor.
  void read_router(RouterScores scores, bool normalizes, std::optional<double> scale = {});
  /// DeepSeek's groups of experts, of which a token's may be in a few only.
  void read_groups(std::uint64_t groups, std::uint64_t chosen);
  /// DeepSeek's: several shared experts are one.
  void read_shared_experts(std::uint64_t default_value);
  void read_gated_shared_expert(std::uint64_t default_value);
  /// Blocks of multi-token prediction.
  void read_predictions(std::uint64_t default_value);

  // Latent attention

  void read_latent(std::uint64_t q_rank, std::uint64_t kv_rank, std::uint64_t nope, std::uint64_t rope,
                   std::uint64_t value);

  // Values

  DecoderSizes& sizes() { return read_.sizes; }
  DecoderConfig& read() { return read_; }
  ConfigReader& config() { return config_; }
  std::string named(const std::pair<std::string, std::string>& names);
  double positive(const std::string& key, double default_value);
  /// The numbers of an optional list.
  std::set<std::uint64_t> numbers(const std::string& key);
  bool has_length(const std::string& key, std::size_t length);
  /// The names of a list, one for each layer; those that follow are of multi-token prediction. Empty, with a
  /// fault, for a shorter one or a name that is not known.
  std::vector<std::string> names_of_layers(const std::string& key, const std::vector<std::string>& known);
  /// The base of one kind of layers; `rotated` changes too.
  static double read_rope(ConfigReader& rope, double theta, double& rotated);
  void demand_parts(const std::string& key, std::uint64_t parts, const std::string& of, std::uint64_t whole);

 private:
  std::uint64_t read_kv_heads(std::optional<std::uint64_t> default_value);

  /// A positive number that may be null; 0 for absent.
  double number_or_none(const std::string& key, std::optional<double> default_value);

  template <typename Value>
  void add_unknown_type(const std::string& key, const std::string& type, const std::map<std::string, Value>& names);

  ConfigReader& config_;
  DecoderConfig read_;
  Keys keys_;
};

}  // namespace isobar::huggingface
