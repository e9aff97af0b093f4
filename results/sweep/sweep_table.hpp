#pragma once

#include "results/comparison.hpp"
#include "results/sweep/sweep.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::results {

/// A run of a sweep, by its number, and what came of it.
struct SweepResult {
  std::size_t run = 0;
  ComparisonRow row;
};

/// The results as CSV (RFC 4180), in the order given: the columns of results.csv, one for each further parameter that
/// the sweep file says, `bottleneck_s`, `stages` and `reason` (docs/sweeps.md).
std::string sweep_to_csv(const Sweep& sweep, const std::vector<SweepResult>& results);
/// The same, an object a line.
std::string sweep_to_json_lines(const Sweep& sweep, const std::vector<SweepResult>& results);

/// Mean and 95 % confidence interval over the runs of each point, which differ in their seed alone: CSV.
std::string sweep_summary_to_csv(const Sweep& sweep, const std::vector<SweepResult>& results);
/// The same as JSON (schema isobar-sweep/1).
std::string sweep_summary_to_json(const Sweep& sweep, const std::vector<SweepResult>& results);
/// The same for people: parameters that vary, and a line that counts the outcomes.
std::string sweep_summary_table(const Sweep& sweep, const std::vector<SweepResult>& results);

}  // namespace isobar::results
