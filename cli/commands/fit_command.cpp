#include "allocators/registry.hpp"
#include "cli/commands.hpp"
#include "cli/goal_options.hpp"
#include "cli/inputs.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/planning.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/progress_line.hpp"
#include "core/base/standard_streams.hpp"
#include "core/check/tier_memory.hpp"
#include "core/text/quantity_text.hpp"
#include "results/table.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

namespace isobar::cli {

namespace {

constexpr auto fit_footer = R"(Example:
  isobar fit platforms/stronghold_v100.xml workloads/stronghold.yaml \
    --allocators resident,zero-offload,window --vary layers
)";
constexpr std::uint64_t largest_value = 65'536;

using Json = nlohmann::ordered_json;

struct FitOptions {
  InputOptions inputs;
  GoalOptions goal;
  std::vector<std::string> allocators;
  std::string vary = "layers";
  bool json = false;
};

/// The largest model that an allocator finds a plan for.
struct Fit {
  std::uint64_t value = 0;  ///< of the key that varies; 0: not even 1
  std::uint64_t parameters = 0;
  std::optional<Plan> plan;
  double samples = 0;        ///< of a step
  std::string reason;        ///< why the next larger one has none; empty: it is the largest that is tried
  std::uint64_t failed = 0;  ///< that one
};

class FitSearch {
 public:
  /// `prices`: of the layers (Workload::prices).
  FitSearch(const FitOptions& options, const Cluster& cluster, std::shared_ptr<const LayerPrices> prices,
            const std::string& allocator, ProgressLine& progress)
      : options_(options),
        cluster_(cluster),
        prices_(std::move(prices)),
        allocator_(allocator),
        progress_(progress),
        text_(read_file(options.inputs.workload)),
        goal_(options.goal.goal(name_of_step, allocator)),
        limits_(options.goal.limits(allocator))
  {
  }

  /// The largest value with a plan, of those with which the workload is valid: they are about doubled until there is
  /// none, and then looked for in between.
  Fit largest()
  {
    // Fewer layers than a window and one that passes are not tried.
    const std::uint64_t first = options_.vary == "layers" ? limits_.window.value_or(0) + 1 : 1;
    auto next = valid_near(first, first, largest_value);
    if (!next) throw fault_of(first);
    while (next && try_value(*next)) {
      next = valid_near(std::min(2 * fit_.value, largest_value), fit_.value + 1, largest_value);
    }
    if (next) {
      search_below(*next);
    } else if (fit_.value < largest_value) {
      fit_.failed = fit_.value + 1;
      fit_.reason = without_place(place, fault_of(fit_.failed));
    }
    return std::move(fit_);
  }

 private:
  static constexpr auto name_of_step = "step";
  static constexpr auto place = "--vary";

  /// The workload with a value of the key. @throws InputError if it cannot have that.
  Workload workload_with(std::uint64_t value) const
  {
    WorkloadSettings settings = options_.inputs.settings;
    settings[options_.vary] = fmt::to_string(value);
    Workload workload = workload_from_text(text_, options_.inputs.workload, settings, place);
    workload.prices = prices_;
    if (prices_ != nullptr) prices_->apply(workload);
    return workload;
  }

  std::optional<InputError> found_fault(std::uint64_t value) const
  {
    throw_if_interrupted();
    try {
      workload_with(value);
    } catch (const InputError& fault) {
      return fault;
    }
    return std::nullopt;
  }
  InputError fault_of(std::uint64_t value) const { return found_fault(value).value(); }

  /// The valid value from `low` to `high` that is next to another one: below it if there is one, else above it.
  /// @throws InputError for a fault of neighbouring values that does not depend on them, such as an unknown key.
  std::optional<std::uint64_t> valid_near(std::uint64_t value, std::uint64_t low, std::uint64_t high) const
  {
    std::string before;
    const auto is_valid = [&](std::uint64_t tried) {
      const auto fault = found_fault(tried);
      if (fault && !fit_.plan && fault->what() == before) throw InputError(*fault);
      before = fault ? fault->what() : "";
      return !fault;
    };
    for (std::uint64_t tried = std::min(value, high); tried >= low; --tried) {
      if (is_valid(tried)) return tried;
    }
    for (std::uint64_t tried = std::max(value + 1, low); tried <= high; ++tried) {
      if (is_valid(tried)) return tried;
    }
    return std::nullopt;
  }

