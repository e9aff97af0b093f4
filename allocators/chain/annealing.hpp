#pragma once

#include <cstdint>

namespace isobar::allocators {

/// What the annealings of objectives and of steps share.
inline constexpr std::uint64_t moves_between_looks = 128;  ///< at the clock
inline constexpr double cold_temperature = 1e-6;           ///< of the objective, at the end of a cycle
inline constexpr double aimed_fraction = 0.2;              ///< of the moves, at a stage of largest cost

}  // namespace isobar::allocators
