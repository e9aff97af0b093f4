#pragma once

#include "core/units.hpp"

#include <optional>
#include <vector>

namespace isobar::spmd {

/// How fast a device computes operators.
struct DeviceRates {
  /// Part of `flops` that a product of `work` FLOPs reaches.
  struct Efficiency {
    Flops work;
    double fraction = 1;

    bool operator==(const Efficiency&) const = default;
  };

  FlopsPerSecond flops;                                 ///< in the dtype of the model
  std::optional<BytesPerSecond> memory_bandwidth = {};  ///< none: memory traffic takes no time
  Seconds launch = {};                                  ///< of a kernel
  std::vector<Efficiency> efficiency = {};              ///< of products, ascending by work; none: 1

  bool operator==(const DeviceRates&) const = default;

  /// The rate of a product: between two entries of `efficiency` in proportion, beyond them that of the nearest.
  FlopsPerSecond product_rate(Flops work) const;
};

}  // namespace isobar::spmd
