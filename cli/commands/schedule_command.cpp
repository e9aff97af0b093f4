#include "allocators/played_plan.hpp"
#include "cli/commands.hpp"
#include "cli/commands/order_file.hpp"
#include "cli/inputs.hpp"
#include "cli/output_file.hpp"
#include "cli/planning/planning.hpp"
#include "core/base/command_options.hpp"
#include "core/base/standard_streams.hpp"
#include "core/check/plan_checker.hpp"
#include "core/compute/as_trained.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/order/order_text.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/program/player.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/lowering/order_picture.hpp"
#include "schedules/lowering/plan_file.hpp"
#include "schedules/lowering/replicas.hpp"
#include "schedules/lowering/schedule.hpp"
#include "schedules/orders/order_csv.hpp"
#include "schedules/orders/schedule.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace isobar::cli {

namespace {

constexpr auto schedule_show_footer = R"(Example:
  isobar schedule show plan.json
)";

constexpr auto schedule_import_footer = R"(docs/schedules.md describes both forms of the file.

Example:
  isobar schedule import orders.csv platforms/sky16.xml workloads/bert24.yaml \
    --plan plan.json -o listed.json
)";

struct ShowOptions {
  std::string plan;
  bool csv = false;
  bool wide = false;
  bool json = false;
};

struct ImportOptions {
  std::string orders;
  InputOptions inputs;
  std::string plan;
  std::string output;
};

/// Faults that name no file, with the file that they are about.
InputError in_file(const std::string& file, const InputError& faults)
{
  std::vector<std::string> lines;
  std::istringstream text(faults.what());
  for (std::string line; std::getline(text, line);) lines.push_back(fmt::format("{}: {}", on_one_line(file), line));
  return InputError(lines);
}

void require_stages(const Plan& plan, const std::string& file)
{
  if (plan.stages.empty()) throw InputError(file, "has no stages, so there is nothing to order; name a plan with some");
}

std::string picture_of(const Plan& plan, const std::vector<Order>& orders, bool is_wide)
{
  constexpr std::size_t terminal = 80;
  return fmt::format(
      "{}: {}, {}, {}\n{}", on_one_line(text_of(plan.goal.schedule)), counted(orders.size(), "device"),
      counted(plan.stages.size(), "stage"), counted(plan.goal.microbatches, "micro-batch", "es"),
      schedules::picture_of(plan, orders, is_wide ? std::nullopt : std::optional<std::size_t>(terminal)));
}

ExitCode show(const ShowOptions& options)
{
  const Plan plan = schedules::read_scheduled_plan(options.plan);
  require_stages(plan, options.plan);
  try {
    if (options.json || options.csv) {
      const auto [shape, orders] = schedules::first_pipeline_of(plan);
      print(options.json ? orders_to_json(shape, orders, text_of(plan.goal.schedule))
                         : schedules::orders_to_csv(shape, orders));
    } else {
      print(picture_of(plan, schedules::orders_of(plan), options.wide));
    }
  } catch (const InputError& fault) {
    throw in_file(options.plan, fault);
  }
  return ExitCode::Done;
}

/// The pipeline that a file's orders are for. @throws InputError naming `file` for replicas whose pipelines differ.
schedules::PipelineShape shape_of_pipeline(const Plan& plan, const std::string& file)
{
  try {
    return schedules::first_pipeline_of(plan).shape;
  } catch (const InputError& fault) {
    throw in_file(file, fault);
  }
}

/// The step of a plan as played, whether it is a chain or not.
Seconds played_step(const Plan& plan, const Inputs& inputs)
{
  const compute::AsTrained trained(plan, inputs.workload, inputs.platform.cluster());
  const auto program = schedules::make_program(plan, trained.workload(), trained.cluster());
  const auto rates = nominal_rates(plan, trained.cluster());
  return play_program(*program, rates).periods.front().end;
}

std::string summary_of(const Plan& before, const Plan& plan, Seconds step_before, const ImportOptions& options)
{
  const auto shape = schedules::first_pipeline_of(plan).shape;
  const auto stages = schedules::stages_by_rank(shape);
  std::string text = fmt::format("{}: schedule {} of {} replaced by listed\n", on_one_line(options.output),
                                 on_one_line(text_of(before.goal.schedule)), on_one_line(options.plan));
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    const Order& order = plan.goal.schedule.orders.at(shape.devices[rank]);
    text += fmt::format("{}: {} {}; {} in {}\n", on_one_line(shape.devices[rank]),
                        stages[rank].size() == 1 ? "stage" : "stages", fmt::join(stages[rank], ", "),
                        counted(order.length(), "task"), counted(order.runs().size(), "run"));
  }
  return text +
         fmt::format("predicted step {}; {} before\n", text_of(plan.predicted.value().step_time), text_of(step_before));
}

