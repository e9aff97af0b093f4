#include "core/model/decoder/decoder_file.hpp"

#include "core/model/decoder/decoder_parts.hpp"
#include "core/model/model_limits.hpp"
#include "core/text/separated.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

namespace isobar::decoder {

namespace {

constexpr std::uint64_t most_experts = std::uint64_t{1} << 16;
constexpr std::uint64_t most_streams = 16;
constexpr std::uint64_t most_compressed = std::uint64_t{1} << 16;  // tokens in an entry

constexpr std::string_view kinds_with_heads =
    "layer types full, window, chunk, compressed_sparse and heavily_compressed";
constexpr std::string_view all_attention =
    "layer types full, window, chunk, compressed_sparse, heavily_compressed and latent";

/// A bias of DecoderBiases, by its name.
struct BiasName {
  std::string_view name;
  bool DecoderBiases::*member;
};
constexpr std::array<BiasName, 7> bias_names = {{{"qkv", &DecoderBiases::qkv},
                                                 {"output", &DecoderBiases::output},
                                                 {"mlp", &DecoderBiases::mlp},
                                                 {"experts", &DecoderBiases::experts},
                                                 {"router", &DecoderBiases::router},
                                                 {"convolution", &DecoderBiases::convolution},
                                                 {"mamba", &DecoderBiases::mamba}}};

std::vector<std::string> names_of_biases()
{
  std::vector<std::string> names;
  for (const auto& bias : bias_names) names.emplace_back(bias.name);
  return names;
}

double read_positive(MappingReader& model, const std::string& key, double default_value)
{
  const double value = model.optional_number(key).value_or(default_value);
  if (value == 0) model.add_fault(key, "is 0; write a positive number");
  return value;
}

/// Reads the sizes key by key.
class Reader {
 public:
  Reader(MappingReader& model, const FaultList& faults) : model_(model), faults_(faults) {}

  DecoderSizes read(std::uint64_t sequence)
  {
    const std::uint64_t layers = model_.required_count("layers", 1, most_blocks_of_decoder);
    sizes_.hidden = model_.required_count("hidden", 1, widest);
    sizes_.vocabulary = model_.required_count("vocabulary", 1, largest_vocabulary);
    for (const char* key :
         {"layer_types", "mlp_layer_types", "rotary", "mtp_layers", "mtp_layer_types", "mtp_mlp_layer_types"}) {
      model_.optional(key);  // known, even if those before them are wrong
    }
    if (faults_.empty()) read_blocks(layers);
    if (!faults_.empty()) sizes_.blocks.clear();
    if (faults_.empty()) read_mtp_blocks();
    read_attention();
    read_compression();
    read_latent();
    read_recurrences();
    read_feed_forward();
    read_experts();
    read_norms();
    read_biases();
    read_positions();
    read_scales();
    if (faults_.empty()) check_sizes(layers, sequence);
    return sizes_;
  }

 private:
  // Patterns

  /// The text of each block, from a list whose entries may be "TEXT*N" and which repeats until all blocks have one.
  std::vector<std::string> read_pattern(const std::string& key, std::uint64_t blocks,
                                        const std::vector<std::string>& choices, const std::string& default_text)
  {
    std::vector<std::string> texts;
    if (!model_.has(key)) return std::vector<std::string>(blocks, default_text);
    for (const auto& entry : model_.required_sequence(key)) {
      const auto parts = texts_between(entry.scalar, '*');
      const std::string text(parts.front());
      const bool is_known = std::find(choices.begin(), choices.end(), text) != choices.end();
      const auto times = parts.size() == 1 ? std::optional<std::uint64_t>(1) : count_from_text(parts.back());
      if (entry.kind != DocumentNode::Kind::Scalar || !is_known || parts.size() > 2 || !times || *times == 0) {
        model_.add_fault(key, fmt::format("{} is no entry; write {}, or several at once as {}*3",
                                          in_quotes(entry.scalar), fmt::join(choices, ", "), choices.back()));
        return {};
      }
      if (*times > blocks - texts.size()) {
        model_.add_fault(key, fmt::format("lists more than {}; write at most as many",
                                          blocks == 1 ? "the one layer" : fmt::format("the {} layers", blocks)));
        return {};
      }
      texts.insert(texts.end(), *times, text);
    }
    if (texts.empty()) {
      if (faults_.empty()) model_.add_fault(key, fmt::format("is empty; write a list of {}", fmt::join(choices, ", ")));
      return {};
    }
    for (std::size_t i = 0; texts.size() < blocks; ++i) texts.push_back(texts[i]);
    return texts;
  }

