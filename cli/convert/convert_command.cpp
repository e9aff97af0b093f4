#include "cli/commands.hpp"
#include "cli/commands/start_plan.hpp"
#include "cli/convert/imported_pipeline.hpp"
#include "cli/frameworks/frameworks.hpp"
#include "cli/frameworks/megatron_layout.hpp"
#include "cli/goal_options.hpp"
#include "cli/inputs.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/planning.hpp"
#include "cli/workload_variants.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/standard_streams.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/lowering/plan_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <utility>

namespace isobar::cli {

namespace {

constexpr auto convert_footer = R"(INPUT with --from: a layout of Megatron-Core; bounds of DeepSpeed's layers; a
file of torchtitan's arguments; or the folder that --to torch writes. The
options of Goal say what a layout and bounds do not.

Example:
  isobar convert plan.json --to megatron -o megatron
  isobar convert "Et*4|(t*4|)*14tL" cluster.xml model.yaml --from megatron \
    --microbatches 64 -o plan.json
)";

struct ConvertOptions {
  std::string input;
  InputOptions inputs;
  std::string to;
  std::string from;
  // Of --from, which some inputs say themselves:
  std::optional<std::size_t> virtual_stages;
  std::optional<std::uint64_t> microbatches;
  std::optional<std::string> schedule;
  std::optional<std::string> splits;
  std::optional<std::string> sharded;
  GoalOptions divisions;  ///< grid.replicas, grid.tensor, context and experts
  std::string recompute = "none";
  std::vector<std::string> ranks;
  std::string nearest;
  std::string output;
};

constexpr std::uint64_t moves_from_plan = 200'000;
constexpr std::uint64_t plays_from_plan = 300;

/// The plan with the least predicted step that a framework takes, for the same micro-batches: from the plan with other
/// cuts, and of allocators that place equal replicas on all or some devices, under the plan's schedule or 1f1b. None if
/// it takes none of theirs.
std::optional<Plan> nearest_plan(const Plan& plan, const Inputs& inputs, const std::string& framework)
{
  std::optional<Plan> best;
  const auto keep_better = [&](const std::string& allocator, const Goal& goal, const allocators::SearchLimits& limits) {
    try {
      Plan found = make_plan(inputs, allocator, goal, limits);
      if (!found.predicted || (best && best->predicted->step_time <= found.predicted->step_time)) return;
      best = std::move(found);
    } catch (const InputError&) {  // a schedule, workload or start that the allocator does not place
    }
  };
  allocators::SearchLimits limits;
  try {
    limits.rules = rules_of(framework, inputs.workload, "--nearest");
  } catch (const InputError&) {
    return std::nullopt;
  }
  for (const auto& schedule : {plan.goal.schedule, ScheduleChoice()}) {
    if (takes_orders(schedule.name) || !has_schedule(framework, schedule)) continue;
    Goal goal = Goal::with_defaults(Objective::Step);
    goal.schedule = schedule;
    goal.microbatches = plan.goal.microbatches;
    goal.schedule.numbers.erase("warm_up");  // of the plan's own devices
    for (const auto* allocator : {"chain-dp", "grid"}) keep_better(allocator, goal, limits);
    if (uses_machines(plan) || divides_operators(plan)) continue;
    auto from_plan = limits;
    start_from(plan, inputs, from_plan);
    from_plan.budget = from_plan.start_plan ? plays_from_plan : moves_from_plan;
    keep_better("local-search", goal, from_plan);
  }
  return best;
}

/// Says what a framework does not take, and which plan it does.
ExitCode refuse(const ConvertOptions& options, const Plan& plan, const Inputs& inputs,
                const std::vector<std::string>& faults)
{
  std::string text;
  for (const auto& fault : faults) text += fmt::format("{}: {}\n", on_one_line(options.input), fault);
  if (!options.nearest.empty()) {
    OutputFile output(options.nearest);
    const auto nearest = nearest_plan(plan, inputs, options.to);
    if (nearest) output.write(plan_to_json(*nearest));
    text += nearest ? fmt::format("{}: {} takes this one: allocator {}, schedule {}, predicted step {}; {} of {}\n",
                                  on_one_line(options.nearest), options.to, nearest->allocator,
                                  on_one_line(text_of(nearest->goal.schedule)), text_of(nearest->predicted->step_time),
                                  text_of(plan.predicted.value().step_time), on_one_line(options.input))
                    : fmt::format("{}: {} takes no plan of allocators chain-dp, grid and local-search either\n",
                                  on_one_line(options.nearest), options.to);
  }
  print(text);
  return ExitCode::Infeasible;
}

ExitCode convert_for(const ConvertOptions& options)
{
  const Plan plan = schedules::read_scheduled_plan(options.input);
  if (plan.stages.empty()) {
    print(fmt::format("{}: there is no placement to convert ({}): {}\n", on_one_line(options.input),
                      name_of(plan.outcome), reason_of(plan)));
    return ExitCode::Infeasible;
  }
  InputOptions named = options.inputs;
  if (named.platform.empty()) named.platform = plan.platform.name;
  if (named.workload.empty()) {
    if (!named.settings.empty()) {
      throw InputError("--set", "changes no workload, since the plan has its own; plan with it, or name WORKLOAD");
    }
    named.workload = plan.workload.name;
    named.settings = plan.workload.set;
  }
  const Inputs inputs = load(named, plan, options.input);
  auto read = inputs.files();
  read.push_back(options.input);
  refuse_overwriting(read, {options.nearest});
  check_plan(plan, options.input, inputs);
  const Conversion made = convert_to(options.to, plan, inputs.workload, inputs.platform.cluster());
  if (!made.faults.empty()) return refuse(options, plan, inputs, made.faults);
  std::error_code error;
  std::filesystem::create_directories(options.output, error);
  if (error) throw EnvironmentError(options.output, error.message());
  for (const auto& [name, content] : made.files) {
    const auto file = (std::filesystem::path(options.output) / name).string();
    write_file_atomically(file, content);
    print(fmt::format("{}: {}\n", on_one_line(file), counted(content.size(), "byte")));
  }
  return ExitCode::Done;
}

template <typename Value>
Value named(const std::string& option, const std::string& word, std::optional<Value> (*from_name)(std::string_view),
            const std::vector<std::string>& words)
{
  if (const auto value = from_name(word)) return *value;
  throw InputError(option, fmt::format("{} is none of {}", in_quotes(word), fmt::join(words, ", ")));
}

/// Refuses options of what the input says itself.
void refuse_divisions(const ConvertOptions& options)
{
  const auto& divisions = options.divisions;
  const std::map<std::string, bool> given = {{"--virtual-stages", options.virtual_stages.has_value()},
                                             {"--microbatches", options.microbatches.has_value()},
                                             {"--schedule", options.schedule.has_value()},
                                             {"--splits", options.splits.has_value()},
                                             {"--sharded", options.sharded.has_value()},
                                             {"--replicas", divisions.grid.replicas.has_value()},
                                             {"--tensor", divisions.grid.tensor.has_value()},
                                             {"--context", divisions.context.has_value()},
                                             {"--experts", divisions.experts.has_value()}};
  for (const auto& [option, is_given] : given) {
    if (is_given) throw InputError(option, fmt::format("what {} leaves says it; leave it out", options.from));
  }
}

std::size_t degree_of(const std::string& option, const std::optional<std::size_t>& degree)
{
  if (degree == 0) throw InputError(option, "0; write 1 or more");
  return degree.value_or(1);
}

/// The pipeline of a layout or of bounds, with what the options say of it.
ImportedPipeline pipeline_of_options(const ConvertOptions& options, std::vector<LayerRange> stages)
{
  ImportedPipeline made;
  made.stages = std::move(stages);
  made.chunks = degree_of("--virtual-stages", options.virtual_stages);
  made.replicas = degree_of("--replicas", options.divisions.grid.replicas);
  made.shards = degree_of("--tensor", options.divisions.grid.tensor);
  made.context = options.divisions.context_parallelism();
  made.experts = options.divisions.expert_parallelism();
  if (options.splits) {
    const auto form = named("--splits", *options.splits, shard_form_from_name, {"1d", "sequence"});
    if (form > ShardGrid::Form::Sequence) throw InputError("--splits", "lies in no grid here; write 1d or sequence");
    made.divides_sequences_among_shards = form == ShardGrid::Form::Sequence;
  }
  if (options.sharded) made.sharded = named("--sharded", *options.sharded, sharding_from_name, sharding_names());
  made.microbatches = options.microbatches.value_or(Goal().microbatches);
  if (made.microbatches == 0) throw InputError("--microbatches", "0; write 1 or more");
  made.schedule = schedule_of(options.schedule.value_or(made.chunks > 1 ? "interleaved" : "1f1b"));
  if (made.chunks > 1 && made.schedule.name == "interleaved") {
    made.schedule.numbers.emplace("chunks", std::vector<std::uint64_t>{made.chunks});
  }
  return made;
}

ImportedPipeline pipeline_of(const ConvertOptions& options, const Workload& workload)
{
  if (options.from == "megatron") {
    return pipeline_of_options(options,
                               stages_with_letters(stages_of_layout(options.input, "layout"), workload, "layout"));
  }
  if (options.from == "deepspeed") {
    return pipeline_of_options(options, stages_with_bounds(options.input, workload, "bounds"));
  }
  refuse_divisions(options);
  return options.from == "torch" ? pipeline_of_torch(options.input, workload)
                                 : pipeline_of_torchtitan(options.input, workload);
}

/// The first options with which the same stages fit their devices, as the end of a line; "" if none of these do.
std::string what_fits(const ConvertOptions& options, const ImportedPipeline& pipeline, const Inputs& inputs,
                      const std::string& place)
{
  struct Change {
    std::string option;
    std::function<void(ImportedPipeline&, Inputs&)> make;
  };
  std::vector<Change> changes;
  const bool says_divisions = options.from == "megatron" || options.from == "deepspeed";
  for (const auto sharded : {Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters}) {
    if (!says_divisions || sharded <= pipeline.sharded || pipeline.replicas * pipeline.context.degree == 1) continue;
    changes.push_back({fmt::format("--sharded {}", name_of(sharded)),
                       [=](ImportedPipeline& changed, Inputs&) { changed.sharded = sharded; }});
  }
  if (inputs.workload.recompute.empty()) {
    const auto recompute = [](Inputs& with) { recompute_layers(with.workload, {"all", "--recompute"}); };
    std::vector<Change> also = {{"--recompute all", [=](ImportedPipeline&, Inputs& with) { recompute(with); }}};
    for (const auto& [option, make] : changes) {
      also.push_back({option + " --recompute all", [=, change = make](ImportedPipeline& changed, Inputs& with) {
                        change(changed, with);
                        recompute(with);
                      }});
    }
    changes.insert(changes.end(), also.begin(), also.end());
  }
  const std::uint64_t samples = inputs.workload.micro_batch;
  for (std::uint64_t size = samples / 2; says_divisions && size > 0; --size) {
    if (samples % size != 0) continue;
    const std::uint64_t microbatches = pipeline.microbatches * (samples / size);
    changes.push_back({fmt::format("--set micro_batch={} --microbatches {}", size, microbatches),
                       [=](ImportedPipeline& changed, Inputs& with) {
                         changed.microbatches = microbatches;
                         with.workload = at_micro_batch(with, size, "--set");
                       }});
  }
  for (const auto& [option, make] : changes) {
    try {
      ImportedPipeline changed = pipeline;
      Inputs with = inputs;
      make(changed, with);
      const Plan plan = plan_of_import(changed, with, place);
      if (plan.stages.empty()) continue;
      return fmt::format("; it fits with {}, predicted step {}", option, text_of(plan.predicted.value().step_time));
    } catch (const InputError&) {  // what the software, the model or measured times do not have
    }
  }
  return "";
}

ExitCode convert_from(const ConvertOptions& options)
{
  if (options.inputs.platform.empty() || options.inputs.workload.empty()) {
    throw InputError("convert --from",
                     "needs a platform and a workload: isobar convert INPUT PLATFORM WORKLOAD --from …");
  }
  Inputs inputs = load(options.inputs, {options.recompute, "--recompute"});
  auto pipeline = pipeline_of(options, inputs.workload);
  if (!options.ranks.empty()) pipeline.ranks = options.ranks;
  note_approximations(inputs);
  refuse_overwriting(inputs.files(), {options.output});
  const bool is_text = options.from == "megatron" || options.from == "deepspeed";
  const std::string place = is_text ? std::string(options.from == "megatron" ? "layout" : "bounds") : options.input;
  OutputFile output(options.output);
  const Inputs before = inputs;  // which the import divides
  const Plan plan = plan_of_import(pipeline, inputs, place);
  output.write(plan_to_json(plan));
  if (!output.is_standard_output()) {
    print(plan.stages.empty()
              ? fmt::format("{}: infeasible: {}{}\n", on_one_line(place), on_one_line(plan.reason),
                            what_fits(options, pipeline, before, place))
              : fmt::format("{}: {} of {} on {}; schedule {}, {}; predicted step {}\n", on_one_line(options.output),
                            counted(pipeline.stages.size(), "stage"), counted(inputs.workload.layers.size(), "layer"),
                            counted(devices_of(plan).size(), "device"), on_one_line(text_of(plan.goal.schedule)),
                            counted(plan.goal.microbatches, "micro-batch", "es"),
                            text_of(plan.predicted.value().step_time)));
  }
  return plan.stages.empty() ? ExitCode::Infeasible : ExitCode::Done;
}

void add_import_options(CLI::App& command, ConvertOptions& options)
{
  command.option_defaults()->group("Goal");
  add_count(command, "--virtual-stages", options.virtual_stages, "stages of each device (default: 1)");
  add_count(command, "--replicas", options.divisions.grid.replicas,
            "pipelines that divide the micro-batches (default: 1)");
  add_count(command, "--tensor", options.divisions.grid.tensor, "devices that divide each layer (default: 1)");
  command.add_option("--splits", options.splits,
                     "how they divide it: 1d, or sequence (1d, and the sequence between "
                     "layers; default: 1d)");
  add_count(command, "--context", options.divisions.context, "replicas that divide each sequence (default: 1)");
  command.add_option("--context-exchange", options.divisions.context_exchange,
                     fmt::format("how they exchange what attention needs: {} (default: ring)",
                                 fmt::join(context_exchange_names(), ", ")));
  add_count(command, "--experts", options.divisions.experts,
            "neighbouring replicas, also those of --context, that divide the experts of each layer (default: 1)");
  add_count(command, "--experts-tensor", options.divisions.experts_tensor,
            "1: each shard of these replicas has whole experts (default: a part of every expert)");
  command.add_option("--sharded", options.sharded,
                     fmt::format("what replicas divide: {} (default: none)", fmt::join(sharding_names(), ", ")));
  command.add_option("--schedule", options.schedule,
                     "order of work (isobar list schedules; default: 1f1b, with --virtual-stages interleaved)");
  add_count(command, "--microbatches", options.microbatches, "micro-batches of a step of all replicas (default: 8)");
  command.add_option("--recompute", options.recompute,
                     "layers that recompute their activations: none, all, inner, or a list such as 3-10,12 (default: "
                     "none)");
  add_list(command, "--ranks", options.ranks,
           "the platform's devices by rank, NAME,…: those of a layer first, then of a sequence, replicas, and stages "
           "(default: the first ones of the platform)");
}

}  // namespace