  /// Finds the largest value with a plan between the one that is known and one without.
  void search_below(std::uint64_t failed)
  {
    for (bool guesses = true; fit_.value > 0; guesses = !guesses) {
      const std::uint64_t between = guesses ? guess() : fit_.value + (failed - fit_.value) / 2;
      const auto next = valid_near(between, fit_.value + 1, failed - 1);
      if (!next) return;
      if (!try_value(*next)) failed = *next;
    }
  }

  /// The value at which the first memory is full if each grows as it did to the last plan, as most do with layers.
  std::uint64_t guess() const
  {
    auto largest = static_cast<double>(largest_value);
    for (const auto& [name, peak] : fit_.plan->predicted->peak_memory) {
      const auto memory = memory_named(name, cluster_);
      const auto before = peaks_before_.find(name);
      if (!memory || before == peaks_before_.end() || peak <= before->second) continue;
      const double growth = (peak - before->second).value / static_cast<double>(fit_.value - value_before_);
      largest = std::min(largest, static_cast<double>(fit_.value) + (memory->has - peak).value / growth);
    }
    return static_cast<std::uint64_t>(std::max(largest, static_cast<double>(fit_.value + 1)));
  }

  bool try_value(std::uint64_t value)
  {
    throw_if_interrupted();
    progress_.show(fmt::format("{}, {} {}", allocator_, options_.vary, value));
    Workload workload = workload_with(value);
    recompute_layers(workload, options_.goal.recompute_for(allocator_));
    Plan plan = allocators::allocate(allocator_, workload, cluster_, goal_, limits_);
    if (plan.stages.empty()) {
      fit_.reason = reason_of(plan);
      fit_.failed = value;
      return false;
    }
    if (fit_.plan) {
      value_before_ = fit_.value;
      peaks_before_ = fit_.plan->predicted->peak_memory;
    }
    fit_.value = value;
    fit_.parameters = 0;
    for (const auto& layer : workload.layers) fit_.parameters += layer.parameters;
    fit_.samples = static_cast<double>(goal_.microbatches * workload.micro_batch);
    fit_.plan = std::move(plan);
    return true;
  }

