#include "cli/commands/spmd_strategy.hpp"

#include "allocators/spmd/strategy_search.hpp"
#include "cli/output_file.hpp"
#include "core/base/clock.hpp"
#include "core/base/command_options.hpp"
#include "core/base/standard_streams.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "results/table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <set>
#include <variant>
#include <vector>

namespace isobar::cli {

namespace {

namespace spmd = allocators::spmd;
using Json = nlohmann::ordered_json;

void refuse_options_without_effect(const CLI::App& command)
{
  const std::set<std::string> known = {"PLATFORM",    "WORKLOAD", "--set",  "--devices",
                                       "--allocator", "--cost",   "--json", "--parity-profile"};
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->count() == 0 || known.count(name) > 0) continue;
    throw InputError(name, name == "--output"
                               ? "with --parity-profile, spmd makes no plan; print its strategy with --json"
                               : "has no effect with --parity-profile; leave it out");
  }
}

spmd::MoeSizes sizes_of(const Workload& workload, const std::string& file)
{
  const auto* sizes = std::get_if<spmd::MoeSizes>(&workload.model);
  if (sizes != nullptr) return *sizes;
  throw InputError(file, "model: has no operators to divide; allocator spmd takes model: moe");
}

std::vector<std::string> names_of(const std::vector<spmd::Form>& forms)
{
  std::vector<std::string> names;
  for (const auto form : forms) names.push_back(name_of(form));
  return names;
}

/// A strategy and what it is about.
struct Found {
  const spmd::OperatorGraph& graph;
  const spmd::StrategyProblem& problem;
  const spmd::Strategy& strategy;
  spmd::CostFormula formula;
  Seconds search_time;
};

std::string_view kind_of(const Found& found, const spmd::StrategyStage::ReformedTensor& reformed)
{
  return name_of(reform_between(reformed.from, reformed.to, found.problem.rules)->forward);
}

std::string json_of(const Found& found)
{
  Json collectives = Json::object();
  for (const auto& [kind, count] : reforms_of(found.strategy, found.problem.rules)) {
    collectives[std::string(name_of(kind))] = count;
  }
  Json stages = Json::array();
  for (const auto& stage : found.strategy.stages) {
    Json reforms = Json::array();
    for (const auto& reformed : stage.reforms) {
      reforms.push_back({{"tensor", found.graph.tensors[reformed.tensor].name},
                         {"kind", kind_of(found, reformed)},
                         {"from", name_of(reformed.from)},
                         {"to", name_of(reformed.to)}});
    }
    Json operators = Json::array();
    for (std::size_t i = stage.first; i <= stage.last; ++i) {
      const auto& option = found.problem.nodes[i].options[stage.options[i - stage.first]];
      operators.push_back({{"name", found.graph.operators[i].name},
                           {"inputs", names_of(option.signature.inputs)},
                           {"outputs", names_of(option.signature.outputs)}});
    }
    stages.push_back({{"reforms", std::move(reforms)}, {"operators", std::move(operators)}});
  }
  const Json document = {
      {"schema", "isobar-strategy/1"},
      {"allocator", spmd::allocator_name},
      {"cost", name_of(found.formula)},
      {"devices", found.problem.devices},
      {"spmd_cost_s", found.strategy.cost.value},
      {"collectives", std::move(collectives)},
      {"stages", std::move(stages)},
      {"search", {{"states", found.strategy.counts.states}, {"labels", found.strategy.counts.labels}}},
      {"wall", {{"search_s", found.search_time.value}}}};
  return json_lines(document);
}

std::string summary_of(const Found& found)
{
  std::string text =
      fmt::format("{}: cost {:.9g} s by formula {} on {}; {} in {}\n", spmd::allocator_name, found.strategy.cost.value,
                  name_of(found.formula), counted(found.problem.devices, "device"),
                  counted(found.graph.operators.size(), "operator"), counted(found.strategy.stages.size(), "stage"));
  std::vector<std::string> counts;
  for (const auto& [kind, count] : reforms_of(found.strategy, found.problem.rules)) {
    counts.push_back(fmt::format("{} {}", count, name_of(kind)));
  }
  text += fmt::format("reforms: {}\n\n", counts.empty() ? "none" : fmt::format("{}", fmt::join(counts, ", ")));
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < found.strategy.stages.size(); ++i) {
    const auto& stage = found.strategy.stages[i];
    std::vector<std::string> kinds;
    for (const auto& reformed : stage.reforms) kinds.emplace_back(kind_of(found, reformed));
    rows.push_back({fmt::format("{}", i), found.graph.operators[stage.first].name,
                    fmt::format("{}", fmt::join(kinds, " ")), fmt::format("{}", stage.options.size())});
  }
  return text + results::table_of({"stage", "from", "reforms", "operators"}, rows, 3);
}

}  // namespace

void SpmdOptions::add_to(CLI::App& command)
{
  command.add_option("--cost", cost, "what spmd minimizes: paper, code, symmetric or none (docs/spmd.md)");
  add_file(command, "--parity-profile", parity_profile, "devices and rates (JSON) for spmd, instead of the platform's");
}

void SpmdOptions::refuse_with(const std::string& allocator) const
{
  const std::string wrong = cost ? "--cost" : !parity_profile.empty() ? "--parity-profile" : "";
  if (wrong.empty()) return;
  throw InputError(wrong, fmt::format("goes with --allocator {}, not with {}", spmd::allocator_name, shown(allocator)));
}

ExitCode plan_strategy(const CLI::App& command, const InputOptions& inputs, const SpmdOptions& options, bool json)
{
  refuse_options_without_effect(command);
  if (options.parity_profile.empty()) {
    throw InputError("--cost", "goes with --parity-profile FILE; without it, spmd minimizes the step on the platform");
  }
  const auto choices = fmt::format("{}", fmt::join(spmd::cost_formula_names(), ", "));
  if (!options.cost) throw InputError("--cost", "missing; write one of " + choices);
  const auto formula = spmd::cost_formula_from_name(*options.cost);
  if (!formula) throw InputError("--cost", fmt::format("{} is none of {}", in_quotes(*options.cost), choices));
  const Inputs read = load(inputs);
  const auto sizes = sizes_of(read.workload, inputs.workload);
  const auto profile = spmd::read_parity_profile(options.parity_profile);
  const auto graph = make_operator_graph(sizes, read.workload.micro_batch, size_of(read.workload.dtype));
  const auto rules = rules_of(sizes);
  const auto problem = make_problem(graph, rules, profile);
  const auto begin = Clock::now();
  const auto strategy = find_strategy(problem, *formula);
  const Seconds search_time = time_since(begin);
  if (!strategy) {
    say(fmt::format("{}: no strategy for workload {}", spmd::allocator_name, shown(read.workload.name)));
    return ExitCode::Infeasible;
  }
  const Found found{graph, problem, *strategy, *formula, search_time};
  print(json ? json_of(found) : summary_of(found));
  return ExitCode::Done;
}

}  // namespace isobar::cli
