#pragma once

#include "core/base/clock.hpp"
#include "core/units.hpp"

#include <functional>
#include <optional>
#include <utility>

namespace isobar::exec {

/// Time limits of a run over TCP, each longer than the previous one; docs/faults.md gives the reasons.
struct TimeLimits {
  Seconds heartbeat_interval;  ///< between two heartbeats of a rank
  Seconds heartbeat_timeout;   ///< a rank without a heartbeat for this long is dead
  Seconds transfer;            ///< a transfer or all-reduce that waits longer ends its rank
  Seconds connect;             ///< ranks that have not connected by then are missing
  /// The user set `transfer`. Otherwise only time in which no rank is at work counts.
  bool transfer_is_set = false;
};

/// Limits of a run whose steps are predicted to take `step`. `deadline` and `heartbeat`: what the user set.
/// @throws InputError naming the option, for limits out of their range or in the wrong order.
TimeLimits time_limits(Seconds step, std::optional<Seconds> deadline = {}, std::optional<Seconds> heartbeat = {});

/// End of a wait that begins with the construction of this object.
class Deadline {
 public:
  Deadline(Seconds limit) : limit_(limit), end_(deadline_in(limit)) {}  // NOLINT(google-explicit-constructor)
  /// Counts the limit from the last activity worth waiting for. `idle`: time since that activity; called by the waiting
  /// thread whenever the limit has passed.
  Deadline(Seconds limit, std::function<Seconds()> idle)
      : limit_(limit), end_(deadline_in(limit)), idle_(std::move(idle))
  {
  }

  /// Remaining time; zero or negative once the deadline has passed.
  Seconds left();

 private:
  Seconds limit_;
  Clock::time_point end_;
  std::function<Seconds()> idle_;
};

}  // namespace isobar::exec
