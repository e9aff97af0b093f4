#include "cli/commands.hpp"
#include "cli/fidelity/prediction.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/rows.hpp"
#include "cli/table_options.hpp"
#include "core/base/child_process.hpp"
#include "core/base/command_options.hpp"
#include "core/base/progress_line.hpp"
#include "core/base/standard_streams.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "results/fidelity/calibration_fit.hpp"
#include "results/fidelity/figures.hpp"
#include "results/fidelity/row_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

namespace isobar::cli {

namespace {

using results::CalibrationConstant;
using results::CalibrationFit;
using results::FitPosition;
using results::FitTrial;
using results::MeasuredRow;
using results::RowPrediction;

constexpr auto calibrate_footer = R"(FILE has 1 to 10 rows of one machine and one training system, or --rows names
them. docs/calibration.md says what is fitted, and how far few rows can move it.
Exit codes: 0 done · 2 a wrong file or row · 3 a prediction failed

Example:
  isobar calibrate results/fidelity/measured/megatron_seqsel.csv \
    --rows seq-22B-full,seq-22B-sel -o mine.yaml
)";

constexpr std::size_t most_rows = 10;
/// Standard deviation of a prediction: the mean error of sets whose constants were fitted
/// (docs/fidelity.md).
constexpr double model_deviation = 0.03;

struct CalibrateOptions {
  std::vector<std::string> files;
  std::vector<std::string> rows;
  std::vector<std::string> profiles;
  std::string output;
  std::string row_time_limit = "10min";
  bool even_if_worse = false;
  TableOptions table;
  bool json = false;
};

/// A constant that is fitted. Its position is the logarithm of a factor on the shipped value; of a time that is shipped
/// as 0, milliseconds.
struct Knob {
  std::string key;  ///< of results
  std::string name;
  double width;    ///< docs/fidelity.md has the reason
  double largest;  ///< factor, and the inverse of the least one
  std::optional<std::string> instead_of = {};
  std::function<void(compute::Calibration&, double)> scale;
  std::function<std::string(const compute::Calibration&)> text;
};

std::string factor_text(double factor)
{
  return fmt::format("{:.3f}", factor);
}

std::vector<Knob> knobs()
{
  const auto flag = [](double Framework::*number) {
    return std::pair([number](compute::Calibration& changed, double factor) { changed.system.*number *= factor; },
                     [number](const compute::Calibration& changed) { return factor_text(changed.system.*number); });
  };
  const auto link = [](double compute::LinkFactors::*number) {
    return std::pair([number](compute::Calibration& changed, double factor) { changed.links.*number *= factor; },
                     [number](const compute::Calibration& changed) { return factor_text(changed.links.*number); });
  };
  const auto [scale_products, products] = flag(&Framework::product_speed);
  const auto [scale_tables, tables] = flag(&Framework::speed_in_training);
  const auto [scale_attention, attention] = flag(&Framework::attention_speed);
  const auto [scale_memory, memory] = flag(&Framework::memory_speed);
  const auto [scale_inside, inside] = link(&compute::LinkFactors::inside);
  const auto [scale_outside, outside] = link(&compute::LinkFactors::outside);
  const auto scale_host = [](compute::Calibration& changed, double factor) {
    for (Seconds Framework::*time : {&Framework::host_forward, &Framework::host_backward, &Framework::host_shards}) {
      changed.system.*time *= factor;
    }
  };
  return {
      {"product_speed", "products", 0.1, 2, {}, scale_products, products},
      {"speed_in_training", "products of tables", 0.1, 2, "product_speed", scale_tables, tables},
      {"attention_speed", "fused attention", 0.15, 2, {}, scale_attention, attention},
      {"memory_speed", "memory-bound", 0.15, 2, {}, scale_memory, memory},
      {"kernel_start",
       "start of a kernel",
       0.3,
       4,
       {},
       [](compute::Calibration& changed, double factor) { changed.system.kernel_start *= factor; },
       [](const compute::Calibration& changed) { return text_of(changed.system.kernel_start); }},
      {"host",
       "host of a block",
       0.3,
       4,
       {},
       scale_host,
       [](const compute::Calibration& changed) {
         return text_of(changed.system.host_forward + changed.system.host_backward);
       }},
      {"host_pipeline",
       "host of a pipeline",
       0.3,
       4,
       {},
       [](compute::Calibration& changed, double factor) { changed.system.pipeline_host *= factor; },
       [](const compute::Calibration& changed) { return text_of(changed.system.pipeline_host); }},
      {"links_inside", "links in a node", 0.15, 2, {}, scale_inside, inside},
      {"links_outside", "links of nodes", 0.15, 2, {}, scale_outside, outside},
  };
}

/// What is fitted for a training system, and what positions mean.
class Constants {
 public:
  explicit Constants(compute::Calibration shipped) : shipped_(std::move(shipped)), knobs_(knobs())
  {
    for (std::size_t k = 0; k < knobs_.size(); ++k) {
      const Knob& knob = knobs_[k];
      CalibrationConstant constant{knob.name, knob.width, -std::log(knob.largest), std::log(knob.largest)};
      if (adds_time(k)) constant = {knob.name, 0.5, 0, 10};
      for (std::size_t other = 0; other < knobs_.size(); ++other) {
        if (knob.instead_of == knobs_[other].key) constant.instead_of = other;
      }
      fitted_.push_back(std::move(constant));
    }
  }

