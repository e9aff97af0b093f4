#include "exec/clock.hpp"

#include <fmt/format.h>

#include <cmath>

namespace isobar::exec {

std::string in_seconds(Seconds wait)
{
  return fmt::format("{:.3g} s", std::round(wait.value * 1e3) / 1e3);
}

}  // namespace isobar::exec
