#include "results/sweep/sweep_table.hpp"

#include "core/base/csv_table.hpp"
#include "core/base/quantity_text.hpp"
#include "core/errors.hpp"
#include "results/sweep/statistics.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>
#include <utility>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;
/// One line: its columns and their values.
using Line = std::vector<std::pair<std::string, Json>>;

constexpr std::array<std::string_view, 8> key_columns = {"platform",      "workload", "allocator",    "objective",
                                                         "communication", "schedule", "microbatches", "seed"};

bool is_key_column(const std::string& name)
{
  return std::find(key_columns.begin(), key_columns.end(), name) != key_columns.end();
}

/// "platform.speed-spread" as a column name that every reader of tables accepts.
std::string column_of(std::string parameter)
{
  std::replace_if(
      parameter.begin(), parameter.end(), [](char c) { return c == '.' || c == '-'; }, '_');
  return parameter;
}

Json value_to_json(const DocumentNode& value)
{
  if (!is_number(value)) return value.scalar;
  const char* const end = value.scalar.data() + value.scalar.size();
  std::uint64_t count = 0;
  const auto whole = std::from_chars(value.scalar.data(), end, count);
  if (whole.ec == std::errc{} && whole.ptr == end) return count;
  double number = 0;
  std::from_chars(value.scalar.data(), end, number);
  return number;
}

bool has_parameter(const Sweep& sweep, const std::string& name)
{
  const auto& all = sweep.parameters();
  return std::any_of(all.begin(), all.end(), [&name](const SweepParameter& one) { return one.name == name; });
}

/// Whether layers recompute by the default of an allocator, which no parameter of the sweep says.
bool recomputes_by_default(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  if (has_parameter(sweep, "recompute")) return false;
  return std::any_of(results.begin(), results.end(),
                     [](const SweepResult& result) { return result.row.recompute != "none"; });
}

/// Identity of a run; without the seed where a line summarises several runs.
Line parameters_of(const Sweep& sweep, const SweepResult& result, bool with_seed, bool with_recompute)
{
  const ComparisonRow& row = result.row;
  Line line = {{"platform", row.platform},
               {"workload", row.workload},
               {"allocator", row.allocator},
               {"objective", name_of(row.goal.objective)},
               {"communication", name_of(row.goal.communication)},
               {"schedule", isobar::text_of(row.goal.schedule)},
               {"microbatches", row.goal.microbatches}};
  if (with_seed) line.emplace_back("seed", row.seed);
  if (with_recompute) line.emplace_back("recompute", row.recompute);
  for (const auto& parameter : sweep.parameters()) {
    if (is_key_column(parameter.name)) continue;
    line.emplace_back(column_of(parameter.name), value_to_json(*sweep.value(result.run, parameter.name)));
  }
  return line;
}

template <typename Unit>
Json number(const std::optional<Unit>& quantity)
{
  return quantity ? Json(quantity->value) : Json(nullptr);
}

Line line_of(const Sweep& sweep, const SweepResult& result, bool with_recompute)
{
  const ComparisonRow& row = result.row;
  Line line = parameters_of(sweep, result, true, with_recompute);
  const auto gap = gap_of(row);
  line.emplace_back("outcome", row.outcome);
  line.emplace_back("objective_s", number(row.objective));
  line.emplace_back("objective_bound_s", number(row.objective_bound));
  line.emplace_back("gap_fraction", gap ? Json(*gap) : Json(nullptr));
  line.emplace_back("step_time_s", number(row.step_time));
  line.emplace_back("step_bound_s", number(row.step_bound));
  line.emplace_back("peak_memory_bytes", number(row.peak_memory));
  line.emplace_back("bottleneck_s", number(row.bottleneck));
  line.emplace_back("stages", row.stages);
  line.emplace_back("reason", row.reason);
  return line;
}

std::string text_of(const Json& value)
{
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  return value.is_number_float() ? fmt::format("{}", value.get<double>()) : value.dump();
}

std::string lines_to_csv(const std::vector<Line>& lines)
{
  if (lines.empty()) return "";
  const auto entries_of = [](const Line& line, auto entry_of) {
    std::vector<std::string> entries;
    for (const auto& column : line) entries.push_back(entry_of(column));
    return csv_line(entries);
  };
  std::string csv = entries_of(lines.front(), [](const auto& column) { return column.first; });
  for (const auto& line : lines) csv += entries_of(line, [](const auto& column) { return text_of(column.second); });
  return csv;
}

