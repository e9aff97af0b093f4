#include "results/fidelity/report.hpp"

#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"
#include "results/markdown_table.hpp"
#include "results/table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace isobar::results {

namespace {

using Table = std::vector<std::vector<std::string>>;

constexpr auto nothing = "–";

std::string signed_percent(double fraction)
{
  return fmt::format("{:+.1f} %", 100 * fraction);
}

std::string coefficient(std::optional<double> value)
{
  return value ? fmt::format("{:.3f}", *value) : nothing;
}

std::string mean_text(const std::optional<ErrorFigures>& errors)
{
  return errors ? percent(errors->mean) : nothing;
}

const std::vector<std::string> set_header = {"set",  "role",   "rows",   "mean",     "median", "p95",
                                             "max",  "bias",   "inside", "Spearman", "pairs",  "regret",
                                             "most", "memory", "floor",  "reference"};
/// Columns that a narrow table may leave out, the first ones first.
const std::vector<std::size_t> dispensable = {5, 12, 10, 7, 15, 4, 14, 6, 11, 13};

std::vector<std::string> set_line(const std::string& set, const std::string& role, const RowFigures& figures)
{
  const auto& errors = figures.times.errors;
  const RankFigures& ranks = figures.times.ranks;
  return {set,
          role,
          fmt::format("{}/{}", figures.predicted, figures.rows),
          mean_text(errors),
          errors ? percent(errors->median) : nothing,
          errors ? percent(errors->p95) : nothing,
          errors ? percent(errors->max) : nothing,
          errors ? signed_percent(errors->signed_mean) : nothing,
          figures.intervals > 0 ? fmt::format("{}/{}", figures.inside, figures.intervals) : nothing,
          coefficient(ranks.spearman),
          percent(ranks.ordered_pairs),
          percent(ranks.mean_regret),
          percent(ranks.max_regret),
          mean_text(figures.memory),
          mean_text(figures.floor.errors),
          mean_text(figures.reference.errors)};
}

Table lines_of_sets(const std::vector<SetFigures>& sets)
{
  Table lines;
  for (const auto& set : sets) {
    for (const auto& [role, figures] : set.by_role) {
      lines.push_back(set_line(set.set, std::string(name_of(role)), figures));
    }
  }
  return lines;
}

Table lines_of_derived(const std::vector<SetFigures>& sets)
{
  Table lines;
  for (const auto& set : sets) lines.push_back(set_line(set.set, std::string(name_of(RowRole::Derived)), set.figures));
  return lines;
}

/// A line for each set with runs that died, or that ended but are predicted not to fit.
std::vector<std::string> feasibility_of(const FidelityFigures& figures)
{
  std::vector<std::string> lines;
  for (const auto& set : figures.sets) {
    if (set.failed_runs == 0 && set.false_refusals == 0) continue;
    lines.push_back(fmt::format("{}: {} died, {} of them predicted to fit; {} that ended predicted not to fit",
                                on_one_line(set.set), counted(set.failed_runs, "run"), set.false_fits,
                                counted(set.false_refusals, "run")));
  }
  return lines;
}

/// A line for each reason why rows of a set have no prediction, in the order of their first rows.
std::vector<std::string> missing_of(const std::vector<PredictedRow>& rows)
{
  struct Missing {
    std::string set;
    std::string_view status;
    std::string reason;
    std::vector<std::string> names;
  };
  std::vector<Missing> all;
  for (const auto& row : rows) {
    if (row.status() == "predicted") continue;
    const auto found = std::ranges::find_if(all, [&](const Missing& one) {
      return one.set == row.measured.set && one.status == row.status() && one.reason == row.reason();
    });
    auto& one =
        found == all.end() ? all.emplace_back(Missing{row.measured.set, row.status(), row.reason(), {}}) : *found;
    one.names.push_back(row.measured.name);
  }
  std::vector<std::string> lines;
  for (const auto& one : all) {
    constexpr std::size_t most_names = 3;
    std::string names;
    for (std::size_t i = 0; i < std::min(one.names.size(), most_names); ++i)
      names += (i > 0 ? ", " : "") + one.names[i];
    if (one.names.size() > most_names) names += fmt::format(" and {} more", one.names.size() - most_names);
    lines.push_back(fmt::format("{}: {} {} ({}): {}", on_one_line(one.set), counted(one.names.size(), "row"),
                                one.status, on_one_line(names), on_one_line(one.reason)));
  }
  return lines;
}

Table part_lines(const RowPrediction& prediction)
{
  const Seconds step = *prediction.step;
  Table lines;
  Seconds sum;
  const auto add = [&](const char* name, Seconds time) {
    lines.push_back({name, text_of(time), percent(time / step)});
  };
  for (const auto& part : row_parts) {
    sum += prediction.parts.*part.time;
    add(part.name, prediction.parts.*part.time);
  }
  constexpr double visible = 0.0005;  // of the step
  if (std::abs((step - sum) / step) >= visible) add("other", step - sum);
  add("step", step);
  return lines;
}

std::string with_settings(const std::string& file, const std::vector<std::pair<std::string, std::string>>& settings)
{
  std::string text = file;
  for (const auto& [key, value] : settings) text += fmt::format(" {}={}", key, value);
  return text;
}

/// What the row says of its run.
Table run_lines(const MeasuredRow& row)
{
  Table lines = {{"platform", with_settings(row.platform, row.platform_overrides)},
                 {"workload", with_settings(row.workload, row.overrides)}};
  const auto add = [&lines](const char* what, const std::string& value) {
    if (!value.empty()) lines.push_back({what, value});
  };
  add("framework", row.framework);
  std::string degrees = fmt::format("pp {}, tp {}, dp {}", row.pipeline_degree, fmt::join(row.tensor_degrees, "+"),
                                    fmt::join(row.data_degrees, "+"));
  if (row.context_degree > 1) degrees += fmt::format(", cp {}", row.context_degree);
  if (row.context_exchange) degrees += fmt::format(" {}", name_of(*row.context_exchange));
  if (row.expert_degree > 1) degrees += fmt::format(", ep {}", row.expert_degree);
  if (row.virtual_stages.value_or(1) > 1) degrees += fmt::format(", {} chunks a device", *row.virtual_stages);
  if (row.zero_stage > 0) degrees += fmt::format(", ZeRO {}", row.zero_stage);
  if (row.sequence_parallel) degrees += ", sequence parallel";
  add("degrees", degrees);
  add("batch", fmt::format("{} samples", row.global_batch) +
                   (row.micro_batch ? fmt::format(", {} in a micro-batch", *row.micro_batch) : ""));
  add("schedule", row.schedule);
  const auto recompute = row.recompute ? std::string(name_of(*row.recompute)) : "";
  add("recompute", row.recompute_modules.empty() ? recompute : fmt::to_string(fmt::join(row.recompute_modules, " ")));
  add("blocks", fmt::format("{}", fmt::join(row.blocks, "+")));
  add("devices", row.devices);
  add("plan", row.plan);
  add("profiles", fmt::format("{}", fmt::join(row.profiles, ", ")));
  add("note", row.note);
  return lines;
}

/// Notes are "subject: what".
Table note_lines(const std::vector<std::string>& notes)
{
  Table lines;
  for (const auto& note : notes) {
    const auto colon = note.find(": ");
    if (colon == std::string::npos) {
      lines.push_back({"", note});
    } else {
      lines.push_back({note.substr(0, colon), note.substr(colon + 2)});
    }
  }
  return lines;
}

std::string beside_measured(const std::string& what, const std::string& predicted, const std::string& measured,
                            std::optional<double> error)
{
  std::string line = fmt::format("{}: predicted {}, measured {}", what, predicted, measured);
  if (error) line += fmt::format(" ({})", signed_percent(*error));
  return line + "\n";
}

}  // namespace

