#include "results/comparison.hpp"

#include "core/errors.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/json_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

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

using ComparisonRows = std::vector<const ComparisonRow*>;

/// What rows of one table may differ in, each of which then has a column.
struct Columns {
  bool schedule = false;
  bool recompute = false;
};

/// Of a value for each such column, those of the columns that a table has.
std::vector<std::string> values_of(Columns columns, std::string schedule, std::string recompute)
{
  std::vector<std::string> values;
  if (columns.schedule) values.push_back(std::move(schedule));
  if (columns.recompute) values.push_back(std::move(recompute));
  return values;
}

/// Title of a group of rows, without what a column has: "step, 1f1b, M = 8, recompute inner", "step, M = 8".
std::string goal_text(const ComparisonRow& row, Columns columns)
{
  const bool names_recompute = !columns.recompute && row.recompute != "none";
  return fmt::format("{}{}, M = {}{}{}", name_of(row.goal.objective),
                     columns.schedule ? "" : ", " + text_of(row.goal.schedule), row.goal.microbatches,
                     row.micro_batch ? fmt::format(" of {}", *row.micro_batch) : "",
                     names_recompute ? ", recompute " + row.recompute : "");
}

Columns columns_of(const ComparisonRows& rows)
{
  const auto differ = [&rows](auto value_of) {
    return std::any_of(rows.begin(), rows.end(),
                       [&](const ComparisonRow* row) { return value_of(*row) != value_of(*rows.front()); });
  };
  return {differ([](const ComparisonRow& row) { return row.goal.schedule; }),
          differ([](const ComparisonRow& row) { return row.recompute; })};
}

/// The rows of each table, in the order of their first rows.
std::vector<ComparisonRows> groups_of(const std::vector<ComparisonRow>& rows)
{
  std::vector<ComparisonRows> groups;
  std::map<std::string, std::size_t> group_of_title;
  for (const auto& row : rows) {
    const auto [group, is_new] = group_of_title.emplace(goal_text(row, {true, true}), groups.size());
    if (is_new) groups.emplace_back();
    groups[group->second].push_back(&row);
  }
  return groups;
}

/// Whether several devices share a stage.
bool shares_stages(const ComparisonRow& row)
{
  return row.replicas > 1 || row.shards > 1;
}

constexpr auto chains = "chains";
constexpr auto bounded_by_stages = "placement with as many stages and replicas";

/// The plans that a row's bound holds for: a bound of chains is none of other plans, one of plans that fit on their
/// devices is none of others, and one of DT-FM's cost is only one of plans with as many stages and replicas.
std::string bounded_plans(const ComparisonRow& row)
{
  if (row.goal.objective == Objective::DtFm) return fmt::format("{} x {}", row.stages, row.replicas);
  if (row.uses_machines) return "with machines";
  return shares_stages(row) ? "all" : chains;
}

/// A bound of the rows of a table, and the placements that it holds for.
struct TableBound {
  Seconds value;
  std::string_view scope;
  std::string gaps_of_chains;  ///< a note where chains have another bound
};