  const std::vector<CalibrationConstant>& fitted() const { return fitted_; }
  const Knob& knob(std::size_t k) const { return knobs_[k]; }
  /// Whether the position of a constant is milliseconds beside 0.
  bool adds_time(std::size_t k) const
  {
    return knobs_[k].key == "host_pipeline" && shipped_.system.pipeline_host == Seconds(0);
  }
  const compute::Calibration& shipped() const { return shipped_; }
  compute::Calibration at(const FitPosition& position) const
  {
    compute::Calibration changed = shipped_;
    for (std::size_t k = 0; k < knobs_.size(); ++k) {
      if (position[k] == 0) continue;
      if (adds_time(k)) {
        changed.system.pipeline_host = Seconds(position[k] / 1000);
      } else {
        knobs_[k].scale(changed, std::exp(position[k]));
      }
    }
    return changed;
  }

 private:
  compute::Calibration shipped_;
  std::vector<Knob> knobs_;
  std::vector<CalibrationConstant> fitted_;
};

std::string place_of(const MeasuredRow& row)
{
  return fmt::format("{}:{}", on_one_line(row.file), row.line);
}

/// The rows to fit to, with the profiles of --profile.
std::vector<MeasuredRow> chosen_rows(const CalibrateOptions& options)
{
  const std::vector<MeasuredRow> all = results::measured_rows_of(options.files);
  std::vector<MeasuredRow> rows;
  for (const auto& name : options.rows) {
    const MeasuredRow& row = results::row_named(name, all, "--rows");
    const auto is_same = [&](const MeasuredRow& other) { return other.file == row.file && other.line == row.line; };
    if (std::ranges::any_of(rows, is_same))
      throw InputError("--rows", in_quotes(name) + " is given twice; leave one out");
    rows.push_back(row);
  }
  if (options.rows.empty()) rows = all;
  if (rows.empty() || rows.size() > most_rows) {
    throw InputError(
        options.rows.empty() ? options.files.front() : "--rows",
        fmt::format("{}; calibrate takes 1 to {}; name them with --rows", counted(rows.size(), "row"), most_rows));
  }
  for (auto& row : rows) row.profiles.insert(row.profiles.end(), options.profiles.begin(), options.profiles.end());
  return rows;
}

/// The flags of the training system that a row changes.
std::map<std::string, std::string> flags_of(const MeasuredRow& row)
{
  std::map<std::string, std::string> flags;
  for (const auto& [key, value] : row.overrides) {
    if (key.starts_with("framework.")) flags[key] = value;
  }
  return flags;
}

/// The training system of all rows. @throws InputError for a row that the others, or a fit, cannot have beside them.
const Framework& system_of(const std::vector<MeasuredRow>& rows)
{
  const auto refuse = [](const MeasuredRow& row, const std::string& what) { throw InputError(place_of(row), what); };
  const MeasuredRow& first = rows.front();
  for (const auto& row : rows) {
    if (row.role == results::RowRole::Derived)
      refuse(row, "role: is derived, which is no measurement; name another row");
    if (!row.measured) refuse(row, "measured_s: is empty; name a row with a measured step");
    if (standing_for(row.framework) == nullptr) {
      refuse(row, "framework: " + unknown_framework(row.framework));
    }
    if (standing_for(row.framework) != standing_for(first.framework)) {
      refuse(row, fmt::format("framework: is {}, and {} in {}; calibrate rows of one training system at a time",
                              shown(row.framework), shown(first.framework), place_of(first)));
    }
    if (flags_of(row) != flags_of(first)) {
      refuse(row,
             fmt::format("overrides: has other flags of the framework than {}; calibrate rows of one training system "
                         "at a time",
                         place_of(first)));
    }
    if (row.platform != first.platform) {
      refuse(row, fmt::format("platform: is {}, and {} in {}; calibrate rows of one machine at a time",
                              shown(row.platform), shown(first.platform), place_of(first)));
    }
  }
  return *standing_for(first.framework);
}

/// Predicts rows in child processes, each trial once.
class Predictor {
 public:
  Predictor(const std::vector<MeasuredRow>& rows, Seconds time_limit) : rows_(rows), time_limit_(time_limit) {}

