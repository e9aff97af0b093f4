#pragma once

#include "results/sweep/run_kind.hpp"
#include "results/sweep/sweep.hpp"
#include "results/table.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// A run of a sweep, by its number, and its result.
struct SweepResult {
  std::size_t run = 0;
  std::vector<DocumentNode::Member> key;  ///< what identifies it, besides further parameters of the sweep file
  std::string outcome;
  std::vector<std::optional<double>> numbers;  ///< in the order of `RunKind::shown`
  std::string reason;
};
/// Whether a result has the first of its kind's means.
bool is_simulated(const Sweep& sweep, const SweepResult& result);
/// Values of a key.
DocumentNode text_node(const std::string& text);
DocumentNode count_node(std::uint64_t count);

/// The results as CSV (RFC 4180), in the order given: their keys, a column for each further parameter of the sweep
/// file, `outcome`, their numbers and `reason` (docs/sweeps.md).
std::string sweep_to_csv(const Sweep& sweep, const std::vector<SweepResult>& results);
/// The first line of `sweep_to_csv` for results like this one, without its end.
std::string sweep_header(const Sweep& sweep, const SweepResult& result);
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