  std::vector<bool> read_rotary(std::uint64_t blocks)
  {
    const auto* node = model_.optional("rotary");
    if (node != nullptr && node->kind == DocumentNode::Kind::Scalar) {
      return std::vector<bool>(blocks, model_.optional_boolean("rotary").value_or(true));
    }
    std::vector<bool> rotary;
    for (const auto& text : read_pattern("rotary", blocks, {"false", "true"}, "true")) rotary.push_back(text == "true");
    return rotary;
  }

  void read_blocks(std::uint64_t layers)
  {
    const auto mixers = read_pattern("layer_types", layers, mixer_names(), "full");
    const auto networks =
        read_pattern("mlp_layer_types", layers, feed_forward_names(), model_.has("experts") ? "experts" : "dense");
    const auto rotary = read_rotary(layers);
    if (!faults_.empty()) return;
    for (std::uint64_t i = 0; i < layers; ++i) {
      sizes_.blocks.push_back({*mixer_from_name(mixers[i]), *feed_forward_from_name(networks[i]), rotary[i]});
      if (mixers[i] != "none" || networks[i] != "none") continue;
      model_.add_fault("mlp_layer_types", fmt::format("layer {} has neither this nor a layer_type; write one", i));
      return;
    }
  }

  /// The kinds of the last block, or those that the file names.
  void read_mtp_blocks()
  {
    constexpr std::uint64_t most_predicted = 16;
    const std::uint64_t layers = model_.optional_count("mtp_layers", 0, most_predicted).value_or(0);
    for (const char* key : {"mtp_layer_types", "mtp_mlp_layer_types"}) {
      if (layers == 0 && model_.has(key)) model_.add_fault(key, "goes with mtp_layers; leave it out, or write that");
    }
    if (!faults_.empty() || layers == 0) return;
    const DecoderBlock& last = sizes_.blocks.back();
    const auto mixers = read_pattern("mtp_layer_types", layers, mixer_names(), std::string(name_of(last.mixer)));
    const auto networks =
        read_pattern("mtp_mlp_layer_types", layers, feed_forward_names(), std::string(name_of(last.feed_forward)));
    if (!faults_.empty()) return;
    for (std::uint64_t i = 0; i < layers; ++i) {
      sizes_.mtp_blocks.push_back({*mixer_from_name(mixers[i]), *feed_forward_from_name(networks[i]), last.rotates});
      if (mixers[i] != "none" || networks[i] != "none") continue;
      model_.add_fault("mtp_mlp_layer_types", fmt::format("block {} has neither this nor a layer_type; write one", i));
      return;
    }
  }

  // Kinds of parts, and their keys

  bool has_any(const std::function<bool(const DecoderBlock&)>& is_right) const
  {
    return std::any_of(sizes_.blocks.begin(), sizes_.blocks.end(), is_right) ||
           std::any_of(sizes_.mtp_blocks.begin(), sizes_.mtp_blocks.end(), is_right);
  }
  bool has(Mixer mixer) const
  {
    return has_any([mixer](const DecoderBlock& block) { return block.mixer == mixer; });
  }
  bool has(FeedForward network) const
  {
    return has_any([network](const DecoderBlock& block) { return block.feed_forward == network; });
  }
  bool has_entries() const { return has(Mixer::CompressedSparse) || has(Mixer::HeavilyCompressed); }
  bool has_attention() const { return has(Mixer::Full) || has(Mixer::Window) || has(Mixer::Chunk) || has_entries(); }

