#include "results/sweep/sweep_table.hpp"

#include "core/errors.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "results/comparison.hpp"
#include "results/sweep/statistics.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;
/// One line: its columns and their values.
using Line = std::vector<std::pair<std::string, Json>>;

bool is_in_key(const SweepResult& result, const std::string& name)
{
  return std::any_of(result.key.begin(), result.key.end(), [&name](const auto& member) { return member.key == name; });
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

/// Identity of a run; without the seed where a line summarises several runs.
Line parameters_of(const Sweep& sweep, const SweepResult& result, bool with_seed)
{
  Line line;
  for (const auto& [name, value] : result.key) {
    if (with_seed || name != "seed") line.emplace_back(name, value_to_json(value));
  }
  for (const auto& parameter : sweep.parameters()) {
    if (is_in_key(result, parameter.name)) continue;
    line.emplace_back(column_of(parameter.name), value_to_json(*sweep.value(result.run, parameter.name)));
  }
  return line;
}

Json number_to_json(const std::optional<double>& number, bool is_count = false)
{
  if (!number) return nullptr;
  return is_count ? Json(static_cast<std::uint64_t>(*number)) : Json(*number);
}

Line sweep_line(const Sweep& sweep, const SweepResult& result)
{
  Line line = parameters_of(sweep, result, true);
  line.emplace_back("outcome", result.outcome);
  const auto& columns = sweep.kind().shown;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    line.emplace_back(columns[i].name, number_to_json(result.numbers.at(i), columns[i].is_count));
  }
  line.emplace_back("reason", result.reason);
  return line;
}

std::string value_text(const Json& value)
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
  for (const auto& line : lines) csv += entries_of(line, [](const auto& column) { return value_text(column.second); });
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
  for (const auto& result : results) lines.push_back(sweep_line(sweep, result));
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

std::size_t index_of(const Sweep& sweep, const RunKind::Mean& mean)
{
  const auto& columns = sweep.kind().shown;
  const auto column =
      std::find_if(columns.begin(), columns.end(), [&](const SweepColumn& one) { return one.name == mean.column; });
  return static_cast<std::size_t>(column - columns.begin());
}

/// Mean over the runs that have the number; none when no run has it.
std::optional<MeanInterval> mean_of(const Sweep& sweep, const std::vector<const SweepResult*>& point,
                                    const RunKind::Mean& mean)
{
  const std::size_t index = index_of(sweep, mean);
  std::vector<double> numbers;
  for (const auto* result : point) {
    if (const auto& number = result->numbers.at(index)) numbers.push_back(*number);
  }
  return numbers.empty() ? std::nullopt : std::optional(mean_interval(numbers));
}

std::size_t simulated_runs_of(const Sweep& sweep, const std::vector<const SweepResult*>& point)
{
  return static_cast<std::size_t>(
      std::count_if(point.begin(), point.end(), [&](const auto* result) { return is_simulated(sweep, *result); }));
}

/// "step_time_s" with "mean" is "step_time_mean_s".
std::string with_statistic(const std::string& column, const std::string& statistic)
{
  const auto unit = column.rfind('_');
  return column.substr(0, unit) + "_" + statistic + column.substr(unit);
}

