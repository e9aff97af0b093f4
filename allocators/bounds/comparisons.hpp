#pragma once

#include <limits>

namespace isobar::allocators {

/// Relative difference below which times and objectives are equal: their sums are taken in different orders.
inline constexpr double tolerance = 1e-9;

inline constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace isobar::allocators
