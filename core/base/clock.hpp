#pragma once

#include "core/units.hpp"

#include <algorithm>
#include <chrono>
#include <string>

namespace isobar {

using Clock = std::chrono::steady_clock;

/// The time `wait` from now; in 30 years if it is longer, so that an infinite wait does not overflow.
inline Clock::time_point deadline_in(Seconds wait)
{
  const std::chrono::duration<double> length(std::min(wait.value, 1e9));
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(length);
}

inline Seconds time_since(Clock::time_point begin)
{
  return Seconds(std::chrono::duration<double>(Clock::now() - begin).count());
}

/// The steady clock's time, as events of a trace have it.
Seconds steady_time();

/// Processor time of the calling thread.
Seconds thread_time();

/// How long the calling thread has waited for a processor when it could have worked; 0 where the system does not count
/// it (Linux without scheduler statistics).
Seconds processor_wait();

/// From its making on, the part of the time in which its thread, which asks, waited for a processor.
class ProcessorWait {
 public:
  ProcessorWait();
  double fraction() const;

 private:
  Clock::time_point began_;
  Seconds waited_before_;
};

/// What to say of measured times when a tenth of the time or more was spent so; else "".
std::string note_of_busy_machine(const std::string& who, double wait_fraction);

/// Negative once it has passed.
inline Seconds time_until(Clock::time_point deadline)
{
  return Seconds(-time_since(deadline).value);
}

/// As messages show a wait, such as "0.2 s": three digits, to the millisecond.
std::string in_seconds(Seconds wait);

}  // namespace isobar