Json object_of(const Line& line)
{
  Json object = Json::object();
  for (const auto& [column, value] : line) object[column] = value;
  return object;
}

std::vector<Line> lines_of(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  std::vector<Line> lines;
  lines.reserve(results.size());
  const bool with_recompute = recomputes_by_default(sweep, results);
  for (const auto& result : results) lines.push_back(line_of(sweep, result, with_recompute));
  return lines;
}

/// Groups of runs that differ only in their seed, in the order of the first run of each.
std::vector<std::vector<const SweepResult*>> points_of(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  std::vector<std::vector<const SweepResult*>> points;
  std::map<std::vector<std::size_t>, std::size_t> point_of_values;
  for (const auto& result : results) {
    std::vector<std::size_t> values;
    for (std::size_t i = 0; i < sweep.parameters().size(); ++i) {
      if (sweep.parameters()[i].name != "seed") values.push_back(sweep.value_index(result.run, i));
    }
    const auto [point, is_new] = point_of_values.emplace(std::move(values), points.size());
    if (is_new) points.emplace_back();
    points[point->second].push_back(&result);
  }
  return points;
}

/// Mean over the runs that have the quantity; none when no run has it.
template <typename Read>
std::optional<MeanInterval> mean_of(const std::vector<const SweepResult*>& point, Read read)
{
  std::vector<double> numbers;
  for (const auto* result : point) {
    if (const std::optional<double> value = read(result->row)) numbers.push_back(*value);
  }
  return numbers.empty() ? std::nullopt : std::optional(mean_interval(numbers));
}

std::optional<double> value_of(const std::optional<Seconds>& time)
{
  return time ? std::optional(time->value) : std::nullopt;
}

std::optional<MeanInterval> step_time_of(const std::vector<const SweepResult*>& point)
{
  return mean_of(point, [](const ComparisonRow& row) { return value_of(row.step_time); });
}

std::optional<MeanInterval> objective_of(const std::vector<const SweepResult*>& point)
{
  return mean_of(point, [](const ComparisonRow& row) { return value_of(row.objective); });
}

std::vector<Line> summary_of(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  std::vector<Line> lines;
  const bool with_recompute = recomputes_by_default(sweep, results);
  for (const auto& point : points_of(sweep, results)) {
    Line line = parameters_of(sweep, *point.front(), false, with_recompute);
    const auto add = [&line](const std::string& mean, const std::string& interval,
                             const std::optional<MeanInterval>& measured) {
      line.emplace_back(mean, measured ? Json(measured->mean) : Json(nullptr));
      line.emplace_back(interval, measured && measured->half_width ? Json(*measured->half_width) : Json(nullptr));
    };
    const auto step_time = step_time_of(point);
    line.emplace_back("runs", point.size());
    line.emplace_back("simulated_runs", step_time ? step_time->count : 0);
    add("step_time_mean_s", "step_time_ci95_s", step_time);
    add("objective_mean_s", "objective_ci95_s", objective_of(point));
    add("gap_mean_fraction", "gap_ci95_fraction", mean_of(point, gap_of));
    lines.push_back(std::move(line));
  }
  return lines;
}

std::map<std::string, std::size_t> outcomes_of(const std::vector<SweepResult>& results)
{
  std::map<std::string, std::size_t> outcomes;
  for (const auto& result : results) ++outcomes[result.row.outcome];
  return outcomes;
}

std::string interval_text(const std::optional<MeanInterval>& measured)
{
  if (!measured) return "–";
  if (!measured->half_width) return fmt::format("{:.4f}", measured->mean);
  return fmt::format("{:.4f} ± {:.4f}", measured->mean, *measured->half_width);
}

/// A parameter that the sweep leaves to allocators and objectives, and its value in a row.
using Default = std::pair<std::string, std::string (*)(const ComparisonRow&)>;

