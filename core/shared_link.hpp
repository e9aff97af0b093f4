#pragma once

#include "core/units.hpp"

#include <string_view>

namespace isobar {

/// A link on the way of a transfer whose bandwidth all transfers that pass it share.
struct SharedLink {
  std::string_view name;  ///< the network's own text
  BytesPerSecond bandwidth;
  double passes = 1;  ///< how often it carries each byte
};

}  // namespace isobar
