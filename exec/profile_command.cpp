#include "core/base/clock.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/progress_line.hpp"
#include "core/base/standard_streams.hpp"
#include "core/base/threads.hpp"
#include "core/compute/operator_table.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/commands.hpp"
#include "exec/device/device.hpp"
#include "exec/device/operator_times.hpp"
#include "exec/files/scratch_file.hpp"
#include "exec/launch/world_profile.hpp"
#include "exec/links/network_options.hpp"
#include "exec/run/machine_profile.hpp"
#include "exec/run/profile.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace isobar::exec {

namespace {

constexpr auto footer = R"(To measure links between machines, start all ranks with the same options and
their own --rank.

Example:
  isobar profile workloads/bert10.yaml --slowdowns 1,2,4 -o live
  isobar plan live.xml workloads/bert10.yaml --profile live.profile.json \
    --allocator exact -o plan.json
  isobar profile workloads/bert10.yaml --operators -o mine
  isobar profile workloads/bert10.yaml --machine --scratch /var/tmp -o live
  isobar profile workloads/bert10.yaml --rank 0 \
    --ranks 10.0.0.1:29500,10.0.0.2:29500 --secret-file secret -o live
)";

struct CommandOptions {
  std::string workload;
  WorkloadSettings settings;
  std::string output;
  std::vector<double> slowdowns;  // empty: 1 for each device
  std::optional<std::size_t> rank;
  std::vector<std::string> ranks;
  NetworkOptions network;
  std::size_t connections = 1;
  bool json = false;
  std::string device = "cpu";
  bool operators = false;
  bool machine = false;
  std::optional<std::string> scratch;
  ProfileOptions profile;
};

std::string text_of_copy(const CopyProfile& copy)
{
  return fmt::format("{} and {}", text_of(copy.latency), text_of(copy.bandwidth));
}

std::string text_of_machine(const MachineProfile& machine)
{
  std::string text = fmt::format(
      "in a machine of {}: {}\n  updates: {}, while the device computes {}\n  copies: to the device {}, from it {}\n",
      text_of(machine.memory), machine.processor, text_of(machine.update_speed), text_of(machine.busy_update_speed),
      text_of_copy(machine.in), text_of_copy(machine.out));
  if (machine.disk) {
    text +=
        fmt::format("  disk: {} free, reads {}, writes {}, {}\n", text_of(machine.disk->capacity),
                    text_of(machine.disk->read), text_of(machine.disk->write),
                    machine.disk->is_direct ? "past the system's cache of files (O_DIRECT)"
                                            : "through the system's cache of files: the file system has no O_DIRECT");
  }
  return text;
}

FlopsPerSecond rate_of(const compute::MeasuredProduct& measured)
{
  return measured.product.work() / measured.time;
}

/// A device of a platform, with the rate of its fastest product.
DeviceProfile device_of(const compute::OperatorTable& operators)
{
  DeviceProfile device;
  device.device = operators.device;
  device.memory = operators.memory;
  device.dtype = operators.dtype;
  for (const auto& measured : operators.products) device.speed = std::max(device.speed, rate_of(measured));
  return device;
}

/// The durations of each kind of layer, once.
std::string table_of(const DeviceProfile& profile)
{
  std::string text =
      fmt::format("{}: {} over {}\n", profile.device, text_of(profile.speed), counted(profile.layers.size(), "layer"));
  if (profile.machine) text += text_of_machine(*profile.machine);
  text += fmt::format("\n{:<20}  {:>10}  {:>10}  {:>10}  {:>7}  {:>11}\n", "layer", "forward", "backward", "update",
                      "spread", "activations");
  std::vector<const LayerProfile*> kinds;
  for (const auto& layer : profile.layers) {
    const auto is_same = [&](const LayerProfile* other) {
      return other->forward == layer.forward && other->backward == layer.backward && other->update == layer.update;
    };
    if (std::any_of(kinds.begin(), kinds.end(), is_same)) continue;
    kinds.push_back(&layer);
    text += fmt::format("{:<20}  {:>10}  {:>10}  {:>10}  {:>5.1f} %  {:>11}\n", layer.name, text_of(layer.forward),
                        text_of(layer.backward), text_of(layer.update), 100 * layer.spread_fraction,
                        text_of(layer.activations));
  }
  return text;
}

