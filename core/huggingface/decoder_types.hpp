#pragma once

#include "core/huggingface/decoder_reader.hpp"

#include <span>
#include <string_view>

/// How decoders read their configurations, a function for each model_type. Internal to core/huggingface.
/// Source: transformers 5.24.0, src/transformers/models/*/configuration_*.py and modeling_*.py.
namespace isobar::huggingface {

/// A model_type and its reader.
struct DecoderType {
  std::string_view name;
  void (*read)(DecoderReader&);
};

/// Decoders whose layers have one network each, ascending.
std::span<const DecoderType> dense_types();
/// Mixtures of experts, and hybrids of attention and recurrences, ascending.
std::span<const DecoderType> mixture_types();

}  // namespace isobar::huggingface
