#include "allocators/registry.hpp"
#include "allocators/spmd/strategy.hpp"
#include "cli/commands.hpp"
#include "cli/commands/spmd_strategy.hpp"
#include "cli/commands/start_plan.hpp"
#include "cli/frameworks/frameworks.hpp"
#include "cli/goal_options.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/planning.hpp"
#include "cli/planning/simulated_choice.hpp"
#include "cli/rounds/outer_planning.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/command_options.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"
#include "core/check/tier_memory.hpp"
#include "core/compute/as_trained.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/system_rules.hpp"
#include "core/text/quantity_text.hpp"
#include "results/table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace isobar::cli {

namespace {

constexpr auto plan_footer = R"(Example:
  isobar plan platforms/sky64.xml workloads/bert160.yaml \
    --allocator chain-dp --objective sequential -o plan.json
)";

struct PlanOptions {
  InputOptions inputs;
  GoalOptions goal;
  SpmdOptions spmd;
  std::string allocator;
  std::string objective = "step";
  std::vector<std::string> without;
  std::string start;
  std::string framework;
  OuterOptions outer;
  std::optional<std::uint64_t> simulate;
  std::string output;
  bool json = false;
};

/// Where the layers live of a stage whose parts are `first` to `last` of the plan's stages: what of them is in the
/// machine, how many have parameters, gradients and optimizer on the device, places there for parameters and gradients,
/// and when the machine updates.
std::vector<std::string> residence_of(const std::vector<Stage>& stages, std::size_t first, std::size_t last)
{
  const Residence& residence = stages[last].residence;
  std::size_t resident = 0;
  for (std::size_t i = first; i <= last; ++i) {
    Residence state = stages[i].residence;
    state.activations = Tier::Device;
    if (state.is_on_device()) resident += stages[i].last_layer - stages[i].first_layer + 1;
  }
  std::vector<std::string> elsewhere;
  const std::pair<const char*, Tier> all[] = {{"parameters", residence.parameters},
                                              {"gradients", residence.gradients},
                                              {"optimizer", residence.optimizer},
                                              {"activations", residence.activations}};
  for (const auto& [what, tier] : all) {
    if (tier != Tier::Device) elsewhere.push_back(fmt::format("{}{}", what, tier == Tier::Disk ? " (disk)" : ""));
  }
  const bool has_places = residence.parameter_slots + residence.gradient_slots > 0;
  const bool is_updated_there = residence.optimizer != Tier::Device;
  return {elsewhere.empty() ? "–" : fmt::format("{}", fmt::join(elsewhere, ", ")), fmt::format("{}", resident),
          has_places ? fmt::format("{} + {}", residence.parameter_slots, residence.gradient_slots) : "–",
          is_updated_there ? std::string(name_of(residence.overlap)) : "–"};
}

/// What the plan needs of machines and disks, and what they have.
std::string memory_of_machines(const Plan& plan, const Cluster& cluster)
{
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, need] : plan.predicted->peak_memory) {
    const TierMemory memory = memory_named(name, cluster).value();
    if (memory.tier == Tier::Device) continue;
    rows.push_back({name, std::string(name_of(memory.tier)), text_of(need), text_of(memory.has)});
  }
  return "\n" + results::table_of({"machine", "memory", "needs", "has"}, rows, 2);
}

/// "idle: n7, n8 (2 of 64 devices)", a line; "" for a plan that uses every device.
std::string idle_devices_of(const Plan& plan, const Cluster& cluster)
{
  constexpr std::size_t most_shown = 4;
  const auto used = devices_of(plan);
  const std::set<std::string> is_used(used.begin(), used.end());
  std::string list;
  std::size_t idle = 0;
  for (const auto& device : cluster.devices) {
    if (is_used.contains(device.name)) continue;
    if (idle < most_shown) list += (idle == 0 ? "" : ", ") + shown(device.name);
    ++idle;
  }
  if (idle == 0) return "";
  return fmt::format("idle: {}{} ({} of {})\n", list, idle > most_shown ? ", …" : "", idle,
                     counted(cluster.devices.size(), "device"));
}

/// " (80 %: 14.1 to 15.9 s)", of a step that may be another one than the predicted one; "" for plans without interval.
std::string interval_beside(Seconds step, const Predicted& predicted)
{
  if (!predicted.interval) return "";
  const double factor = step / predicted.step_time;
  return fmt::format(" ({})",
                     text_of(StepInterval{factor * predicted.interval->low, factor * predicted.interval->high}));
}