  /// As shipped, before a device type is known.
  std::vector<RowPrediction> shipped() const
  {
    std::vector<std::pair<std::size_t, PredictionOptions>> work;
    for (std::size_t row = 0; row < rows_.size(); ++row) work.push_back({row, {}});
    return predicted(work);
  }

  std::vector<double> operator()(const Constants& constants, const std::vector<FitTrial>& trials)
  {
    std::vector<std::pair<std::size_t, PredictionOptions>> work;
    std::vector<Key> keys;
    for (const auto& trial : trials) {
      const Key key(trial.row, trial.position);
      if (known_.contains(key) || std::ranges::count(keys, key) > 0) continue;
      work.push_back({trial.row, {.system = constants.at(trial.position)}});
      keys.push_back(key);
    }
    const auto found = predicted(work);
    for (std::size_t i = 0; i < keys.size(); ++i) known_[keys[i]] = std::log(found[i].step->value);
    std::vector<double> steps;
    for (const auto& trial : trials) steps.push_back(known_.at(Key(trial.row, trial.position)));
    return steps;
  }

 private:
  using Key = std::pair<std::size_t, FitPosition>;

  std::vector<RowPrediction> predicted(const std::vector<std::pair<std::size_t, PredictionOptions>>& work) const
  {
    std::vector<std::function<std::string()>> jobs;
    for (const auto& [row, options] : work) {
      jobs.emplace_back(
          [this, row = row, &options = options] { return results::prediction_to_json(predict(rows_[row], options)); });
    }
    ProgressLine progress("calibrate", jobs.size());
    std::size_t ended = 0;
    const auto results = run_in_children(jobs, std::thread::hardware_concurrency(), {time_limit_, "--row-time-limit"},
                                         [&](std::size_t, const ChildResult&) { progress.done(++ended); });
    std::vector<RowPrediction> predictions;
    for (std::size_t i = 0; i < work.size(); ++i) {
      RowPrediction own = results::prediction_from_json(results[i].output_or_throw());
      if (!own.step) throw InputError(place_of(rows_[work[i].first]), on_one_line(own.unsupported));
      predictions.push_back(std::move(own));
    }
    return predictions;
  }

  const std::vector<MeasuredRow>& rows_;
  Seconds time_limit_;
  std::map<Key, double> known_;
};

/// The device type that all rows were measured on.
std::string device_of(const std::vector<MeasuredRow>& rows, const std::vector<RowPrediction>& predictions)
{
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string& device = predictions[i].device;
    if (device == predictions.front().device && device.find(" + ") == std::string::npos) continue;
    throw InputError(place_of(rows[i]), fmt::format("platform: has devices {}; calibrate rows of one type, such as {}",
                                                    device, predictions.front().device));
  }
  return predictions.front().device;
}

/// What `calibrate` found.
struct Calibrated {
  const std::vector<MeasuredRow>& rows;
  const Constants& constants;
  CalibrationFit fit;
  compute::Calibration calibration;

  double error_of(std::size_t row, const std::vector<double>& log_steps) const
  {
    return std::exp(log_steps[row]) / rows[row].measured->value - 1;
  }
  double mean_error(const std::vector<double>& log_steps) const
  {
    double sum = 0;
    for (std::size_t row = 0; row < rows.size(); ++row) sum += std::abs(error_of(row, log_steps));
    return sum / static_cast<double>(rows.size());
  }
  bool improves() const { return fit.left_out.empty() || mean_error(fit.left_out) < mean_error(fit.shipped); }
  bool is_alone() const { return fit.left_out.empty(); }
};