std::string fidelity_to_text(const std::vector<PredictedRow>& rows, const FidelityFigures& figures, TableWidth width)
{
  constexpr std::size_t left_columns = 2;
  std::string text;
  const auto add_table = [&](Table lines) {
    if (lines.empty()) return;
    if (!text.empty()) text += "\n";
    text += table_of(set_header, std::move(lines), left_columns, dispensable, width);
  };
  const auto add_lines = [&](const std::vector<std::string>& lines) {
    if (!lines.empty() && !text.empty()) text += "\n";
    for (const auto& line : lines) text += line + "\n";
  };
  add_table(lines_of_sets(figures.sets));
  if (!figures.derived.empty()) {
    add_lines({"Derived rows, which are another model's output:"});
    add_table(lines_of_derived(figures.derived));
  }
  add_lines(feasibility_of(figures));
  add_lines(missing_of(rows));
  return text;
}

std::string fidelity_to_markdown(const std::vector<PredictedRow>& rows, const FidelityFigures& figures)
{
  constexpr std::size_t left_columns = 2;
  std::string text = "## Sets\n\n" + markdown_table_of(set_header, lines_of_sets(figures.sets), left_columns);
  Table groups;
  for (const auto& set : figures.sets) {
    for (const auto& group : set.groups) {
      groups.push_back({set.set, group.group, std::to_string(group.rows), coefficient(group.ranks.spearman),
                        percent(group.ranks.ordered_pairs), percent(group.ranks.mean_regret), group.chosen,
                        group.best});
    }
  }
  if (!groups.empty()) {
    text += "\n## Groups\n\n" +
            markdown_table_of({"set", "group", "rows", "Spearman", "pairs", "regret", "chosen", "fastest"}, groups, 2);
  }
  if (!figures.derived.empty()) {
    text += "\n## Derived rows\n\nThey are another model's output, not measurements.\n\n" +
            markdown_table_of(set_header, lines_of_derived(figures.derived), left_columns);
  }
  const auto add_list = [&text](const char* title, const std::vector<std::string>& lines) {
    if (lines.empty()) return;
    text += fmt::format("\n## {}\n\n", title);
    for (const auto& line : lines) text += "- " + markdown_cell(line) + "\n";
  };
  add_list("Feasibility", feasibility_of(figures));
  add_list("Rows without prediction", missing_of(rows));
  return text;
}

