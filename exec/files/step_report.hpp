#pragma once

#include "core/units.hpp"

#include <cstdint>
#include <functional>
#include <optional>

namespace isobar::exec {

/// A step's end as the rank with the loss sees it.
struct StepReport {
  std::uint64_t step = 0;
  double loss = 0;
  Seconds duration;                     ///< since the end of the step before
  std::optional<double> learning_rate;  ///< of this step's update
  Bytes peak_memory;                    ///< of the rank so far; 0: not known
};
using StepEnded = std::function<void(const StepReport&)>;

}  // namespace isobar::exec
