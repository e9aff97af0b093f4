#include "cli/commands.hpp"
#include "cli/output_file.hpp"
#include "core/base/command_options.hpp"
#include "core/base/files.hpp"
#include "core/errors.hpp"
#include "core/huggingface/config.hpp"
#include "core/model/model_limits.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace isobar::cli {

namespace {

constexpr auto workload_footer = R"(Example:
  isobar workload import gpt2/config.json --sequence 1024 --micro-batch 4 \
    -o gpt2.yaml
)";

struct WorkloadImport {
  bool lists = false;
  std::string config;
  HuggingFaceImport import;
  std::string dtype;
  std::string optimizer;
  std::string output = std::string(standard_output);
};

void check(const std::string& option, std::uint64_t count, std::uint64_t highest)
{
  if (count < 1 || count > highest) throw InputError(option, fmt::format("{} is not in 1 to {}", count, highest));
}

ExitCode list_types()
{
  std::string text = "model_type      workload\n";
  for (const auto& [type, model] : huggingface_types()) text += fmt::format("{:<15} {}\n", type, model);
  OutputFile(std::string(standard_output)).write(text);
  return ExitCode::Done;
}

ExitCode import_config(WorkloadImport options)
{
  check("--sequence", options.import.sequence, longest_sequence);
  check("--micro-batch", options.import.micro_batch, largest_micro_batch);
  if (!options.dtype.empty()) {
    options.import.dtype = dtype_from_name(options.dtype);
    if (!options.import.dtype) {
      throw InputError("--dtype",
                       fmt::format("{} is none of {}", in_quotes(options.dtype), fmt::join(dtype_names(), ", ")));
    }
  }
  if (!options.optimizer.empty()) {
    const auto optimizer = optimizer_from_name(options.optimizer);
    if (!optimizer) {
      throw InputError("--optimizer", fmt::format("{} is none of {}", in_quotes(options.optimizer),
                                                  fmt::join(optimizer_names(), ", ")));
    }
    options.import.optimizer = *optimizer;
  }
  refuse_overwriting({options.config}, {options.output});
  const auto workload = workload_from_huggingface(read_file(options.config), options.config, options.import);
  OutputFile(options.output).write(workload);
  return ExitCode::Done;
}

}  // namespace

void add_workload_command(CLI::App& app, Action& action)
{
  auto* command = app.add_subcommand("workload", "make workload files from models described elsewhere");
  command->require_subcommand(1);
  command->footer(workload_footer);
  auto* subcommand =
      command->add_subcommand("import", "make a workload file from a model of Hugging Face's transformers");
  auto options = std::make_shared<WorkloadImport>();
  subcommand->option_defaults()->group("Inputs");
  const auto* config = add_file(*subcommand, "CONFIG", options->config, "the model's config.json");
  const auto* sequence = add_count(*subcommand, "--sequence", options->import.sequence, "tokens per sample (required)");
  subcommand->add_flag("--list", options->lists, "print the types of models that can be imported");
  add_count(*subcommand, "--micro-batch", options->import.micro_batch, "samples per micro-batch (default: 1)");
  subcommand->add_option("--dtype", options->dtype, "float32, bf16 or fp16 (default: that of CONFIG)");
  subcommand->add_option("--optimizer", options->optimizer,
                         "optimizer, whose state counts in memory: sgd, momentum, adam or adamw (default: adamw)");
  subcommand->option_defaults()->group("Output");
  add_output(*subcommand, "-o,--output", options->output, "workload file to write (YAML; default: standard output)");
  subcommand->footer(workload_footer);
  subcommand->callback([options, config, sequence, &action] {
    if (options->lists) {
      action = list_types;
      return;
    }
    for (const auto* needed : {config, sequence}) {
      if (needed->count() == 0) throw CLI::RequiredError(needed->get_name());
    }
    action = [options] { return import_config(*options); };
  });
}

}  // namespace isobar::cli
