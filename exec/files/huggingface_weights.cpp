#include "exec/files/huggingface_weights.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/huggingface/config.hpp"
#include "core/model/decoder/decoder_file.hpp"
#include "exec/files/huggingface_decoders.hpp"
#include "exec/files/open_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

namespace isobar::exec {

namespace {

using Shape = std::vector<std::uint64_t>;

static_assert(std::endian::native == std::endian::little, "elements are copied from little-endian files as they are");

/// The parameters of one layer, in the order of exec/layers_*.cpp.
class SourceList {
 public:
  void add(const std::string& ours, const Shape& shape, std::vector<std::string> theirs)
  {
    sources_.push_back({.ours = ours, .shape = shape, .theirs = std::move(theirs)});
  }

  void add_linear(const std::string& ours, std::uint64_t from, std::uint64_t to, const std::string& theirs)
  {
    add(ours + ".weight", {to, from}, {theirs + ".weight"});
    add(ours + ".bias", {to}, {theirs + ".bias"});
  }

  /// GPT-2's Conv1D stores its matrix as [from, to].
  void add_transposed_linear(const std::string& ours, std::uint64_t from, std::uint64_t to, const std::string& theirs)
  {
    add(ours + ".weight", {to, from}, {theirs + ".weight"});
    sources_.back().transposed = true;
    add(ours + ".bias", {to}, {theirs + ".bias"});
  }

  /// Weights converted from TensorFlow name the two gamma and beta.
  void add_layer_norm(const std::string& ours, std::uint64_t width, const std::string& theirs)
  {
    add(ours + ".weight", {width}, {theirs + ".weight", theirs + ".gamma"});
    add(ours + ".bias", {width}, {theirs + ".bias", theirs + ".beta"});
  }

  /// Marks all parameters as those of a task's head.
  void may_be_new()
  {
    for (auto& source : sources_) source.is_new = true;
  }

  std::vector<WeightSource> take() { return std::move(sources_); }

