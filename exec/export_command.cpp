#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/base/standard_streams.hpp"
#include "core/errors.hpp"
#include "core/model/workload.hpp"
#include "core/text/json_text.hpp"
#include "core/text/quantity_text.hpp"
#include "exec/commands.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/files/huggingface_export.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace isobar::exec {

namespace {

constexpr auto footer = R"(The folder can be loaded by from_pretrained() of transformers.

Example:
  isobar export workloads/gpt2_124m.yaml checkpoints -o gpt2-trained
)";

struct CommandOptions {
  std::string workload;
  WorkloadSettings settings;
  std::string checkpoints;
  std::string output;
  std::string max_shard_size = "5 GB";
  std::optional<std::uint64_t> step;
  bool json = false;
};

std::uint64_t shard_bytes_from(const std::string& text)
{
  try {
    const double bytes = bytes_from_text(text).value;
    constexpr double least = 1e6;
    constexpr double most = 1e18;
    if (bytes >= least && bytes <= most) return static_cast<std::uint64_t>(bytes);
  } catch (const std::invalid_argument& fault) {
    throw InputError("--max-shard-size", fault.what());
  }
  throw InputError("--max-shard-size", in_quotes(text) + " is not in 1 MB to 1 EB");
}

Checkpoint open_checkpoint(const CommandOptions& options)
{
  const CheckpointStore store(options.checkpoints);
  if (options.step) return store.open(*options.step);
  const auto newest = store.newest_complete();
  for (const auto& skipped : newest.skipped) say(fmt::format("skipped: {}", skipped));
  if (!newest.step) {
    throw InputError(shown(options.checkpoints, options.checkpoints.size()), "holds no complete checkpoint");
  }
  return store.open(*newest.step);
}

/// Refuses a checkpoint of another workload. Shapes do not show every difference: not heads, nor rotary positions.
void check_workload(const Checkpoint& checkpoint, const std::string& workload_hash, const std::string& file)
{
  const auto run = nlohmann::json::parse(checkpoint.run());
  const auto hash = run.find("workload");
  if (hash == run.end() || *hash == workload_hash) return;
  throw InputError(file,
                   fmt::format("has hash {}; {} is of a workload with hash {}; give the run's own, with its --set",
                               workload_hash, checkpoint.where(), shown(hash->dump())));
}

ExitCode export_checkpoint(const CommandOptions& options)
{
  const std::uint64_t max_shard_bytes = shard_bytes_from(options.max_shard_size);
  const auto text = read_file(options.workload);
  const Workload workload = workload_from_text(text, options.workload, options.settings);
  const Checkpoint checkpoint = open_checkpoint(options);
  check_workload(checkpoint, workload_fingerprint(text, options.settings), options.workload);
  const auto written = export_to_huggingface(workload, checkpoint, options.output, max_shard_bytes);
  if (options.json) {
    const nlohmann::ordered_json result = {{"schema", "isobar-export/1"},
                                           {"step", checkpoint.step()},
                                           {"folder", options.output},
                                           {"parameters", written.parameters},
                                           {"files", written.files}};
    fmt::print("{}", json_lines(result));
  } else {
    fmt::print("{}: {} parameters of step {}, in {} file{}\n", shown(options.output, options.output.size()),
               written.parameters, checkpoint.step(), written.files, written.files == 1 ? "" : "s");
  }
  return ExitCode::Done;
}

}  // namespace

void add_export_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("export", "write a checkpoint as a Hugging Face model");
  auto options = std::make_shared<CommandOptions>();
  command->option_defaults()->group("Inputs");
  add_file(*command, "WORKLOAD", options->workload, "workload file of the run (YAML)")->required();
  add_settings(*command, options->settings);
  add_folder(*command, "CHECKPOINTS", options->checkpoints, "folder of the run's checkpoints")->required();
  add_count(*command, "--step", options->step, "step whose checkpoint to export (default: the newest complete one)");
  command->option_defaults()->group("Output");
  add_folder(*command, "-o,--output", options->output, "folder to write, new or empty")->required();
  command->add_option("--max-shard-size", options->max_shard_size,
                      "largest size of a file of weights, 1 MB to 1 EB (default: 5 GB)");
  command->add_flag("--json", options->json, "print what was written as JSON");
  command->footer(footer);
  command->callback([options, &action] { action = [options] { return export_checkpoint(*options); }; });
}

}  // namespace isobar::exec
