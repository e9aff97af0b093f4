#include "results/fidelity/prediction.hpp"

#include "core/text/json_text.hpp"

#include <nlohmann/json.hpp>

#include <utility>

namespace isobar::results {

namespace {

using SortedJson = nlohmann::json;

template <typename Quantity>
SortedJson json_of(const std::optional<Quantity>& quantity)
{
  return quantity ? SortedJson(quantity->value) : SortedJson(nullptr);
}

template <typename Quantity>
std::optional<Quantity> quantity_in(const SortedJson& json)
{
  return json.is_null() ? std::nullopt : std::optional(Quantity(json.get<double>()));
}

SortedJson json_of_interval(const std::optional<StepInterval>& interval)
{
  if (!interval) return nullptr;
  return {{"low", interval->low.value}, {"high", interval->high.value}, {"because", interval->because}};
}

std::optional<StepInterval> interval_in(const SortedJson& json)
{
  if (json.is_null()) return std::nullopt;
  return StepInterval{Seconds(json.at("low").get<double>()), Seconds(json.at("high").get<double>()),
                      json.at("because").get<std::vector<std::string>>()};
}

}  // namespace

std::string prediction_to_json(const RowPrediction& prediction)
{
  SortedJson parts = SortedJson::object();
  for (const auto& part : row_parts) parts[part.key] = (prediction.parts.*part.time).value;
  const SortedJson json = {{"step", json_of(prediction.step)},
                           {"unsupported", prediction.unsupported},
                           {"memory", json_of(prediction.memory)},
                           {"parts", std::move(parts)},
                           {"at_peak", json_of(prediction.at_peak)},
                           {"folded", prediction.folded},
                           {"fits", prediction.fits},
                           {"notes", prediction.notes},
                           {"device", prediction.device},
                           {"exposed", prediction.exposed},
                           {"spans_nodes", prediction.spans_nodes},
                           {"interval", json_of_interval(prediction.interval)}};
  return json_line(json);
}

RowPrediction prediction_from_json(const std::string& text)
{
  const SortedJson json = SortedJson::parse(text);
  RowPrediction prediction;
  prediction.step = quantity_in<Seconds>(json.at("step"));
  prediction.unsupported = json.at("unsupported").get<std::string>();
  prediction.memory = quantity_in<Bytes>(json.at("memory"));
  for (const auto& part : row_parts) {
    prediction.parts.*part.time = Seconds(json.at("parts").at(part.key).get<double>());
  }
  prediction.at_peak = quantity_in<Seconds>(json.at("at_peak"));
  prediction.folded = json.at("folded").get<bool>();
  prediction.fits = json.at("fits").get<bool>();
  prediction.notes = json.at("notes").get<std::vector<std::string>>();
  prediction.device = json.at("device").get<std::string>();
  prediction.exposed = json.at("exposed").get<double>();
  prediction.spans_nodes = json.at("spans_nodes").get<bool>();
  prediction.interval = interval_in(json.at("interval"));
  return prediction;
}

}  // namespace isobar::results
