#pragma once

#include "exec/data/mixing.hpp"

#include <cstdint>
#include <initializer_list>
#include <string>

namespace at {
struct Generator;
}

namespace isobar::exec {

/// First word of every key, so that no two uses draw the same numbers.
enum class RandomStream : std::uint64_t { Parameters, Dropout, Tokens, Segments, Lengths, Images, Classes, States };

/// Makes a generator on `device` whose numbers depend on stream and words only. Leaves torch's global generators alone.
at::Generator generator_for(RandomStream stream, std::initializer_list<std::uint64_t> words, const std::string& device);

}  // namespace isobar::exec
