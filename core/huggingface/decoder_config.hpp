#pragma once

#include "core/huggingface/config_reader.hpp"
#include "core/model/decoder/decoder_sizes.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar::huggingface {

/// A decoder that a configuration describes.
struct DecoderConfig {
  DecoderSizes sizes;
  bool tied = false;                            ///< the head uses the embedding's matrix
  std::string positions_key;                    ///< of the longest sequence; "": there is none
  std::optional<std::uint64_t> positions = {};  ///< the longest sequence
  std::uint64_t predicts_further = 0;           ///< blocks of multi-token prediction, which transformers does not build
};

/// The model_types that read_decoder reads, ascending.
std::vector<std::string> decoder_types();

/// Reads the sizes of a decoder, with transformers' defaults for missing keys. Faults and differences go to the reader.
/// Source: transformers 5.24.0, src/transformers/models/*/configuration_*.py and modeling_*.py. `type` is one of
/// decoder_types().
DecoderConfig read_decoder(ConfigReader& config, const std::string& type);

}  // namespace isobar::huggingface
