#include "core/errors.hpp"
#include "core/text/csv_table.hpp"
#include "core/text/json_text.hpp"
#include "results/fidelity/report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace isobar::results {

namespace {

using Json = nlohmann::ordered_json;

Json json_of(std::optional<double> number)
{
  return number ? Json(*number) : Json(nullptr);
}

template <int T, int B, int F>
Json json_of(const std::optional<Quantity<T, B, F>>& quantity)
{
  return quantity ? Json(quantity->value) : Json(nullptr);
}

void add_errors(Json& json, const std::string& beginning, const std::optional<ErrorFigures>& errors)
{
  const auto add = [&](const char* key, double ErrorFigures::*figure) {
    json[beginning + key] = errors ? Json((*errors).*figure) : Json(nullptr);
  };
  add("mean_error_fraction", &ErrorFigures::mean);
  add("median_error_fraction", &ErrorFigures::median);
  add("p95_error_fraction", &ErrorFigures::p95);
  add("max_error_fraction", &ErrorFigures::max);
  add("signed_error_fraction", &ErrorFigures::signed_mean);
}

void add_ranks(Json& json, const RankFigures& ranks)
{
  json["spearman"] = json_of(ranks.spearman);
  json["ranked_groups"] = ranks.groups;
  json["pairs"] = ranks.pairs;
  json["ordered_pairs_fraction"] = json_of(ranks.ordered_pairs);
  json["regret_fraction"] = json_of(ranks.mean_regret);
  json["max_regret_fraction"] = json_of(ranks.max_regret);
}

/// Another model's figures; null if it predicts no row.
Json other_model(const TimeFigures& times)
{
  if (!times.errors) return nullptr;
  Json json = {{"rows", times.errors->rows}};
  add_errors(json, "", times.errors);
  add_ranks(json, times.ranks);
  return json;
}

void add_figures(Json& json, const RowFigures& figures)
{
  json["rows"] = figures.rows;
  json["predicted_rows"] = figures.predicted;
  json["coverage_fraction"] = json_of(figures.coverage());
  add_errors(json, "", figures.times.errors);
  add_ranks(json, figures.times.ranks);
  json["interval_rows"] = figures.intervals;
  json["inside_interval_fraction"] = json_of(figures.inside_fraction());
  json["memory_rows"] = figures.memory ? figures.memory->rows : 0;
  add_errors(json, "memory_", figures.memory);
  json["floor"] = other_model(figures.floor);
  Json reference = other_model(figures.reference);
  if (!reference.is_null() && figures.beside_reference) {
    reference["own_mean_error_fraction"] = figures.beside_reference->mean;
  }
  if (!reference.is_null() && figures.reference_memory) {
    add_errors(reference, "memory_", figures.reference_memory);
  }
  json["reference"] = std::move(reference);
}

Json set_json(const SetFigures& set)
{
  Json json = {{"set", set.set}, {"roles", Json::array()}};
  for (const auto role : set.roles) json["roles"].push_back(name_of(role));
  add_figures(json, set.figures);
  json["failed_runs"] = set.failed_runs;
  json["false_fits"] = set.false_fits;
  json["false_refusals"] = set.false_refusals;
  json["excluded_rows"] = set.excluded;
  json["by_role"] = Json::object();
  for (const auto& [role, figures] : set.by_role) add_figures(json["by_role"][std::string(name_of(role))], figures);
  json["groups"] = Json::array();
  for (const auto& group : set.groups) {
    Json one = {{"group", group.group}, {"rows", group.rows}};
    add_ranks(one, group.ranks);
    one["chosen"] = group.chosen;
    one["fastest"] = group.best;
    json["groups"].push_back(std::move(one));
  }
  return json;
}

Json row_json(const PredictedRow& row)
{
  const auto& [measured, prediction, failure, floor] = row;
  Json json = {{"set", measured.set},
               {"row", measured.name},
               {"role", name_of(measured.role)},
               {"group", measured.group},
               {"status", row.status()},
               {"reason", row.reason()},
               {"device", prediction.device},
               {"framework", measured.framework},
               {"measured_s", json_of(measured.measured)},
               {"predicted_s", json_of(prediction.step)},
               {"error_fraction", json_of(row.error())},
               {"floor_s", json_of(floor)},
               {"reference_s", json_of(measured.reference)},
               {"measured_memory_bytes", json_of(measured.measured_memory)},
               {"predicted_memory_bytes", json_of(prediction.memory)},
               {"memory_error_fraction", json_of(row.memory_error())},
               {"memory_kind", measured.memory_kind ? Json(name_of(*measured.memory_kind)) : Json(nullptr)},
               {"fits", prediction.step ? Json(prediction.fits) : Json(nullptr)},
               {"folded", prediction.folded},
               {"parts", nullptr}};
  if (prediction.interval) {
    json["step_interval_s"] = {prediction.interval->low.value, prediction.interval->high.value};
    json["interval_because"] = prediction.interval->because;
    json["exposed_fraction"] = prediction.exposed;
    json["spans_nodes"] = prediction.spans_nodes;
    if (const auto inside = row.is_inside()) json["inside_interval"] = *inside;
  }
  if (prediction.step) {
    json["parts"] = Json::object();
    for (const auto& part : row_parts) json["parts"][part.key] = (prediction.parts.*part.time).value;
  }
  return json;
}

}  // namespace

