#pragma once

#include "core/text/document.hpp"
#include "core/units.hpp"

#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// Where the time of a step lies in 80 % of all cases, by what is known of its devices, software and network.
struct StepInterval {
  Seconds low;
  Seconds high;
  std::vector<std::string> because = {};  ///< the causes of its width, "subject: what" each
};

/// The part of the cases, for keys and texts.
inline constexpr double interval_probability = 0.8;

/// Reads the members `step_interval_s`, [low, high], and `interval_because`. None without the first, or if it is wrong,
/// which is a fault.
std::optional<StepInterval> read_step_interval(MappingReader& reader, FaultList& faults);

/// "80 %: 14.1 to 15.9 s".
std::string text_of(const StepInterval& interval);

}  // namespace isobar