  const FitOptions& options_;
  const Cluster& cluster_;
  std::shared_ptr<const LayerPrices> prices_;
  const std::string& allocator_;
  ProgressLine& progress_;
  std::string text_;
  Goal goal_;
  allocators::SearchLimits limits_;
  Fit fit_;
  std::uint64_t value_before_ = 0;             // of the plan before
  std::map<std::string, Bytes> peaks_before_;  // its memory
};

/// An allocator's largest model, with the constants that were measured of its system and without them.
struct FitRow {
  std::string allocator;
  Fit fit;
  std::optional<Fit> unmeasured;  ///< none where nothing was measured
};

std::string size_text(const Fit& fit)
{
  return fit.value == 0 ? "none" : fmt::format("{}{}", fit.value, fit.reason.empty() ? " or more" : "");
}

std::string table_of_rows(const std::vector<FitRow>& rows, const std::string& key)
{
  const bool has_unmeasured =
      std::any_of(rows.begin(), rows.end(), [](const FitRow& row) { return row.unmeasured.has_value(); });
  std::vector<std::string> header = {"allocator", key, "parameters", "step s", "samples/s"};
  if (has_unmeasured) header.push_back("without measured constants");
  std::vector<std::vector<std::string>> lines;
  std::string reasons;
  for (const auto& [allocator, fit, unmeasured] : rows) {
    std::vector<std::string>& line = lines.emplace_back();
    line = {allocator, size_text(fit)};
    if (fit.plan) {
      const double step = fit.plan->predicted->step_time.value;
      line.insert(line.end(), {fmt::format("{:.3f} G", static_cast<double>(fit.parameters) / 1e9),
                               fmt::format("{:.5g}", step), fmt::format("{:.4g}", fit.samples / step)});
    } else {
      line.insert(line.end(), 3, "");
    }
    if (has_unmeasured) line.push_back(unmeasured ? size_text(*unmeasured) : "");
    if (!fit.reason.empty()) reasons += fmt::format("{}: {} {}: {}\n", allocator, key, fit.failed, fit.reason);
  }
  return results::table_of(header, lines) + "\n" + reasons;
}

Json to_json(const Fit& fit)
{
  Json object;
  object["largest"] = fit.value > 0 ? Json(fit.value) : Json(nullptr);
  object["parameters"] = fit.plan ? Json(fit.parameters) : Json(nullptr);
  const auto step = fit.plan ? std::optional(fit.plan->predicted->step_time.value) : std::nullopt;
  object["step_time_s"] = step ? Json(*step) : Json(nullptr);
  object["samples_per_s"] = step ? Json(fit.samples / *step) : Json(nullptr);
  if (!fit.reason.empty()) object["reason"] = fit.reason;
  return object;
}

Json to_json(const std::vector<FitRow>& rows, const std::string& key)
{
  Json document = {{"schema", "isobar-fit/1"}, {"vary", key}, {"rows", Json::array()}};
  for (const auto& row : rows) {
    Json object = {{"allocator", row.allocator}};
    object.update(to_json(row.fit));
    if (row.unmeasured) object["unmeasured"] = to_json(*row.unmeasured);
    document["rows"].push_back(std::move(object));
  }
  return document;
}

ExitCode fit(const FitOptions& options)
{
  if (options.allocators.empty()) {
    throw InputError("--allocators", "none; write some of isobar list allocators, such as resident,window");
  }
  for (const auto& allocator : options.allocators) allocators::require_allocator(allocator);
  options.goal.check_search(options.allocators);
  if (options.inputs.settings.contains(options.vary)) {
    throw InputError("--vary", fmt::format("{} is what --set fixes; leave one of them out", shown(options.vary)));
  }
  if (!options.inputs.profiles.empty()) {
    throw InputError("--vary", "measured times are of one model; leave --profile out");
  }
  const Inputs inputs = load(options.inputs);
  note_approximations(inputs);
  const Cluster& cluster = inputs.platform.cluster();
  Cluster unmeasured = cluster;
  unmeasured.systems.clear();
  ProgressLine progress("fit");
  std::vector<FitRow> rows;
  for (const auto& allocator : options.allocators) {
    FitRow& row = rows.emplace_back();
    row.allocator = allocator;
    row.fit = FitSearch(options, cluster, inputs.workload.prices, allocator, progress).largest();
    if (!cluster.systems.contains(allocator)) continue;
    row.unmeasured = FitSearch(options, unmeasured, inputs.workload.prices, allocator, progress).largest();
  }
  progress.clear();
  print(options.json ? to_json(rows, options.vary).dump(2) + "\n" : table_of_rows(rows, options.vary));
  const bool has_any =
      std::any_of(rows.begin(), rows.end(), [](const FitRow& row) { return row.fit.plan.has_value(); });
  return has_any ? ExitCode::Done : ExitCode::Infeasible;
}

}  // namespace

void add_fit_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("fit", "find the largest model that each allocator has a plan for");
  auto options = std::make_shared<FitOptions>();
  options->inputs.add_to(*command);
  command->add_option("--vary", options->vary, "key of the workload to vary, a whole number from 1")
      ->capture_default_str();
  command->option_defaults()->group("Goal");
  options->goal.add_goal_to(*command);
  command->option_defaults()->group("Search");
  add_list(*command, "--allocators", options->allocators, "allocators (isobar list allocators), or exec:PROGRAM");
  options->goal.add_search_to(*command);
  command->option_defaults()->group("Output");
  command->add_flag("--json", options->json, "print the rows as JSON");
  command->footer(fit_footer);
  command->callback([options, &action] { action = [options] { return fit(*options); }; });
}

}  // namespace isobar::cli
