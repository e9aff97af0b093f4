#include "results/gate/baseline.hpp"

#include "core/errors.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
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

void compare_numbers(const std::string& column, const std::string& unit, const std::optional<double>& before,
                     const std::optional<double>& now, Wanted wanted, std::vector<Difference>& differences)
{
  if (!before && !now) return;
  if (!before || !now) {
    const auto text = [&unit](const auto& number) {
      return number ? fmt::format("{:.6g}{}", *number, unit) : std::string("none");
    };
    differences.push_back({column, now.has_value(), fmt::format("{} {} -> {}", column, text(before), text(now))});
    return;
  }
  if (!differ(*before, *now)) return;
  const auto [old_text, new_text] = distinct_texts(*before, *now, 6);
  std::string what = fmt::format("{} {}{} -> {}{}", column, old_text, unit, new_text, unit);
  if (*before > 0) what += fmt::format(" ({:+.3g} %)", 100 * (*now / *before - 1));
  differences.push_back({column, (*now < *before) == (wanted == Wanted::Low), std::move(what)});
}

template <typename Quantity>
void compare(const char* column, const char* unit, const std::optional<Quantity>& before,
             const std::optional<Quantity>& now, Wanted wanted, std::vector<Difference>& differences)
{
  const auto number = [](const auto& quantity) { return quantity ? std::optional(quantity->value) : std::nullopt; };
  compare_numbers(column, fmt::format(" {}", unit), number(before), number(now), wanted, differences);
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

std::string reason_of(const std::string& reason)
{
  constexpr std::size_t longest = 300;
  return reason.empty() ? "no reason given" : shown(reason, longest);
}

/// The change of a row that both sides have; none without differences.
std::optional<Change> change_of(RowLabel label, const std::vector<Difference>& differences)
{
  if (differences.empty()) return std::nullopt;
  Change change{differences.front().is_better ? ChangeKind::Better : ChangeKind::Worse, std::move(label),
                differences.front().what};
  for (std::size_t i = 1; i < differences.size(); ++i) {
    change.what += (i == 1 ? "; also " : ", ") + differences[i].column;
  }
  return change;
}

std::optional<Change> change_of(const ComparisonRow* before, const ComparisonRow& now)
{
  if (now.outcome == failed_outcome) return Change{ChangeKind::Failed, label_of(now), reason_of(now.reason)};
  if (before == nullptr) {
    const std::string found = now.step_time ? fmt::format("step time {:.6g} s", now.step_time->value) : now.outcome;
    return Change{ChangeKind::New, label_of(now), found + "; nothing to compare with"};
  }
  return change_of(label_of(now), differences_of(*before, now));
}

/// Collects ratios for their geometric mean.
class Ratios {
 public:
  void add(double ratio)
  {
    ++count_;
    sum_of_logarithms_ += std::log(ratio);
  }
  TimeRatio mean() const
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
    changes.emplace(key, Change{ChangeKind::Missing, label_of(*row), "no longer planned"});
  }
  for (auto& [key, change] : changes) check.changes.push_back(std::move(change));
  check.times = all.mean();
  for (const auto& [allocator, ratios] : by_allocator) check.times_by_maker[allocator] = ratios.mean();
  check.plan_times = plan_times_of(rows, limits);
  for (const auto& row : rows) check.rows.push_back(label_of(row));
  return check;
}

RowLabel label_of(const ComparisonRow& row)
{
  const auto text = [](std::string_view value) {
    DocumentNode node;
    node.quoted = true;
    node.scalar = value;
    return node;
  };
  const auto count = [](std::uint64_t value) {
    DocumentNode node;
    node.scalar = std::to_string(value);
    return node;
  };
  return {fmt::format("{} × {}", row.platform, row.workload),
          fmt::format("{}, {} ({}, {}, M = {}, seed {})", row.allocator, name_of(row.goal.objective),
                      name_of(row.goal.communication), text_of(row.goal.schedule), row.goal.microbatches, row.seed),
          {{"platform", text(row.platform)},
           {"workload", text(row.workload)},
           {"allocator", text(row.allocator)},
           {"objective", text(name_of(row.goal.objective))},
           {"communication", text(name_of(row.goal.communication))},
           {"schedule", text(text_of(row.goal.schedule))},
           {"microbatches", count(row.goal.microbatches)},
           {"seed", count(row.seed)}}};
}