/// The plan for people: the outcome, how good it is, and the layers of each device.
std::string summary_of(const Plan& plan, const Cluster& cluster)
{
  const std::string samples = plan.micro_batch ? fmt::format(" of {}", counted(*plan.micro_batch, "sample")) : "";
  std::string text =
      fmt::format("{}: {} {} for objective {} (communication {}, schedule {}, M = {}{})\n", plan.allocator,
                  name_of(plan.outcome), kind_of(plan), name_of(plan.goal.objective), name_of(plan.goal.communication),
                  text_of(plan.goal.schedule), plan.goal.microbatches, samples);
  if (!plan.reason.empty()) text += reason_of(plan) + "\n";
  if (plan.stages.empty()) return text;
  text += fmt::format("objective {:.6g} s, no {} below {:.6g} s ({}), gap {:.2f} %\n", plan.objective.value().value,
                      scope_of_bound(plan), plan.objective_bound.value().value, name_of(plan.certificate.kind),
                      100 * plan.gap_fraction().value_or(0));
  const Predicted& predicted = plan.predicted.value();
  text += fmt::format("predicted step {:.6g} s{}, no order of its passes below {:.6g} s\n", predicted.step_time.value,
                      interval_beside(predicted.step_time, predicted), plan.step_bound.value().value);
  if (plan.schedule_bound) {
    const Seconds gap = predicted.step_time - *plan.schedule_bound;
    text += fmt::format("no order that fits in memory below {:.6g} s, gap {:.2f} %\n", plan.schedule_bound->value,
                        predicted.step_time.value > 0 ? 100 * (gap / predicted.step_time) : 0);
  }
  if (plan.simulated) {
    const Simulated& simulated = *plan.simulated;
    text += fmt::format("simulated step {:.6g} s{}, the least of {} placements; found by {} for objective {}\n",
                        simulated.step_time.value, interval_beside(simulated.step_time, predicted),
                        simulated.candidates, simulated.allocator, name_of(simulated.objective));
  }
  if (predicted.interval) text += fmt::format("interval: {}\n", fmt::join(predicted.interval->because, "; "));
  text += fmt::format("pipeline formula {:.6g} s, which is not a prediction\n", predicted.pipeline.value().value);
  text += idle_devices_of(plan, cluster);
  if (plan.sync.sharded != Sharding::None) {
    text += fmt::format("the replicas of a stage divide {}\n",
                        plan.sync.sharded == Sharding::Optimizer   ? "the optimizer's state"
                        : plan.sync.sharded == Sharding::Gradients ? "the optimizer's state and the gradients"
                                                                   : "the optimizer's state, gradients and parameters");
  }
  if (plan.sync.bucket >= one_bucket) {
    text += "the replicas of a stage add up their gradients after its last backward pass\n";
  } else if (plan.sync.bucket > Bytes(0)) {
    text += fmt::format("the replicas of a stage add up their gradients in buckets of {:.6g} MiB\n",
                        plan.sync.bucket.value / 0x1p20);
  }
  if (!plan.sync.bucket_ends.empty()) {
    text += fmt::format("devices add up the gradients of replicated parameters in {}\n",
                        counted(plan.sync.bucket_ends.size(), "bucket"));
  }
  if (!plan.sync.adds_replicas) text += "devices do not add up gradients: their replicas of parameters drift apart\n";
  if (plan.context.divides()) {
    text += fmt::format("each next {} replicas divide sequences ({}); a micro-batch is one of these parts\n",
                        plan.context.degree, name_of(plan.context.exchange));
  }
  if (plan.experts.divides()) {
    text += fmt::format("each next {} replicas divide the experts of each layer, and bring each other their tokens\n",
                        plan.experts.degree);
    if (plan.experts.are_whole) text += "each of their shards has whole experts\n";
  }
  if (plan.stages.front().grid.form == ShardGrid::Form::Sequence) {
    text += "the shards of a replica divide the sequence between layers\n";
  } else if (plan.stages.front().grid.is_grid()) {
    text += fmt::format("the shards of a replica lie in a {}\n", text_of(plan.stages.front().grid));
  }
  if (const std::size_t parts = plan.stages.size(), stages = pipeline_stages(plan).back() + 1;
      parts > stages && has_replicas(plan) && !has_shards(plan)) {
    text += fmt::format("{} in {}, whose gradients are added up one after another\n", counted(stages, "stage"),
                        counted(parts, "part"));
  }
  if (has_replicas(plan) && divides_operators(plan)) {
    text += fmt::format("{} take as many samples of each micro-batch each\n",
                        counted(plan.stages.front().replicas.size(), "replica"));
  }
  text += "\n";
  std::vector<std::string> header = {"stage", "device", "layers", "count", "needs", "has"};
  std::vector<std::vector<std::string>> rows;
  std::vector<std::vector<std::string>> residences;
  const auto number = uses_machines(plan) ? numbers_in_file(plan) : pipeline_stages(plan);
  const bool takes_microbatches = has_replicas(plan) && !divides_operators(plan);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    const std::size_t first_part = i;
    const std::size_t first = plan.stages[i].first_layer;
    while (i + 1 < plan.stages.size() && number[i + 1] == number[i]) ++i;  // parts of one stage
    const Stage& stage = plan.stages[i];
    residences.push_back(residence_of(plan.stages, first_part, i));
    residences.back().insert(residences.back().begin(), fmt::format("{}", number[i]));
    for (const auto& [taken, shards] : stage.replicas) {
      for (const auto& shard : shards) {
        const Device& device = cluster.devices[cluster.device_index(shard.device).value()];
        std::vector<std::string>& row = rows.emplace_back();
        row = {fmt::format("{}", number[i]), device.name};
        if (takes_microbatches) row.push_back(fmt::format("{}", taken > 0 ? taken : plan.goal.microbatches));
        if (has_shards(plan)) row.push_back(fmt::format("{:.4g}", shard.share));
        row.insert(row.end(),
                   {fmt::format("{}–{}", first, stage.last_layer), fmt::format("{}", stage.last_layer - first + 1),
                    text_of(plan.predicted->peak_memory.at(device.name)), text_of(device.memory)});
      }
    }
  }
  if (has_shards(plan)) header.insert(header.begin() + 2, "share");
  if (takes_microbatches) header.insert(header.begin() + 2, "micro-batches");
  text += results::table_of(header, rows, 2);
  if (!uses_machines(plan)) return text;
  return text + "\n" + results::table_of({"stage", "in the machine", "stay", "places", "updates"}, residences, 2) +
         memory_of_machines(plan, cluster);
}

