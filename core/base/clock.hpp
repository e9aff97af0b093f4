#pragma once

#include "core/units.hpp"

#include <algorithm>
#include <chrono>
#include <string>

namespace isobar {

using Clock = std::chrono::steady_clock;

/// The time `wait` from now, at most 30 years ahead, so that an infinite wait does not overflow.
inline Clock::time_point deadline_in(Seconds wait)
{
  const std::chrono::duration<double> length(std::min(wait.value, 1e9));
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(length);
}

inline Seconds time_since(Clock::time_point begin)
{
  return Seconds(std::chrono::duration<double>(Clock::now() - begin).count());
}

/// The steady clock's time, as events of a trace record it.
Seconds steady_time();

/// CPU time of the calling thread.
Seconds thread_time();

/// How long the calling thread was runnable but waited for a processor; 0 if the system does not count it (Linux
/// without scheduler statistics).
Seconds processor_wait();

/// Measures which fraction of the time since its construction the calling thread has waited for a processor. For use by
/// the thread that made it.
class ProcessorWait {
 public:
  ProcessorWait();
  double fraction() const;

 private:
  Clock::time_point began_;
  Seconds waited_before_;
};

/// A warning about measured times when `wait_fraction` is a tenth or more; else "".
std::string note_of_busy_machine(const std::string& who, double wait_fraction);

/// The time left until `deadline`; negative once it has passed.
inline Seconds time_until(Clock::time_point deadline)
{
  return Seconds(-time_since(deadline).value);
}

/// A wait as messages show it, such as "0.2 s": three digits, to the millisecond.
std::string in_seconds(Seconds wait);

}  // namespace isobar
