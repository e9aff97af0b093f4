#pragma once

#include "core/units.hpp"
#include "results/comparison.hpp"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::results {

/// How a row of today differs from the baseline's.
enum class ChangeKind {
  Better,
  Worse,
  New,      ///< the baseline has no such row
  Missing,  ///< the baseline has it, and nobody plans it any more
  Failed    ///< the allocator or the simulation did not end well today
};

std::string_view name_of(ChangeKind kind);  ///< "better", "worse", …

struct Change {
  ChangeKind kind = ChangeKind::Worse;
  ComparisonRow row;  ///< today's; the baseline's where it is missing
  std::string what;   ///< on one line: "step time 0.812 s -> 0.831 s (+2.34 %); also objective, memory"
};

/// What planning costs an allocator beside `even`, on the same machine at the same time: processor time over all rows
/// that both have planned.
struct PlanTime {
  std::string allocator;
  double ratio_to_even = 1;
  std::optional<double> limit;

  bool is_over() const { return limit && ratio_to_even > *limit; }
};

/// The geometric mean of step times, new / old, over the rows that have one on both sides.
struct StepTimeRatio {
  std::size_t rows = 0;
  std::optional<double> geometric_mean;  ///< none without rows
};

/// Today's rows beside those of a baseline.
struct BaselineCheck {
  std::vector<ComparisonRow> rows;  ///< today's, sorted
  std::vector<Change> changes;      ///< in the order of the rows
  StepTimeRatio step_times;
  std::map<std::string, StepTimeRatio> step_times_by_allocator;
  std::vector<PlanTime> plan_times;  ///< by allocator; none where `even` planned nothing

  bool holds() const;
};

/// Relative difference from which on two numbers are not the same: simulated times vary in the last digits between
/// compilers, and nothing else does.
inline constexpr double baseline_tolerance = 1e-6;

/// Compares rows by their keys. A row is better or worse by the first of these that differs: whether there is a plan,
/// simulated step time, objective, outcome (optimal, feasible, timed out, infeasible), objective bound (higher is
/// better), step bound (likewise), peak memory. `limits`: the largest ratio of plan time to even's, by allocator.
BaselineCheck check_baseline(const std::vector<ComparisonRow>& baseline, std::vector<ComparisonRow> rows,
                             const std::map<std::string, double>& limits);

/// A row in words: "platforms/sky16.xml × workloads/bert24.yaml, even, pipeline (overlapped, 1f1b, M = 8, seed 1)".
std::string label_of(const ComparisonRow& row);

/// For people: one line for each change and each plan time over its limit, and a summary. `against`: what the rows were
/// compared with.
std::string check_to_text(const BaselineCheck& check, const std::string& against);
/// Schema isobar-check/1 (docs/formats.md).
std::string check_to_json(const BaselineCheck& check, const std::string& against);
/// For a comment on a pull request: the summary, a table of changes (the first hundred) and one of allocators.
std::string check_to_markdown(const BaselineCheck& check, const std::string& against);
/// JUnit's XML: a test case for each row and each plan time, those that changed with a failure.
std::string check_to_junit(const BaselineCheck& check, const std::string& against);

}  // namespace isobar::results