/// The least of the best bounds of the rows' schedules and recomputations. It holds for every placement where each of
/// these has a bound of more than chains.
std::optional<TableBound> bound_of(const ComparisonRows& rows)
{
  struct Best {
    std::optional<Seconds> of_chains;
    std::optional<Seconds> of_others;  // the least: one of plans with machines holds for all, too
  };
  std::map<std::array<std::string, 3>, Seconds> best;
  for (const auto* row : rows) {
    if (!row->objective_bound) continue;
    const std::array kind{text_of(row->goal.schedule), row->recompute, bounded_plans(*row)};
    Seconds& bound = best.try_emplace(kind, *row->objective_bound).first->second;
    bound = std::max(bound, *row->objective_bound);
  }
  std::map<std::array<std::string, 2>, Best> questions;
  for (const auto& [kind, bound] : best) {
    Best& of_question = questions[{kind[0], kind[1]}];
    auto& known = kind[2] == chains ? of_question.of_chains : of_question.of_others;
    known = std::min(known.value_or(bound), bound);
  }
  if (questions.empty()) return std::nullopt;
  const bool is_of_all = std::all_of(questions.begin(), questions.end(),
                                     [](const auto& entry) { return entry.second.of_others.has_value(); });
  std::optional<Seconds> least;
  for (const auto& [question, bounds] : questions) {
    const Seconds bound = is_of_all || !bounds.of_chains ? bounds.of_others.value() : *bounds.of_chains;
    least = std::min(least.value_or(bound), bound);
  }
  const bool is_of_stages = rows.front()->goal.objective == Objective::DtFm;
  const bool has_chains = std::any_of(questions.begin(), questions.end(),
                                      [](const auto& entry) { return entry.second.of_chains.has_value(); });
  return TableBound{*least,
                    is_of_stages ? bounded_by_stages
                    : is_of_all  ? "placement"
                                 : "chain",
                    is_of_all && has_chains ? "; the gap of a chain is to the bound of chains" : ""};
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

std::string_view scope_of_bound(const ComparisonRow& row)
{
  if (row.goal.objective == Objective::DtFm) return bounded_by_stages;
  return bounded_plans(row) == chains ? "chain" : "placement";
}

void share_bounds(std::vector<ComparisonRow>& rows)
{
  constexpr double tolerance = 1e-9;
  using Question = std::tuple<std::string, std::string, Objective, Communication, std::string, std::uint64_t,
                              std::uint64_t, std::string, std::string, std::string>;
  const auto question_of = [](const ComparisonRow& row) {
    return Question{row.platform,
                    row.workload,
                    row.goal.objective,
                    row.goal.communication,
                    text_of(row.goal.schedule),
                    row.goal.microbatches,
                    row.micro_batch.value_or(0),
                    row.recompute,
                    bounded_plans(row),
                    row.routing ? fmt::format("{} {}", row.routing->capacity_samples, row.routing->by_index) : ""};
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
    entries.insert(entries.end(), {exact(used.tokens_per_s), exact(used.mfu_fraction), exact(used.bubble_fraction),
                                   exact(row.bottleneck), row.recompute,
                                   row.stages == 0 ? "" : fmt::format("{}", row.stages), row.reason});
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

namespace {

/// The interval of the fastest row of a table, and the rows that are within the bar of it; "" where nothing is known.
std::string intervals_text(const ComparisonRows& table, const std::vector<ComparisonRow>& rows)
{
  const ComparisonRow* fastest = nullptr;
  for (const auto* row : table) {
    if (row->step_time && (fastest == nullptr || *row->step_time < *fastest->step_time)) fastest = row;
  }
  if (fastest == nullptr || !fastest->interval) return "";
  std::string text = fmt::format("\n{}: step {:.4f} s ({})\n", on_one_line(fastest->allocator),
                                 fastest->step_time->value, text_of(*fastest->interval));
  for (const auto* row : table) {
    const auto rank = rank_of(*row, rows);
    constexpr double different = 1e-6;
    if (!rank || !rank->is_tie() || rank->slower < different) continue;
    text += fmt::format(
        "within the bar: {} and {} differ by {:.1f} %, less than the {:.1f} % that rankings are known to\n",
        on_one_line(row->allocator), on_one_line(rank->fastest->allocator), 100 * rank->slower, 100 * rank->known_to);
  }
  return text;
}

}  // namespace

std::string comparison_to_json(const std::vector<ComparisonRow>& rows)
{
  using Json = nlohmann::ordered_json;
  const auto number = [](const auto& quantity) { return quantity ? Json(quantity->value) : Json(nullptr); };
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
                  {"recompute", row.recompute},
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
    if (row.interval) {
      entry["step_interval_s"] = {row.interval->low.value, row.interval->high.value};
      entry["interval_because"] = row.interval->because;
    }
    if (const auto rank = rank_of(row, rows)) {
      entry["slower_fraction"] = rank->slower;
      entry["ranking_fraction"] = rank->known_to;
    }
    if (row.micro_batch) entry["micro_batch"] = *row.micro_batch;
    if (row.uses_machines) entry["uses_machines"] = true;
    if (row.explanation) entry["explanation"] = Json::parse(explanation_to_json(*row.explanation));
    list.push_back(std::move(entry));
  }
  return json_lines({{"schema", "isobar-comparison/1"}, {"rows", std::move(list)}});
}

std::optional<StepRank> rank_of(const ComparisonRow& row, const std::vector<ComparisonRow>& rows)
{
  if (!row.step_time || !row.basis) return std::nullopt;
  const auto question_of = [](const ComparisonRow& each) {
    return std::tuple(each.platform, each.workload, goal_text(each, {true, true}));
  };
  const auto question = question_of(row);
  const ComparisonRow* fastest = &row;
  for (const auto& each : rows) {
    if (!each.step_time || *each.step_time >= *fastest->step_time || question_of(each) != question) continue;
    fastest = &each;
  }
  if (fastest == &row || !fastest->basis) return std::nullopt;
  return StepRank{fastest, *row.step_time / *fastest->step_time - 1,
                  std::expm1(compute::ranking_width_of(*row.basis, *fastest->basis))};
}

std::string comparison_table(const std::vector<ComparisonRow>& rows, TableWidth width)
{
  std::string text;
  std::string reasons;
  for (const ComparisonRows& group : groups_of(rows)) {
    const Columns columns = columns_of(group);
    std::vector<std::vector<std::string>> table;
    for (const ComparisonRow* of_group : group) {
      const ComparisonRow& row = *of_group;
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
      const auto planned_with = values_of(columns, text_of(row.goal.schedule), row.recompute);
      table.back().insert(table.back().begin() + 1, planned_with.begin(), planned_with.end());
      if (row.reason.empty()) continue;
      std::string name = on_one_line(row.allocator);
      for (const auto& value : values_of(columns, text_of(row.goal.schedule), "recompute " + row.recompute)) {
        name += ", " + value;
      }
      reasons += fmt::format("{} ({}): {}\n", name, row.outcome, printable(row.reason));
    }
    const auto bound = bound_of(group);
    const auto kinds = values_of(columns, "schedule", "recomputation");
    text += fmt::format(
        "{}{}{}\n\n", text.empty() ? "" : "\n", goal_text(*group.front(), columns),
        bound ? fmt::format(
                    ": no {} below {:.4f} s{}{}", bound->scope, bound->value.value,
                    kinds.empty() ? "" : fmt::format("; gaps are to the bound of each {}", fmt::join(kinds, " and ")),
                    bound->gaps_of_chains)
              : "");
    std::vector<std::string> header = {"allocator", "stages", "step s", "gap", "MFU", "GiB"};
    if (width != TableWidth::Terminal) {
      header = {"allocator", "outcome",      "stages",   "step s", "step bound s", "objective s", "bound s",
                "gap",       "bottleneck s", "tokens/s", "MFU",    "bubble",       "GiB"};
    }
    const auto titles = values_of(columns, "schedule", "recompute");
    header.insert(header.begin() + 1, titles.begin(), titles.end());
    const std::size_t left_columns = (width == TableWidth::Terminal ? 1 : 2) + titles.size();
    text += table_of(header, table, left_columns, {}, width) + intervals_text(group, rows);
  }
  return reasons.empty() ? text : text + "\n" + reasons;
}

}  // namespace isobar::results
