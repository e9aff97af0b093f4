#include "exec/files/huggingface_export.hpp"

#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/files/huggingface_decoders.hpp"
#include "exec/files/huggingface_weights.hpp"
#include "exec/files/open_file.hpp"
#include "exec/files/safetensors.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <map>
#include <system_error>
#include <utility>
#include <variant>

namespace isobar::exec {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// A tensor of the exported model and the parameter that it comes from.
struct Exported {
  TensorFacts facts;
  std::string from;  ///< the parameter's name in the checkpoint
  bool transposed;
  std::size_t piece;  ///< which of equal parts of the parameter, one below the other
};

Json config_of(const Workload& workload, const BertSizes& sizes)
{
  Json labels = Json::object();
  Json indices = Json::object();
  for (std::uint64_t i = 0; i < sizes.classes; ++i) {
    const auto label = fmt::format("LABEL_{}", i);
    labels[fmt::to_string(i)] = label;
    indices[label] = i;
  }
  return {{"architectures", {"BertForSequenceClassification"}},
          {"model_type", "bert"},
          {"hidden_size", sizes.hidden},
          {"num_hidden_layers", sizes.encoders},
          {"num_attention_heads", sizes.heads},
          {"intermediate_size", sizes.intermediate},
          {"vocab_size", sizes.vocabulary},
          {"max_position_embeddings", sizes.positions},
          {"type_vocab_size", 2},
          {"hidden_act", "gelu"},
          {"layer_norm_eps", 1e-12},
          {"hidden_dropout_prob", workload.training.dropout},
          {"attention_probs_dropout_prob", workload.training.dropout},
          {"id2label", std::move(labels)},
          {"label2id", std::move(indices)}};
}

Json config_of(const Workload& workload, const GptSizes& sizes)
{
  return {{"architectures", {"GPT2LMHeadModel"}},
          {"model_type", "gpt2"},
          {"n_embd", sizes.hidden},
          {"n_layer", sizes.layers},
          {"n_head", sizes.heads},
          {"n_inner", sizes.intermediate},
          {"n_positions", sizes.positions},
          {"vocab_size", sizes.vocabulary},
          {"activation_function", "gelu_new"},
          {"layer_norm_epsilon", 1e-5},
          {"embd_pdrop", workload.training.dropout},
          {"attn_pdrop", workload.training.dropout},
          {"resid_pdrop", workload.training.dropout}};
}

Json config_of(const Workload& workload, const DecoderSizes& sizes)
{
  Json config = Json::object();
  // weight_sources() has refused other decoders.
  for (const auto& [key, value] : decoder_config(sizes, decoder_type_of(sizes).value(), workload.sequence)) {
    config[key] = Json::parse(value);
  }
  return config;
}

Json config_of(const Workload& workload, const LlamaSizes& sizes)
{
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", sizes.hidden},
          {"num_hidden_layers", sizes.layers},
          {"num_attention_heads", sizes.heads},
          {"num_key_value_heads", sizes.kv_heads},
          {"intermediate_size", sizes.intermediate},
          {"vocab_size", sizes.vocabulary},
          {"max_position_embeddings", workload.sequence},
          {"hidden_act", "silu"},
          {"rms_norm_eps", sizes.norm_epsilon},
          {"rope_theta", sizes.rope_theta},
          {"rope_scaling", Json::parse(rope_scaling_config(sizes.rope_scaling))}};
}

template <typename Sizes>
Json config_of(const Workload& /*workload*/, const Sizes& /*sizes*/)
{
  return {};  // not reached: weight_sources() refuses these models
}

std::string config_text(const Workload& workload)
{
  auto config = std::visit([&](const auto& sizes) { return config_of(workload, sizes); }, workload.model);
  config["tie_word_embeddings"] = workload.layers.back().tied_to.has_value();
  config["torch_dtype"] = "float32";
  return config.dump(2) + '\n';
}

