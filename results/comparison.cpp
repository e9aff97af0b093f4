#include "results/comparison.hpp"

#include "core/base/csv_table.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <span>

namespace isobar::results {

namespace {

template <typename Unit>
std::string exact(const std::optional<Unit>& quantity)
{
  return quantity ? fmt::format("{}", quantity->value) : "";
}

std::string exact(const std::optional<double>& number)
{
  return number ? fmt::format("{}", *number) : "";
}

template <typename Unit>
std::string rounded(const std::optional<Unit>& quantity, double unit, const char* format)
{
  return quantity ? fmt::format(fmt::runtime(format), quantity->value / unit) : "–";
}

std::string rounded(const std::optional<double>& number, const char* format)
{
  return number ? fmt::format(fmt::runtime(format), *number) : "–";
}

std::string percent(const std::optional<double>& fraction)
{
  return fraction ? fmt::format("{:.1f} %", 100 * *fraction) : "–";
}

/// Title of a group of rows: "step, 1f1b, M = 8", or "step, M = 8" where a column has the schedule.
std::string goal_text(const ComparisonRow& row, bool has_schedule_column)
{
  return fmt::format("{}{}, M = {}{}", name_of(row.goal.objective),
                     has_schedule_column ? "" : ", " + text_of(row.goal.schedule), row.goal.microbatches,
                     row.micro_batch ? fmt::format(" of {}", *row.micro_batch) : "");
}

bool have_several_schedules(std::span<const ComparisonRow> rows)
{
  const auto differs = [&rows](const ComparisonRow& row) { return row.goal.schedule != rows.front().goal.schedule; };
  return std::any_of(rows.begin(), rows.end(), differs);
}

/// Whether several devices share a stage.
bool shares_stages(const ComparisonRow& row)
{
  return row.replicas > 1 || row.shards > 1;
}

/// The plans that a row's bound holds for: a bound of chains is none of other plans, and one of DT-FM's cost is only
/// one of plans with as many stages and replicas.
std::string bounded_plans(const ComparisonRow& row)
{
  if (row.goal.objective == Objective::DtFm) return fmt::format("{} x {}", row.stages, row.replicas);
  return shares_stages(row) ? "all" : "chains";
}

/// What no placement of a group of rows is below: the least of the schedules' best bounds.
std::optional<Seconds> bound_of(std::span<const ComparisonRow> rows)
{
  std::map<std::pair<std::string, std::string>, Seconds> best;
  for (const auto& row : rows) {
    if (!row.objective_bound) continue;
    const std::pair kind(text_of(row.goal.schedule), bounded_plans(row));
    Seconds& bound = best.try_emplace(kind, *row.objective_bound).first->second;
    bound = std::max(bound, *row.objective_bound);
  }
  std::optional<Seconds> least;
  for (const auto& [kind, bound] : best) least = std::min(least.value_or(bound), bound);
  return least;
}

/// The number of stages, with that of their replicas and of the shards of these: "24", "6 × 4", "3 × 1 × 8".
std::string degrees_text(const ComparisonRow& row)
{
  std::string text = fmt::format("{}", row.stages);
  if (shares_stages(row)) text += fmt::format(" × {}", row.replicas);
  if (row.shards > 1) text += fmt::format(" × {}", row.shards);
  return text;
}

/// The same, or what came instead: "infeasible", "24 (failed)".
std::string stages_text(const ComparisonRow& row)
{
  if (row.stages == 0) return row.outcome;
  const bool has_usual_outcome = row.outcome == name_of(Outcome::Feasible) || row.outcome == name_of(Outcome::Optimal);
  return has_usual_outcome ? degrees_text(row) : fmt::format("{} ({})", degrees_text(row), row.outcome);
}

/// In the order of `baseline_header`.
std::vector<std::string> baseline_entries(const ComparisonRow& row)
{
  const auto gap = gap_of(row);
  return {row.platform,
          row.workload,
          row.allocator,
          std::string(name_of(row.goal.objective)),
          std::string(name_of(row.goal.communication)),
          text_of(row.goal.schedule),
          fmt::format("{}", row.goal.microbatches),
          fmt::format("{}", row.seed),
          row.outcome,
          exact(row.objective),
          exact(row.objective_bound),
          gap ? fmt::format("{}", *gap) : "",
          exact(row.step_time),
          exact(row.step_bound),
          exact(row.peak_memory)};
}

}  // namespace

std::optional<double> gap_of(const ComparisonRow& row)
{
  if (!row.objective || !row.objective_bound || row.objective->value <= 0) return std::nullopt;
  return (*row.objective - *row.objective_bound) / *row.objective;
}

void share_bounds(std::vector<ComparisonRow>& rows)
{
  constexpr double tolerance = 1e-9;
  using Question = std::tuple<std::string, std::string, Objective, Communication, std::string, std::uint64_t,
                              std::uint64_t, std::string>;
  const auto question_of = [](const ComparisonRow& row) {
    return Question{row.platform,
                    row.workload,
                    row.goal.objective,
                    row.goal.communication,
                    text_of(row.goal.schedule),
                    row.goal.microbatches,
                    row.micro_batch.value_or(0),
                    bounded_plans(row)};
  };
  std::map<Question, Seconds> best;
  for (const auto& row : rows) {
    if (!row.objective_bound) continue;
    Seconds& bound = best.try_emplace(question_of(row), *row.objective_bound).first->second;
    bound = std::max(bound, *row.objective_bound);
  }
  for (auto& row : rows) {
    if (!row.objective || !row.objective_bound) continue;
    row.objective_bound = std::min(best.at(question_of(row)), *row.objective);
    if (*row.objective_bound >= *row.objective * (1 - tolerance)) row.outcome = name_of(Outcome::Optimal);
    if (row.explanation) row.explanation->gap = *row.objective - *row.objective_bound;
  }
}

RowKey key_of(const ComparisonRow& row)
{
  return {row.platform,
          row.workload,
          row.allocator,
          name_of(row.goal.objective),
          name_of(row.goal.communication),
          text_of(row.goal.schedule),
          row.goal.microbatches,
          row.seed};
}

std::string comparison_to_csv(std::vector<ComparisonRow> rows)
{
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return key_of(a) < key_of(b); });
  std::string csv = std::string(comparison_header) + "\n";
  for (const auto& row : rows) {
    auto entries = baseline_entries(row);
    const Utilization& used = row.utilization;
    entries.insert(entries.end(),
                   {exact(used.tokens_per_s), exact(used.mfu_fraction), exact(used.bubble_fraction),
                    exact(row.bottleneck), row.stages == 0 ? "" : fmt::format("{}", row.stages), row.reason});
    csv += csv_line(entries);
  }
  return csv;
}

