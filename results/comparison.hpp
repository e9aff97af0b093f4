#pragma once

#include "core/plan.hpp"
#include "core/units.hpp"
#include "results/explanation.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// One row of a comparison: an allocator's plan for one goal, and what the simulation says of it.
struct ComparisonRow {
  std::string platform;  ///< as given
  std::string workload;
  std::string allocator;
  Goal goal;
  std::uint64_t seed = 1;
  /// The outcome's name, or "failed" when the allocator or the simulation did not end well.
  std::string outcome;
  std::optional<Seconds> objective;
  std::optional<Seconds> objective_bound;
  std::optional<Seconds> bottleneck;
  std::optional<Seconds> step_time;  ///< simulated
  std::optional<Seconds> step_bound;
  std::optional<Bytes> peak_memory;  ///< of the fullest device, simulated
  std::size_t stages = 0;
  std::string reason;                      ///< when there is no plan, or no simulation
  std::optional<Explanation> explanation;  ///< when it was asked for and there is a plan
};

/// results.csv: the columns of docs/formats.md, rows sorted, numbers with full precision, nothing that varies between
/// runs.
std::string comparison_to_csv(std::vector<ComparisonRow> rows);
/// The rows as JSON (schema isobar-comparison/1), in the order given.
std::string comparison_to_json(const std::vector<ComparisonRow>& rows);
/// For people, in the order given; reasons of rows without a plan below.
std::string comparison_table(const std::vector<ComparisonRow>& rows);

}  // namespace isobar::results