  /// Refuses a key of a kind that no block has. False if the kind is used.
  bool is_refused(bool is_used, const std::string& key, std::string_view kind)
  {
    if (is_used) return false;
    const bool is_there = model_.optional(key) != nullptr;
    // Without right kinds of blocks, no other key is right or wrong.
    if (is_there && !sizes_.blocks.empty()) model_.add_fault(key, fmt::format("goes with {}; leave it out", kind));
    return true;
  }
  /// A count that its kind needs; 0 without the kind.
  std::uint64_t count_of(bool is_used, const std::string& key, std::uint64_t highest, std::string_view kind)
  {
    if (is_refused(is_used, key, kind) || !is_used) return 0;
    return model_.required_count(key, 1, highest);
  }
  /// A count of a kind, with a default.
  std::uint64_t count_of(bool is_used, const std::string& key, std::uint64_t highest, std::string_view kind,
                         std::uint64_t default_value)
  {
    if (is_refused(is_used, key, kind) || !is_used) return 0;
    return model_.optional_count(key, 1, highest).value_or(default_value);
  }
  bool flag_of(bool is_used, const std::string& key, std::string_view kind)
  {
    return !is_refused(is_used, key, kind) && model_.optional_boolean(key).value_or(false);
  }
  template <typename Value>
  Value choice_of(bool is_used, const std::string& key, std::string_view kind, const std::vector<std::string>& names,
                  std::optional<Value> (*from_name)(std::string_view), Value default_value)
  {
    if (is_refused(is_used, key, kind)) return default_value;
    const auto name = model_.optional_choice(key, names);
    return name ? *from_name(*name) : default_value;
  }

  void read_attention()
  {
    constexpr std::string_view kind = kinds_with_heads;
    const bool is_used = has_attention();
    const bool has_heads = is_used || has(Mixer::Latent);
    sizes_.heads = count_of(has_heads, "heads", widest, all_attention);
    sizes_.kv_heads = count_of(is_used, "kv_heads", widest, kind, sizes_.heads);
    if (is_used && !model_.has("head_dim") && faults_.empty() && sizes_.hidden % sizes_.heads != 0) {
      model_.add_fault("head_dim",
                       fmt::format("missing; {} heads do not divide hidden, {}", sizes_.heads, sizes_.hidden));
    }
    sizes_.head_width =
        count_of(is_used, "head_dim", widest, kind, sizes_.hidden / std::max<std::uint64_t>(sizes_.heads, 1));
    sizes_.window = count_of(has(Mixer::Window) || has_entries(), "sliding_window", longest_sequence,
                             "layer types window, compressed_sparse and heavily_compressed");
    sizes_.chunk = count_of(has(Mixer::Chunk), "attention_chunk", longest_sequence, "layer type chunk");
    sizes_.head_norm = choice_of(is_used, "qk_norm", kind, head_norm_names(), head_norm_from_name, HeadNorm::None);
    sizes_.has_output_gate = flag_of(is_used, "attention_output_gate", kind);
    sizes_.has_sinks = flag_of(is_used, "attention_sinks", kind);
    sizes_.has_shared_kv = flag_of(is_used, "shared_kv", kind);
    sizes_.q_rank = count_of(has_heads, "q_lora_rank", widest, all_attention, 0);
    sizes_.output_groups.count = count_of(is_used, "o_groups", widest, kind, 0);
    sizes_.output_groups.rank = count_of(sizes_.output_groups.count > 0, "o_lora_rank", widest, "o_groups");
    if (faults_.empty() && sizes_.has_shared_kv && sizes_.kv_heads != 1) {
      model_.add_fault("kv_heads",
                       fmt::format("{}; shared_kv: true is of one head of keys, so write 1", sizes_.kv_heads));
    }
    if (const std::uint64_t groups = sizes_.output_groups.count; faults_.empty() && groups > 0) {
      if (sizes_.heads % groups != 0) refuse_parts("o_groups", groups, "heads", sizes_.heads);
    }
    if (faults_.empty() && is_used && sizes_.heads % sizes_.kv_heads != 0) {
      refuse_parts("kv_heads", sizes_.kv_heads, "heads", sizes_.heads);
    }
  }

  void read_compression()
  {
    CompressionSizes& compression = sizes_.compression;
    compression.sparse =
        count_of(has(Mixer::CompressedSparse), "compress_rate_csa", most_compressed, "layer type compressed_sparse");
    compression.heavy =
        count_of(has(Mixer::HeavilyCompressed), "compress_rate_hca", most_compressed, "layer type heavily_compressed");
    if (faults_.empty() && has_entries() && !sizes_.has_shared_kv) {
      model_.add_fault("shared_kv", "entries of compressed layers are keys and values at once; write true");
    }
  }

