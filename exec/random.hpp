#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

namespace at {
struct Generator;
}

namespace isobar::exec {

/// The first word of every key, so that no two uses draw the same numbers.
enum class Stream : std::uint64_t { Parameters, Dropout, Tokens, Segments, Lengths, Images, Classes };

/// One number from several, in their order: each is added and mixed as in splitmix64 (Steele, Lea and Flood, "Fast
/// splittable pseudorandom number generators", OOPSLA 2014). For seeds, not against anybody who wants two keys to meet.
std::uint64_t mixed(std::initializer_list<std::uint64_t> words);

/// A generator of `device` that draws what follows from stream and words alone; torch's global ones stay as they are.
at::Generator generator_for(Stream stream, std::initializer_list<std::uint64_t> words, const std::string& device);

}  // namespace isobar::exec
