#include "results/gate/baseline.hpp"

#include "core/base/quantity_text.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

namespace isobar::results {

namespace {

/// Least denominator of a ratio: shorter processor times of `even` are noise of the clock.
constexpr Seconds least_time_of_even(0.05);

/// Best first.
constexpr std::array<std::string_view, 4> outcomes_by_worth = {"optimal", "feasible", "timed_out", "infeasible"};

std::size_t rank_of(const std::string& outcome)
{
  return static_cast<std::size_t>(std::find(outcomes_by_worth.begin(), outcomes_by_worth.end(), outcome) -
                                  outcomes_by_worth.begin());
}

bool differ(double a, double b)
{
  return std::abs(a - b) > baseline_tolerance * std::max(std::abs(a), std::abs(b));
}

/// Difference of two rows in one column.
struct Difference {
  std::string column;
  bool is_better = false;
  std::string what;
};

enum class Wanted { Low, High };

template <typename Quantity>
void compare(const char* column, const char* unit, const std::optional<Quantity>& before,
             const std::optional<Quantity>& now, Wanted wanted, std::vector<Difference>& differences)
{
  if (!before && !now) return;
  if (!before || !now) {
    const auto text = [unit](const auto& quantity) {
      return quantity ? fmt::format("{:.6g} {}", quantity->value, unit) : std::string("none");
    };
    differences.push_back({column, now.has_value(), fmt::format("{} {} -> {}", column, text(before), text(now))});
    return;
  }
  if (!differ(before->value, now->value)) return;
  const auto [old_text, new_text] = distinct_texts(before->value, now->value, 6);
  std::string what = fmt::format("{} {} {} -> {} {}", column, old_text, unit, new_text, unit);
  if (before->value > 0) what += fmt::format(" ({:+.3g} %)", 100 * (*now / *before - 1));
  differences.push_back({column, (*now < *before) == (wanted == Wanted::Low), std::move(what)});
}

/// Every column that differs, the most important first; the first one decides.
std::vector<Difference> differences_of(const ComparisonRow& before, const ComparisonRow& now)
{
  std::vector<Difference> differences;
  compare("step time", "s", before.step_time, now.step_time, Wanted::Low, differences);
  compare("objective", "s", before.objective, now.objective, Wanted::Low, differences);
  if (before.outcome != now.outcome) {
    differences.push_back({"outcome", rank_of(now.outcome) < rank_of(before.outcome),
                           fmt::format("outcome {} -> {}", before.outcome, now.outcome)});
  }
  compare("objective bound", "s", before.objective_bound, now.objective_bound, Wanted::High, differences);
  compare("step bound", "s", before.step_bound, now.step_bound, Wanted::High, differences);
  compare("peak memory", "B", before.peak_memory, now.peak_memory, Wanted::Low, differences);
  return differences;
}

std::string reason_of(const ComparisonRow& row)
{
  constexpr std::size_t longest = 300;
  return row.reason.empty() ? "no reason given" : shown(row.reason, longest);
}

std::optional<Change> change_of(const ComparisonRow* before, const ComparisonRow& now)
{
  if (now.outcome == failed_outcome) return Change{ChangeKind::Failed, now, reason_of(now)};
  if (before == nullptr) {
    const std::string found = now.step_time ? fmt::format("step time {:.6g} s", now.step_time->value) : now.outcome;
    return Change{ChangeKind::New, now, found + "; nothing to compare with"};
  }
  const auto differences = differences_of(*before, now);
  if (differences.empty()) return std::nullopt;
  Change change{differences.front().is_better ? ChangeKind::Better : ChangeKind::Worse, now, differences.front().what};
  for (std::size_t i = 1; i < differences.size(); ++i) {
    change.what += (i == 1 ? "; also " : ", ") + differences[i].column;
  }
  return change;
}

/// Collects ratios for their geometric mean.
class Ratios {
 public:
  void add(double ratio)
  {
    ++count_;
    sum_of_logarithms_ += std::log(ratio);
  }
  StepTimeRatio mean() const
  {
    if (count_ == 0) return {};
    return {count_, std::exp(sum_of_logarithms_ / static_cast<double>(count_))};
  }

