#pragma once

#include "core/model/decoder/decoder_sizes.hpp"
#include "exec/files/huggingface_weights.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Decoders of transformers that Isobar's layers reproduce exactly. Works on bytes, without LibTorch.
/// Source: transformers 4.57.6, src/transformers/models/{llama,mistral,qwen2,qwen3,qwen3_moe,mixtral,gemma2}.
namespace isobar::exec {

/// A model_type of transformers.
enum class DecoderType { Llama, Mistral, Qwen2, Qwen3, Qwen3Moe, Mixtral, Gemma2 };
/// The names of all: "llama, mistral, …".
std::vector<std::string> decoder_type_names();

/// The type whose layers compute what a decoder's do; none if there is none.
std::optional<DecoderType> decoder_type_of(const DecoderSizes& sizes);

/// The sources of the parameters of layer `layer`, as weight_sources has them.
std::vector<WeightSource> decoder_sources(const DecoderSizes& sizes, DecoderType type, std::size_t layer);

/// A value of a configuration: a text, a number, a whole number or a truth value, in JSON.
using ConfigEntries = std::vector<std::pair<std::string, std::string>>;
/// The entries of a config.json, whose values are JSON.
/// @param positions the longest sequence
ConfigEntries decoder_config(const DecoderSizes& sizes, DecoderType type, std::uint64_t positions);

/// The value of rope_scaling in a config.json: null if positions are not scaled.
std::string rope_scaling_config(const RopeScaling& scaling);

}  // namespace isobar::exec
