#pragma once

#include "core/model/dtype.hpp"
#include "core/model/model_sizes.hpp"
#include "core/model/workload.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// Properties of a workload that a model's configuration does not contain.
struct HuggingFaceImport {
  std::uint64_t sequence = 1;       ///< 1 to longest_sequence
  std::uint64_t micro_batch = 1;    ///< 1 to largest_micro_batch
  std::optional<DType> dtype = {};  ///< none: the configuration's, else float32
  Optimizer optimizer = Optimizer::AdamW;
};

/// What determines what a model computes with its weights.
struct HuggingFaceSizes {
  ModelSizes sizes;                          ///< of bert, gpt, llama or decoder
  bool tied = false;                         ///< decoders: the head uses the embedding's matrix
  std::optional<std::uint64_t> window = {};  ///< llama: how many tokens back attention reaches; none: to the start
};

/// Reads the sizes from a config.json of model_type bert, gpt2, llama, mistral, qwen2, qwen3, qwen3_moe, mixtral or
/// gemma2, for weights that Isobar's layers reproduce exactly. Settings that only affect training (dropout, the length
/// of a sample) may have any value.
/// @param as_decoder whether a llama and a mistral have DecoderSizes, as other decoders do, and not LlamaSizes
/// @throws InputError like workload_from_huggingface.
HuggingFaceSizes sizes_from_huggingface(const std::string& text, const std::string& name, bool as_decoder = false);

/// The types of models that workload_from_huggingface converts, ascending by model_type, each with the generator of the
/// workload: "bert" and "bert".
struct HuggingFaceType {
  std::string model_type;
  std::string model;
};
std::vector<HuggingFaceType> huggingface_types();

/// Converts a config.json of Hugging Face's transformers to a workload file (YAML, docs/formats/workload.md), of the
/// types that huggingface_types lists. Without model_type, `architectures` determines the type. Of a model with a
/// text_config, that part is converted alone. A llama or mistral that model llama computes is one; others are decoders.
///
/// Missing keys have transformers' defaults. Keys that do not change what is computed are ignored. A difference at the
/// same cost is listed in the file: with key `tied: apart`, a head that shares the embedding's matrix in the model;
/// with key `differences`, others, such as activation functions, biases or scaled rotary positions. A key that requires
/// something of another cost is a fault. Comments give the parameters of the workload and of the model.
/// @throws InputError "name:line: key: …" for each fault of `text`, JSON that `name` stands for in messages.
/// Source: transformers, src/transformers/models/*/configuration_*.py and configuration_utils.py.
std::string workload_from_huggingface(const std::string& text, const std::string& name,
                                      const HuggingFaceImport& import);

}  // namespace isobar