  void read_latent()
  {
    constexpr std::string_view kind = "layer type latent";
    const bool is_used = has(Mixer::Latent);
    LatentSizes& latent = sizes_.latent;
    latent.kv_rank = count_of(is_used, "kv_lora_rank", widest, kind);
    latent.nope = count_of(is_used, "qk_nope_head_dim", widest, kind);
    latent.rope = count_of(is_used, "qk_rope_head_dim", widest, kind);
    latent.value = count_of(is_used, "v_head_dim", widest, kind);
    read_indexer();
  }

  /// Compressed sparse attention has one, and latent attention may.
  void read_indexer()
  {
    constexpr std::string_view of_indexer = "index_n_heads";
    constexpr std::string_view kind = "layer types latent and compressed_sparse";
    IndexerSizes& indexer = sizes_.indexer;
    indexer.heads = has(Mixer::CompressedSparse) ? count_of(true, "index_n_heads", widest, kind)
                                                 : count_of(has(Mixer::Latent), "index_n_heads", widest, kind, 0);
    indexer.width = count_of(indexer.heads > 0, "index_head_dim", widest, of_indexer);
    indexer.kept = count_of(indexer.heads > 0, "index_topk", longest_sequence, of_indexer);
    if (faults_.empty() && indexer.heads > 0 && sizes_.q_rank == 0) {
      model_.add_fault("index_n_heads", "an indexer reads compressed queries; write q_lora_rank");
    }
  }

  void read_recurrences()
  {
    constexpr std::uint64_t longest_kernel = 1024;
    constexpr std::string_view net_kind = "layer type delta_net";
    const bool has_net = has(Mixer::DeltaNet);
    DeltaNetSizes& net = sizes_.delta_net;
    net.key_heads = count_of(has_net, "linear_num_key_heads", widest, net_kind);
    net.value_heads = count_of(has_net, "linear_num_value_heads", widest, net_kind);
    net.key_width = count_of(has_net, "linear_key_head_dim", widest, net_kind);
    net.value_width = count_of(has_net, "linear_value_head_dim", widest, net_kind);
    net.kernel = count_of(has_net, "linear_conv_kernel_dim", longest_kernel, net_kind, 4);
    constexpr std::string_view mamba_kind = "layer type mamba2";
    const bool has_mamba = has(Mixer::Mamba2);
    Mamba2Sizes& mamba = sizes_.mamba2;
    mamba.heads = count_of(has_mamba, "mamba_heads", widest, mamba_kind);
    mamba.head_width = count_of(has_mamba, "mamba_head_dim", widest, mamba_kind);
    mamba.state = count_of(has_mamba, "mamba_state", widest, mamba_kind);
    mamba.groups = count_of(has_mamba, "mamba_groups", widest, mamba_kind, 1);
    mamba.kernel = count_of(has_mamba, "mamba_conv", longest_kernel, mamba_kind, 4);
    if (!faults_.empty()) return;
    if (has_net && net.value_heads % net.key_heads != 0) {
      refuse_parts("linear_num_key_heads", net.key_heads, "linear_num_value_heads", net.value_heads);
    }
    if (has_mamba && mamba.heads % mamba.groups != 0) {
      refuse_parts("mamba_groups", mamba.groups, "mamba_heads", mamba.heads);
    }
  }

  void read_feed_forward()
  {
    const bool is_used = has(FeedForward::Dense) || has(FeedForward::Experts);
    constexpr std::string_view kind = "mlp layer types dense and experts";
    sizes_.intermediate =
        count_of(has(FeedForward::Dense), "intermediate", widest_intermediate, "mlp layer type dense");
    sizes_.activation =
        choice_of(is_used, "activation", kind, activation_names(), activation_from_name, Activation::Silu);
    if (!is_refused(is_used, "gated", kind)) sizes_.is_gated = model_.optional_boolean("gated").value_or(true);
  }