std::string fidelity_to_json(const std::vector<PredictedRow>& rows, const FidelityFigures& figures,
                             const std::vector<std::string>& beyond)
{
  Json json = {{"schema", "isobar-fidelity-result/1"},
               {"sets", Json::array()},
               {"derived", Json::array()},
               {"beyond_limits", beyond},
               {"rows", Json::array()}};
  for (const auto& set : figures.sets) json["sets"].push_back(set_json(set));
  for (const auto& set : figures.derived) json["derived"].push_back(set_json(set));
  for (const auto& row : rows) json["rows"].push_back(row_json(row));
  return json_lines(json);
}

std::string explanation_to_json(const PredictedRow& row)
{
  Json json = {{"schema", "isobar-fidelity-row/1"}, {"row", row_json(row)}};
  json["row"]["notes"] = row.prediction.notes;
  return json_lines(json);
}

std::string fidelity_to_csv(const std::vector<PredictedRow>& rows)
{
  std::vector<std::string> header = {"set",
                                     "row",
                                     "role",
                                     "group",
                                     "status",
                                     "measured_s",
                                     "predicted_s",
                                     "error_fraction",
                                     "floor_s",
                                     "reference_s",
                                     "memory_kind",
                                     "measured_memory_bytes",
                                     "predicted_memory_bytes",
                                     "memory_error_fraction",
                                     "fits",
                                     "folded"};
  for (const auto& part : row_parts) header.emplace_back(part.key);
  header.insert(header.end(), {"interval_low_s", "interval_high_s", "reason"});
  std::string text = csv_line(header);
  const auto number = [](std::optional<double> value) { return value ? fmt::format("{:.6g}", *value) : ""; };
  const auto amount = [&number](const auto& quantity) {
    return number(quantity ? std::optional(quantity->value) : std::nullopt);
  };
  const auto boolean = [](bool value) { return value ? "true" : "false"; };
  for (const auto& row : rows) {
    const auto& [measured, prediction, failure, floor] = row;
    std::vector<std::string> cells = {measured.set,
                                      measured.name,
                                      std::string(name_of(measured.role)),
                                      measured.group,
                                      std::string(row.status()),
                                      amount(measured.measured),
                                      amount(prediction.step),
                                      number(row.error()),
                                      amount(floor),
                                      amount(measured.reference),
                                      measured.memory_kind ? std::string(name_of(*measured.memory_kind)) : "",
                                      amount(measured.measured_memory),
                                      amount(prediction.memory),
                                      number(row.memory_error()),
                                      prediction.step ? boolean(prediction.fits) : "",
                                      prediction.step ? boolean(prediction.folded) : ""};
    for (const auto& part : row_parts) {
      cells.push_back(prediction.step ? number((prediction.parts.*part.time).value) : "");
    }
    const auto& interval = prediction.interval;
    cells.push_back(interval ? number(interval->low.value) : "");
    cells.push_back(interval ? number(interval->high.value) : "");
    cells.push_back(on_one_line(row.reason()));
    text += csv_line(cells);
  }
  return text;
}

}  // namespace isobar::results
