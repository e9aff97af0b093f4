#pragma once

#include "core/model/dtype.hpp"
#include "core/model/model_sizes.hpp"
#include "core/model/workload.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace isobar {

/// What a model's configuration does not say.
struct HuggingFaceImport {
  std::uint64_t sequence = 1;       ///< 1 to longest_sequence
  std::uint64_t micro_batch = 1;    ///< 1 to largest_micro_batch
  std::optional<DType> dtype = {};  ///< default: the configuration's, else float32
  Optimizer optimizer = Optimizer::AdamW;
};

/// What a model computes with its weights.
struct HuggingFaceSizes {
  ModelSizes sizes;   ///< of bert, gpt or llama
  bool tied = false;  ///< gpt, llama: the head's matrix is the embedding's
};

/// The sizes of a config.json of model_type bert, gpt2 or llama, for weights that a layer of ours computes with
/// exactly. What training alone takes (dropout, the length of a sample) may be anything.
/// @throws InputError as below.
HuggingFaceSizes sizes_from_huggingface(const std::string& text, const std::string& name);

/// Makes the workload file (YAML, docs/formats.md) of a model that Hugging Face's transformers describes by a
/// config.json of model_type bert (with its classifier), gpt2, llama, mistral, qwen2 or qwen3 (the dense ones). A
/// configuration without model_type is of the type that its `architectures` name.
///
/// Keys that do not change what is computed are passed over; a key that asks for something that our layers do not
/// compute is a fault. Keys that may be missing have transformers' defaults. Comments say where ours is not the model:
/// tied matrices, scaled rotary positions, biases or normalisations of Qwen's attention.
/// @throws InputError "name:line: key: …" for each fault of `text`, JSON that `name` stands for in messages.
/// Source: transformers, src/transformers/models/{bert,gpt2,llama,mistral,qwen2,qwen3}/configuration_*.py and
/// configuration_utils.py.
std::string workload_from_huggingface(const std::string& text, const std::string& name,
                                      const HuggingFaceImport& import);

}  // namespace isobar
