#pragma once

#include <cstdint>
#include <initializer_list>

namespace isobar::exec {

/// One number from several, in their order: each is added and mixed as in splitmix64 (Steele, Lea and Flood, "Fast
/// splittable pseudorandom number generators", OOPSLA 2014). For seeds, not against anybody who wants two keys to meet.
std::uint64_t mixed(std::initializer_list<std::uint64_t> words);

}  // namespace isobar::exec