/// The fastest product of each layout, and all other operators.
std::string table_of(const compute::OperatorTable& operators)
{
  std::string text =
      fmt::format("{}: {} in {}{}\n\n{:<20}  {:>14}\n", operators.device, counted(operators.products.size(), "product"),
                  name_of(operators.dtype), operators.tf32 ? " with TF32" : "", "fastest product", "rate");
  for (const auto layout : {compute::ProductLayout::TN, compute::ProductLayout::NN, compute::ProductLayout::NT}) {
    const compute::MeasuredProduct* fastest = nullptr;
    for (const auto& measured : operators.products) {
      if (measured.product.layout != layout) continue;
      if (fastest == nullptr || rate_of(measured) > rate_of(*fastest)) fastest = &measured;
    }
    if (fastest == nullptr) continue;
    const auto& [batch, m, n, k, which] = fastest->product;
    text += fmt::format("{:<20}  {:>14}\n", fmt::format("{} {} x {} x {}", name_of(layout), m, n, k),
                        text_of(rate_of(*fastest)));
  }
  text += fmt::format("\n{:<20}  {:>14}  {:>14}\n", "operator", "forward", "backward");
  for (const auto& [which, bandwidth] : operators.memory_bound) {
    text += fmt::format("{:<20}  {:>14}  {:>14}\n", name_of(which), text_of(bandwidth.forward),
                        text_of(bandwidth.backward));
  }
  for (const auto& attention : operators.attention) {
    text += fmt::format("{:<20}  {:>14}  {:>14}\n", fmt::format("attention, {}", attention.sequence),
                        text_of(attention.forward), text_of(attention.backward));
  }
  if (operators.launch) text += fmt::format("{:<20}  {:>14}\n", "launch", text_of(*operators.launch));
  return text;
}

std::string table_of(const std::vector<LinkMeasurement>& links)
{
  std::string text = fmt::format("\n{:<20}  {:>10}  {:>10}  {:>11}\n", "from, to", "flows", "latency", "bandwidth");
  for (const auto& link : links) {
    text += fmt::format("{:<20}  {:>10}  {:>10}  {:>11}\n", fmt::format("rank-{}, rank-{}", link.from, link.to),
                        link.connections, text_of(link.latency), text_of(link.bandwidth));
  }
  return text;
}

void check_options(const CommandOptions& options)
{
  refuse_folder("--output", options.output);
  for (const double slowdown : options.slowdowns) {
    if (!(slowdown >= 1 && slowdown <= 1e6)) {
      throw InputError("--slowdowns", fmt::format("{} is not in 1 to 1e6", slowdown));
    }
  }
  check_threads(options.profile.threads);
  if (options.profile.repetitions < 1) throw InputError("--repetitions", "0 passes measure nothing; write 1 or more");
  if (options.connections < 1 || options.connections > 64) {
    throw InputError("--flows", fmt::format("{} is not in 1 to 64", options.connections));
  }
  if (options.rank.has_value() != !options.ranks.empty()) throw InputError("--rank and --ranks go together; give both");
  if (!options.rank) return refuse_network_options(options.network);
  if (*options.rank >= options.ranks.size()) {
    throw InputError("--rank",
                     fmt::format("{} is not below {}, the number of --ranks", *options.rank, options.ranks.size()));
  }
  if (!options.slowdowns.empty() && options.slowdowns.size() != options.ranks.size()) {
    throw InputError("--slowdowns", fmt::format("lists {} devices, and --ranks {}; list one for each rank",
                                                options.slowdowns.size(), options.ranks.size()));
  }
}

/// For its lifetime, an interrupt that is not handled within half a second ends the process: a pass over a large layer
/// may take minutes, and no file is open during that time.
class PromptInterrupt {
 public:
  explicit PromptInterrupt(ProgressLine& progress)
      : thread_(start_thread([&progress](const std::stop_token& stop) {
          constexpr auto grace = std::chrono::milliseconds(500);
          constexpr auto poll_interval = std::chrono::milliseconds(100);
          auto since_interrupt = std::chrono::milliseconds(0);
          while (!stop.stop_requested() && since_interrupt < grace) {
            std::this_thread::sleep_for(poll_interval);
            if (interrupted()) since_interrupt += poll_interval;
          }
          if (stop.stop_requested()) return;
          progress.clear();
          say(Interrupted().what());
          std::_Exit(static_cast<int>(ExitCode::Interrupted));
        }))
  {
  }

 private:
  std::jthread thread_;
};

/// Refuses a file that cannot be written; leaves no file behind.
void require_writable(const std::string& file)
{
  const TemporaryFile unused(file);
}

/// What the command has measured.
struct Measured {
  std::optional<WorldProfile> world;                ///< none on ranks other than 0
  std::optional<compute::OperatorTable> operators;  ///< of this rank's device, in place of its layers
  std::string note;                                 ///< "", or that this machine was busy
};