std::vector<Line> summary_of(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  std::vector<Line> lines;
  for (const auto& point : points_of(sweep, results)) {
    Line line = parameters_of(sweep, *point.front(), false);
    line.emplace_back("runs", point.size());
    line.emplace_back("simulated_runs", simulated_runs_of(sweep, point));
    for (const auto& mean : sweep.kind().means) {
      const auto measured = mean_of(sweep, point, mean);
      line.emplace_back(with_statistic(mean.column, "mean"), measured ? Json(measured->mean) : Json(nullptr));
      line.emplace_back(with_statistic(mean.column, "ci95"),
                        measured ? number_to_json(measured->half_width) : Json(nullptr));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::map<std::string, std::size_t> outcomes_of(const std::vector<SweepResult>& results)
{
  std::map<std::string, std::size_t> outcomes;
  for (const auto& result : results) ++outcomes[result.outcome];
  return outcomes;
}

std::string interval_text(const std::optional<MeanInterval>& measured, int decimals)
{
  if (!measured) return "–";
  const std::string mean = fmt::format("{:.{}f}", measured->mean, decimals);
  return measured->half_width ? fmt::format("{} ± {:.{}f}", mean, *measured->half_width, decimals) : mean;
}

/// The value of a key of a result; "" if it has none.
std::string text_in(const SweepResult& result, const std::string& name)
{
  for (const auto& member : result.key) {
    if (member.key == name) return member.value.scalar;
  }
  return "";
}

/// What the sweep leaves to defaults and in which the rows differ.
std::vector<std::string> differing_defaults(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  std::vector<std::string> defaults = sweep.kind().defaults;
  std::erase_if(defaults, [&](const std::string& name) {
    return sweep.has_parameter(name) || std::all_of(results.begin(), results.end(), [&](const SweepResult& result) {
             return text_in(result, name) == text_in(results.front(), name);
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
  for (const auto& result : results) {
    if (result.outcome != failed_outcome) continue;
    if (reasons.size() == most_reasons || !reasons.insert(result.reason).second) {
      ++others;
      continue;
    }
    text += fmt::format("{} failed: {}\n", on_one_line(name_of_run(sweep, result.run)), printable(result.reason));
  }
  if (others > 0) text += fmt::format("{} failed; --csv has their reasons\n", counted(others, "more row"));
  return text.empty() ? text : "\n" + text;
}

}  // namespace

std::string sweep_to_csv(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  return lines_to_csv(lines_of(sweep, results));
}

std::string sweep_header(const Sweep& sweep, const SweepResult& result)
{
  const std::string csv = lines_to_csv({sweep_line(sweep, result)});
  return csv.substr(0, csv.find('\n'));
}

std::string sweep_to_json_lines(const Sweep& sweep, const std::vector<SweepResult>& results)
{
  std::string text;
  for (const auto& line : lines_of(sweep, results)) {
    text += json_line(object_of(line)) + "\n";
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
  return json_lines(document);
}

bool is_simulated(const Sweep& sweep, const SweepResult& result)
{
  return result.numbers.at(index_of(sweep, sweep.kind().means.front())).has_value();
}

DocumentNode text_node(const std::string& text)
{
  DocumentNode node;
  node.kind = DocumentNode::Kind::Scalar;
  node.quoted = true;
  node.scalar = text;
  return node;
}

DocumentNode count_node(std::uint64_t count)
{
  DocumentNode node;
  node.kind = DocumentNode::Kind::Scalar;
  node.scalar = std::to_string(count);
  return node;
}

std::string sweep_summary_table(const Sweep& sweep, const std::vector<SweepResult>& results, TableWidth width)
{
  std::vector<std::string> varying;
  for (const auto& parameter : sweep.parameters()) {
    if (parameter.values.size() > 1 && parameter.name != "seed") varying.push_back(parameter.name);
  }
  const auto defaults = differing_defaults(sweep, results);
  std::vector<std::string> header = varying;
  header.insert(header.end(), defaults.begin(), defaults.end());
  const std::size_t key_count = header.size();
  header.insert(header.end(), {"runs", "simulated"});
  std::vector<RunKind::Mean> means = sweep.kind().means;
  std::erase_if(means, [](const RunKind::Mean& mean) { return mean.heading.empty(); });
  for (const auto& mean : means) header.push_back(mean.heading);
  std::vector<std::vector<std::string>> lines;
  for (const auto& point : points_of(sweep, results)) {
    std::vector<std::string> line;
    for (const auto& parameter : varying) line.push_back(sweep.text(point.front()->run, parameter));
    for (const auto& name : defaults) line.push_back(text_in(*point.front(), name));
    line.push_back(fmt::format("{}", point.size()));
    line.push_back(fmt::format("{}", simulated_runs_of(sweep, point)));
    for (const auto& mean : means) line.push_back(interval_text(mean_of(sweep, point, mean), mean.decimals));
    lines.push_back(std::move(line));
  }
  // simulated, runs, and the last mean
  const std::vector<std::size_t> least_important_first = {key_count + 1, key_count, header.size() - 1};
  std::string counts;
  for (const auto& [outcome, count] : outcomes_of(results)) counts += fmt::format(", {} {}", count, outcome);
  return fmt::format("{}\n{} of {} runs{}\n{}", table_of(header, lines, key_count, least_important_first, width),
                     results.size(), sweep.runs(), counts, failures_text(sweep, results));
}

}  // namespace isobar::results
