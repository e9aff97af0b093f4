#include "results/sweep/run_kind.hpp"

#include "core/plan/plan.hpp"
#include "results/cluster_metrics.hpp"

namespace isobar::results {

const RunKind& planned_runs()
{
  static const RunKind kind = {
      .table = "runs",
      .row_ending = ".row",
      .stored = {{"objective_s"},
                 {"objective_bound_s"},
                 {"bottleneck_s"},
                 {"step_time_s"},
                 {"step_bound_s"},
                 {"peak_memory_bytes"},
                 {"stages", true}},
      .shown = {{"objective_s"},
                {"objective_bound_s"},
                {"gap_fraction"},
                {"step_time_s"},
                {"step_bound_s"},
                {"peak_memory_bytes"},
                {"bottleneck_s"},
                {"stages", true}},
      .outcomes = outcome_names(),
      .defaults = {"schedule", "microbatches", "recompute"},
      .means = {{"step_time_s", "step s"}, {"objective_s", "objective s"}, {"gap_fraction", ""}}};
  return kind;
}

const RunKind& scheduled_runs()
{
  static const RunKind kind = [] {
    std::vector<SweepColumn> columns;
    for (const auto& number : cluster_numbers()) columns.push_back({number.name, number.is_count});
    return RunKind{.table = "schedules",
                   .row_ending = ".schedule",
                   .stored = columns,
                   .shown = columns,
                   .outcomes = {scheduled_outcome},
                   .defaults = {},
                   .means = {{"mean_jct_s", "mean JCT s", 1},
                             {"p99_jct_s", "p99 JCT s", 1},
                             {"makespan_s", "makespan s", 1},
                             {"longest_wait_s", "", 1}}};
  }();
  return kind;
}

}  // namespace isobar::results
