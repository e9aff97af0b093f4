#include "core/model/huggingface_config.hpp"

#include "core/base/document.hpp"
#include "core/model/model_limits.hpp"
#include "core/names.hpp"

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

/// Reads a configuration, in which null means the default, like a missing key.
class ConfigReader {
 public:
  ConfigReader(const DocumentNode& node, FaultList& faults) : ConfigReader(node, "", faults) {}
  ConfigReader(const DocumentNode& node, const std::string& path, FaultList& faults)
      : config_(node, path, faults), faults_(&faults)
  {
  }

  /// True for null too.
  bool has(const std::string& key) { return config_.optional(key) != nullptr; }
  bool has_value(const std::string& key)
  {
    const auto* node = config_.optional(key);
    return node != nullptr && node->kind != DocumentNode::Kind::Null;
  }
  /// The number of members of an existing mapping.
  std::size_t member_count(const std::string& key)
  {
    const auto* node = config_.optional(key);
    if (node->kind != DocumentNode::Kind::Mapping) add_fault(key, "is not a mapping");
    return node->members.size();
  }
  /// A reader of an existing mapping; messages prefix its keys with `key`.
  ConfigReader mapping(const std::string& key)
  {
    return {*config_.optional(key), config_.path_of(key) + ".", *faults_};
  }

  /// The texts of an existing list.
  std::vector<std::string> texts(const std::string& key)
  {
    std::vector<std::string> found;
    for (const auto& item : config_.optional(key)->items) found.push_back(item.scalar);
    return found;
  }

  std::uint64_t count(const std::string& key, std::uint64_t highest) { return config_.required_count(key, 1, highest); }
  std::uint64_t count(const std::string& key, std::uint64_t highest, std::uint64_t default_value)
  {
    return has_value(key) ? config_.required_count(key, 1, highest) : default_value;
  }
  double number(const std::string& key, double default_value)
  {
    return config_.optional_number(key).value_or(default_value);
  }
  bool boolean(const std::string& key, bool default_value)
  {
    return has_value(key) ? config_.optional_boolean(key).value_or(default_value) : default_value;
  }
  std::string text(const std::string& key, const std::string& default_value)
  {
    return has_value(key) ? config_.optional_text(key).value_or(default_value) : default_value;
  }
  std::string choice(const std::string& key, const std::vector<std::string>& choices)
  {
    return config_.required_choice(key, choices);
  }

  /// Refuse values that Isobar's layers do not support.
  void demand_text(const std::string& key, const std::vector<std::string>& supported)
  {
    const std::string value = text(key, supported.front());
    if (std::find(supported.begin(), supported.end(), value) != supported.end()) return;
    add_fault(key, fmt::format("{} is not supported (only {})", in_quotes(value), fmt::join(supported, ", ")));
  }
  void demand_boolean(const std::string& key, bool supported)
  {
    if (boolean(key, supported) == supported) return;
    add_fault(key, fmt::format("{} is not supported (only {})", !supported, supported));
  }
  void demand_number(const std::string& key, double supported, double default_value)
  {
    const double value = number(key, default_value);
    if (value != supported) add_fault(key, fmt::format("{} is not supported (only {})", value, supported));
  }
  bool is_right_so_far() const { return faults_->empty(); }
  /// Refuse values that contradict each other, once each value read so far is right.
  void demand_parts(const std::string& key, std::uint64_t parts, const std::string& of, std::uint64_t whole)
  {
    if (is_right_so_far() && whole % parts != 0)
      add_fault(key, fmt::format("{} does not divide {}, {}", parts, of, whole));
  }
  void demand_positions(const std::string& key, std::uint64_t positions, std::uint64_t sequence)
  {
    if (!is_right_so_far() || sequence <= positions) return;
    add_fault(key, fmt::format("{} is less than the sequence of {}; give a shorter --sequence", positions, sequence));
  }
  /// Refuses any value except null, false, 0, [] or {}.
  void demand_nothing(const std::string& key, const std::string& meaning)
  {
    const auto* node = config_.optional(key);
    if (node == nullptr || (node->items.empty() && node->members.empty() && node->scalar.empty())) return;
    if (!node->is_text && (node->scalar == "false" || node->scalar == "0")) return;
    add_fault(key, fmt::format("requires {}, which is not supported; remove it", meaning));
  }

  void add_fault(const std::string& key, const std::string& what) { config_.add_fault(key, what); }

 private:
  MappingReader config_;
  FaultList* faults_;
};

