#include "core/huggingface/config.hpp"

#include "core/huggingface/config_reader.hpp"
#include "core/huggingface/decoder_config.hpp"
#include "core/huggingface/decoder_reader.hpp"
#include "core/model/decoder/decoder_file.hpp"
#include "core/model/decoder/decoder_parts.hpp"
#include "core/model/differences.hpp"
#include "core/model/model_limits.hpp"
#include "core/names.hpp"
#include "core/text/document.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace isobar {

namespace {

constexpr NameTable<DType, 3> dtypes_of_weights{
    {{DType::Float32, "float32"}, {DType::BFloat16, "bfloat16"}, {DType::Float16, "float16"}}};

/// The lines of a workload file.
class Lines {
 public:
  void comment(const std::string& text) { text_ += "# " + text + "\n"; }
  template <typename Value>
  void add(std::string_view key, const Value& value)
  {
    text_ += fmt::format("{}: {}\n", key, value);
  }
  void add_list(std::string_view key, const std::vector<std::string>& texts)
  {
    text_ += fmt::format("{}:\n", key);
    for (const auto& text : texts) text_ += fmt::format("  - \"{}\"\n", text);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// None if the configuration names no classes.
std::optional<std::uint64_t> read_classes(ConfigReader& config)
{
  if (config.has_value("id2label")) {
    const std::uint64_t classes = config.member_count("id2label");
    if (classes < 1 || classes > widest) config.add_fault("id2label", fmt::format("names {} classes", classes));
    return classes;
  }
  if (config.has_value("num_labels")) return config.count("num_labels", widest);
  return std::nullopt;
}

/// Activation functions that cost what those of Isobar's layers do.
const std::vector<std::string> smooth_activations = {
    "gelu",          "gelu_python", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_10",
    "gelu_accurate", "quick_gelu",  "silu",     "swish"};

BertSizes read_bert(ConfigReader& config)
{
  constexpr std::uint64_t classes_of_transformers = 2;
  BertSizes sizes;
  sizes.encoders = config.size("num_hidden_layers", most_encoders, 12);
  sizes.hidden = config.size("hidden_size", widest, 768);
  sizes.heads = config.size("num_attention_heads", widest, 12);
  sizes.intermediate = config.size("intermediate_size", widest_intermediate, 3072);
  sizes.vocabulary = config.size("vocab_size", largest_vocabulary, 30'522);
  sizes.positions = config.size("max_position_embeddings", longest_sequence, 512);
  sizes.classes = read_classes(config).value_or(classes_of_transformers);
  config.demand_parts("num_attention_heads", sizes.heads, "hidden_size", sizes.hidden);
  config.accept_text("hidden_act", {"gelu", "gelu_python"}, smooth_activations);
  config.accept_text("position_embedding_type", {"absolute"});
  config.demand_number("type_vocab_size", 2, 2);
  config.accept_number("layer_norm_eps", 1e-12);
  config.demand_boolean("is_decoder", false);
  config.demand_boolean("add_cross_attention", false);
  return sizes;
}

/// The key of GPT-2's learned positions.
std::string gpt2_positions(ConfigReader& config)
{
  return config.named("n_positions", "max_position_embeddings");
}

/// transformers takes four keys by their usual names, too (GPT2Config.attribute_map).
GptSizes read_gpt2(ConfigReader& config)
{
  GptSizes sizes;
  const std::string hidden = config.named("n_embd", "hidden_size");
  const std::string heads = config.named("n_head", "num_attention_heads");
  sizes.layers = config.size(config.named("n_layer", "num_hidden_layers"), most_blocks, 12);
  sizes.hidden = config.size(hidden, widest, 768);
  sizes.heads = config.size(heads, widest, 12);
  sizes.intermediate = config.count("n_inner", widest_intermediate, 4 * sizes.hidden);
  sizes.vocabulary = config.size("vocab_size", largest_vocabulary, 50'257);
  sizes.positions = config.size(gpt2_positions(config), longest_sequence, 1024);
  config.demand_parts(heads, sizes.heads, hidden, sizes.hidden);
  config.accept_text("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}, smooth_activations);
  config.accept_number("layer_norm_epsilon", 1e-5);
  config.accept_boolean("scale_attn_weights", true);
  config.accept_boolean("scale_attn_by_inverse_layer_idx", false);
  config.demand_boolean("add_cross_attention", false);
  return sizes;
}

/// The keys under which transformers 4 and 5 write rotary positions.
const std::vector<std::string> rope_keys = {"rope_scaling", "rope_parameters"};

/// Reads the base of the rotary positions, and their scale.
void read_rope(ConfigReader& config, LlamaSizes& sizes)
{
  constexpr double of_transformers = 10'000;
  sizes.rope_theta = config.number("rope_theta", of_transformers);
  if (config.has_value("rope_theta") && sizes.rope_theta == 0)
    config.add_fault("rope_theta", "is 0; write a positive number");
  for (const auto& key : rope_keys) {
    if (!config.has_value(key)) continue;
    auto rope = config.mapping(key);
    sizes.rope_scaling = huggingface::read_rope_scaling(rope);
    sizes.rope_theta = rope.number("rope_theta", sizes.rope_theta);
    if (sizes.rope_theta == 0) rope.add_fault("rope_theta", "is 0; write a positive number");
  }
}

/// transformers' defaults for a model_type of Llama's kind. Source: src/transformers/models/*/configuration_*.py, the
/// same in 4.57.6 and 5.24.0.
struct LlamaDefaults {
  std::uint64_t vocabulary = 32'000;
  std::uint64_t intermediate = 11'008;
  std::optional<std::uint64_t> kv_heads = {};    ///< none: as many as heads
  std::optional<std::uint64_t> head_width = {};  ///< none: hidden_size over num_attention_heads
  std::uint64_t positions = 2048;
  std::optional<std::uint64_t> window = {};  ///< how far back attention reaches; none: to the start
};

LlamaDefaults llama_defaults(const std::string& model_type)
{
  if (model_type == "mistral") return {.intermediate = 14'336, .kv_heads = 8, .positions = 131'072, .window = 4096};
  return {};
}

/// Heads of keys and values. A null means as many as heads, unlike a missing key.
std::uint64_t read_kv_heads(ConfigReader& config, std::optional<std::uint64_t> default_value, std::uint64_t heads)
{
  const std::string key = "num_key_value_heads";
  if (config.has(key) || !default_value) return config.count(key, widest, heads);
  return config.size(key, widest, *default_value);
}

/// Refuses heads of a width that Isobar's layers do not have.
void check_head_width(ConfigReader& config, const LlamaSizes& sizes, std::optional<std::uint64_t> default_value)
{
  const std::uint64_t width = std::max<std::uint64_t>(1, sizes.hidden / sizes.heads);
  if (config.is_right_so_far() && width % 2 != 0) {
    config.add_fault("num_attention_heads",
                     fmt::format("makes heads {} wide; rotary positions need an even width", width));
  }
  const std::uint64_t head_dim = config.count("head_dim", widest, default_value.value_or(width));
  if (config.is_right_so_far() && head_dim != width) {
    config.add_fault("head_dim", fmt::format("{} is not supported (only {}, hidden_size over num_attention_heads)",
                                             config.stated("head_dim", head_dim), width));
  }
}

LlamaSizes read_llama(ConfigReader& config, const std::string& model_type)
{
  const LlamaDefaults defaults = llama_defaults(model_type);
  LlamaSizes sizes;
  sizes.layers = config.size("num_hidden_layers", most_blocks, 32);
  sizes.hidden = config.size("hidden_size", widest, 4096);
  sizes.heads = config.size("num_attention_heads", widest, 32);
  sizes.kv_heads = read_kv_heads(config, defaults.kv_heads, sizes.heads);
  sizes.intermediate = config.size("intermediate_size", widest_intermediate, defaults.intermediate);
  sizes.vocabulary = config.size("vocab_size", largest_vocabulary, defaults.vocabulary);
  read_rope(config, sizes);
  sizes.norm_epsilon = config.number("rms_norm_eps", 1e-6);
  if (sizes.norm_epsilon == 0) config.add_fault("rms_norm_eps", "is 0; write a positive number");
  config.demand_parts("num_attention_heads", sizes.heads, "hidden_size", sizes.hidden);
  config.demand_parts("num_key_value_heads", sizes.kv_heads, "num_attention_heads", sizes.heads);
  check_head_width(config, sizes, defaults.head_width);
  config.accept_text("hidden_act", {"silu", "swish"}, smooth_activations);
  if (model_type == "llama") {
    config.demand_boolean("attention_bias", false);
    config.demand_boolean("mlp_bias", false);
  }
  return sizes;
}

/// How far back the attention of a model of Llama's kind reaches; none: to the start.
std::optional<std::uint64_t> read_window(ConfigReader& config, const std::string& type)
{
  if (type == "llama") return std::nullopt;
  // transformers' default applies to a missing key; null means no window.
  if (config.has("sliding_window") && !config.has_value("sliding_window")) return std::nullopt;
  return config.count("sliding_window", longest_sequence, llama_defaults(type).window.value());
}

/// The model_type of a class of transformers, such as "LlamaForCausalLM" or "LlamaModel"; none for an unknown class.
std::optional<std::string> type_of_architecture(std::string_view architecture)
{
  constexpr std::array<std::pair<std::string_view, std::string_view>, 37> families = {{{"Bert", "bert"},
                                                                                       {"Bloom", "bloom"},
                                                                                       {"Cohere", "cohere"},
                                                                                       {"Cohere2", "cohere2"},
                                                                                       {"DeepseekV2", "deepseek_v2"},
                                                                                       {"DeepseekV3", "deepseek_v3"},
                                                                                       {"DeepseekV4", "deepseek_v4"},
                                                                                       {"Falcon", "falcon"},
                                                                                       {"GPT2", "gpt2"},
                                                                                       {"GPTNeoX", "gpt_neox"},
                                                                                       {"Gemma", "gemma"},
                                                                                       {"Gemma2", "gemma2"},
                                                                                       {"Gemma3", "gemma3_text"},
                                                                                       {"Glm4", "glm4"},
                                                                                       {"Glm4Moe", "glm4_moe"},
                                                                                       {"GlmMoeDsa", "glm_moe_dsa"},
                                                                                       {"GptOss", "gpt_oss"},
                                                                                       {"Granite", "granite"},
                                                                                       {"Llama", "llama"},
                                                                                       {"Llama4", "llama4_text"},
                                                                                       {"MPT", "mpt"},
                                                                                       {"Mistral", "mistral"},
                                                                                       {"Mixtral", "mixtral"},
                                                                                       {"Mpt", "mpt"},
                                                                                       {"NemotronH", "nemotron_h"},
                                                                                       {"OPT", "opt"},
                                                                                       {"Olmo", "olmo"},
                                                                                       {"Olmo2", "olmo2"},
                                                                                       {"Olmo3", "olmo3"},
                                                                                       {"Phi3", "phi3"},
                                                                                       {"Qwen2", "qwen2"},
                                                                                       {"Qwen2Moe", "qwen2_moe"},
                                                                                       {"Qwen3", "qwen3"},
                                                                                       {"Qwen3Moe", "qwen3_moe"},
                                                                                       {"Qwen3Next", "qwen3_next"},
                                                                                       {"StableLm", "stablelm"},
                                                                                       {"Starcoder2", "starcoder2"}}};
  for (const auto& [family, type] : families) {
    if (!architecture.starts_with(family)) continue;
    const auto rest = architecture.substr(family.size());
    const auto is_next = [&](std::string_view word) { return rest.starts_with(word); };
    if (is_next("For") || is_next("Model") || is_next("LMHead") || is_next("DoubleHeads")) return std::string(type);
  }
  return std::nullopt;
}

/// The types whose layers compute exactly what the model does.
const std::vector<std::string> types_with_weights = {"bert",    "gemma2", "gpt2",  "llama",    "mistral",
                                                     "mixtral", "qwen2",  "qwen3", "qwen3_moe"};

std::vector<std::string> known_types(ConfigUse use)
{
  if (use == ConfigUse::Weights) return types_with_weights;
  std::vector<std::string> known = huggingface::decoder_types();
  known.insert(known.end(), {"bert", "gpt2"});
  std::sort(known.begin(), known.end());
  return known;
}

/// transformers' types of models whose texts are of another type.
std::string type_of_text(const std::string& type)
{
  return type == "gemma3" || type == "llama4" ? type + "_text" : type;
}

std::string read_model_type(ConfigReader& config)
{
  const auto known = known_types(config.use());
  if (config.has_value("model_type") || !config.has_value("architectures")) {
    return config.supported_name("model_type", known);
  }
  const auto architectures = config.texts("architectures");
  for (const auto& architecture : architectures) {
    const auto type = type_of_architecture(architecture);
    if (type && std::find(known.begin(), known.end(), *type) != known.end()) return *type;
  }
  config.add_fault("architectures", fmt::format("names no supported model ({}): {}", fmt::join(known, ", "),
                                                in_quotes(fmt::format("{}", fmt::join(architectures, ", ")))));
  return "";
}

struct ReadModel {
  std::string type;
  HuggingFaceSizes sizes;
  std::optional<huggingface::DecoderConfig> decoder = {};  ///< in place of `sizes`
  bool is_part = false;                                    ///< the text_config of a larger model
  bool is_quantized = false;                               ///< its weights are published in fewer bits

  bool is_tied() const { return decoder ? decoder->tied : sizes.tied; }
};

void demand_plain(ConfigReader& config)
{
  config.demand_nothing("auto_map", "custom code of the model");
  config.demand_nothing("quantization_config", "quantised matrices");
  config.demand_nothing("pruned_heads", "pruned heads");
}

ReadModel read_model_of(const std::string& model, ConfigReader& config)
{
  demand_plain(config);
  if (model == "bert") return {model, {read_bert(config), false, {}}};
  if (model == "gpt2") return {model, {read_gpt2(config), config.boolean("tie_word_embeddings", true), {}}};
  const LlamaSizes sizes = read_llama(config, model);
  return {model, {sizes, config.boolean("tie_word_embeddings", false), read_window(config, model)}};
}

/// True if model llama computes a configuration of a type, at any rate at this length; so it reports its faults.
bool is_model_llama(const DocumentNode& node, const std::string& type, std::uint64_t sequence)
{
  if (type != "llama" && type != "mistral") return false;
  FaultList faults("");
  ConfigRemarks remarks;
  ConfigReader config(node, ConfigUse::Costs, remarks, faults);
  const DecoderSizes sizes = huggingface::read_decoder(config, type).sizes;
  if (!faults.empty()) return true;
  const bool has_biases = sizes.biases != DecoderBiases{};
  const bool has_own_width = sizes.heads * sizes.head_width != sizes.hidden;
  const bool has_window = sizes.window > 0 && sizes.window < sequence;
  return !has_biases && !has_own_width && !has_window && sizes.rotated == 0;
}

/// Reads the model for a workload of `sequence` tokens, or the text part of a larger one.
ReadModel read_model_of_costs(const DocumentNode& document, std::uint64_t sequence, ConfigReader& config,
                              FaultList& faults)
{
  const bool is_part = config.has_value("text_config");
  std::optional<ConfigReader> text;
  if (is_part) text = config.mapping("text_config");
  ConfigReader& own = text ? *text : config;
  const auto model = is_part && !own.has_value("model_type") && config.has_value("model_type")
                         ? type_of_text(config.supported_name("model_type", {"gemma3", "llama4"}))
                         : read_model_type(own);
  faults.throw_if_any();  // which keys are right depends on the model
  const auto known = huggingface::decoder_types();
  if (std::find(known.begin(), known.end(), model) == known.end() ||
      is_model_llama(is_part ? *config.node("text_config") : document, model, sequence)) {
    ReadModel read = read_model_of(model, own);
    read.is_part = is_part;
    return read;
  }
  ReadModel read = {model, {}, huggingface::read_decoder(own, model), is_part};
  if (!own.has_value("tie_word_embeddings")) {
    read.decoder->tied = config.boolean("tie_word_embeddings", read.decoder->tied);
  }
  read.is_quantized = config.has_value("quantization_config") || own.has_value("quantization_config");
  return read;
}

/// The largest dropout probability of the keys; others are remarked.
double read_dropout(ConfigReader& config, const std::vector<std::string>& keys)
{
  constexpr double of_transformers = 0.1;
  std::vector<double> dropouts;
  for (const auto& key : keys) {
    dropouts.push_back(config.number(key, of_transformers));
    if (dropouts.back() >= 1) config.add_fault(key, fmt::format("{} is not below 1", dropouts.back()));
  }
  const double largest = *std::max_element(dropouts.begin(), dropouts.end());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (dropouts[i] == largest) continue;
    config.add_difference(keys[i], fmt::format("{}", dropouts[i]), fmt::format("{}", largest));
  }
  return largest;
}

/// Fused kernels cannot use Isobar's reproducible dropout.
void add_dropout_and_attention(Lines& lines, double dropout)
{
  lines.add("dropout", dropout);
  if (dropout > 0) lines.comment("With dropout: 0, attention: fused keeps no S x S probabilities.");
  lines.add("attention", name_of(dropout > 0 ? Attention::Unfused : Attention::Fused));
}

/// Adds the lines of the model's sizes and checks how long a sample may be.
void add_lines(ConfigReader& config, const BertSizes& sizes, const ReadModel& /*model*/, std::uint64_t sequence,
               Lines& lines)
{
  config.demand_positions("max_position_embeddings", sizes.positions, sequence);
  if (!config.has_value("id2label") && !config.has_value("num_labels")) {
    lines.comment("The configuration names no classes; 2 is transformers' default.");
  }
  std::vector<std::string> dropouts = {"hidden_dropout_prob", "attention_probs_dropout_prob"};
  if (config.has_value("classifier_dropout")) dropouts.emplace_back("classifier_dropout");
  lines.add("model", "bert");
  lines.add("encoders", sizes.encoders);
  lines.add("hidden", sizes.hidden);
  lines.add("heads", sizes.heads);
  lines.add("intermediate", sizes.intermediate);
  lines.add("vocabulary", sizes.vocabulary);
  lines.add("positions", sizes.positions);
  lines.add("classes", sizes.classes);
  add_dropout_and_attention(lines, read_dropout(config, dropouts));
}

/// The line of a decoder's head.
void add_head(Lines& lines, const ReadModel& model)
{
  if (model.is_tied()) lines.add("tied", "apart");
}

/// Adds the lines of a decoder's sizes and checks how long a sample may be.
void add_lines(ConfigReader& config, const huggingface::DecoderConfig& decoder, const ReadModel& model,
               std::uint64_t sequence, Lines& lines)
{
  if (decoder.positions) {
    auto text = model.is_part ? std::optional(config.mapping("text_config")) : std::nullopt;
    (text ? *text : config).demand_positions(decoder.positions_key, *decoder.positions, sequence);
  }
  lines.add("model", "decoder");
  for (const auto& [key, value] : decoder::keys_of(decoder.sizes)) lines.add(key, value);
  add_head(lines, model);
  lines.add("attention", name_of(Attention::Fused));
}

void add_lines(ConfigReader& config, const GptSizes& sizes, const ReadModel& model, std::uint64_t sequence,
               Lines& lines)
{
  config.demand_positions(gpt2_positions(config), sizes.positions, sequence);
  lines.add("model", "gpt");
  lines.add("layers", sizes.layers);
  lines.add("hidden", sizes.hidden);
  lines.add("heads", sizes.heads);
  lines.add("intermediate", sizes.intermediate);
  lines.add("vocabulary", sizes.vocabulary);
  lines.add("positions", sizes.positions);
  add_head(lines, model);
  add_dropout_and_attention(lines, read_dropout(config, {"resid_pdrop", "embd_pdrop", "attn_pdrop"}));
}

void add_lines(ConfigReader& config, const LlamaSizes& sizes, const ReadModel& model, std::uint64_t sequence,
               Lines& lines)
{
  const std::string positions = "max_position_embeddings";
  config.demand_positions(positions, config.count(positions, longest_sequence, llama_defaults(model.type).positions),
                          sequence);
  if (const auto window = model.sizes.window) config.demand_positions("sliding_window", *window, sequence);
  config.accept_number("attention_dropout", 0);
  lines.add("model", "llama");
  lines.add("layers", sizes.layers);
  lines.add("hidden", sizes.hidden);
  lines.add("heads", sizes.heads);
  lines.add("kv_heads", sizes.kv_heads);
  lines.add("intermediate", sizes.intermediate);
  lines.add("vocabulary", sizes.vocabulary);
  lines.add("rope_theta", sizes.rope_theta);
  for (const auto& [key, value] : decoder::keys_of(sizes.rope_scaling)) lines.add(key, value);
  lines.add("norm_epsilon", sizes.norm_epsilon);
  add_head(lines, model);
  lines.add("attention", name_of(Attention::Fused));
}

template <typename Sizes>
void add_lines(ConfigReader& /*config*/, const Sizes& /*sizes*/, const ReadModel& /*model*/, std::uint64_t /*sequence*/,
               Lines& /*lines*/)
{
  throw std::logic_error("no reader for the configuration of this model");
}

/// Of a part of a model, its own key counts.
DType read_dtype(ConfigReader& whole, bool is_part)
{
  auto part = is_part ? std::optional(whole.mapping("text_config")) : std::nullopt;
  const bool is_own = part && (part->has_value("torch_dtype") || part->has_value("dtype"));
  ConfigReader& config = is_own ? *part : whole;
  DType dtype = DType::Float32;
  for (const std::string key : {"torch_dtype", "dtype"}) {
    if (!config.has_value(key)) continue;
    const auto known = value_in(dtypes_of_weights, config.text(key, ""));
    if (known) dtype = *known;
    if (!known) {
      config.add_fault(key, fmt::format("{} is not one of {}; give --dtype", in_quotes(config.text(key, "")),
                                        fmt::join(names_in(dtypes_of_weights), ", ")));
    }
  }
  return dtype;
}

/// Comments on what a decoder's sizes do not say.
void add_remarks(const huggingface::DecoderConfig& decoder, Lines& lines)
{
  if (decoder.sizes.experts.count > 0) {
    lines.comment(fmt::format("{} parameters compute a token, the head's among them and the embedding's not.",
                              decoder::parameters_of_token(decoder.sizes)));
  }
  if (decoder.predicts_further > 0) {
    lines.comment(fmt::format("transformers has no multi-token prediction; with mtp_layers: {} it trains, too.",
                              decoder.predicts_further));
  }
}

/// Comments on the model, before the lines of the workload.
Lines head_of(const ReadModel& model, const ConfigRemarks& remarks, const Workload& workload, const std::string& name)
{
  Lines lines;
  lines.comment(fmt::format("Converted from {}, {}model_type {} of Hugging Face's transformers.",
                            shown(std::filesystem::path(name).filename().string()),
                            model.is_part ? "text_config alone, " : "", model.type));
  const std::uint64_t here = all_parameters(workload);
  const std::uint64_t in_model = here - matrix_of_head(workload) + remarks.left_out;
  lines.comment(in_model == here ? fmt::format("{} parameters, as many as the model.", here)
                                 : fmt::format("{} parameters; the model has {}.", here, in_model));
  if (!remarks.defaults.empty()) {
    lines.comment(fmt::format("transformers' defaults, which the configuration leaves out: {}.",
                              fmt::join(remarks.defaults, ", ")));
  }
  if (model.decoder) add_remarks(*model.decoder, lines);
  if (model.is_quantized) {
    lines.comment("Published in fewer bits (quantization_config); here it trains in dtype.");
  }
  if (model.is_tied()) {
    const bool may_be_tied = model.decoder || std::holds_alternative<GptSizes>(model.sizes.sizes);
    lines.comment(fmt::format("In the model, head and embedding share one matrix; here each has its own.{}",
                              may_be_tied ? " With tied: true they share it." : ""));
  }
  lines.comment("A configuration has no optimizer and no learning_rate (default 0.01): choose your own.");
  return lines;
}

}  // namespace

std::vector<HuggingFaceType> huggingface_types()
{
  std::vector<HuggingFaceType> types;
  for (const auto& name : known_types(ConfigUse::Costs)) {
    const bool is_old = name == "llama" || name == "mistral";
    types.push_back({name, name == "bert" ? "bert" : name == "gpt2" ? "gpt" : is_old ? "llama or decoder" : "decoder"});
  }
  return types;
}

HuggingFaceSizes sizes_from_huggingface(const std::string& text, const std::string& name, bool as_decoder)
{
  const DocumentNode document = parse_json(text, name);
  FaultList faults(name);
  ConfigRemarks remarks;
  ConfigReader config(document, ConfigUse::Weights, remarks, faults);
  const auto type = read_model_type(config);
  faults.throw_if_any();  // which keys are right depends on the model
  const bool is_llama = type == "llama" || type == "mistral";
  if (type == "bert" || type == "gpt2" || (is_llama && !as_decoder)) {
    auto model = read_model_of(type, config);
    faults.throw_if_any();
    return model.sizes;
  }
  demand_plain(config);
  auto decoder = huggingface::read_decoder(config, type);
  faults.throw_if_any();
  if (!remarks.differences.empty()) {
    throw InputError(shown(name, name.size()),
                     fmt::format("Isobar's layers compute {} otherwise: {}",
                                 remarks.differences.size() == 1 ? "one thing" : "some things",
                                 fmt::join(remarks.differences, "; ")));
  }
  return {std::move(decoder.sizes), decoder.tied, {}};
}

std::string workload_from_huggingface(const std::string& text, const std::string& name, const HuggingFaceImport& import)
{
  const DocumentNode document = parse_json(text, name);
  FaultList faults(name);
  ConfigRemarks remarks;
  ConfigReader config(document, ConfigUse::Costs, remarks, faults);
  const ReadModel model = read_model_of_costs(document, import.sequence, config, faults);
  faults.throw_if_any();  // differences follow from right sizes
  Lines lines;
  if (model.decoder) {
    add_lines(config, *model.decoder, model, import.sequence, lines);
  } else {
    auto part = model.is_part ? std::optional(config.mapping("text_config")) : std::nullopt;
    std::visit([&](const auto& sizes) { add_lines(part ? *part : config, sizes, model, import.sequence, lines); },
               model.sizes.sizes);
  }
  const DType dtype = import.dtype ? *import.dtype : read_dtype(config, model.is_part);
  faults.throw_if_any();

  lines.add("micro_batch", import.micro_batch);
  lines.add("sequence", import.sequence);
  lines.add("dtype", name_of(dtype));
  lines.add("optimizer", name_of(import.optimizer));
  if (!remarks.differences.empty()) {
    lines.comment("What the model computes and isobar run does not; the cost is the same.");
    lines.add_list("differences", remarks.differences);
  }
  const Workload workload = workload_from_text(lines.text(), "imported workload");
  return head_of(model, remarks, workload, name).text() + lines.text();
}

}  // namespace isobar