/// A search prints nothing until it ends.
void note_long_search(const Inputs& inputs, const allocators::SearchLimits& limits)
{
  constexpr std::size_t long_search = 1'000'000;  // layers x devices; a search of this size takes some seconds
  const std::size_t layers = inputs.workload.layers.size();
  const std::size_t devices = inputs.platform.cluster().devices.size();
  if (limits.time_limit || limits.budget || layers * devices < long_search) return;
  say(fmt::format("{} on {} may take minutes; Ctrl-C or --time-limit keeps the best plan found",
                  counted(layers, "layer"), counted(devices, "device")));
}

/// The plan that --start names. @throws InputError for an allocator that takes none, or for options beside it.
std::optional<Plan> start_of(const PlanOptions& options)
{
  if (options.start.empty()) return std::nullopt;
  allocators::require_property(&allocators::Allocator::improves_plans, "--start", {options.allocator});
  Plan start = read_start(options.start);
  std::vector<std::string> others;
  if (options.objective != name_of(Objective::Step)) others.emplace_back("--objective");
  if (!options.without.empty()) others.emplace_back("--without");
  if (options.simulate) others.emplace_back("--simulate");
  refuse_goal_beside(start, options.start, options.goal, others);
  return start;
}

/// The best plan without rounds for as many samples as all workers take in a step, for comparison.
Plan plan_without_rounds(const Inputs& inputs, const SiteSearch& search, std::size_t workers)
{
  SiteSearch together = search;
  together.goal.microbatches *= workers;
  for (auto& split : together.splits) split.microbatches *= workers;
  Plan plan = make_best_plan(inputs, together.allocator, together.goal, together.limits, together.splits);
  plan.without = inputs.without;
  return plan;
}

/// Tokens in a second of a plan without rounds; 0 for one without stages.
double tokens_per_second_of(const Plan& plan, const Workload& workload)
{
  if (plan.stages.empty()) return 0;
  const double samples = static_cast<double>(plan.goal.microbatches) *
                         static_cast<double>(plan.micro_batch.value_or(workload.micro_batch));
  return samples * static_cast<double>(workload.sequence) / plan.predicted->step_time.value;
}