/// The lines of a workload file.
class Lines {
 public:
  void comment(const std::string& text) { text_ += "# " + text + "\n"; }
  template <typename Value>
  void add(std::string_view key, const Value& value)
  {
    text_ += fmt::format("{}: {}\n", key, value);
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

BertSizes read_bert(ConfigReader& config)
{
  constexpr std::uint64_t classes_of_transformers = 2;
  BertSizes sizes;
  sizes.encoders = config.count("num_hidden_layers", most_encoders);
  sizes.hidden = config.count("hidden_size", widest);
  sizes.heads = config.count("num_attention_heads", widest);
  sizes.intermediate = config.count("intermediate_size", widest_intermediate);
  sizes.vocabulary = config.count("vocab_size", largest_vocabulary);
  sizes.positions = config.count("max_position_embeddings", longest_sequence);
  sizes.classes = read_classes(config).value_or(classes_of_transformers);
  config.demand_parts("num_attention_heads", sizes.heads, "hidden_size", sizes.hidden);
  config.demand_text("hidden_act", {"gelu", "gelu_python"});
  config.demand_text("position_embedding_type", {"absolute"});
  config.demand_number("type_vocab_size", 2, 2);
  config.demand_number("layer_norm_eps", 1e-12, 1e-12);
  config.demand_boolean("is_decoder", false);
  config.demand_boolean("add_cross_attention", false);
  return sizes;
}

GptSizes read_gpt2(ConfigReader& config)
{
  GptSizes sizes;
  sizes.layers = config.count("n_layer", most_blocks);
  sizes.hidden = config.count("n_embd", widest);
  sizes.heads = config.count("n_head", widest);
  sizes.intermediate = config.count("n_inner", widest_intermediate, 4 * sizes.hidden);
  sizes.vocabulary = config.count("vocab_size", largest_vocabulary);
  sizes.positions = config.count("n_positions", longest_sequence);
  config.demand_parts("n_head", sizes.heads, "n_embd", sizes.hidden);
  config.demand_text("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"});
  config.demand_number("layer_norm_epsilon", 1e-5, 1e-5);
  config.demand_boolean("scale_attn_weights", true);
  config.demand_boolean("scale_attn_by_inverse_layer_idx", false);
  config.demand_boolean("add_cross_attention", false);
  return sizes;
}

/// The purpose of the sizes.
enum class Use {
  Weights,  ///< Isobar's layers compute exactly what the model does
  Costs     ///< they cost the same
};

/// The keys under which transformers 4 and 5 write rotary positions.
const std::vector<std::string> rope_keys = {"rope_scaling", "rope_parameters"};

/// The kind of scaling of rotary positions, "default" for none.
std::string rope_type_of(ConfigReader& config)
{
  std::string type = "default";
  for (const auto& key : rope_keys) {
    if (!config.has_value(key)) continue;
    auto rope = config.mapping(key);
    type = rope.text("rope_type", rope.text("type", type));
  }
  return type;
}

/// The base of the rotary positions.
double read_rope_theta(ConfigReader& config, Use use)
{
  constexpr double of_transformers = 10'000;
  double theta = config.number("rope_theta", of_transformers);
  if (config.has_value("rope_theta") && theta == 0) config.add_fault("rope_theta", "is 0");
  const std::vector<std::string> exact = {"default"};
  const std::vector<std::string> cost_the_same = {"default", "linear", "dynamic", "yarn", "longrope", "llama3"};
  for (const auto& key : rope_keys) {
    if (!config.has_value(key)) continue;
    auto rope = config.mapping(key);
    for (const auto* type : {"rope_type", "type"}) rope.demand_text(type, use == Use::Weights ? exact : cost_the_same);
    theta = rope.number("rope_theta", theta);
    if (theta == 0) rope.add_fault("rope_theta", "is 0");
  }
  return theta;
}

/// transformers' defaults for a model_type of Llama's kind.
struct LlamaDefaults {
  std::optional<std::uint64_t> kv_heads;  ///< none: as many as heads
  std::uint64_t positions = 1;
  std::optional<std::uint64_t> window;  ///< how far back attention reaches; none: to the start
};

LlamaDefaults llama_defaults(const std::string& model_type)
{
  if (model_type == "mistral") return {8, 131'072, 4096};
  if (model_type == "qwen2" || model_type == "qwen3") return {32, 32'768, {}};
  return {{}, 2048, {}};
}

LlamaSizes read_llama(ConfigReader& config, const std::string& model_type, Use use)
{
  LlamaSizes sizes;
  sizes.layers = config.count("num_hidden_layers", most_blocks);
  sizes.hidden = config.count("hidden_size", widest);
  sizes.heads = config.count("num_attention_heads", widest);
  sizes.kv_heads =
      config.count("num_key_value_heads", widest, llama_defaults(model_type).kv_heads.value_or(sizes.heads));
  sizes.intermediate = config.count("intermediate_size", widest_intermediate);
  sizes.vocabulary = config.count("vocab_size", largest_vocabulary);
  sizes.rope_theta = read_rope_theta(config, use);
  sizes.norm_epsilon = config.number("rms_norm_eps", 1e-6);
  if (sizes.norm_epsilon == 0) config.add_fault("rms_norm_eps", "is 0");
  config.demand_parts("num_attention_heads", sizes.heads, "hidden_size", sizes.hidden);
  config.demand_parts("num_key_value_heads", sizes.kv_heads, "num_attention_heads", sizes.heads);
  const std::uint64_t width = std::max<std::uint64_t>(1, sizes.hidden / sizes.heads);
  if (config.is_right_so_far() && width % 2 != 0) {
    config.add_fault("num_attention_heads",
                     fmt::format("makes heads {} wide; rotary positions need an even width", width));
  }
  const std::uint64_t head_dim = config.count("head_dim", widest, width);
  if (config.is_right_so_far() && head_dim != width) {
    config.add_fault("head_dim", fmt::format("{} is not supported (only {}, hidden_size over num_attention_heads)",
                                             head_dim, width));
  }
  config.demand_text("hidden_act", {"silu", "swish"});
  config.demand_boolean("attention_bias", false);
  config.demand_boolean("mlp_bias", false);
  return sizes;
}

/// The model_type of a class of transformers, such as "LlamaForCausalLM" or "LlamaModel"; none for an unknown class.
std::optional<std::string> type_of_architecture(std::string_view architecture)
{
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> families = {{{"Bert", "bert"},
                                                                                      {"GPT2", "gpt2"},
                                                                                      {"Llama", "llama"},
                                                                                      {"Mistral", "mistral"},
                                                                                      {"Qwen2", "qwen2"},
                                                                                      {"Qwen3", "qwen3"}}};
  for (const auto& [family, type] : families) {
    if (!architecture.starts_with(family)) continue;
    const auto rest = architecture.substr(family.size());
    const auto is_next = [&](std::string_view word) { return rest.starts_with(word); };
    if (is_next("For") || is_next("Model") || is_next("LMHead") || is_next("DoubleHeads")) return std::string(type);
  }
  return std::nullopt;
}

std::string read_model_type(ConfigReader& config, Use use)
{
  std::vector<std::string> known = {"bert", "gpt2", "llama"};
  if (use == Use::Costs) known.insert(known.end(), {"mistral", "qwen2", "qwen3"});
  if (config.has_value("model_type") || !config.has_value("architectures")) return config.choice("model_type", known);
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
};

ReadModel read_model(ConfigReader& config, FaultList& faults, Use use)
{
  const auto model = read_model_type(config, use);
  faults.throw_if_any();  // which keys are right depends on the model
  config.demand_nothing("auto_map", "custom code of the model");
  config.demand_nothing("quantization_config", "quantised matrices");
  config.demand_nothing("pruned_heads", "pruned heads");
  if (model == "bert") return {model, {read_bert(config), false}};
  if (model == "gpt2") return {model, {read_gpt2(config), config.boolean("tie_word_embeddings", true)}};
  return {model, {read_llama(config, model, use), config.boolean("tie_word_embeddings", false)}};
}

/// The dropout probability, which must be the same for all keys.
double read_dropout(ConfigReader& config, const std::vector<std::string>& keys)
{
  constexpr double of_transformers = 0.1;
  const double dropout = config.number(keys.front(), of_transformers);
  if (dropout >= 1) config.add_fault(keys.front(), fmt::format("{} is not below 1", dropout));
  for (const auto& key : keys) {
    const double other = config.number(key, of_transformers);
    if (other == dropout) continue;
    config.add_fault(key, fmt::format("{} is not {}, {}; only one dropout for all places is supported", other,
                                      keys.front(), dropout));
  }
  return dropout;
}

/// Fused kernels cannot use Isobar's reproducible dropout.
void add_dropout_and_attention(Lines& lines, double dropout)
{
  lines.add("dropout", dropout);
  if (dropout > 0) lines.comment("With dropout: 0, attention: fused keeps no S x S probabilities.");
  lines.add("attention", name_of(dropout > 0 ? Attention::Unfused : Attention::Fused));
}

/// Adds the lines of the model's sizes and checks how long a sample may be.
void add_lines(ConfigReader& config, const BertSizes& sizes, const std::string& /*type*/, std::uint64_t sequence,
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

void add_lines(ConfigReader& config, const GptSizes& sizes, const std::string& /*type*/, std::uint64_t sequence,
               Lines& lines)
{
  config.demand_positions("n_positions", sizes.positions, sequence);
  lines.add("model", "gpt");
  lines.add("layers", sizes.layers);
  lines.add("hidden", sizes.hidden);
  lines.add("heads", sizes.heads);
  lines.add("intermediate", sizes.intermediate);
  lines.add("vocabulary", sizes.vocabulary);
  lines.add("positions", sizes.positions);
  add_dropout_and_attention(lines, read_dropout(config, {"resid_pdrop", "embd_pdrop", "attn_pdrop"}));
}

/// How far back the model's attention reaches; none: to the start.
std::optional<std::uint64_t> read_window(ConfigReader& config, const std::string& type)
{
  const bool is_qwen = type == "qwen2" || type == "qwen3";
  if (type == "llama" || (is_qwen && !config.boolean("use_sliding_window", false))) return std::nullopt;
  if (config.has_value("sliding_window")) return config.count("sliding_window", longest_sequence);
  // transformers' default applies to a missing key; null means no window.
  return config.has("sliding_window") ? std::nullopt : llama_defaults(type).window;
}

/// Adds comments on differences between the workload and the model.
void add_differences(ConfigReader& config, const LlamaSizes& sizes, const std::string& type, Lines& lines)
{
  const auto rope = rope_type_of(config);
  if (rope != "default") {
    lines.comment(fmt::format("The model scales rotary positions ({}); the executor does not.", shown(rope)));
  }
  const std::uint64_t width = sizes.hidden / sizes.heads;
  if (type == "qwen2") {
    lines.comment(fmt::format("Left out: biases of queries, keys and values, {} parameters.",
                              sizes.layers * (sizes.hidden + 2 * width * sizes.kv_heads)));
  }
  if (type == "qwen3") {
    lines.comment(
        fmt::format("Left out: normalisations of queries and keys, {} parameters.", sizes.layers * 2 * width));
  }
}

void add_lines(ConfigReader& config, const LlamaSizes& sizes, const std::string& type, std::uint64_t sequence,
               Lines& lines)
{
  config.demand_positions("max_position_embeddings",
                          config.count("max_position_embeddings", longest_sequence, llama_defaults(type).positions),
                          sequence);
  if (const auto window = read_window(config, type)) config.demand_positions("sliding_window", *window, sequence);
  add_differences(config, sizes, type, lines);
  config.demand_number("attention_dropout", 0, 0);
  lines.add("model", "llama");
  lines.add("layers", sizes.layers);
  lines.add("hidden", sizes.hidden);
  lines.add("heads", sizes.heads);
  lines.add("kv_heads", sizes.kv_heads);
  lines.add("intermediate", sizes.intermediate);
  lines.add("vocabulary", sizes.vocabulary);
  lines.add("rope_theta", sizes.rope_theta);
  lines.add("norm_epsilon", sizes.norm_epsilon);
  lines.add("attention", name_of(Attention::Fused));
}

template <typename Sizes>
void add_lines(ConfigReader& /*config*/, const Sizes& /*sizes*/, const std::string& /*type*/,
               std::uint64_t /*sequence*/, Lines& /*lines*/)
{
  throw std::logic_error("no reader for the configuration of this model");
}

DType read_dtype(ConfigReader& config)
{
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

}  // namespace

HuggingFaceSizes sizes_from_huggingface(const std::string& text, const std::string& name)
{
  const DocumentNode document = parse_json(text, name);
  FaultList faults(name);
  ConfigReader config(document, faults);
  auto model = read_model(config, faults, Use::Weights);
  faults.throw_if_any();
  return model.sizes;
}

std::string workload_from_huggingface(const std::string& text, const std::string& name, const HuggingFaceImport& import)
{
  const DocumentNode document = parse_json(text, name);
  FaultList faults(name);
  ConfigReader config(document, faults);
  const auto [type, model] = read_model(config, faults, Use::Costs);
  Lines lines;
  lines.comment(fmt::format("Converted from {}, model_type {} of Hugging Face's transformers.",
                            shown(std::filesystem::path(name).filename().string()), type));
  if (model.tied) {
    const bool may_be_tied = std::holds_alternative<GptSizes>(model.sizes);
    lines.comment(fmt::format("In the model, head and embedding share one matrix; here each has its own.{}",
                              may_be_tied ? " With tied: true they share it, on one device." : ""));
  }
  lines.comment("A configuration has no optimizer and no learning_rate (default 0.01): choose your own.");
  std::visit(
      [&, model_type = type](const auto& sizes) { add_lines(config, sizes, model_type, import.sequence, lines); },
      model.sizes);
  const DType dtype = import.dtype ? *import.dtype : read_dtype(config);
  faults.throw_if_any();

  lines.add("micro_batch", import.micro_batch);
  lines.add("sequence", import.sequence);
  lines.add("dtype", name_of(dtype));
  lines.add("optimizer", name_of(import.optimizer));
  return lines.text();
}

}  // namespace isobar
