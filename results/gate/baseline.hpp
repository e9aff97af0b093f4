#pragma once

#include "core/text/document.hpp"
#include "core/units.hpp"
#include "results/comparison.hpp"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::results {

/// How a row of today differs from the row of the baseline.
enum class ChangeKind {
  Better,
  Worse,
  New,      ///< the baseline has no such row
  Missing,  ///< only the baseline has it
  Failed    ///< the allocator or the simulation failed today
};

std::string_view name_of(ChangeKind kind);  ///< "better", "worse", …

/// What identifies a row in reports.
struct RowLabel {
  std::string group;                      ///< "platforms/sky16.xml × workloads/bert24.yaml"
  std::string name;                       ///< "even, pipeline (overlapped, 1f1b, M = 8, seed 1)"
  std::vector<DocumentNode::Member> key;  ///< in JSON

  std::string text() const { return group + ", " + name; }
  auto operator<=>(const RowLabel& other) const { return text() <=> other.text(); }
};
RowLabel label_of(const ComparisonRow& row);

struct Change {
  ChangeKind kind = ChangeKind::Worse;
  RowLabel row;
  std::string what;  ///< on one line: "step time 0.812 s -> 0.831 s (+2.34 %); also objective, memory"
};

/// Planning time of an allocator relative to `even`, both measured in the same check: processor time summed over all
/// rows that both have planned.
struct PlanTime {
  std::string allocator;
  double ratio_to_even = 1;
  std::optional<double> limit;

  bool is_over() const { return limit && ratio_to_even > *limit; }
};

/// Geometric mean of times, new / old, over the rows that have one on both sides.
struct TimeRatio {
  std::size_t rows = 0;
  std::optional<double> geometric_mean;  ///< none without rows
};

/// Today's rows compared with those of a baseline.
struct BaselineCheck {
  std::vector<RowLabel> rows;                       ///< today's
  std::vector<Change> changes;                      ///< in the order of the rows
  bool schedules = false;                           ///< whether rows are schedules of jobs, not plans
  TimeRatio times;                                  ///< of step times; for schedules of mean completion times
  std::map<std::string, TimeRatio> times_by_maker;  ///< by allocator; for schedules by scheduling policy
  std::vector<PlanTime> plan_times;                 ///< one per allocator; none where `even` planned nothing

  /// No row has changed and no plan time is over its limit.
  bool holds() const;
};

/// Largest relative difference between equal numbers: the last digits of simulated times vary between compilers.
inline constexpr double baseline_tolerance = 1e-6;

/// Compares rows with the same key, in their order. The first difference in this list decides whether a row is better
/// or worse: whether there is a plan; simulated step time; objective; outcome (optimal, feasible, timed out,
/// infeasible); objective bound and step bound (higher is better); peak memory. `limits`: largest plan time relative to
/// `even`, by allocator.
BaselineCheck check_baseline(const std::vector<ComparisonRow>& baseline, std::vector<ComparisonRow> rows,
                             const std::map<std::string, double>& limits);

/// Schedules of jobs: rows of a sweep's CSV (docs/sweeps.md).
struct ScheduleTable {
  struct Row {
    std::vector<std::string> key;
    std::string outcome;
    std::vector<std::optional<double>> numbers;
    std::string reason;
  };
  std::vector<std::string> key_columns;     ///< those before `outcome`
  std::vector<std::string> number_columns;  ///< those between it and `reason`
  std::vector<Row> rows;
};
/// Reads the file `name`, whose first line must be `header`. @throws InputError with "name:line: column: …" for every
/// fault.
ScheduleTable schedules_from_csv(const std::string& text, const std::string& name, const std::string& header);

/// Compares schedules with the same key, in the order of today's rows. The first difference in this list decides
/// whether a row is better or worse: whether there is a schedule; mean completion time, makespan, p99; any other
/// number, where bounds, busy parts and Jain's index are better when higher.
BaselineCheck check_schedules(const ScheduleTable& baseline, const ScheduleTable& today);

/// Text for people: one line for each change and each plan time over its limit, then a summary. `against` names what
/// the rows were compared with.
std::string check_to_text(const BaselineCheck& check, const std::string& against);
/// Schema isobar-check/1 (docs/formats/baseline.md).
std::string check_to_json(const BaselineCheck& check, const std::string& against);
/// Markdown for a comment on a pull request: the summary, a table of the first 100 changes and one of allocators.
std::string check_to_markdown(const BaselineCheck& check, const std::string& against);
/// JUnit XML: one test case for each row and each plan time; changes are failures.
std::string check_to_junit(const BaselineCheck& check, const std::string& against);

}  // namespace isobar::results