 private:
  std::vector<WeightSource> sources_;
};

void add_sources(SourceList& list, std::size_t layer, const BertSizes& sizes)
{
  const auto hidden = sizes.hidden;
  const std::uint64_t after_encoders = 3 * sizes.encoders + 1;
  if (layer == 0) {
    const std::string prefix = "bert.embeddings.";
    list.add("words", {sizes.vocabulary, hidden}, {prefix + "word_embeddings.weight"});
    list.add("positions", {sizes.positions, hidden}, {prefix + "position_embeddings.weight"});
    list.add("segments", {2, hidden}, {prefix + "token_type_embeddings.weight"});
    list.add_layer_norm("norm", hidden, prefix + "LayerNorm");
  } else if (layer == after_encoders) {
    list.add_linear("pool", hidden, hidden, "bert.pooler.dense");
  } else if (layer > after_encoders) {
    list.add_linear("classes", hidden, sizes.classes, "classifier");
    list.may_be_new();
  } else {
    const auto prefix = fmt::format("bert.encoder.layer.{}.", (layer - 1) / 3);
    switch ((layer - 1) % 3) {
      case 0:
        for (const auto* part : {"query", "key", "value"}) {
          list.add_linear(part, hidden, hidden, prefix + "attention.self." + part);
        }
        list.add_linear("output", hidden, hidden, prefix + "attention.output.dense");
        list.add_layer_norm("norm", hidden, prefix + "attention.output.LayerNorm");
        break;
      case 1:
        list.add_linear("up", hidden, sizes.intermediate, prefix + "intermediate.dense");
        break;
      default:
        list.add_linear("down", sizes.intermediate, hidden, prefix + "output.dense");
        list.add_layer_norm("norm", hidden, prefix + "output.LayerNorm");
    }
  }
}

bool has_attention(DecoderLayer::Kind kind)
{
  return kind == DecoderLayer::Kind::Block || kind == DecoderLayer::Kind::Attention;
}

bool has_feed_forward(DecoderLayer::Kind kind)
{
  return kind == DecoderLayer::Kind::Block || kind == DecoderLayer::Kind::FeedForward;
}

void add_sources(SourceList& list, std::size_t layer, const GptSizes& sizes)
{
  const auto hidden = sizes.hidden;
  const std::string words = "transformer.wte.weight";
  const auto [kind, block] = decoder_layer(layer, sizes.layers, sizes.unit);
  if (kind == DecoderLayer::Kind::Embedding) {
    list.add("words", {sizes.vocabulary, hidden}, {words});
    list.add("positions", {sizes.positions, hidden}, {"transformer.wpe.weight"});
  } else if (kind == DecoderLayer::Kind::Head) {
    list.add_layer_norm("norm", hidden, "transformer.ln_f");
    if (!sizes.tied) list.add("words.weight", {sizes.vocabulary, hidden}, {"lm_head.weight", words});
  }
  const auto prefix = fmt::format("transformer.h.{}.", block);
  if (has_attention(kind)) {
    list.add_layer_norm("attention_norm", hidden, prefix + "ln_1");
    list.add_transposed_linear("query_key_value", hidden, 3 * hidden, prefix + "attn.c_attn");
    list.add_transposed_linear("output", hidden, hidden, prefix + "attn.c_proj");
  }
  if (has_feed_forward(kind)) {
    list.add_layer_norm("feed_forward_norm", hidden, prefix + "ln_2");
    list.add_transposed_linear("up", hidden, sizes.intermediate, prefix + "mlp.c_fc");
    list.add_transposed_linear("down", sizes.intermediate, hidden, prefix + "mlp.c_proj");
  }
}

/// Ours and theirs both rotate elements i and i + width/2 of a head (rotate_half), so no permutation is needed.
void add_sources(SourceList& list, std::size_t layer, const LlamaSizes& sizes)
{
  const auto hidden = sizes.hidden;
  const auto intermediate = sizes.intermediate;
  const std::string words = "model.embed_tokens.weight";
  const auto [kind, block] = decoder_layer(layer, sizes.layers, sizes.unit);
  if (kind == DecoderLayer::Kind::Embedding) {
    list.add("words", {sizes.vocabulary, hidden}, {words});
  } else if (kind == DecoderLayer::Kind::Head) {
    list.add("norm", {hidden}, {"model.norm.weight"});
    list.add("words.weight", {sizes.vocabulary, hidden}, {"lm_head.weight", words});
  }
  const auto prefix = fmt::format("model.layers.{}.", block);
  if (has_attention(kind)) {
    const auto kv_width = hidden / sizes.heads * sizes.kv_heads;
    list.add("attention_norm", {hidden}, {prefix + "input_layernorm.weight"});
    list.add("query.weight", {hidden, hidden}, {prefix + "self_attn.q_proj.weight"});
    list.add("key.weight", {kv_width, hidden}, {prefix + "self_attn.k_proj.weight"});
    list.add("value.weight", {kv_width, hidden}, {prefix + "self_attn.v_proj.weight"});
    list.add("output.weight", {hidden, hidden}, {prefix + "self_attn.o_proj.weight"});
  }
  if (has_feed_forward(kind)) {
    list.add("feed_forward_norm", {hidden}, {prefix + "post_attention_layernorm.weight"});
    list.add("gate.weight", {intermediate, hidden}, {prefix + "mlp.gate_proj.weight"});
    list.add("up.weight", {intermediate, hidden}, {prefix + "mlp.up_proj.weight"});
    list.add("down.weight", {hidden, intermediate}, {prefix + "mlp.down_proj.weight"});
  }
}

/// Old files, and those of models without a head, lack the prefix that names the model's body.
std::string_view without_prefix(std::string_view name)
{
  for (const std::string_view prefix : {"bert.", "transformer.", "model."}) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

/// The upper half of a float32.
float from_bf16(std::uint16_t bits)
{
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// IEEE 754 binary16: 5 bits of exponent, 10 of fraction.
float from_f16(std::uint16_t bits)
{
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = bits >> 10 & 0x1f;
  const std::uint32_t fraction = bits & 0x3ff;
  if (exponent == 0) {  // zero and subnormal numbers: fraction · 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t widened = exponent == 0x1f ? 0xff : exponent + 127 - 15;
  return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
}

template <typename Stored>
Stored stored_at(std::span<const std::byte> bytes, std::size_t index)
{
  Stored value;
  std::memcpy(&value, bytes.data() + index * sizeof(Stored), sizeof(Stored));
  return value;
}

bool is_readable(ElementType type)
{
  constexpr std::array readable = {ElementType::F32, ElementType::F16, ElementType::BF16, ElementType::F64};
  return std::find(readable.begin(), readable.end(), type) != readable.end();
}

float element_at(const StoredTensor& tensor, std::size_t index)
{
  switch (tensor.facts.type) {
    case ElementType::F64:
      return static_cast<float>(stored_at<double>(tensor.data, index));
    case ElementType::F16:
      return from_f16(stored_at<std::uint16_t>(tensor.data, index));
    case ElementType::BF16:
      return from_bf16(stored_at<std::uint16_t>(tensor.data, index));
    default:
      return stored_at<float>(tensor.data, index);
  }
}

Shape their_shape(const WeightSource& source)
{
  return source.transposed ? Shape{source.shape[1], source.shape[0]} : source.shape;
}

/// The name of the tensor that holds the parameter; "" when it is missing and the parameter may be new.
std::string fitting_name(const TensorSource& weights, const WeightSource& source)
{
  auto name = name_in(weights, source);
  if (name.empty() && source.is_new) return name;
  if (name.empty()) throw InputError(weights.where(), fmt::format("has no tensor {}", source.theirs.front()));
  const TensorFacts& facts = weights.facts(name);
  if (facts.shape != their_shape(source)) {
    throw InputError(weights.where(), fmt::format("tensor {} is {}; the workload's model has {}", in_quotes(name),
                                                  shape_in_words(facts.shape), shape_in_words(their_shape(source))));
  }
  if (!is_readable(facts.type)) {
    throw InputError(weights.where(), fmt::format("tensor {} is {}; weights must be F32, F16, BF16 or F64",
                                                  in_quotes(name), name_of(facts.type)));
  }
  return name;
}

/// Properties of a model that the shapes of its tensors do not show, by the workload's keys.
using OtherProperties = std::map<std::string, std::string>;

OtherProperties other_properties(const BertSizes& sizes, std::uint64_t /*sequence*/)
{
  return {{"heads", fmt::to_string(sizes.heads)}};
}

OtherProperties other_properties(const GptSizes& sizes, std::uint64_t /*sequence*/)
{
  return {{"heads", fmt::to_string(sizes.heads)}};
}

OtherProperties other_properties(const LlamaSizes& sizes, std::uint64_t /*sequence*/)
{
  OtherProperties properties = {{"heads", fmt::to_string(sizes.heads)},
                                {"kv_heads", fmt::to_string(sizes.kv_heads)},
                                {"rope_theta", fmt::format("{}", sizes.rope_theta)},
                                {"norm_epsilon", fmt::format("{}", sizes.norm_epsilon)}};
  for (auto& [key, value] : decoder::keys_of(sizes.rope_scaling)) properties[key] = std::move(value);
  return properties;
}

/// All keys but those of the sizes of tensors. A window that reaches to the begin of each sample is none.
OtherProperties other_properties(DecoderSizes sizes, std::uint64_t sequence)
{
  if (sizes.window >= sequence && sizes.window_rope_theta == sizes.rope_theta) {
    for (auto& block : sizes.blocks) {
      if (block.mixer == Mixer::Window) block.mixer = Mixer::Full;
    }
    sizes.window = 0;
  }
  OtherProperties properties;
  for (auto& [key, value] : decoder::keys_of(sizes)) properties[key] = std::move(value);
  for (const char* key : {"layers", "hidden", "vocabulary", "intermediate", "expert_intermediate"})
    properties.erase(key);
  return properties;
}

template <typename Sizes>
OtherProperties other_properties(const Sizes& /*no model of Hugging Face's*/, std::uint64_t /*sequence*/)
{
  return {};
}

void compare_sizes(const ModelSizes& theirs, const Workload& workload, const std::string& where)
{
  if (theirs.index() != workload.model.index()) {
    throw InputError(where, "is for another kind of model than the workload's");
  }
  const auto properties = [&](const ModelSizes& model) {
    return std::visit([&](const auto& sizes) { return other_properties(sizes, workload.sequence); }, model);
  };
  const OtherProperties found = properties(theirs), expected = properties(workload.model);
  std::set<std::string> keys;
  for (const auto* all : {&found, &expected}) {
    for (const auto& [key, value] : *all) keys.insert(key);
  }
  const auto value_of = [](const OtherProperties& all, const std::string& key) {
    const auto at = all.find(key);
    return at == all.end() ? std::string("none") : at->second;
  };
  std::vector<std::string> different;
  for (const auto& key : keys) {
    const std::string value = value_of(found, key), ours = value_of(expected, key);
    if (value != ours) different.push_back(fmt::format("{} {}, not {}", key, value, ours));
  }
  if (!different.empty()) {
    throw InputError(where, fmt::format("is for another model than the workload's: {}", fmt::join(different, "; ")));
  }
}

/// Whether the workload's head uses the embedding's matrix.
bool is_tied(const Workload& workload)
{
  return workload.layers.back().tied_to.has_value();
}

/// The name of the tensor of a decoder's head, which may be that of the embedding.
std::string name_of_head(const Workload& workload, const Weights& weights)
{
  WeightSource head = weight_sources(workload, 0).front();
  head.theirs.insert(head.theirs.begin(), "lm_head.weight");
  return fitting_name(weights, head);
}

/// Checks that head and embedding are tied if and only if the configuration ties them, and that the files of a tied
/// workload have one matrix. Files hold a tied matrix once or twice. `tied`: none without a configuration.
void compare_head(const Workload& workload, const Weights& weights, std::optional<bool> tied, const std::string& where)
{
  const auto embedding = fitting_name(weights, weight_sources(workload, 0).front());
  const auto head = name_of_head(workload, weights);
  if (tied == false && is_tied(workload)) {
    throw InputError(where,
                     "says that head and embedding are not tied (tie_word_embeddings), and the workload has "
                     "tied: true; leave that out");
  }
  if (tied == false && head == embedding) {
    throw InputError(weights.where(), fmt::format("has no tensor lm_head.weight, but {} says that head and embedding "
                                                  "are not tied (tie_word_embeddings)",
                                                  where));
  }
  if (!tied.value_or(is_tied(workload)) || head == embedding) return;
  if (weights.read(head).data == weights.read(embedding).data) return;
  throw InputError(
      weights.where(),
      fmt::format("tensors {} and {} differ, but {} that they are tied ({})", in_quotes(head), in_quotes(embedding),
                  tied ? where + " says" : "the workload says", tied ? "tie_word_embeddings" : "tied: true"));
}

/// Whether a tensor is not part of the model: buffers that transformers once wrote, and BERT's pre-training heads.
/// Source: transformers, src/transformers/models/{bert,gpt2,llama,mistral}/modeling_*.py, 4.0 to 4.57.
bool is_ignored(const ModelSizes& model, std::string_view name)
{
  const std::string_view body = without_prefix(name);
  if (std::holds_alternative<BertSizes>(model)) {
    return body == "embeddings.position_ids" || body == "embeddings.token_type_ids" || name.starts_with("cls.");
  }
  if (std::holds_alternative<GptSizes>(model)) {
    return body.starts_with("h.") && (body.ends_with(".attn.bias") || body.ends_with(".attn.masked_bias"));
  }
  return body.ends_with("rotary_emb.inv_freq");
}

void refuse_others(const Weights& weights, const std::set<std::string>& used, const ModelSizes& model)
{
  constexpr std::size_t most_shown = 3;
  std::vector<std::string> others;
  for (const auto& name : weights.names()) {
    if (!used.contains(name) && !is_ignored(model, name)) others.push_back(in_quotes(name));
  }
  if (others.empty()) return;
  const auto first = std::span(others).first(std::min(others.size(), most_shown));
  throw InputError(weights.where(), fmt::format("has {} tensor{} that the workload's model does not have: {}{}",
                                                others.size(), others.size() == 1 ? "" : "s", fmt::join(first, ", "),
                                                others.size() > most_shown ? ", …" : ""));
}

}  // namespace

std::vector<WeightSource> weight_sources(const Workload& workload, std::size_t layer)
{
  ensure(layer < workload.layers.size(), "a layer of the workload");
  SourceList list;
  if (const auto* bert = std::get_if<BertSizes>(&workload.model)) {
    add_sources(list, layer, *bert);
  } else if (const auto* gpt = std::get_if<GptSizes>(&workload.model)) {
    add_sources(list, layer, *gpt);
  } else if (const auto* llama = std::get_if<LlamaSizes>(&workload.model)) {
    add_sources(list, layer, *llama);
  } else if (const auto* decoder = std::get_if<DecoderSizes>(&workload.model)) {
    const auto type = decoder_type_of(*decoder);
    if (!type) {
      throw InputError(fmt::format("workload {}", shown(workload.name)),
                       fmt::format("none of transformers' models whose weights isobar knows has these layers: {}",
                                   fmt::join(decoder_type_names(), ", ")));
    }
    return decoder_sources(*decoder, *type, layer);
  } else {
    throw InputError(fmt::format("workload {}", shown(workload.name)),
                     "its model cannot use weights of Hugging Face models; only bert, gpt, llama and decoder can");
  }
  return list.take();
}

std::vector<WeightSource> pieces_of(const WeightSource& source)
{
  if (source.stacked.empty()) return {source};
  std::vector<WeightSource> pieces;
  Shape shape = source.shape;
  shape.front() /= source.stacked.size();
  for (const auto& name : source.stacked) pieces.push_back({.ours = source.ours, .shape = shape, .theirs = {name}});
  return pieces;
}

std::string name_in(const TensorSource& weights, const WeightSource& source)
{
  for (const auto& name : source.theirs) {
    for (const auto& candidate : {name, std::string(without_prefix(name))}) {
      if (weights.find(candidate)) return candidate;
    }
  }
  return "";
}

namespace {

bool read_piece(const TensorSource& weights, const WeightSource& source, std::span<float> into)
{
  const auto name = fitting_name(weights, source);
  if (name.empty()) return false;
  const auto tensor = weights.read(name);
  ensure(into.size() * size_of(tensor.facts.type) == tensor.data.size(), "a weight has room for its elements");
  if (!source.transposed) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = element_at(tensor, i);
    return true;
  }
  const std::size_t rows = source.shape[0];
  const std::size_t columns = source.shape[1];
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      into[row * columns + column] = element_at(tensor, column * rows + row);
    }
  }
  return true;
}

}  // namespace

bool read_weight(const TensorSource& weights, const WeightSource& source, std::span<float> into)
{
  const auto pieces = pieces_of(source);
  const std::size_t size = into.size() / pieces.size();
  bool is_there = true;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    is_there = read_piece(weights, pieces[i], into.subspan(i * size, size)) && is_there;
  }
  return is_there;
}

