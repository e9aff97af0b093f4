#pragma once

#include "core/spmd/operator_graph.hpp"
#include "core/spmd/pieces.hpp"
#include "core/spmd/signature.hpp"
#include "core/units.hpp"

#include <cstddef>
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

/// How long a device computes its part of an operator.
struct OperatorTimes {
  Seconds forward;
  Seconds backward;
  /// The launches in these times, which do not shrink with the part. A device without a part has none.
  Seconds launch_forward = {};
  Seconds launch_backward = {};
};

/// What a device has to do with an operator.
struct OperatorPiece {
  double part = 1;  ///< of the work
  Bytes touched;    ///< its parts of inputs and outputs; of the table of an embedding, nothing: its rows are the output
};
OperatorPiece piece_of(const Operator& node, const Signature& signature, const Pieces& pieces, std::size_t device);

/// The time of a device for its piece of an operator.
///
/// A pass takes the larger of launch + FLOPs of the part / rate, and touched bytes / memory bandwidth. Forward is one
/// pass; backward is one for each gradient that a product computes (two, or one of `dispatch` and of a product of
/// data), and one of any other operator. Data, parameters and positions take no time; neither do views (transposed,
/// flattened and joined dimensions) beyond FLOPs that the published graph gives them.
OperatorTimes operator_times(const Operator& node, const OperatorPiece& piece, const DeviceRates& rates);

}  // namespace isobar::spmd
