#pragma once

#include "core/spmd/device_rates.hpp"
#include "core/spmd/operator_graph.hpp"
#include "core/spmd/pieces.hpp"
#include "core/spmd/signature.hpp"
#include "core/units.hpp"

#include <cstddef>

namespace isobar::spmd {

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

/// The time of an update of parameters: the larger of work / rate, and the bytes that it reads and writes / memory
/// bandwidth. Without launches, since one kernel updates many parameters.
Seconds update_time(Flops work, Bytes touched, const DeviceRates& rates);

/// The rates of a device that does everything speed / rates.flops times as fast.
DeviceRates at_speed(DeviceRates rates, FlopsPerSecond speed);

}  // namespace isobar::spmd