/// The rates of the two kinds of plans, a line each.
std::string comparison_of(const OuterPlan& rounds, const Plan& together, const Workload& workload)
{
  const double with = tokens_per_second(rounds, rounds.predicted.round_time, workload);
  const double without = tokens_per_second_of(together, workload);
  std::string text = fmt::format("rounds of {} steps: {:.1f} tokens/s\n", rounds.outer.steps, with);
  if (together.stages.empty()) return text + fmt::format("every step together: no plan: {}\n\n", reason_of(together));
  return text + fmt::format(
                    "every step together: {:.1f} tokens/s; a step takes {:.6g} s\n"
                    "rounds are {:.3g} times as fast for the same samples, not for the same loss\n\n",
                    without, together.predicted->step_time.value, with / without);
}

ExitCode print_rounds(const PlanOptions& options, const Inputs& inputs, const SiteSearch& search)
{
  if (options.simulate || !options.start.empty() || !options.framework.empty()) {
    throw InputError("--outer", "plans each site by itself; leave out --simulate, --start and --for");
  }
  OutputFile output(options.output);
  const FoundRounds found = plan_rounds(inputs, search, options.outer);
  if (!found.plan) {
    print(fmt::format("no rounds: fewer than two sites have a plan\n{}\n", fmt::join(found.reasons, "\n")));
    return ExitCode::Infeasible;
  }
  std::string json = outer_plan_to_json(*found.plan);
  const double rate = tokens_per_second(*found.plan, found.plan->predicted.round_time, inputs.workload);
  std::string text = cli::summary_of(*found.plan, inputs.workload) + options.outer.duration_text(rate);
  if (!options.outer.number_of_steps()) {
    const Plan together = plan_without_rounds(inputs, search, found.plan->workers.size());
    if (tokens_per_second_of(together, inputs.workload) > rate) {
      json = plan_to_json(together);
      text = summary_of(together, inputs.platform.cluster());
    }
    text = comparison_of(*found.plan, together, inputs.workload) + text;
  }
  output.write(json);
  if (!output.is_standard_output()) print(options.json ? json : text);
  return ExitCode::Done;
}

