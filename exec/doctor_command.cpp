#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/check/plan_checker.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/text/json_text.hpp"
#include "exec/commands.hpp"
#include "exec/device/device.hpp"
#include "exec/links/network_options.hpp"
#include "exec/run/doctor.hpp"
#include "exec/run/machine_needs.hpp"
#include "exec/run/run_devices.hpp"
#include "exec/run_inputs.hpp"
#include "schedules/lowering/plan_file.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace isobar::exec {

namespace {

constexpr auto footer = R"(To measure links between machines, start all ranks with the same options and
their own --rank.

Example:
  isobar doctor --plan plan.json
  isobar doctor --rank 0 --ranks 10.0.0.1:29500,10.0.0.2:29500 \
    --secret-file secret
)";

struct CommandOptions {
  std::string plan;
  std::string workload;
  WorkloadSettings settings;
  std::string scratch;
  std::vector<std::string> ranks;
  std::string device = "cpu";
  bool json = false;
  NetworkOptions network;
  DoctorOptions doctor;
};

const char* name_of(Finding::Verdict verdict)
{
  switch (verdict) {
    case Finding::Verdict::Good:
      return "good";
    case Finding::Verdict::Doubtful:
      return "doubtful";
    case Finding::Verdict::Bad:
      return "bad";
  }
  return "";
}

void check_options(const CommandOptions& options)
{
  const auto& rank = options.doctor.rank;
  const std::size_t connections = options.doctor.connections;
  if (rank.has_value() != !options.ranks.empty()) throw InputError("--rank and --ranks go together; give both");
  if (!rank) refuse_network_options(options.network);
  if (rank && *rank >= options.ranks.size()) {
    throw InputError("--rank", fmt::format("{} is not below {}, the number of --ranks", *rank, options.ranks.size()));
  }
  if (connections < 1 || connections > 64) {
    throw InputError("--flows", fmt::format("{} is not in 1 to 64", connections));
  }
  check_threads(options.doctor.threads);
}

ExitCode doctor(CommandOptions options)
{
  check_options(options);
  options.doctor.device = device_from_text(options.device);
  for (const auto& address : options.ranks) {
    options.doctor.ranks.push_back(endpoint_from_text("--ranks", address));
  }
  if (const auto& rank = options.doctor.rank) {
    options.doctor.tcp = tcp_options_of(options.network, secret_of(options.network), *rank, options.doctor.ranks);
  }
  if (!options.plan.empty()) {
    options.doctor.plan = schedules::read_scheduled_plan(options.plan);
    if (options.workload.empty() && uses_machines(*options.doctor.plan)) {
      throw InputError(options.plan,
                       "stages: with residence; add --workload, which says what they need of the machine");
    }
  }
  if (!options.workload.empty()) {
    const auto& plan = options.doctor.plan;
    const auto& settings = plan ? settings_of(*plan, options.plan, options.settings) : options.settings;
    Workload workload = workload_from_text(read_file(options.workload), options.workload, settings,
                                           plan ? options.plan + ": inputs.workload.set" : "--set");
    if (plan) workload = as_planned(std::move(workload), *plan, options.plan);
    options.doctor.micro_batch = workload.micro_batch;
    options.doctor.sequence = workload.sequence;
    if (plan) {
      auto faults = placement_faults_of(*plan, workload);
      for (auto& fault : faults) fault = options.plan + ": " + fault;
      if (!faults.empty()) throw InputError(faults);
    }
    if (plan && uses_machines(*plan)) {
      options.doctor.needs = machine_needs(*schedules::make_program(*plan, workload, run_devices(*plan, {})),
                                           options.doctor.rank, is_gpu(options.doctor.device), options.scratch);
    }
  }
  const auto findings = examine(options.doctor);
  if (options.json) {
    nlohmann::ordered_json json = {{"schema", "isobar-doctor/1"}, {"findings", nlohmann::ordered_json::array()}};
    for (const auto& finding : findings) {
      json["findings"].push_back(
          {{"verdict", name_of(finding.verdict)}, {"subject", finding.subject}, {"text", finding.text}});
    }
    fmt::print("{}", json_lines(json));
  } else {
    for (const auto& finding : findings) {
      fmt::print("{:<8}  {:<16}  {}\n", name_of(finding.verdict), finding.subject, finding.text);
    }
  }
  const auto is_bad = [](const Finding& finding) { return finding.verdict == Finding::Verdict::Bad; };
  return std::any_of(findings.begin(), findings.end(), is_bad) ? ExitCode::EnvironmentError : ExitCode::Done;
}

}  // namespace

void add_doctor_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("doctor", "check what this machine can do for a plan, and what prevents it");
  auto options = std::make_shared<CommandOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "--plan", options->plan, "plan file (JSON), whose memory must be available");
  add_file(
      *command, "--workload", options->workload,
      "workload file (YAML), for the sizes to time (default: micro-batches of 8 samples, sequences of 128 tokens)");
  add_settings(*command, options->settings)->needs("--workload");
  add_folder(
      *command, "--scratch", options->scratch,
      "folder on the disk for optimizer states that the plan has there (default: the folder for temporary files, "
      "$TMPDIR or /tmp)")
      ->needs("--plan");
  command->option_defaults()->group("Launch");
  add_count(*command, "--rank", options->doctor.rank, "number of this process's rank; with --ranks");
  command
      ->add_option(
          "--ranks", options->ranks,
          "addresses on which the ranks listen, HOST:PORT,… by rank (default: measures the loopback interface)")
      ->delimiter(',');
  command->add_option("--device", options->device, "device to examine: cpu, cuda or cuda:N (default: cpu)");
  add_count(*command, "--threads", options->doctor.threads, "computing threads on a CPU (default: 1)");
  command->option_defaults()->group("Network");
  add_count(*command, "--flows", options->doctor.connections,
            "most TCP connections per link, 1 to 64; measures 1, 2, 4, … up to it (default: 4)");
  add_network_options(*command, options->network);
  command->option_defaults()->group("Output");
  command->add_flag("--json", options->json, "print the findings as JSON");
  command->footer(footer);
  command->callback([options, &action] { action = [options] { return doctor(*options); }; });
}

}  // namespace isobar::exec
