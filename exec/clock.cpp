#include "exec/clock.hpp"

#include <fmt/format.h>

#include <cmath>
#include <ctime>

namespace isobar::exec {

Seconds thread_time()
{
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return Seconds(static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec));
}

std::string in_seconds(Seconds wait)
{
  return fmt::format("{:.3g} s", std::round(wait.value * 1e3) / 1e3);
}

}  // namespace isobar::exec