ScheduleTable schedules_from_csv(const std::string& text, const std::string& name, const std::string& header)
{
  FaultList faults(name);
  ScheduleTable table;
  std::vector<std::string> columns;
  for (std::size_t begin = 0; begin <= header.size();) {
    const std::size_t end = std::min(header.find(',', begin), header.size());
    columns.push_back(header.substr(begin, end - begin));
    begin = end + 1;
  }
  const auto outcome = static_cast<std::size_t>(std::find(columns.begin(), columns.end(), "outcome") - columns.begin());
  ensure(outcome + 1 < columns.size() && columns.back() == "reason", "schedules have an outcome and a reason");
  table.key_columns.assign(columns.begin(), columns.begin() + static_cast<std::ptrdiff_t>(outcome));
  table.number_columns.assign(columns.begin() + static_cast<std::ptrdiff_t>(outcome) + 1, columns.end() - 1);
  std::set<std::vector<std::string>> keys;
  const CsvTable read = CsvTable::by_program(text, header, faults);
  for (const auto& [line, cells] : read.rows()) {
    ScheduleTable::Row row;
    row.key.assign(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(outcome));
    row.outcome = cells[outcome];
    row.reason = cells.back();
    for (std::size_t i = outcome + 1; i + 1 < cells.size(); ++i) {
      double number = 0;
      const auto* const end = cells[i].data() + cells[i].size();
      const auto [stop, fault] = std::from_chars(cells[i].data(), end, number);
      if (!cells[i].empty() && (fault != std::errc{} || stop != end || !std::isfinite(number))) {
        faults.add(line, columns[i], in_quotes(cells[i]) + " is not a finite number");
      }
      row.numbers.push_back(cells[i].empty() ? std::nullopt : std::optional(number));
    }
    if (!keys.insert(row.key).second) faults.add(line, "", "the same row as one above; remove it");
    table.rows.push_back(std::move(row));
  }
  faults.throw_if_any();
  return table;
}

namespace {

/// "platform × trace", then "srtf, published, seed 0, load 2".
RowLabel label_of(const ScheduleTable& table, const ScheduleTable::Row& row)
{
  RowLabel label;
  for (std::size_t i = 0; i < row.key.size(); ++i) {
    DocumentNode node;
    node.quoted = true;
    node.scalar = row.key[i];
    label.key.push_back({table.key_columns[i], std::move(node)});
    if (i < 2) {
      label.group += (i == 0 ? "" : " × ") + row.key[i];
    } else if (!row.key[i].empty()) {
      label.name += (i == 2 ? "" : ", ") + (i < 4 ? "" : table.key_columns[i] + " ") + row.key[i];
    }
  }
  return label;
}

std::vector<Difference> differences_of(const ScheduleTable& table, const ScheduleTable::Row& before,
                                       const ScheduleTable::Row& now)
{
  const auto& columns = table.number_columns;
  std::vector<std::size_t> order;
  for (const auto* first : {"mean_jct_s", "makespan_s", "p99_jct_s"}) {
    order.push_back(static_cast<std::size_t>(std::find(columns.begin(), columns.end(), first) - columns.begin()));
  }
  for (std::size_t i = 0; i < columns.size(); ++i) {
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  }
  std::vector<Difference> differences;
  for (const std::size_t i : order) {
    const std::string& column = columns[i];
    const bool wants_high = column.ends_with("_bound_s") || column.ends_with("_fraction") || column == "jain_index";
    const bool is_time = column.ends_with("_s");
    compare_numbers(is_time ? column.substr(0, column.size() - 2) : column, is_time ? " s" : "", before.numbers[i],
                    now.numbers[i], wants_high ? Wanted::High : Wanted::Low, differences);
  }
  return differences;
}

}  // namespace

BaselineCheck check_schedules(const ScheduleTable& baseline, const ScheduleTable& today)
{
  BaselineCheck check;
  check.schedules = true;
  std::map<std::vector<std::string>, const ScheduleTable::Row*> before;
  for (const auto& row : baseline.rows) before[row.key] = &row;
  const auto& columns = today.number_columns;
  const auto mean = static_cast<std::size_t>(std::find(columns.begin(), columns.end(), "mean_jct_s") - columns.begin());
  Ratios all;
  std::map<std::string, Ratios> by_policy;
  for (const auto& row : today.rows) {
    check.rows.push_back(label_of(today, row));
    const auto found = before.find(row.key);
    if (row.outcome == failed_outcome) {
      check.changes.push_back({ChangeKind::Failed, check.rows.back(), reason_of(row.reason)});
    } else if (found == before.end()) {
      check.changes.push_back({ChangeKind::New, check.rows.back(),
                               fmt::format("mean_jct {:.6g} s; nothing to compare with", row.numbers[mean].value())});
    } else if (auto change = change_of(check.rows.back(), differences_of(today, *found->second, row))) {
      check.changes.push_back(std::move(*change));
    }
    if (found == before.end()) continue;
    const auto& old = found->second->numbers[mean];
    if (old && *old > 0 && row.numbers[mean] && *row.numbers[mean] > 0) {
      all.add(*row.numbers[mean] / *old);
      by_policy[row.key.at(2)].add(*row.numbers[mean] / *old);
    }
    before.erase(found);
  }
  for (const auto& [key, row] : before) {
    check.changes.push_back({ChangeKind::Missing, label_of(baseline, *row), "no longer scheduled"});
  }
  check.times = all.mean();
  for (const auto& [policy, ratios] : by_policy) check.times_by_maker[policy] = ratios.mean();
  return check;
}

}  // namespace isobar::results
