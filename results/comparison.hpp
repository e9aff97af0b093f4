#pragma once

#include "core/plan/plan.hpp"
#include "core/units.hpp"
#include "results/explanation.hpp"
#include "results/result.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace isobar::results {

/// The outcome of a row whose allocator or simulation did not end well.
inline constexpr std::string_view failed_outcome = "failed";

/// One row of a comparison: an allocator's plan for one goal, and what the simulation says of it.
struct ComparisonRow {
  std::string platform;  ///< as given
  std::string workload;
  std::string allocator;
  Goal goal;
  std::optional<std::uint64_t> micro_batch;  ///< samples, where they are not the workload's; in JSON and text alone
  std::uint64_t seed = 1;
  /// The outcome's name, or `failed_outcome`.
  std::string outcome;
  std::optional<Seconds> objective;
  std::optional<Seconds> objective_bound;
  std::optional<Seconds> bottleneck;
  std::optional<Seconds> step_time;  ///< simulated
  std::optional<Seconds> step_bound;
  std::optional<Bytes> peak_memory;  ///< of the fullest device, simulated
  Utilization utilization;           ///< simulated; not in baselines and sweeps
  std::size_t stages = 0;
  std::string reason;                      ///< when there is no plan, or no simulation
  std::optional<Seconds> plan_time;        ///< processor time of planning; in no file
  std::optional<Explanation> explanation;  ///< when it was asked for and there is a plan
};

/// The first line of a baseline.
inline constexpr std::string_view baseline_header =
    "platform,workload,allocator,objective,communication,schedule,microbatches,seed,outcome,objective_s,"
    "objective_bound_s,gap_fraction,step_time_s,step_bound_s,peak_memory_bytes";

/// The first line of what `compare -o` writes: a baseline's columns, and what a person wants to know besides.
inline constexpr std::string_view comparison_header =
    "platform,workload,allocator,objective,communication,schedule,microbatches,seed,outcome,objective_s,"
    "objective_bound_s,gap_fraction,step_time_s,step_bound_s,peak_memory_bytes,tokens_per_s,"
    "mfu_fraction,bubble_fraction,bottleneck_s,stages,reason";

/// What tells rows apart: platform, workload, allocator, objective, communication, schedule, micro-batches, seed.
/// Tables are sorted by it.
using RowKey = std::tuple<std::string, std::string, std::string, std::string_view, std::string_view, std::string_view,
                          std::uint64_t, std::uint64_t>;
RowKey key_of(const ComparisonRow& row);

/// (objective - bound) / objective, where both are known.
std::optional<double> gap_of(const ComparisonRow& row);

/// Gives each row with an objective the best bound among the rows of the same platform, workload, goal and micro-batch,
/// which is one for all of them. A row that meets it within 1e-9 is optimal.
void share_bounds(std::vector<ComparisonRow>& rows);

/// A table with the columns of docs/formats.md, rows sorted, numbers with full precision, nothing that varies between
/// runs.
std::string comparison_to_csv(std::vector<ComparisonRow> rows);
/// The same with a baseline's columns.
std::string baseline_to_csv(std::vector<ComparisonRow> rows);
/// Reads what baseline_to_csv wrote; gaps are not kept, since objective and bound say them. Refuses other columns,
/// numbers that are not finite or negative, unknown names and rows given twice. `name` is the file's.
/// @throws InputError with "name:line: column: …" for every fault.
std::vector<ComparisonRow> baseline_from_csv(const std::string& text, const std::string& name);
/// The rows as JSON (schema isobar-comparison/1), in the order given.
std::string comparison_to_json(const std::vector<ComparisonRow>& rows);
/// For people, at most 80 columns wide where allocators' names are short: for each goal in the order given, what was
/// simulated, then how good the plans are; reasons of rows without a plan below.
std::string comparison_table(const std::vector<ComparisonRow>& rows);

}  // namespace isobar::results