std::string deviation_text(const Calibrated& found, std::size_t k)
{
  const double deviation = found.fit.deviations[k];
  return found.constants.adds_time(k) ? text_of(Seconds(deviation / 1000)) : fmt::format("{:.1f} %", 100 * deviation);
}

std::string to_text(const Calibrated& found, results::TableWidth width)
{
  const auto signed_percent = [](double fraction) { return fmt::format("{:+.1f} %", 100 * fraction); };
  std::vector<std::vector<std::string>> constants;
  std::string unseen;
  for (std::size_t k = 0; k < found.fit.position.size(); ++k) {
    const Knob& knob = found.constants.knob(k);
    if (!found.fit.is_seen[k]) {
      if (!knob.instead_of) unseen += (unseen.empty() ? "" : ", ") + knob.name;
      continue;
    }
    constants.push_back({knob.name, knob.text(found.constants.shipped()), knob.text(found.calibration),
                         deviation_text(found, k), found.fit.is_at_bound[k] ? "at its bound" : ""});
  }
  std::vector<std::vector<std::string>> rows;
  for (std::size_t row = 0; row < found.rows.size(); ++row) {
    rows.push_back({found.rows[row].name, text_of(*found.rows[row].measured),
                    signed_percent(found.error_of(row, found.fit.shipped)),
                    signed_percent(found.error_of(row, found.fit.calibrated)),
                    found.is_alone() ? "–" : signed_percent(found.error_of(row, found.fit.left_out))});
  }
  rows.push_back({"mean", "", results::percent(found.mean_error(found.fit.shipped)),
                  results::percent(found.mean_error(found.fit.calibrated)),
                  found.is_alone() ? "–" : results::percent(found.mean_error(found.fit.left_out))});
  std::string text = fmt::format(
      "{} on {}, {}\n\n{}", found.calibration.system.name, on_one_line(found.calibration.device),
      counted(found.rows.size(), "row"),
      results::table_of({"constant", "shipped", "calibrated", "±", ""}, std::move(constants), 1, {}, width));
  if (!unseen.empty()) text += wrapped("as shipped, since no row depends on it: " + unseen, 80) + "\n";
  text +=
      "\n" + results::table_of({"row", "measured", "shipped", "calibrated", "left out"}, std::move(rows), 1, {}, width);
  text += found.is_alone() ? "one row: none is left to test the calibration\n"
                           : "left out: with constants that are fitted on the other rows\n";
  return text;
}

std::string to_json(const Calibrated& found)
{
  using Json = nlohmann::ordered_json;
  Json json = {{"schema", "isobar-calibration-result/1"},
               {"framework", found.calibration.system.name},
               {"device", found.calibration.device},
               {"constants", Json::array()},
               {"rows", Json::array()}};
  for (std::size_t k = 0; k < found.fit.position.size(); ++k) {
    const double own = found.fit.position[k];
    const bool adds = found.constants.adds_time(k);
    json["constants"].push_back({{"key", found.constants.knob(k).key},
                                 {"is_seen", static_cast<bool>(found.fit.is_seen[k])},
                                 {"factor", adds ? Json(nullptr) : Json(std::exp(own))},
                                 {"added_s", adds ? Json(own / 1000) : Json(nullptr)},
                                 {"deviation", adds ? found.fit.deviations[k] / 1000 : found.fit.deviations[k]},
                                 {"is_at_bound", static_cast<bool>(found.fit.is_at_bound[k])}});
  }
  for (std::size_t row = 0; row < found.rows.size(); ++row) {
    const auto step = [&](const std::vector<double>& steps) {
      return found.is_alone() && steps.empty() ? Json(nullptr) : Json(std::exp(steps[row]));
    };
    json["rows"].push_back({{"set", found.rows[row].set},
                            {"row", found.rows[row].name},
                            {"measured_s", found.rows[row].measured->value},
                            {"shipped_s", step(found.fit.shipped)},
                            {"calibrated_s", step(found.fit.calibrated)},
                            {"left_out_s", step(found.fit.left_out)}});
  }
  json["shipped_mean_error_fraction"] = found.mean_error(found.fit.shipped);
  json["calibrated_mean_error_fraction"] = found.mean_error(found.fit.calibrated);
  json["left_out_mean_error_fraction"] = found.is_alone() ? Json(nullptr) : Json(found.mean_error(found.fit.left_out));
  json["improves"] = found.is_alone() ? Json(nullptr) : Json(found.improves());
  return json_lines(json);
}

