#pragma once

#include "core/units.hpp"

#include <cstdint>
#include <functional>
#include <optional>

namespace isobar::exec {

/// The end of a step, as seen by the rank with the loss.
struct StepReport {
  std::uint64_t step = 0;
  double loss = 0;
  Seconds duration;                     ///< since the end of the previous step
  std::optional<double> learning_rate;  ///< of the update by this step's gradients
  Bytes peak_memory;                    ///< of the rank so far; 0 if unknown
};
using StepEnded = std::function<void(const StepReport&)>;

}  // namespace isobar::exec
