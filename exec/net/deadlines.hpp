#pragma once

#include "core/base/clock.hpp"
#include "core/units.hpp"

#include <functional>
#include <optional>
#include <utility>

namespace isobar::exec {

/// How long things of a run over TCP may take, each longer than those before it; docs/faults.md says why.
struct TimeLimits {
  Seconds beat;       ///< between two signs of life of a rank
  Seconds heartbeat;  ///< a rank without a sign of life for so long is dead
  Seconds transfer;   ///< a transfer or sum that waits longer ends its rank
  Seconds connect;    ///< ranks that are not there by then are not coming
  /// The user says how long a transfer may wait. Else only time in which no rank is at work counts.
  bool transfer_is_said = false;
};

/// The limits of a run whose steps are predicted to take `step`. What the user says goes before.
/// @throws InputError naming the option, where limits are out of their range or in the wrong order.
TimeLimits time_limits(Seconds step, std::optional<Seconds> deadline = {}, std::optional<Seconds> heartbeat = {});

/// The end of a wait that begins when this is made.
class Deadline {
 public:
  Deadline(Seconds limit) : limit_(limit), end_(deadline_in(limit)) {}  // NOLINT(google-explicit-constructor)
  /// The limit counts from when something was last done that is worth waiting for: `idle` says how long ago that was,
  /// and is asked when the limit is over, by the thread that waits.
  Deadline(Seconds limit, std::function<Seconds()> idle)
      : limit_(limit), end_(deadline_in(limit)), idle_(std::move(idle))
  {
  }

  /// Not positive once it has passed.
  Seconds left();

 private:
  Seconds limit_;
  Clock::time_point end_;
  std::function<Seconds()> idle_;
};

}  // namespace isobar::exec
