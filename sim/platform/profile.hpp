#pragma once

#include <limits>
#include <string>

namespace isobar::sim {

/// The values that a profile of SimGrid (availability, bandwidth, latency, state) ever takes.
struct ProfileRange {
  double lowest = std::numeric_limits<double>::infinity();
  double highest = 0;  ///< infinite where a value is drawn from a distribution without an end
};

/// Reads a profile as SimGrid does: "date value" lines, PERIODICITY, LOOPAFTER, STOCHASTIC, comments.
///
/// `name` and `first_line` place its faults; `periodicity` is that of a `<trace>`, 0 without one.
/// @throws InputError "name:line: …" for the first line on which SimGrid would stop, or never come to an end.
ProfileRange scan_profile(const std::string& text, const std::string& name, int first_line = 1, double periodicity = 0);

}  // namespace isobar::sim