std::string baseline_to_csv(std::vector<ComparisonRow> rows)
{
  std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return key_of(a) < key_of(b); });
  std::string csv = std::string(baseline_header) + "\n";
  for (const auto& row : rows) csv += csv_line(baseline_entries(row));
  return csv;
}

std::string comparison_to_json(const std::vector<ComparisonRow>& rows)
{
  using Json = nlohmann::ordered_json;
  const auto number = [](const auto& quantity) { return quantity ? Json(quantity->value) : Json(nullptr); };
  const auto or_null = [](const std::optional<double>& ratio) { return ratio ? Json(*ratio) : Json(nullptr); };
  Json list = Json::array();
  for (const auto& row : rows) {
    const auto gap = gap_of(row);
    Json entry = {{"platform", row.platform},
                  {"workload", row.workload},
                  {"allocator", row.allocator},
                  {"objective", name_of(row.goal.objective)},
                  {"communication", name_of(row.goal.communication)},
                  {"schedule", text_of(row.goal.schedule)},
                  {"microbatches", row.goal.microbatches},
                  {"seed", row.seed},
                  {"outcome", row.outcome},
                  {"reason", row.reason},
                  {"stages", row.stages},
                  {"replicas", row.replicas},
                  {"shards", row.shards},
                  {"objective_s", number(row.objective)},
                  {"objective_bound_s", number(row.objective_bound)},
                  {"gap_fraction", gap ? Json(*gap) : Json(nullptr)},
                  {"bottleneck_s", number(row.bottleneck)},
                  {"step_time_s", number(row.step_time)},
                  {"step_bound_s", number(row.step_bound)},
                  {"peak_memory_bytes", number(row.peak_memory)},
                  {"tokens_per_s", or_null(row.utilization.tokens_per_s)},
                  {"mfu_fraction", or_null(row.utilization.mfu_fraction)},
                  {"bubble_fraction", or_null(row.utilization.bubble_fraction)}};
    if (row.micro_batch) entry["micro_batch"] = *row.micro_batch;
    if (row.explanation) entry["explanation"] = Json::parse(explanation_to_json(*row.explanation));
    list.push_back(std::move(entry));
  }
  return Json{{"schema", "isobar-comparison/1"}, {"rows", std::move(list)}}.dump(
             2, ' ', false, nlohmann::json::error_handler_t::replace) +
         "\n";
}