  void read_experts()
  {
    constexpr std::string_view kind = "mlp layer type experts";
    const bool is_used = has(FeedForward::Experts);
    ExpertSizes& experts = sizes_.experts;
    experts.count = count_of(is_used, "experts", most_experts, kind);
    if (!is_refused(is_used, "top_k", kind) && is_used) {
      experts.per_token = model_.required_count("top_k", 1, most_experts);
    }
    experts.intermediate = count_of(is_used, "expert_intermediate", widest_intermediate, kind);
    experts.shared = count_of(is_used, "shared_intermediate", widest_intermediate, kind, 0);
    experts.has_shared_gate = flag_of(experts.shared > 0, "shared_gate", "shared_intermediate");
    experts.latent = count_of(is_used, "moe_latent_size", widest, kind, 0);
    experts.scores =
        choice_of(is_used, "scoring_func", kind, router_scores_names(), router_scores_from_name, RouterScores::Softmax);
    // The weight of a single expert would always be 1, whatever its router computes.
    experts.normalizes = experts.per_token > 1;
    if (!is_refused(is_used, "norm_topk_prob", kind)) {
      experts.normalizes = model_.optional_boolean("norm_topk_prob").value_or(experts.normalizes);
    }
    if (!is_refused(is_used, "routed_scaling_factor", kind)) {
      experts.scale = read_positive(model_, "routed_scaling_factor", 1);
    }
    if (faults_.empty() && is_used && experts.per_token > experts.count) {
      model_.add_fault("top_k", fmt::format("{} is more than the {} experts; write at most as many", experts.per_token,
                                            experts.count));
    }
  }

  void read_norms()
  {
    sizes_.norm = choice_of(true, "norm", "", norm_names(), norm_from_name, Norm::Rms);
    sizes_.norm_place = choice_of(true, "norm_place", "", norm_place_names(), norm_place_from_name, NormPlace::Before);
    sizes_.is_parallel = model_.optional_boolean("parallel").value_or(false);
    sizes_.streams = model_.optional_count("hc_mult", 1, most_streams).value_or(1);
    sizes_.has_embedding_norm = model_.optional_boolean("embedding_norm").value_or(false);
    sizes_.norm_epsilon = read_positive(model_, "norm_epsilon", sizes_.norm_epsilon);
    sizes_.has_zero_centered_gamma = model_.optional_boolean("zero_centered_gamma").value_or(false);
    if (faults_.empty() && sizes_.has_zero_centered_gamma && sizes_.norm != Norm::Rms) {
      model_.add_fault("zero_centered_gamma", "goes with norm: rms; leave it out");
    }
    if (faults_.empty() && sizes_.norm_place == NormPlace::Shared && !sizes_.is_parallel) {
      model_.add_fault("norm_place", "shared goes with parallel: true; write that, or before");
    }
    if (faults_.empty() && sizes_.streams > 1 && (sizes_.is_parallel || sizes_.norm_place != NormPlace::Before)) {
      model_.add_fault("hc_mult", "several streams go with norm_place: before and parallel: false; write these");
    }
  }

  void read_biases()
  {
    if (!model_.has("biases")) return;
    for (const auto& entry : model_.required_sequence("biases")) {
      const auto known = std::find_if(bias_names.begin(), bias_names.end(),
                                      [&](const auto& bias) { return bias.name == entry.scalar; });
      if (entry.kind == DocumentNode::Kind::Scalar && known != bias_names.end()) {
        sizes_.biases.*(known->member) = true;
      } else {
        model_.add_fault("biases", fmt::format("{} is none; write a list of {}", in_quotes(entry.scalar),
                                               fmt::join(names_of_biases(), ", ")));
      }
    }
  }

  void read_positions()
  {
    sizes_.positions = model_.optional_count("positions", 1, longest_sequence).value_or(0);
    sizes_.rope_theta = read_positive(model_, "rope_theta", sizes_.rope_theta);
    sizes_.rope_scaling = read_rope_scaling(model_);
    if (!is_refused(has(Mixer::Window), "window_rope_theta", "layer type window")) {
      sizes_.window_rope_theta = read_positive(model_, "window_rope_theta", sizes_.rope_theta);
    }
    sizes_.rotated = count_of(has_attention(), "rotary_dim", widest, kinds_with_heads, 0);
    if (faults_.empty() && sizes_.rotated > sizes_.head_width) {
      model_.add_fault("rotary_dim", fmt::format("{} is more than head_dim, {}; write at most as many", sizes_.rotated,
                                                 sizes_.head_width));
    }
  }

