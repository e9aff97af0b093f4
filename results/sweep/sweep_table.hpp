#pragma once

#include "results/comparison.hpp"
#include "results/sweep/sweep.hpp"
#include "results/table.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace isobar::results {

/// A run of a sweep, by its number, and its result.
struct SweepResult {
  std::size_t run = 0;
  ComparisonRow row;
};

/// The results as CSV (RFC 4180), in the order given: the columns of results.csv, one for each further parameter of the
/// sweep file, `bottleneck_s`, `stages` and `reason` (docs/sweeps.md). `recompute` is among them, too, where allocators
/// recompute by default.
std::string sweep_to_csv(const Sweep& sweep, const std::vector<SweepResult>& results);
/// As `sweep_to_csv`, one JSON object per line.
std::string sweep_to_json_lines(const Sweep& sweep, const std::vector<SweepResult>& results);

/// CSV with the mean and its 95 % confidence interval for each point: the runs that differ only in their seed.
std::string sweep_summary_to_csv(const Sweep& sweep, const std::vector<SweepResult>& results);
/// As `sweep_summary_to_csv`, as JSON (schema isobar-sweep/1).
std::string sweep_summary_to_json(const Sweep& sweep, const std::vector<SweepResult>& results);
/// As `sweep_summary_to_csv`, as a table for people: the parameters that vary, the defaults in which the runs differ, a
/// line that counts the outcomes, and lines with the reasons of failed runs.
std::string sweep_summary_table(const Sweep& sweep, const std::vector<SweepResult>& results,
                                TableWidth width = TableWidth::Terminal);

}  // namespace isobar::results