std::string comparison_table(const std::vector<ComparisonRow>& rows, TableWidth width)
{
  std::string text;
  std::string reasons;
  for (std::size_t begin = 0; begin < rows.size();) {
    const std::string goal = goal_text(rows[begin], true);
    std::size_t end = begin;
    while (end < rows.size() && goal_text(rows[end], true) == goal) ++end;
    const auto group = std::span(rows).subspan(begin, end - begin);
    const bool has_schedule_column = have_several_schedules(group);
    std::vector<std::vector<std::string>> table;
    for (const ComparisonRow& row : group) {
      const std::string stages = row.stages == 0 ? "–" : degrees_text(row);
      const std::string step = rounded(row.step_time, 1, "{:.4f}");
      const std::string memory = rounded(row.peak_memory, 0x1p30, "{:.2f}");
      const std::string mfu = percent(row.utilization.mfu_fraction);
      if (width == TableWidth::Terminal) {
        table.push_back({row.allocator, stages_text(row), step, percent(gap_of(row)), mfu, memory});
      } else {
        table.push_back({row.allocator, row.outcome, stages, step, rounded(row.step_bound, 1, "{:.4f}"),
                         rounded(row.objective, 1, "{:.4f}"), rounded(row.objective_bound, 1, "{:.4f}"),
                         percent(gap_of(row)), rounded(row.bottleneck, 1, "{:.4f}"),
                         rounded(row.utilization.tokens_per_s, "{:.0f}"), mfu, percent(row.utilization.bubble_fraction),
                         memory});
      }
      if (has_schedule_column) table.back().insert(table.back().begin() + 1, text_of(row.goal.schedule));
      if (row.reason.empty()) continue;
      reasons +=
          fmt::format("{}{} ({}): {}\n", on_one_line(row.allocator),
                      has_schedule_column ? ", " + text_of(row.goal.schedule) : "", row.outcome, printable(row.reason));
    }
    const auto bound = bound_of(group);
    text += fmt::format("{}{}{}\n\n", begin == 0 ? "" : "\n", goal_text(group.front(), has_schedule_column),
                        bound ? fmt::format(": no placement below {:.4f} s{}", bound->value,
                                            has_schedule_column ? "; gaps are to the bound of each schedule" : "")
                              : "");
    std::vector<std::string> header = {"allocator", "stages", "step s", "gap", "MFU", "GiB"};
    if (width != TableWidth::Terminal) {
      header = {"allocator", "outcome",      "stages",   "step s", "step bound s", "objective s", "bound s",
                "gap",       "bottleneck s", "tokens/s", "MFU",    "bubble",       "GiB"};
    }
    if (has_schedule_column) header.insert(header.begin() + 1, "schedule");
    const std::size_t left_columns = (width == TableWidth::Terminal ? 1 : 2) + (has_schedule_column ? 1 : 0);
    text += table_of(header, table, left_columns, {}, width);
    begin = end;
  }
  return reasons.empty() ? text : text + "\n" + reasons;
}

}  // namespace isobar::results
