#pragma once

#include <cstdint>
#include <initializer_list>

namespace isobar::exec {

/// Mixes several numbers into one; their order counts. Each is added and mixed as in splitmix64 (Steele, Lea and Flood,
/// "Fast splittable pseudorandom number generators", OOPSLA 2014). For seeds; not resistant to deliberate collisions.
std::uint64_t mixed(std::initializer_list<std::uint64_t> words);

}  // namespace isobar::exec
