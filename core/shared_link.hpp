#pragma once

#include "core/units.hpp"

#include <cstddef>
#include <string_view>

namespace isobar {

/// A link on the way of a transfer, at which it may meet others.
struct SharedLink {
  std::string_view name;  ///< the network's own text
  BytesPerSecond bandwidth;
  double passes = 1;         ///< how often it carries each byte
  bool is_fat_pipe = false;  ///< each transfer may have its whole bandwidth; else they share it
  std::size_t sharer = 0;    ///< transfers meet at links of the same name and sharer

  bool is_same(const SharedLink& other) const { return name == other.name && sharer == other.sharer; }
};

}  // namespace isobar