/// Measures devices, machines and links.
Measured measured(const Workload& workload, const CommandOptions& options)
{
  Measured result;
  std::optional<ScratchFile> scratch;
  if (options.scratch) scratch.emplace(*options.scratch, disk_probe_size);
  const std::size_t passes = options.operators ? operator_parts(workload) : passes_of(workload, options.profile);
  ProgressLine progress("profile", passes + (options.machine ? machine_parts : 0));
  const PromptInterrupt prompt(progress);
  ProfileOptions profile = options.profile;
  profile.on_pass = [&, done = std::size_t{0}]() mutable { progress.done(++done); };
  Measurements measure;
  measure.device = [&] {
    const ProcessorWait processor_wait;
    if (options.operators) result.operators = measure_operators(workload, profile);
    DeviceProfile device_profile = result.operators ? device_of(*result.operators) : measure_profile(workload, profile);
    result.note = note_of_busy_machine("profile: the computation", processor_wait.fraction());
    return device_profile;
  };
  if (options.machine) {
    measure.machine = [&] { return measure_machine(workload, profile, scratch ? &*scratch : nullptr); };
  }
  if (!options.rank) {
    result.world = measure_this_machine(options.slowdowns.size(), options.connections, measure);
    return result;
  }
  std::vector<Endpoint> ranks;
  for (const auto& address : options.ranks) ranks.push_back(endpoint_from_text("--ranks", address));
  result.world = measure_world(*options.rank, ranks, options.connections, profile.device, measure,
                               tcp_options_of(options.network, secret_of(options.network), *options.rank, ranks));
  return result;
}

ExitCode profile(CommandOptions options)
{
  check_options(options);
  const Workload workload = workload_from_text(read_file(options.workload), options.workload, options.settings);
  if (options.slowdowns.empty()) options.slowdowns.assign(std::max<std::size_t>(1, options.ranks.size()), 1);
  const std::array<std::string, 3> files = {options.output + (options.operators ? ".operators.json" : ".profile.json"),
                                            options.output + ".links.csv", options.output + ".xml"};
  if (options.rank.value_or(0) == 0) std::for_each(files.begin(), files.end(), require_writable);
  const auto [world, operators, note] = measured(workload, options);
  if (!note.empty()) say(note);
  if (!world) return ExitCode::Done;  // rank 0 writes the measurements of all
  const std::string json = operators ? operator_table_to_json(*operators) : profile_to_json(world->devices.front());
  std::deque<TemporaryFile> written(files.begin(), files.end());
  written[0].write(json);
  written[1].write(links_to_csv(world->links));
  written[2].write(platform_of(*world, options.slowdowns, options.connections));
  for (auto& file : written) file.keep();
  const std::string table = operators ? table_of(*operators) : table_of(world->devices.front());
  fmt::print("{}", options.json ? json : table + table_of(world->links));
  return ExitCode::Done;
}

}  // namespace

void add_profile_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("profile",
                                     "measure the time of every layer on a device, or of operators, and the links "
                                     "between ranks; writes NAME.profile.json, NAME.links.csv and NAME.xml");
  auto options = std::make_shared<CommandOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "WORKLOAD", options->workload, "workload file (YAML)")->required();
  add_settings(*command, options->settings);
  command->option_defaults()->group("Schedule");
  add_count(*command, "--repetitions", options->profile.repetitions,
            "passes to time for each kind of layer or operator, after some to warm up (default: 15)");
  add_count(*command, "--seed", options->profile.seed, "seed of parameters and data (default: 1)");
  command->option_defaults()->group("Launch");
  add_count(*command, "--rank", options->rank, "number of this process's rank; with --ranks");
  command
      ->add_option("--ranks", options->ranks,
                   "addresses on which the ranks listen, HOST:PORT,… by rank (default: this machine only)")
      ->delimiter(',');
  command->add_option("--device", options->device, "device to time: cpu, cuda or cuda:N (default: cpu)");
  add_count(*command, "--threads", options->profile.threads,
            "computing threads on a CPU, and threads that update with --machine (default: 1)");
  command->add_flag("--operators", options->operators,
                    "measure operators of transformers in the workload's dtype in place of its layers, for workloads "
                    "with compute: operators; writes NAME.operators.json in place of NAME.profile.json");
  command->add_flag("--machine", options->machine,
                    "measure the machine that the device is in too: copies, updates by its processor, memory");
  add_folder(*command, "--scratch", options->scratch,
             "folder on the disk of the machine, to measure it too, with a file of 256 MiB that is deleted; "
             "implies --machine");
  command->option_defaults()->group("Network");
  add_count(*command, "--flows", options->connections,
            "TCP connections per link in NAME.xml, 1 to 64; measures 1, 2, 4, … up to it (default: 1)");
  add_network_options(*command, options->network);
  command->option_defaults()->group("Output");
  add_file(*command, "-o,--output", options->output, "NAME of the files to write; rank 0 writes them")->required();
  command
      ->add_option("--slowdowns", options->slowdowns,
                   "devices in NAME.xml: how many times slower than its machine each one is (default: one for each "
                   "rank, 1)")
      ->delimiter(',');
  command->add_flag("--json", options->json, "print the profile as JSON");
  command->footer(footer);
  command->callback([options, &action] {
    action = [options] {
      options->profile.device = device_from_text(options->device);
      options->machine = options->machine || options->scratch;
      return profile(*options);
    };
  });
}

}  // namespace isobar::exec
