#include "exec/run_command_options.hpp"

#include "core/base/command_options.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/commands.hpp"
#include "exec/data_options.hpp"
#include "exec/device/device.hpp"
#include "exec/links/network_options.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdint>
#include <stdexcept>

namespace isobar::exec {

namespace {

Seconds seconds_from(const char* option, const std::string& text)
{
  try {
    return seconds_from_text(text);
  } catch (const std::invalid_argument& fault) {
    throw InputError(option, fault.what());
  }
}

void add_input_options(CLI::App& command, RunCommandOptions& options)
{
  command.option_defaults()->group("Inputs");
  add_file(command, "WORKLOAD", options.workload, "workload file (YAML)");
  add_settings(command, options.settings);
  add_file(command, "--plan", options.plan, "plan file (JSON)");
  add_file(command, "--mix", options.mix,
           "mix file (JSON), in place of WORKLOAD and --plan: jobs that take turns on their devices");
  add_file(command, "--profile", options.profile,
           "with --emulate: the profile that the plan was made with (JSON); ranks then take its times instead of a "
           "multiple of their own");
  add_file(command, "--platform", options.platform,
           "with --emulate: the platform that the plan was made for; copies between devices and machines, updates and "
           "disks then take the time that they take there");
  command.add_flag("--unvalidated", options.unvalidated,
                   "run the plan even if it was changed since, or was never simulated with --stamp");
}

void add_schedule_options(CLI::App& command, RunCommandOptions& options)
{
  command.option_defaults()->group("Schedule");
  add_count(command, "--steps", options.run.steps,
            "number of steps in all, including those done before --resume; of a mix, of each job that has none there "
            "(default: "
            "10)");
  add_count(command, "--rounds", options.rounds,
            "number of rounds, of a plan made by plan --outer, in place of --steps (default: 1)");
  add_count(command, "--seed", options.run.seed, "seed of parameters, data order and dropout (default: 1)");
  command.add_flag("--emulate", options.run.emulate,
                   "slow each rank down, and limit its memory, to the device that the plan assigns");
}

void add_rank_options(CLI::App& command, RunCommandOptions& options)
{
  command.option_defaults()->group("Launch");
  command.add_flag("--spawn", options.spawn, "run every rank as a process on this machine, over TCP");
  command.add_option("--processes", options.processes,
                     "with --mix and --spawn: a process for each device, with all jobs' ranks there, or for each "
                     "rank of each job (job); default: device");
  command.add_flag("--in-process", options.in_process, "run every rank as a thread of this process");
  add_count(command, "--rank", options.rank,
            "number of this process's rank: with --ranks, the plan's device of this number; with --world and "
            "--master, as --map assigns it. The first device's rank writes and prints the results of all");
  command
      .add_option("--ranks", options.ranks,
                  "addresses on which the ranks listen, HOST:PORT,… in the order of the plan's devices")
      ->delimiter(',');
  command.add_option("--worker", options.worker, "of a plan made by plan --outer: the worker whose ranks run here");
  command
      .add_option("--workers", options.workers,
                  "of such a plan: addresses HOST:PORT,… of all workers, in the order of the plan; a worker listens on "
                  "as many ports from there on as there are pieces of parameters")
      ->delimiter(',');
  add_launch_options(command, options.launch);
  command.option_defaults()->group("Launch");
  command.add_option("--device", options.device,
                     "device of every rank that starts here: cpu, cuda, cuda:N, or under a launcher cuda:local, "
                     "numbered by the rank on its machine (default: cpu)");
  add_count(
      command, "--threads", options.run.threads,
      "computing threads of each rank on a CPU; losses are the same bit by bit only with the same number (default: "
      "1)");
}

void add_machine_options(CLI::App& command, RunCommandOptions& options)
{
  add_folder(command, "--scratch", options.run.scratch,
             "folder on the disk for optimizer states that the plan has there; nothing is left of them (default: the "
             "folder for temporary files, $TMPDIR or /tmp)");
  command.option_defaults()->group("");  // for tests
  add_count(
      command, "--disturb-copies", [&options](std::uint64_t seed) { options.run.disturb_copies = seed; },
      "seed of random delays of what the machines do, whose free memory then holds NaN");
}

void add_transfer_options(CLI::App& command, RunCommandOptions& options)
{
  command.option_defaults()->group("Network");
  command.add_option("--transport", options.transport,
                     "transport between ranks that are processes: tcp, nccl (from GPU to GPU), or auto (nccl where "
                     "possible; default: tcp)");
  add_count(command, "--flows", options.run.connections, "TCP connections per link, 1 to 64 (default: 1)");
  add_network_options(command, options.run.network);
}

void add_fault_options(CLI::App& command, RunCommandOptions& options)
{
  command.option_defaults()->group("Faults");
  command.add_option("--deadline", options.deadline,
                     "longest wait of a transfer, such as \"60 s\", whatever the reason (default: no limit while any "
                     "rank is working, then 30 s plus 10 predicted steps)");
  command.add_option("--heartbeat", options.heartbeat,
                     "time without a heartbeat after which a rank counts as dead, such as \"5 s\" (default: 10 s, or "
                     "half of --deadline)");
  add_restart_options(command, options.restart);
}

void add_checkpoint_options(CLI::App& command, RunCommandOptions& options)
{
  command.option_defaults()->group("Checkpoints");
  add_folder(
      command, "--checkpoint", options.run.checkpoints.folder,
      "folder for checkpoints, shared by all ranks; the end of a run always writes one (default: no checkpoints)");
  command.add_option("--checkpoint-every", options.checkpoint_every,
                     "interval between checkpoints, in steps, such as 100, or in time, such as \"10 min\" (default: "
                     "only at the end)");
  add_count(command, "--checkpoint-keep", options.run.checkpoints.keep, "number of checkpoints to keep (default: 3)");
  command.add_flag("--resume", options.resume, "continue from the newest valid checkpoint, on any split of the model");
}

void add_output_options(CLI::App& command, RunCommandOptions& options)
{
  command.option_defaults()->group("Output");
  add_file(command, "-o,--output", options.output, "result file to write (JSON)");
  add_file(command, "--trace", options.trace, "measured timeline to write (Chrome trace JSON, for ui.perfetto.dev)");
  add_file(command, "--log", options.log.json_lines, "log file to write, one line of JSON per step");
  add_folder(command, "--tensorboard", options.log.tensorboard, "folder to write TensorBoard event files to");
  add_file(command, "--prometheus", options.log.prometheus,
           "file for Prometheus' text format, replaced after every step");
  command.add_flag("--json", options.json, "print the result as JSON");
}

}  // namespace

void add_run_options(CLI::App& command, RunCommandOptions& options)
{
  add_input_options(command, options);
  add_schedule_options(command, options);
  add_rank_options(command, options);
  add_machine_options(command, options);
  add_transfer_options(command, options);
  add_fault_options(command, options);
  command.option_defaults()->group("Data");
  add_data_options(command, options.data);
  add_file(command, "--weights", options.weights,
           "Hugging Face model to start from: its folder, safetensors file or index (default: new parameters)");
  add_checkpoint_options(command, options);
  add_output_options(command, options);
}

const char* const places_of_ranks =
    "choose where the ranks run: --spawn (processes on this machine), --in-process (threads of this process), or "
    "--rank N with --ranks HOST:PORT,… (this rank here, the others elsewhere); torchrun, srun and mpirun set it "
    "themselves";

void check_run_inputs(const RunCommandOptions& options)
{
  if (!options.mix.empty()) return;
  if (options.workload.empty()) throw InputError("WORKLOAD is required; see isobar-exec run --help");
  if (options.plan.empty()) throw InputError("--plan is required; see isobar-exec run --help");
  if (options.processes) throw InputError("--processes", "is for the jobs of a mix; add --mix FILE, or leave it out");
}

void check_run_options(const RunCommandOptions& options)
{
  const bool is_one_rank = options.rank || !options.ranks.empty() || options.launch.any();
  const int places =
      static_cast<int>(options.spawn) + static_cast<int>(options.in_process) + static_cast<int>(is_one_rank);
  if (places > 1) throw InputError(places_of_ranks);
  if (!options.ranks.empty() && !options.rank) throw InputError("--rank and --ranks go together; give both");
  if (!options.ranks.empty() && options.launch.any()) {
    throw InputError("--ranks lists all addresses; leave out --world, --master, --plan-device, --map and --clock-skew");
  }
  if (options.in_process && options.worker.empty()) refuse_network_options(options.run.network);
  constexpr std::uint64_t most_steps = 1'000'000'000;
  if (options.run.steps < 1 || options.run.steps > most_steps) {
    throw InputError("--steps", fmt::format("{} is not in 1 to {}", options.run.steps, most_steps));
  }
  check_threads(options.run.threads);
  if (!options.restart.replan.empty() && !options.spawn) {
    throw InputError("--replan", "needs one process that restarts all ranks on the new plan; add --spawn");
  }
  if (options.run.checkpoints.folder.empty() && (options.resume || !options.checkpoint_every.empty())) {
    throw InputError("--resume and --checkpoint-every need a folder; add --checkpoint FOLDER");
  }
  if (options.run.checkpoints.keep < 1) throw InputError("--checkpoint-keep", "0 keeps no checkpoint; write 1 or more");
  if (options.run.connections < 1 || options.run.connections > 64) {
    throw InputError("--flows", fmt::format("{} is not in 1 to 64", options.run.connections));
  }
}

void set_transport(RunCommandOptions& options)
{
  if (!options.transport) return;
  options.run.transport = transport_from_text(*options.transport);
  if (options.in_process) throw InputError("--transport", "is for ranks that are processes; use --spawn or --rank");
  if (options.run.transport == TransportChoice::Nccl && !is_gpu(options.run.device)) {
    throw InputError("--transport", "nccl needs GPUs; add --device cuda");
  }
}

void set_checkpoint_interval(RunCommandOptions& options)
{
  const std::string& text = options.checkpoint_every;
  CheckpointOptions& checkpoints = options.run.checkpoints;
  if (text.empty()) return;
  constexpr std::size_t longest_count = 9;
  if (text.find_first_not_of("0123456789") != std::string::npos || text.size() > longest_count) {
    checkpoints.every = seconds_from("--checkpoint-every", text);
  } else {
    checkpoints.every_steps = std::stoull(text);
  }
  if (checkpoints.every_steps == 0 && !(checkpoints.every > Seconds(0))) {
    throw InputError("--checkpoint-every",
                     in_quotes(text) + "; write a number of steps, such as 100, or a time, such as 10 min");
  }
}

TimeLimits time_limits_of(Seconds step, const RunCommandOptions& options)
{
  const auto given = [](const char* option, const std::optional<std::string>& text) {
    return text ? std::optional(seconds_from(option, *text)) : std::nullopt;
  };
  return time_limits(step, given("--deadline", options.deadline), given("--heartbeat", options.heartbeat));
}

std::vector<std::string> inputs_of(const RunCommandOptions& options)
{
  return {options.workload,
          options.plan,
          options.mix,
          options.profile,
          options.platform,
          options.data.train,
          options.data.evaluation,
          options.data.vocabulary,
          options.weights,
          options.run.network.secret_file,
          options.restart.replan};
}

std::string settings_of(const RunCommandOptions& options)
{
  const RunOptions& run = options.run;
  std::string text =
      fmt::format("--steps {} --seed {} --flows {} --heartbeat {}{}", run.steps, run.seed, run.connections,
                  text_of(run.limits.heartbeat_timeout), run.emulate ? " --emulate" : "");
  if (!options.data.evaluation.empty()) text += " --evaluate " + data_fingerprint(options.data.evaluation);
  if (!options.data.type.empty()) text += " --data-type " + options.data.type;
  if (!run.checkpoints.folder.empty()) text += " --checkpoint";
  return text + ", of the run " + run.checkpoints.run;
}

}  // namespace isobar::exec