ExitCode calibrate(const CalibrateOptions& options)
{
  const Seconds time_limit = row_time_limit_from(options.row_time_limit);
  const std::vector<MeasuredRow> rows = chosen_rows(options);
  const Framework& system = system_of(rows);
  std::vector<std::string> inputs = results::files_named_by(rows);
  inputs.insert(inputs.end(), options.files.begin(), options.files.end());
  refuse_overwriting(inputs, {options.output});
  if (options.json && options.output == standard_output) {
    throw InputError("--json", "is written to standard output, as is what has the file -; name a file");
  }
  OutputFile output(options.output);

  Predictor predictor(rows, time_limit);
  const std::string device = device_of(rows, predictor.shipped());
  const Constants constants({options.output, system, device, {}, {}});
  std::vector<results::StepToFit> steps;
  for (const auto& row : rows) {
    steps.push_back({std::log(row.measured->value), std::hypot(model_deviation, row.measured_tolerance.value_or(0))});
  }
  CalibrationFit fit = results::fit_calibration(
      constants.fitted(), steps, [&](const std::vector<FitTrial>& trials) { return predictor(constants, trials); });
  compute::Calibration calibration = constants.at(fit.position);
  for (const auto& row : rows) calibration.rows.push_back(row.set + "/" + row.name);
  const Calibrated found{rows, constants, std::move(fit), std::move(calibration)};

  const bool is_kept = found.improves() || options.even_if_worse;
  compute::Calibration kept = found.calibration;
  if (!is_kept) {
    kept.system = constants.shipped().system;
    kept.links = constants.shipped().links;
  }
  output.write(compute::calibration_to_yaml(kept));
  if (!output.is_standard_output()) print(options.json ? to_json(found) : to_text(found, options.table.width()));
  for (std::size_t k = 0; k < found.fit.position.size(); ++k) {
    if (!found.fit.is_at_bound[k]) continue;
    say(fmt::format("{} is at the bound of what calibrate fits; these rows may be of another machine or system",
                    found.constants.knob(k).name));
  }
  if (const auto flags = flags_of(rows.front()); !flags.empty()) {
    std::vector<std::string> settings;
    for (const auto& [key, value] : flags) settings.push_back(fmt::format("--set {}={}", key, value));
    say(fmt::format("the rows change flags of {}, which the calibration does not have; beside --system write {}",
                    found.calibration.system.name, fmt::join(settings, " ")));
  }
  if (!found.improves()) {
    say(fmt::format(
        "rows that are left out err by {} with constants that are fitted on the others, and by {} as shipped; "
        "{}",
        results::percent(found.mean_error(found.fit.left_out)), results::percent(found.mean_error(found.fit.shipped)),
        is_kept ? "the fitted ones may not help on other rows"
                : "so the calibration leaves them as shipped (--even-if-worse writes the fitted ones)"));
  }
  return ExitCode::Done;
}

}  // namespace

void add_calibrate_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("calibrate", "fit constants of software and links to a few measured steps");
  auto options = std::make_shared<CalibrateOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "FILE", options->files, "measured runs (CSV, docs/formats/fidelity.md)")->required();
  add_list(*command, "--rows", options->rows, "rows to fit to, ROW or SET/ROW, separated by commas (default: all)");
  add_file(*command, "--profile", options->profiles,
           "tables of operators or Sailor's profiles of the devices, beside those of the rows (JSON; isobar profile "
           "writes it)")
      ->allow_extra_args(false);
  command->option_defaults()->group("Search");
  command->add_flag("--even-if-worse", options->even_if_worse,
                    "write the fitted constants even if they do not help on rows that are left out (default: those "
                    "as shipped)");
  add_row_time_limit(*command, options->row_time_limit);
  command->option_defaults()->group("Output");
  add_output(*command, "-o,--output", options->output,
             "calibration to write, for --system (YAML, docs/formats/calibration.md)");
  options->table.add_to(*command);
  command->add_flag("--json", options->json, "print constants and errors as JSON");
  command->footer(calibrate_footer);
  command->callback([options, &action] { action = [options] { return calibrate(*options); }; });
}

}  // namespace isobar::cli
