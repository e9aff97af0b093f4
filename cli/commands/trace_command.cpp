#include "cli/commands.hpp"
#include "cli/output_file.hpp"
#include "core/base/command_options.hpp"
#include "results/trace/kineto.hpp"
#include "results/trace/recorded_program.hpp"
#include "results/trace/timeline.hpp"
#include "results/trace/trace_file.hpp"
#include "results/trace/trace_merge.hpp"
#include "results/trace/trace_stats.hpp"

#include <CLI/CLI.hpp>

namespace isobar::cli {

namespace {

constexpr auto stats_footer = R"(Example:
  isobar trace stats trace.json
)";

constexpr auto merge_footer = R"(Example:
  isobar trace merge predicted.json measured.json -o both.json
)";

struct StatsOptions {
  std::string trace;
  bool json = false;
};

struct MergeOptions {
  std::string predicted;
  std::string measured;
  std::optional<std::uint64_t> step;
  std::string output;
};

ExitCode stats(const StatsOptions& options)
{
  if (const auto kineto = results::read_kineto(options.trace)) {
    print(options.json ? kineto_to_json(*kineto) : kineto_to_text(*kineto));
    return ExitCode::Done;
  }
  const auto trace = results::read_trace(options.trace);
  const auto program = results::recorded_program(trace);
  const auto found = results::stats_of(results::Timeline::of(trace, *program), trace.devices);
  print(options.json ? stats_to_json(found) : stats_to_text(found));
  return ExitCode::Done;
}

ExitCode merge(const MergeOptions& options)
{
  refuse_overwriting({options.predicted, options.measured}, {options.output});
  OutputFile output(options.output);
  output.write(results::merged_trace(options.predicted, options.measured, options.step));
  return ExitCode::Done;
}

void add_stats(CLI::App& trace, Action& action)
{
  auto* command = trace.add_subcommand("stats", "show where the time of a trace went");
  auto options = std::make_shared<StatsOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "TRACE", options->trace, "trace of isobar simulate, isobar run or PyTorch's profiler")->required();
  command->option_defaults()->group("Output");
  command->add_flag("--json", options->json, "print the statistics as JSON");
  command->footer(stats_footer);
  command->callback([options, &action] { action = [options] { return stats(*options); }; });
}

void add_merge(CLI::App& trace, Action& action)
{
  auto* command = trace.add_subcommand("merge", "show a measured trace below the predicted one, in one file");
  auto options = std::make_shared<MergeOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "PREDICTED", options->predicted, "trace of isobar simulate")->required();
  add_file(*command, "MEASURED", options->measured, "trace of isobar run, of the same plan")->required();
  add_count(*command, "--step", options->step,
            "step that begins at the same moment in both, from 0 (default: the typical step of each)");
  command->option_defaults()->group("Output");
  add_output(*command, "-o,--output", options->output, "trace to write (Chrome trace JSON)")->required();
  command->footer(merge_footer);
  command->callback([options, &action] { action = [options] { return merge(*options); }; });
}

}  // namespace

void add_trace_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("trace", "show where the time of a trace went, or merge two traces");
  command->require_subcommand(1);
  command->footer(stats_footer);
  add_stats(*command, action);
  add_merge(*command, action);
}

}  // namespace isobar::cli