std::string explanation_to_text(const PredictedRow& row)
{
  const auto& [measured, prediction, failure, floor] = row;
  std::string text = fmt::format("{}/{}, {} ({}:{})\n", on_one_line(measured.set), on_one_line(measured.name),
                                 name_of(measured.role), on_one_line(measured.file), measured.line);
  const auto shown_of = [](const auto& amount) { return amount ? text_of(*amount) : std::string(nothing); };
  if (prediction.step) {
    text += beside_measured("step", shown_of(prediction.step), shown_of(measured.measured), row.error());
  } else {
    text += fmt::format("{}: {}\n", row.status(), on_one_line(row.reason()));
  }
  if (prediction.interval) {
    const auto inside = row.is_inside();
    text += fmt::format("interval {}{}\n", text_of(*prediction.interval),
                        inside ? fmt::format("; measured {} it", *inside ? "inside" : "outside") : "");
  }
  if (prediction.memory || measured.measured_memory) {
    const std::string kind = measured.memory_kind ? std::string(name_of(*measured.memory_kind)) + " " : "";
    text += beside_measured(kind + "memory", shown_of(prediction.memory), shown_of(measured.measured_memory),
                            row.memory_error());
  }
  if (!prediction.fits) text += "predicted not to fit into the memory of its devices\n";
  if (prediction.step) text += "\n" + table_of({"part", "time", "of the step"}, part_lines(prediction));
  if (prediction.interval) {
    text += "\n" + table_of({"the interval", "because of"}, note_lines(prediction.interval->because), 2);
  }
  text += "\n" + table_of({"the run", "as published"}, run_lines(measured), 2);
  if (!prediction.notes.empty()) {
    text += "\n" + table_of({"the prediction", "uses"}, note_lines(prediction.notes), 2);
  }
  return text;
}

}  // namespace isobar::results