ExitCode plan(const PlanOptions& options)
{
  options.spmd.refuse_with(options.allocator);
  allocators::require_allocator(options.allocator);
  const auto start = start_of(options);
  const bool moves_cuts = start && has_only_cuts_to_move(*start);
  const Goal goal = moves_cuts ? start->goal : options.goal.goal(options.objective, options.allocator);
  auto limits = options.goal.limits(options.allocator);
  if (options.simulate) limits.candidates = candidates_from("--simulate", *options.simulate);
  options.goal.check_search({options.allocator});
  limits.chooses_recomputation = options.goal.chooses_recomputation();
  if (limits.chooses_recomputation &&
      (limits.offload || allocators::has_property(options.allocator, &allocators::Allocator::uses_machines))) {
    throw InputError("--recompute", "auto is for layers that stay on their devices; write inner, or leave it out");
  }
  const bool divides_sequences = options.goal.context_parallelism().divides() || limits.grid.any_context;
  if (options.simulate && limits.chooses_recomputation) {
    throw InputError("--simulate", "compares plans that recompute the same layers; write --recompute none or all");
  }
  if (options.simulate && divides_sequences) {
    throw InputError("--simulate", "also tries allocators that divide no sequences; leave out it or --context");
  }
  if (options.simulate && options.goal.expert_parallelism().divides()) {
    throw InputError("--simulate", "also tries allocators that divide no experts; leave out it or --experts");
  }
  for (const auto& [option, divides] : {std::pair("--context", divides_sequences),
                                        std::pair("--experts", options.goal.expert_parallelism().divides())}) {
    if (limits.grid.splits <= ShardGrid::Form::Sequence || !divides) continue;
    throw InputError(option, "goes with shards by --splits 1d or sequence; leave out one of them");
  }
  if (!options.framework.empty()) {
    require_framework(options.framework, options.allocator, goal.schedule, limits.offload, "--for");
  }
  const auto recomputed =
      limits.chooses_recomputation ? RecomputedLayers() : options.goal.recompute_for(options.allocator);
  Inputs inputs =
      moves_cuts ? load(options.inputs, *start, options.start) : load(options.inputs, recomputed, {options.without});
  if (!options.framework.empty()) limits.rules = rules_of(options.framework, inputs.workload, "--for");
  if (limits.grid.any_context) {  // refuses sequences that no number of devices can divide
    in_parts(inputs, inputs.workload, {2, ContextExchange::Ring}, options.goal.grid.tensor.value_or(1), "--context");
  }
  if (!moves_cuts) {  // whose inputs are the plan's
    inputs.workload = in_parts(inputs, inputs.workload, options.goal.context_parallelism(),
                               options.goal.grid.tensor.value_or(1), "--context");
    inputs.workload = with_divided_experts(inputs, inputs.workload, options.goal.expert_parallelism(),
                                           options.goal.grid.tensor.value_or(1), "--experts");
    inputs.platform.leave_out(inputs.without, "--without");
  }
  note_approximations(inputs);
  note_long_search(inputs, limits);
  auto read = inputs.files();
  read.insert(read.end(), {options.start, program_of(options.allocator)});
  refuse_overwriting(read, {options.output});
  const Cluster& cluster = inputs.platform.cluster();
  const auto splits = moves_cuts ? std::vector<BatchSplit>{{goal.microbatches, inputs.workload.micro_batch}}
                                 : batch_splits(options.goal, goal, inputs);
  if (start) {
    check_start(*start, options.start, inputs);
    start_from(*start, inputs, limits);
  }
  if (options.outer.are_given()) return print_rounds(options, inputs, {options.allocator, goal, limits, splits});
  OutputFile output(options.output);
  const auto choose = options.simulate ? choose_by_simulation : make_best_plan;
  Plan found = choose(inputs, options.allocator, goal, limits, splits);
  found.without = inputs.without;
  if (found.predicted) {
    const Seconds step = found.predicted->step_time;
    if (const auto basis = basis_of_step(inputs, found, step)) {
      found.predicted->interval = compute::interval_of(*basis, step);
    }
  }
  if (interrupted() && found.outcome == Outcome::Feasible) found.outcome = Outcome::TimedOut;
  const std::string json = plan_to_json(found);
  output.write(json);
  if (const auto note = note_of_routing(found, inputs.workload)) say(*note);
  if (inputs.workload.compute == ComputeModel::Operators) {
    if (const auto note = note_of_idle_flags(found, framework_of(inputs.workload))) say(*note);
  }
  if (!output.is_standard_output()) print(options.json ? json : summary_of(found, cluster));
  throw_if_interrupted();
  return found.stages.empty() ? ExitCode::Infeasible : ExitCode::Done;
}

}  // namespace

void add_plan_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("plan", "place a workload's layers on a platform's devices");
  auto options = std::make_shared<PlanOptions>();
  options->inputs.add_to(*command);
  add_without(*command, options->without);
  command->option_defaults()->group("Goal");
  command
      ->add_option("--objective", options->objective,
                   fmt::format("what to minimize: {}", fmt::join(objective_names(), ", ")))
      ->capture_default_str();
  options->goal.add_goal_to(*command);
  options->goal.add_global_batch_to(*command);
  command->option_defaults()->group("Search");
  command->add_option("--allocator", options->allocator, "allocator (isobar list allocators), or exec:PROGRAM")
      ->required();
  options->goal.add_search_to(*command);
  options->goal.add_divisions_to(*command);
  add_file(*command, "--start", options->start,
           fmt::format("plan file (JSON) to start from ({}); where devices have several stages, or stages several "
                       "devices, its cuts alone move",
                       allocators_with(&allocators::Allocator::improves_plans)));
  add_framework(*command, options->framework);
  add_count(*command, "--simulate", options->simulate,
            "number of the allocator's best placements to simulate, next to those of other allocators; keeps the "
            "fastest (default: simulates none)");
  options->spmd.add_to(*command);
  options->outer.add_to(*command);
  command->option_defaults()->group("Output");
  add_output(*command, "-o,--output", options->output, "plan file to write (JSON), even when infeasible");
  command->add_flag("--json", options->json, "print the plan as JSON");
  command->footer(plan_footer);
  command->callback([command, options, &action] {
    action = [command, options] {
      const bool has_formula = options->spmd.cost || !options->spmd.parity_profile.empty();
      if (!has_formula || options->allocator != allocators::spmd::allocator_name) return plan(*options);
      return plan_strategy(*command, options->inputs, options->spmd, options->json);
    };
  });
}

}  // namespace isobar::cli