/// Those in which the rows differ.
std::vector<Default> differing_defaults(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  std::vector<Default> defaults = {
      {"schedule", [](const ComparisonRow& row) { return isobar::text_of(row.goal.schedule); }},
      {"microbatches", [](const ComparisonRow& row) { return fmt::format("{}", row.goal.microbatches); }},
      {"recompute", [](const ComparisonRow& row) { return row.recompute; }}};
  std::erase_if(defaults, [&](const Default& each) {
    return has_parameter(sweep, each.first) ||
           std::all_of(results.begin(), results.end(), [&](const SweepResult& result) {
             return each.second(result.row) == each.second(results.front().row);
           });
  });
  return defaults;
}

/// "allocator even, seed 2": the parameters that vary, and their values in a run.
std::string name_of_run(const Sweep& sweep, std::size_t run)
{
  std::string name;
  for (const auto& parameter : sweep.parameters()) {
    if (parameter.values.size() < 2) continue;
    name += fmt::format("{}{} {}", name.empty() ? "" : ", ", parameter.name, sweep.text(run, parameter.name));
  }
  return name.empty() ? "the run" : name;
}

/// A line for each of the first reasons of failed runs, and one for the other failed runs; "" when none failed.
std::string failures_text(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  constexpr std::size_t most_reasons = 5;
  std::set<std::string> reasons;
  std::size_t others = 0;
  std::string text;
  for (const auto& [run, row] : results) {
    if (row.outcome != failed_outcome) continue;
    if (reasons.size() == most_reasons || !reasons.insert(row.reason).second) {
      ++others;
      continue;
    }
    text += fmt::format("{} failed: {}\n", on_one_line(name_of_run(sweep, run)), printable(row.reason));
  }
  if (others > 0) text += fmt::format("{} failed; --csv has their reasons\n", counted(others, "more row"));
  return text.empty() ? text : "\n" + text;
}

}  // namespace

std::string sweep_to_csv(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  return lines_to_csv(lines_of(sweep, results));
}

std::string sweep_to_json_lines(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  std::string text;
  for (const auto& line : lines_of(sweep, results)) {
    text += object_of(line).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  return text;
}

std::string sweep_summary_to_csv(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  return lines_to_csv(summary_of(sweep, results));
}

std::string sweep_summary_to_json(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  Json points = Json::array();
  for (const auto& line : summary_of(sweep, results)) points.push_back(object_of(line));
  const Json document = {{"schema", "isobar-sweep/1"},
                         {"runs", sweep.runs()},
                         {"missing", sweep.runs() - results.size()},
                         {"outcomes", outcomes_of(results)},
                         {"points", std::move(points)}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string sweep_summary_table(const Sweep& sweep, const std::vector<SweepResult>& results, TableWidth width)
{
  std::vector<std::string> varying;
  for (const auto& parameter : sweep.parameters()) {
    if (parameter.values.size() > 1 && parameter.name != "seed") varying.push_back(parameter.name);
  }
  const auto defaults = differing_defaults(sweep, results);
  std::vector<std::string> header = varying;
  for (const auto& [parameter, text_in] : defaults) header.push_back(parameter);
  const std::size_t key_count = header.size();
  for (const auto* column : {"runs", "simulated", "step s", "objective s"}) header.emplace_back(column);
  std::vector<std::vector<std::string>> lines;
  for (const auto& point : points_of(sweep, results)) {
    std::vector<std::string> line;
    for (const auto& parameter : varying) line.push_back(sweep.text(point.front()->run, parameter));
    for (const auto& [parameter, text_in] : defaults) line.push_back(text_in(point.front()->row));
    const auto step_time = step_time_of(point);
    line.push_back(fmt::format("{}", point.size()));
    line.push_back(fmt::format("{}", step_time ? step_time->count : 0));
    line.push_back(interval_text(step_time));
    line.push_back(interval_text(objective_of(point)));
    lines.push_back(std::move(line));
  }
  // simulated, runs, objective s
  const std::vector<std::size_t> least_important_first = {key_count + 1, key_count, key_count + 3};
  std::string counts;
  for (const auto& [outcome, count] : outcomes_of(results)) counts += fmt::format(", {} {}", count, outcome);
  return fmt::format("{}\n{} of {} runs{}\n{}", table_of(header, lines, key_count, least_important_first, width),
                     results.size(), sweep.runs(), counts, failures_text(sweep, results));
}

}  // namespace isobar::results
