#pragma once

#include "core/units.hpp"

#include <string_view>

namespace isobar {

/// A link on the way of a transfer, at which it may meet others.
struct SharedLink {
  std::string_view name;  ///< the network's own text
  BytesPerSecond bandwidth;
  double passes = 1;         ///< how often it carries each byte
  bool is_fat_pipe = false;  ///< each transfer may have its whole bandwidth; else they share it
};

}  // namespace isobar
