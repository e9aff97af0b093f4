#pragma once

#include "core/compute/prediction_interval.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"
#include "results/explanation.hpp"
#include "results/result.hpp"
#include "results/table.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace isobar::results {

/// Outcome of a row whose allocator or simulation failed.
inline constexpr std::string_view failed_outcome = "failed";

/// One row of a comparison: an allocator's plan for one goal, and its simulation.
struct ComparisonRow {
  std::string platform;  ///< as the user gave it; likewise `workload`
  std::string workload;
  std::string allocator;
  Goal goal;
  std::string recompute = "none";             ///< layers that recompute, as --recompute takes them; in no baseline
  std::optional<std::uint64_t> micro_batch;   ///< samples, where not the workload's; only in JSON and text
  std::optional<spmd::Routing> routing = {};  ///< where not the workload's; in no file
  std::uint64_t seed = 1;
  std::string outcome;  ///< name of an Outcome, or `failed_outcome`
  std::optional<Seconds> objective;
  std::optional<Seconds> objective_bound;
  std::optional<Seconds> bottleneck;
  std::optional<Seconds> step_time;              ///< simulated
  std::optional<StepInterval> interval = {};     ///< of the step; likewise `basis`: only in JSON and text
  std::optional<compute::StepBasis> basis = {};  ///< what is known of the step
  std::optional<Seconds> step_bound;
  std::optional<Bytes> peak_memory;  ///< simulated, of the fullest device
  Utilization utilization;           ///< simulated; not in baselines and sweeps
  std::size_t stages = 0;
  std::size_t replicas = 1;                ///< most of one stage; only in JSON and text
  std::size_t shards = 1;                  ///< most of one replica; only in JSON and text
  bool uses_machines = false;              ///< whether layers live elsewhere than on their devices; only in JSON
  std::string reason;                      ///< why there is no plan or no simulation
  std::optional<Seconds> plan_time;        ///< processor time of planning; written to no file
  std::optional<Explanation> explanation;  ///< where requested and there is a plan
};

/// The header line of a baseline.
inline constexpr std::string_view baseline_header =
    "platform,workload,allocator,objective,communication,schedule,microbatches,seed,outcome,objective_s,"
    "objective_bound_s,gap_fraction,step_time_s,step_bound_s,peak_memory_bytes";

/// The header line of the file that `compare -o` writes: a baseline's columns, and more for people.
inline constexpr std::string_view comparison_header =
    "platform,workload,allocator,objective,communication,schedule,microbatches,seed,outcome,objective_s,"
    "objective_bound_s,gap_fraction,step_time_s,step_bound_s,peak_memory_bytes,tokens_per_s,"
    "mfu_fraction,bubble_fraction,bottleneck_s,recompute,stages,reason";

/// Identity of a row: platform, workload, allocator, objective, communication, schedule, micro-batches, seed. Tables
/// are sorted by it.
using RowKey = std::tuple<std::string, std::string, std::string, std::string_view, std::string_view, std::string,
                          std::uint64_t, std::uint64_t>;
RowKey key_of(const ComparisonRow& row);

/// (objective - bound) / objective, or none where one of them is unknown.
std::optional<double> gap_of(const ComparisonRow& row);

/// What a row's bound holds for, in the singular: "chain", "placement", or for DT-FM's cost one with as many stages and
/// replicas.
std::string_view scope_of_bound(const ComparisonRow& row);

/// Gives each row with an objective the best bound among the rows of the same platform, workload, goal and micro-batch:
/// a bound of one is a bound of all, but one of chains is none of plans with replicas or shards. A row that meets it
/// within 1e-9 (relative) becomes optimal.
void share_bounds(std::vector<ComparisonRow>& rows);

/// How the step of a row ranks against the fastest one of its platform, workload and goal.
struct StepRank {
  const ComparisonRow* fastest;
  double slower;    ///< part by which the row's step is longer
  double known_to;  ///< part that rankings of these two are known to
  bool is_tie() const { return slower <= known_to; }
};
/// None for the fastest row itself, and where nothing is known of one of both steps (ComparisonRow::basis).
std::optional<StepRank> rank_of(const ComparisonRow& row, const std::vector<ComparisonRow>& rows);

/// The rows as CSV with `comparison_header` (docs/formats/comparison.md), sorted, numbers in full precision.
/// Deterministic: holds nothing that varies between runs.
std::string comparison_to_csv(std::vector<ComparisonRow> rows);
/// As `comparison_to_csv`, with `baseline_header`.
std::string baseline_to_csv(std::vector<ComparisonRow> rows);
/// Reads the file `name` that `baseline_to_csv` wrote. Drops gaps, which follow from objective and bound. Refuses other
/// columns, numbers that are negative or not finite, unknown names and repeated rows.
/// @throws InputError with "name:line: column: …" for every fault.
std::vector<ComparisonRow> baseline_from_csv(const std::string& text, const std::string& name);
/// The rows as JSON (schema isobar-comparison/1), in the order given.
std::string comparison_to_json(const std::vector<ComparisonRow>& rows);
/// Tables for people, one for each goal in the order of their first rows: six columns within 80 characters with names
/// of up to 30, or with TableWidth::Any every quantity of the rows. Rows that differ only in their schedules or in the
/// layers that recompute share a table, which has a column for it. Reasons of rows without a plan follow.
std::string comparison_table(const std::vector<ComparisonRow>& rows, TableWidth width = TableWidth::Terminal);

}  // namespace isobar::results