void check_weights(const Workload& workload, const Weights& weights)
{
  const auto file = weights.config_file();
  const std::string where = shown_path(file);
  std::optional<HuggingFaceSizes> config;
  std::error_code ignored;
  const bool is_decoder = std::holds_alternative<DecoderSizes>(workload.model);
  if (std::filesystem::exists(file, ignored)) {
    config = sizes_from_huggingface(read_file(file), file.string(), is_decoder);
  }
  if (config) compare_sizes(config->sizes, workload, where);
  if (config && config->window && workload.sequence > *config->window) {
    throw InputError(where, fmt::format("sliding_window: {} is less than the workload's sequence of {}, all of which "
                                        "Isobar's attention reaches; write a shorter sequence",
                                        *config->window, workload.sequence));
  }
  std::set<std::string> used;
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    for (const auto& source : weight_sources(workload, layer)) {
      for (const auto& piece : pieces_of(source)) used.insert(fitting_name(weights, piece));
    }
  }
  const bool has_head = !std::holds_alternative<BertSizes>(workload.model);
  if (has_head) used.insert(name_of_head(workload, weights));
  refuse_others(weights, used, workload.model);
  if (has_head) compare_head(workload, weights, config ? std::optional(config->tied) : std::nullopt, where);
}

}  // namespace isobar::exec