 private:
  std::size_t count_ = 0;
  double sum_of_logarithms_ = 0;
};

std::vector<PlanTime> plan_times_of(const std::vector<ComparisonRow>& rows, const std::map<std::string, double>& limits)
{
  const auto problem_of = [](ComparisonRow row) {
    row.allocator = "even";
    return key_of(row);
  };
  std::map<RowKey, Seconds> time_of_even;
  for (const auto& row : rows) {
    if (row.allocator == "even" && row.plan_time) time_of_even[key_of(row)] = *row.plan_time;
  }
  std::map<std::string, std::pair<Seconds, Seconds>> sums;  // its own time, and that of even on the same problems
  for (const auto& row : rows) {
    const auto even = time_of_even.find(problem_of(row));
    if (row.allocator == "even" || !row.plan_time || even == time_of_even.end()) continue;
    sums[row.allocator].first += *row.plan_time;
    sums[row.allocator].second += even->second;
  }
  std::vector<PlanTime> times;
  for (const auto& [allocator, sum] : sums) {
    const auto limit = limits.find(allocator);
    times.push_back({allocator, sum.first / std::max(sum.second, least_time_of_even),
                     limit == limits.end() ? std::nullopt : std::optional(limit->second)});
  }
  return times;
}

}  // namespace

std::string_view name_of(ChangeKind kind)
{
  constexpr std::array<std::string_view, 5> names = {"better", "worse", "new", "missing", "failed"};
  return names[static_cast<std::size_t>(kind)];
}

bool BaselineCheck::holds() const
{
  return changes.empty() &&
         std::none_of(plan_times.begin(), plan_times.end(), [](const auto& time) { return time.is_over(); });
}

BaselineCheck check_baseline(const std::vector<ComparisonRow>& baseline, std::vector<ComparisonRow> rows,
                             const std::map<std::string, double>& limits)
{
  BaselineCheck check;
  std::map<RowKey, const ComparisonRow*> before;
  for (const auto& row : baseline) before[key_of(row)] = &row;
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return key_of(a) < key_of(b); });

  Ratios all;
  std::map<std::string, Ratios> by_allocator;
  std::map<RowKey, Change> changes;
  for (const auto& row : rows) {
    const auto found = before.find(key_of(row));
    const ComparisonRow* old = found == before.end() ? nullptr : found->second;
    if (auto change = change_of(old, row)) changes.emplace(key_of(row), std::move(*change));
    if (old == nullptr) continue;
    if (old->step_time && row.step_time && *old->step_time > Seconds(0) && *row.step_time > Seconds(0)) {
      all.add(*row.step_time / *old->step_time);
      by_allocator[row.allocator].add(*row.step_time / *old->step_time);
    }
    before.erase(found);
  }
  for (const auto& [key, row] : before) {
    changes.emplace(key, Change{ChangeKind::Missing, *row, "no longer planned"});
  }
  for (auto& [key, change] : changes) check.changes.push_back(std::move(change));
  check.step_times = all.mean();
  for (const auto& [allocator, ratios] : by_allocator) check.step_times_by_allocator[allocator] = ratios.mean();
  check.plan_times = plan_times_of(rows, limits);
  check.rows = std::move(rows);
  return check;
}

std::string label_of(const ComparisonRow& row)
{
  return fmt::format("{} × {}, {}, {} ({}, {}, M = {}, seed {})", row.platform, row.workload, row.allocator,
                     name_of(row.goal.objective), name_of(row.goal.communication), text_of(row.goal.schedule),
                     row.goal.microbatches, row.seed);
}

}  // namespace isobar::results