void add_convert_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("convert", "write a plan for another framework, or read what one leaves");
  auto options = std::make_shared<ConvertOptions>();
  command->option_defaults()->group("Inputs");
  command->add_option("INPUT", options->input, "plan file (--to), or what the framework has (--from)")->required();
  options->inputs.add_to(*command);
  for (const auto* name : {"PLATFORM", "WORKLOAD"}) {
    auto* option = command->get_option(name)->required(false);
    option->description(option->get_description() + " (--to: default: the one that the plan names)");
  }
  const auto frameworks = framework_names();
  auto* to = command->add_option("--to", options->to, fmt::format("the framework: {}", fmt::join(frameworks, ", ")))
                 ->check(CLI::IsMember(frameworks));
  auto* from = command->add_option("--from", options->from, "the framework that INPUT is of: the same ones")
                   ->check(CLI::IsMember(frameworks))
                   ->excludes(to);
  add_import_options(*command, *options);
  for (auto* option : command->get_options()) {
    if (option->get_group() == "Goal") option->needs(from);
  }
  command->option_defaults()->group("Output");
  command->add_option("-o,--output", options->output, "folder for the files (--to), or plan file to write (--from)")
      ->required();
  add_file(
      *command, "--nearest", options->nearest,
      "plan file to write where the framework does not take INPUT (--to): the one with the least predicted step that "
      "it takes, of allocators chain-dp and grid, and of local-search from INPUT")
      ->needs(to);
  command->footer(convert_footer);
  command->callback([options, from, &action] {
    if (options->to.empty() && from->empty()) throw InputError("convert", "needs --to or --from");
    action = [options] { return options->to.empty() ? convert_from(*options) : convert_for(*options); };
  });
}

}  // namespace isobar::cli
