#include "core/base/clock.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <ctime>
#include <fstream>

namespace isobar {

Seconds steady_time()
{
  return Seconds(std::chrono::duration<double>(Clock::now().time_since_epoch()).count());
}

Seconds thread_time()
{
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return Seconds(static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec));
}

Seconds processor_wait()
{
  std::ifstream statistics("/proc/thread-self/schedstat");
  std::uint64_t worked_ns = 0;
  std::uint64_t waited_ns = 0;
  if (!(statistics >> worked_ns >> waited_ns)) return {};
  return Seconds(1e-9 * static_cast<double>(waited_ns));
}

ProcessorWait::ProcessorWait() : began_(Clock::now()), waited_before_(processor_wait()) {}

double ProcessorWait::fraction() const
{
  const Seconds waited = processor_wait() - waited_before_;
  const Seconds time = time_since(began_);  // after the waits, so that it contains all of them
  return time > Seconds(0) ? waited / time : 0;
}

std::string note_of_busy_machine(const std::string& who, double wait_fraction)
{
  constexpr double much = 0.1;
  if (wait_fraction < much) return "";
  return fmt::format(
      "{} waited for a processor {:.0f} % of the time: its machine is busy, which distorts measured times", who,
      100 * wait_fraction);
}

std::string in_seconds(Seconds wait)
{
  return fmt::format("{:.3g} s", std::round(wait.value * 1e3) / 1e3);
}

}  // namespace isobar