  void read_scales()
  {
    constexpr std::string_view kind = kinds_with_heads;
    const bool is_used = has_attention();
    sizes_.embedding_scale = read_positive(model_, "embedding_multiplier", 1);
    if (!is_refused(is_used, "query_pre_attn_scalar", kind) && model_.has("query_pre_attn_scalar")) {
      sizes_.query_scale = read_positive(model_, "query_pre_attn_scalar", 1);
    }
    if (!is_refused(is_used, "attn_logit_softcapping", kind) && model_.has("attn_logit_softcapping")) {
      sizes_.score_cap = read_positive(model_, "attn_logit_softcapping", 1);
    }
    if (model_.has("final_logit_softcapping")) {
      sizes_.logit_cap = read_positive(model_, "final_logit_softcapping", 1);
    }
  }

  void refuse_parts(const std::string& key, std::uint64_t parts, const std::string& of, std::uint64_t whole)
  {
    model_.add_fault(key, fmt::format("{} does not divide {}, {}; write a divisor of it", parts, of, whole));
  }

  void check_sizes(std::uint64_t layers, std::uint64_t sequence)
  {
    if (sizes_.positions > 0 && sequence > sizes_.positions) {
      model_.add_fault("sequence",
                       fmt::format("{} is more than the {} positions; write a shorter one, or more positions", sequence,
                                   sizes_.positions));
    }
    // Counts of a part may have more digits than a number holds.
    double parameters = 2 * static_cast<double>(sizes_.vocabulary) * static_cast<double>(sizes_.hidden);
    const auto add = [&](const std::vector<DecoderProduct>& products) {
      for (const auto& product : products) {
        parameters += static_cast<double>(product.inputs) * static_cast<double>(product.outputs) *
                      static_cast<double>(product.matrices);
      }
    };
    for (std::uint64_t i = 0; i < layers + sizes_.mtp_blocks.size(); ++i) {
      const DecoderBlock& block = decoder_block(sizes_, i);
      add(products_of(sizes_, block.mixer));
      add(products_of(sizes_, block.feed_forward));
      if (sizes_.streams > 1) parameters += 2 * static_cast<double>(connection_of_part(sizes_).parameters());
    }
    if (parameters > static_cast<double>(most_parameters)) {
      model_.add_fault("layers", fmt::format("have about {:.3g} parameters; write sizes with at most {:.0e}",
                                             parameters, static_cast<double>(most_parameters)));
    }
  }