ExitCode import_orders(const ImportOptions& options)
{
  const Plan before = schedules::read_scheduled_plan(options.plan);
  require_stages(before, options.plan);
  require_on_devices(before, options.plan, "isobar schedule import");
  const schedules::PipelineShape shape = shape_of_pipeline(before, options.plan);
  const Inputs inputs = load(options.inputs, before, options.plan);
  auto read = inputs.files();
  read.insert(read.end(), {options.plan, options.orders});
  refuse_overwriting(read, {options.output});
  Plan plan = before;
  plan.outcome = Outcome::Feasible;
  plan.reason.clear();
  plan.goal.objective = Objective::Step;
  if (!are_compatible(Objective::Step, plan.goal.communication)) plan.goal.communication = Communication::Played;
  plan.goal.schedule = {"listed", {}, read_order_file(options.orders, shape, before.experts.divides())};
  const auto& orders = plan.goal.schedule.orders;
  if (std::any_of(orders.begin(), orders.end(), [](const auto& own) { return has_overlaps(own.second); })) {
    plan.goal.schedule.numbers[overlap_experts_key] = {1};
  }
  plan.predicted.reset();
  plan.schedule_bound.reset();
  plan.simulated.reset();
  plan.stamp.reset();
  record_inputs(plan, inputs, inputs.workload.micro_batch);
  const Cluster& cluster = inputs.platform.cluster();
  std::vector<std::string> lines = other_inputs_of(before, options.plan, inputs);
  const std::vector<std::string> faults = faults_of(plan, inputs.workload, cluster);
  for (const auto& fault : faults) lines.push_back(fmt::format("{}: {}", on_one_line(options.plan), fault));
  if (!faults.empty()) throw InputError(lines);
  for (const auto& line : lines) say(line);
  OutputFile output(options.output);
  try {
    allocators::price_by_playing(plan, inputs.workload, cluster);
  } catch (const InputError& fault) {
    throw in_file(options.orders, fault);
  }
  if (const auto excess = allocators::excess_of_devices(plan, cluster)) {
    print(fmt::format("{}: infeasible: {}\n", on_one_line(options.orders), on_one_line(excess->reason)));
    return ExitCode::Infeasible;
  }
  output.write(plan_to_json(plan));
  if (!output.is_standard_output()) {
    Plan other = plan;
    other.goal.schedule = before.goal.schedule;
    print(summary_of(before, plan, played_step(other, inputs), options));
  }
  return ExitCode::Done;
}

void add_schedule_show(CLI::App& schedule, Action& action)
{
  auto* command = schedule.add_subcommand("show", "show in which order the devices of a plan work on micro-batches");
  auto options = std::make_shared<ShowOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "PLAN", options->plan, "plan file (JSON)")->required();
  command->option_defaults()->group("Output");
  auto* csv = command->add_flag("--csv", options->csv,
                                "print the orders as torch.distributed.pipelining does, without transfers: a row for "
                                "each device");
  command->add_flag("--wide", options->wide, "draw the whole step, however wide (default: at most 80 characters)");
  command->add_flag("--json", options->json, "print the orders as JSON, which isobar schedule import reads")
      ->excludes(csv);
  command->footer(schedule_show_footer);
  command->callback([options, &action] { action = [options] { return show(*options); }; });
}

void add_schedule_import(CLI::App& schedule, Action& action)
{
  auto* command = schedule.add_subcommand("import", "replace the schedule of a plan by the orders of a file");
  auto options = std::make_shared<ImportOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "ORDERS", options->orders,
           "orders: what isobar schedule show --json prints, or torch.distributed.pipelining writes without transfers "
           "(CSV; a row for each rank, cells such as 2F0)")
      ->required();
  options->inputs.add_to(*command);
  add_file(*command, "--plan", options->plan, "plan whose stages the orders are for (JSON)")->required();
  command->option_defaults()->group("Output");
  add_output(*command, "-o,--output", options->output, "plan file to write (JSON)")->required();
  command->footer(schedule_import_footer);
  command->callback([options, &action] { action = [options] { return import_orders(*options); }; });
}

}  // namespace

void add_schedule_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("schedule", "show the order of work of a plan, or import one");
  command->require_subcommand(1);
  command->footer(schedule_show_footer);
  add_schedule_show(*command, action);
  add_schedule_import(*command, action);
}

}  // namespace isobar::cli
