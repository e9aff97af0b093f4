#include "exec/watch/restart.hpp"

#include "core/base/command_options.hpp"
#include "core/base/standard_streams.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/net/secret.hpp"
#include "exec/watch/replan.hpp"
#include "exec/watch/supervisor.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <system_error>

namespace isobar::exec {

namespace {

/// For messages. The attempt itself looks again: a disk that cannot be read now may be available by then.
std::string resume_point(const RestartedRun& run)
{
  if (run.checkpoints.empty()) return "step 0";
  try {
    const auto newest = CheckpointStore(run.checkpoints).newest_complete(CheckpointStore::Check::Elements);
    return fmt::format("step {}", newest.step.value_or(0));
  } catch (const EnvironmentError& error) {
    return fmt::format("the newest checkpoint ({})", error.what());
  }
}

/// Every attempt reads its inputs from the beginning.
void refuse_pipes(const std::vector<std::string>& inputs)
{
  for (const auto& input : inputs) {
    std::error_code ignored;
    const auto type = std::filesystem::status(input, ignored).type();
    if (type == std::filesystem::file_type::fifo || type == std::filesystem::file_type::socket ||
        type == std::filesystem::file_type::character) {
      throw InputError(
          shown(input, input.size()),
          "can be read only once, and --restart and --replan read it for every attempt; write it to a file");
    }
  }
}

}  // namespace

void add_restart_options(CLI::App& command, RestartOptions& options)
{
  constexpr auto group = "Faults";
  add_count(command, "--restart", options.restarts,
            "how often a failed run is started again, from the newest checkpoint (default: 0)")
      ->group(group);
  add_file(command, "--replan", options.replan,
           "with --spawn: the plan's platform file, to plan again without the lost device once restarts are used up "
           "(default: do not)")
      ->group(group);
}

ExitCode run_restarted(const RestartOptions& options, RestartedRun run,
                       const std::function<ExitCode(const std::string& plan, bool resume)>& attempt)
{
  constexpr std::uint64_t most_restarts = 1'000'000;
  if (options.restarts > most_restarts) {
    throw InputError("--restart", fmt::format("{} is not in 0 to {}", options.restarts, most_restarts));
  }
  if (options.restarts == 0 && options.replan.empty()) return attempt(run.plan, run.resume);
  refuse_pipes(run.inputs);
  keep_secret_of_environment();
  if (!options.replan.empty()) check_replan(run.plan, {options.replan, run.workload});
  const Supervision supervision = {options.restarts, [&run] { return resume_point(run); }, say};
  const auto attempt_again = [&run, &attempt](std::uint64_t failed) {
    return attempt(run.plan, run.resume || (failed > 0 && !run.checkpoints.empty()));
  };
  while (true) {
    try {
      return supervise(attempt_again, supervision);
    } catch (const AttemptsFailed& failure) {
      if (options.replan.empty()) throw;
      run.plan = replan(run.plan, {options.replan, run.workload}, failure.failure());
      run.resume = run.resume || !run.checkpoints.empty();
      say(fmt::format("{}; continuing from {} with {}", failure.what(), resume_point(run), run.plan));
    }
  }
}

}  // namespace isobar::exec