  MappingReader& model_;
  const FaultList& faults_;
  DecoderSizes sizes_;
};

}  // namespace

DecoderSizes read_sizes(MappingReader& model, std::uint64_t sequence, const FaultList& faults)
{
  return Reader(model, faults).read(sequence);
}

RopeScaling read_rope_scaling(MappingReader& model)
{
  using Type = RopeScaling::Type;
  RopeScaling scaling;
  const auto name = model.optional_choice("rope_type", rope_scaling_names());
  if (name) scaling.type = *rope_scaling_from_name(*name);
  const auto is_refused = [&](bool is_used, const std::string& key, const char* kind) {
    if (is_used || model.optional(key) == nullptr) return !is_used;
    model.add_fault(key, fmt::format("goes with rope_type: {}; leave it out, or write that", kind));
    return true;
  };
  if (!is_refused(scaling.type != Type::None, "rope_factor", "linear or llama3")) {
    scaling.factor = model.required_number("rope_factor", 1);
  }
  const bool is_llama = scaling.type == Type::Llama3;
  if (!is_refused(is_llama, "rope_low_freq_factor", "llama3")) {
    scaling.low_frequency = read_positive(model, "rope_low_freq_factor", scaling.low_frequency);
  }
  if (!is_refused(is_llama, "rope_high_freq_factor", "llama3")) {
    scaling.high_frequency = read_positive(model, "rope_high_freq_factor", scaling.high_frequency);
  }
  if (!is_refused(is_llama, "original_max_position_embeddings", "llama3")) {
    scaling.original_positions = model.optional_count("original_max_position_embeddings", 1, longest_sequence)
                                     .value_or(scaling.original_positions);
  }
  if (scaling.low_frequency >= scaling.high_frequency) {
    model.add_fault("rope_high_freq_factor", fmt::format("{} is not above rope_low_freq_factor, {}; write more",
                                                         scaling.high_frequency, scaling.low_frequency));
  }
  return scaling;
}

std::vector<std::pair<std::string, std::string>> keys_of(const RopeScaling& scaling)
{
  const RopeScaling defaults;
  std::vector<std::pair<std::string, std::string>> keys;
  if (scaling.type == RopeScaling::Type::None) return keys;
  keys.emplace_back("rope_type", name_of(scaling.type));
  keys.emplace_back("rope_factor", fmt::to_string(scaling.factor));
  if (scaling.low_frequency != defaults.low_frequency) {
    keys.emplace_back("rope_low_freq_factor", fmt::to_string(scaling.low_frequency));
  }
  if (scaling.high_frequency != defaults.high_frequency) {
    keys.emplace_back("rope_high_freq_factor", fmt::to_string(scaling.high_frequency));
  }
  if (scaling.original_positions != defaults.original_positions) {
    keys.emplace_back("original_max_position_embeddings", fmt::to_string(scaling.original_positions));
  }
  return keys;
}

std::string pattern_of(const std::vector<std::string_view>& names)
{
  std::size_t period = 1;
  const auto repeats = [&](std::size_t length) {
    for (std::size_t i = length; i < names.size(); ++i) {
      if (names[i] != names[i - length]) return false;
    }
    return true;
  };
  while (period < names.size() && !repeats(period)) ++period;
  std::vector<std::string> entries;
  for (std::size_t first = 0; first < period;) {
    std::size_t end = first + 1;
    while (end < period && names[end] == names[first]) ++end;
    entries.push_back(end - first == 1 ? std::string(names[first]) : fmt::format("{}*{}", names[first], end - first));
    first = end;
  }
  return fmt::format("[{}]", fmt::join(entries, ", "));
}

std::vector<std::pair<std::string, std::string>> keys_of(const DecoderSizes& sizes)
{
  std::vector<std::pair<std::string, std::string>> keys;
  const auto add = [&](std::string key, std::string value) { keys.emplace_back(std::move(key), std::move(value)); };
  const auto count = [&](const char* key, std::uint64_t value) {
    if (value > 0) add(key, fmt::to_string(value));
  };
  const auto flag = [&](const char* key, bool value) {
    if (value) add(key, "true");
  };
  const auto number = [&](const char* key, double value, double default_value) {
    if (value != default_value) add(key, fmt::to_string(value));
  };
  const auto pattern = [&](const char* key, const std::vector<DecoderBlock>& blocks, auto name_of_block,
                           std::string_view default_name) {
    std::vector<std::string_view> names;
    for (const auto& block : blocks) names.push_back(name_of_block(block));
    const bool is_default = std::all_of(names.begin(), names.end(), [&](auto name) { return name == default_name; });
    if (!is_default) add(key, pattern_of(names));
  };
  const auto name_of_mixer = [](const DecoderBlock& block) { return name_of(block.mixer); };
  const auto name_of_network = [](const DecoderBlock& block) { return name_of(block.feed_forward); };
  const auto name_of_rotation = [](const DecoderBlock& block) {
    return std::string_view(block.rotates ? "true" : "false");
  };
  const DecoderSizes defaults;

  count("layers", sizes.blocks.size());
  count("hidden", sizes.hidden);
  count("vocabulary", sizes.vocabulary);
  pattern("layer_types", sizes.blocks, name_of_mixer, "full");
  pattern("mlp_layer_types", sizes.blocks, name_of_network, sizes.experts.count > 0 ? "experts" : "dense");
  pattern("rotary", sizes.blocks, name_of_rotation, "true");
  count("heads", sizes.heads);
  count("kv_heads", sizes.kv_heads);
  count("head_dim", sizes.head_width);
  count("sliding_window", sizes.window);
  count("attention_chunk", sizes.chunk);
  if (sizes.head_norm != HeadNorm::None) add("qk_norm", std::string(name_of(sizes.head_norm)));
  flag("attention_output_gate", sizes.has_output_gate);
  flag("attention_sinks", sizes.has_sinks);
  flag("shared_kv", sizes.has_shared_kv);
  count("q_lora_rank", sizes.q_rank);
  count("o_groups", sizes.output_groups.count);
  count("o_lora_rank", sizes.output_groups.rank);
  count("compress_rate_csa", sizes.compression.sparse);
  count("compress_rate_hca", sizes.compression.heavy);
  count("kv_lora_rank", sizes.latent.kv_rank);
  count("qk_nope_head_dim", sizes.latent.nope);
  count("qk_rope_head_dim", sizes.latent.rope);
  count("v_head_dim", sizes.latent.value);
  count("index_n_heads", sizes.indexer.heads);
  count("index_head_dim", sizes.indexer.width);
  count("index_topk", sizes.indexer.kept);
  count("linear_num_key_heads", sizes.delta_net.key_heads);
  count("linear_num_value_heads", sizes.delta_net.value_heads);
  count("linear_key_head_dim", sizes.delta_net.key_width);
  count("linear_value_head_dim", sizes.delta_net.value_width);
  count("linear_conv_kernel_dim", sizes.delta_net.kernel);
  count("mamba_heads", sizes.mamba2.heads);
  count("mamba_head_dim", sizes.mamba2.head_width);
  count("mamba_state", sizes.mamba2.state);
  count("mamba_groups", sizes.mamba2.groups);
  count("mamba_conv", sizes.mamba2.kernel);
  count("intermediate", sizes.intermediate);
  if (sizes.activation != Activation::Silu) add("activation", std::string(name_of(sizes.activation)));
  if (!sizes.is_gated) add("gated", "false");
  count("experts", sizes.experts.count);
  if (sizes.experts.count > 0) count("top_k", sizes.experts.per_token);
  count("expert_intermediate", sizes.experts.intermediate);
  count("shared_intermediate", sizes.experts.shared);
  flag("shared_gate", sizes.experts.has_shared_gate);
  count("moe_latent_size", sizes.experts.latent);
  if (sizes.experts.scores != RouterScores::Softmax) add("scoring_func", std::string(name_of(sizes.experts.scores)));
  if (sizes.experts.count > 0 && sizes.experts.normalizes != (sizes.experts.per_token > 1)) {
    add("norm_topk_prob", sizes.experts.normalizes ? "true" : "false");
  }
  number("routed_scaling_factor", sizes.experts.scale, 1);
  if (sizes.norm != Norm::Rms) add("norm", std::string(name_of(sizes.norm)));
  if (sizes.norm_place != NormPlace::Before) add("norm_place", std::string(name_of(sizes.norm_place)));
  flag("parallel", sizes.is_parallel);
  if (sizes.streams > 1) count("hc_mult", sizes.streams);
  flag("embedding_norm", sizes.has_embedding_norm);
  std::vector<std::string_view> biases;
  for (const auto& bias : bias_names) {
    if (sizes.biases.*(bias.member)) biases.push_back(bias.name);
  }
  if (!biases.empty()) add("biases", fmt::format("[{}]", fmt::join(biases, ", ")));
  count("positions", sizes.positions);
  if (!sizes.mtp_blocks.empty()) {
    count("mtp_layers", sizes.mtp_blocks.size());
    pattern("mtp_layer_types", sizes.mtp_blocks, name_of_mixer, name_of(sizes.blocks.back().mixer));
    pattern("mtp_mlp_layer_types", sizes.mtp_blocks, name_of_network, name_of(sizes.blocks.back().feed_forward));
  }
  number("norm_epsilon", sizes.norm_epsilon, defaults.norm_epsilon);
  flag("zero_centered_gamma", sizes.has_zero_centered_gamma);
  number("rope_theta", sizes.rope_theta, defaults.rope_theta);
  if (sizes.window > 0 && sizes.window_rope_theta != sizes.rope_theta) {
    add("window_rope_theta", fmt::to_string(sizes.window_rope_theta));
  }
  for (auto& [key, value] : keys_of(sizes.rope_scaling)) add(key, std::move(value));
  count("rotary_dim", sizes.rotated);
  number("embedding_multiplier", sizes.embedding_scale, 1);
  number("query_pre_attn_scalar", sizes.query_scale, 0);
  number("attn_logit_softcapping", sizes.score_cap, 0);
  number("final_logit_softcapping", sizes.logit_cap, 0);
  return keys;
}

}  // namespace isobar::decoder
