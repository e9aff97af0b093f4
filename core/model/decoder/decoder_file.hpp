#pragma once

#include "core/model/decoder/decoder_sizes.hpp"
#include "core/text/document.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar::decoder {

/// Blocks of a decoder, at most: looking up a layer is linear in them.
inline constexpr std::uint64_t most_blocks_of_decoder = 10'000;

/// Reads the keys of `model: decoder` (docs/formats/workload.md) but attention, unit and tied, and adds a fault for
/// each that is wrong. `sequence` is the workload's.
DecoderSizes read_sizes(MappingReader& model, std::uint64_t sequence, const FaultList& faults);

/// The keys that make the sizes, with their values as YAML has them, in the order of the file: those whose value is not
/// the default. read_sizes is the inverse.
std::vector<std::pair<std::string, std::string>> keys_of(const DecoderSizes& sizes);

/// Reads how rotary positions are scaled, of model llama, too: keys rope_type, rope_factor and those of llama3. Adds a
/// fault for each that is wrong.
RopeScaling read_rope_scaling(MappingReader& model);
/// Its keys, as keys_of has them. read_rope_scaling is the inverse.
std::vector<std::pair<std::string, std::string>> keys_of(const RopeScaling& scaling);

/// The names of the parts of blocks as a list that repeats, the shortest that gives them: "[window*5, full]".
std::string pattern_of(const std::vector<std::string_view>& names);

}  // namespace isobar::decoder
