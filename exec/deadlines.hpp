#pragma once

#include "core/units.hpp"

#include <cstdint>
#include <deque>
#include <optional>

namespace isobar::exec {

/// How long things of a run over TCP may take, each longer than those before it; docs/faults.md says why.
struct TimeLimits {
  Seconds beat;       ///< between two signs of life of a rank
  Seconds heartbeat;  ///< a rank without a sign of life for so long is dead
  Seconds transfer;   ///< a transfer or sum that waits longer ends its rank; see OperationDeadline
  Seconds connect;    ///< ranks that are not there by then are not coming
  /// How much longer than usual a transfer may wait once it is known what is usual; nothing: `transfer` holds always.
  std::optional<Seconds> slack;
};

/// The limits of a run whose steps are predicted to take `step`. What the user says goes before: a deadline of
/// transfers then holds as it is, for all of them.
/// @throws InputError naming the option, where limits are out of their range or in the wrong order.
TimeLimits time_limits(Seconds step, std::optional<Seconds> deadline = {}, std::optional<Seconds> heartbeat = {});

/// How long the next operation of one lane may wait: for the other rank to come to it, and for the bytes. By one thread
/// at a time.
///
/// A wait depends on the place in the schedule, and is far longer where a pipeline fills than in its midst. So one
/// sample is the longest wait of a whole step. From five of them on, the limit is slack + median + 10 · MAD of the
/// last twenty (MAD: median absolute deviation, taken for a tenth of the median where it is less).
class OperationDeadline {
 public:
  /// `per_step`: operations of the lane in a step, at least 1.
  OperationDeadline(const TimeLimits& limits, std::uint64_t per_step)
      : limit_(limits.transfer), slack_(limits.slack), per_step_(per_step)
  {
  }

  Seconds limit() const { return limit_; }
  /// The operation is done, after a wait of so long.
  void done_after(Seconds wait);

 private:
  Seconds limit_;
  std::optional<Seconds> slack_;
  std::uint64_t per_step_;
  std::uint64_t done_ = 0;
  Seconds longest_;                   // of the step under way
  std::deque<Seconds> last_longest_;  // of the last steps
};

}  // namespace isobar::exec
