#pragma once

#include <limits>
#include <string>

namespace isobar::sim {

/// The range of the values of a SimGrid profile (availability, bandwidth, latency, state).
struct ProfileRange {
  double lowest = std::numeric_limits<double>::infinity();
  double highest = 0;  ///< infinite where a value is drawn from an unbounded distribution
};

/// Reads a profile as SimGrid does: "date value" lines, PERIODICITY, LOOPAFTER, STOCHASTIC, comments.
///
/// `name` and `first_line` give the place of faults; `periodicity` is that of a `<trace>`, in seconds, 0 without one.
/// @throws InputError "name:line: …" for the first line for which SimGrid would abort or never end.
ProfileRange scan_profile(const std::string& text, const std::string& name, int first_line = 1, double periodicity = 0);

}  // namespace isobar::sim