/// Every parameter of the workload: its name in the checkpoint and its exported form.
std::vector<Exported> tensors_of(const Workload& workload, const TensorSource& checkpoint)
{
  std::vector<Exported> tensors;
  for (std::size_t layer = 0; layer < workload.layers.size(); ++layer) {
    for (const auto& source : weight_sources(workload, layer)) {
      const auto from = checkpoint_name(layer, source.ours);
      const TensorFacts& facts = checkpoint.facts(from);
      if (facts.type != ElementType::F32 || facts.shape != source.shape) {
        throw InputError(checkpoint.where(),
                         fmt::format("tensor {} is {} {}; the workload's model has F32 {}", in_quotes(from),
                                     name_of(facts.type), shape_in_words(facts.shape), shape_in_words(source.shape)));
      }
      const auto pieces = pieces_of(source);
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        auto shape = pieces[i].shape;
        if (source.transposed) std::swap(shape[0], shape[1]);
        tensors.push_back({{pieces[i].theirs.front(), ElementType::F32, std::move(shape)}, from, source.transposed, i});
      }
    }
  }
  return tensors;
}

/// Splits the tensors, in their order, into shards of at most `most` bytes; a larger tensor has a shard of its own.
std::vector<std::vector<Exported>> shards_of(std::vector<Exported> tensors, std::uint64_t most)
{
  std::vector<std::vector<Exported>> shards(1);
  std::uint64_t bytes = 0;
  for (auto& tensor : tensors) {
    const std::uint64_t more = tensor.facts.bytes();
    if (!shards.back().empty() && bytes + more > most) {
      shards.emplace_back();
      bytes = 0;
    }
    bytes += more;
    shards.back().push_back(std::move(tensor));
  }
  return shards;
}

/// The transpose of a float32 matrix with `rows` rows.
std::vector<std::byte> transposed(const std::vector<std::byte>& elements, std::size_t rows)
{
  constexpr std::size_t width = 4;
  const std::size_t columns = rows == 0 ? 0 : elements.size() / width / rows;
  std::vector<std::byte> turned(elements.size());
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      std::memcpy(&turned[(column * rows + row) * width], &elements[(row * columns + column) * width], width);
    }
  }
  return turned;
}

void write_shard(const fs::path& file, const std::vector<Exported>& shard, const TensorSource& checkpoint)
{
  std::map<std::string, const Exported*> by_name;
  std::vector<TensorFacts> facts;
  for (const auto& tensor : shard) {
    by_name[tensor.facts.name] = &tensor;
    facts.push_back(tensor.facts);
  }
  std::map<std::string, std::vector<std::byte>> read;  // parameters, for the experts of a layer together
  const auto give = [&](const TensorFacts& wanted) {
    const Exported& tensor = *by_name.at(wanted.name);
    const bool is_piece = tensor.facts.bytes() < checkpoint.facts(tensor.from).bytes();
    constexpr std::size_t stacks_of_layer = 3;
    if (!read.contains(tensor.from) && (!is_piece || read.size() >= stacks_of_layer)) read.clear();
    auto& elements = read[tensor.from];
    if (elements.empty()) elements = checkpoint.read(tensor.from).data;
    if (tensor.transposed) elements = transposed(elements, tensor.facts.shape[1]);
    const std::size_t bytes = tensor.facts.bytes();
    return std::span<const std::byte>(elements).subspan(tensor.piece * bytes, bytes);
  };
  // transformers refuses files whose metadata names no framework.
  write_safetensors(file, std::move(facts), {{"format", "pt"}}, give);
}

void make_new_folder(const fs::path& folder)
{
  std::error_code fault;
  fs::create_directories(folder, fault);
  const bool is_new = !fault && fs::is_empty(folder, fault) && !fault;
  if (is_new) return;
  const std::string where = shown_path(folder);
  if (!fault) throw InputError(where, "is not empty; name a new folder");
  if (fs::exists(folder)) throw InputError(where, "is not a folder; name a new one");
  throw EnvironmentError(where + ": " + fault.message());
}

}  // namespace

HuggingFaceModel export_to_huggingface(const Workload& workload, const TensorSource& checkpoint, const fs::path& folder,
                                       std::uint64_t max_shard_bytes)
{
  const auto shards = shards_of(tensors_of(workload, checkpoint), max_shard_bytes);
  make_new_folder(folder);
  Json weight_map = Json::object();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const auto name = shards.size() == 1 ? std::string("model.safetensors")
                                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_shard(folder / name, shards[i], checkpoint);
    for (const auto& tensor : shards[i]) {
      weight_map[tensor.facts.name] = name;
      total += tensor.facts.bytes();
    }
  }
  if (shards.size() > 1) {
    const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(weight_map)}};
    write_file_atomically(folder / "model.safetensors.index.json", index.dump(2) + '\n');
  }
  write_file_atomically(folder / "config.json", config_text(workload));
  return {total / size_of(ElementType::F32), shards.size()};
}

}  // namespace isobar::exec
