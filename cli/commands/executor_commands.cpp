#include "cli/commands.hpp"
#include "cli/executor.hpp"
#include "cli/output_file.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace isobar::cli {

namespace {

bool asks_for_help(const std::vector<std::string>& arguments)
{
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const std::string& argument) { return argument == "--help" || argument == "-h"; });
}

void add(CLI::App& app, Action& action, const std::string& name, const std::string& what)
{
  auto* command = app.add_subcommand(name, what);
  command->prefix_command();
  command->set_help_flag();
  command->callback([command, name, what, &action] {
    std::vector<std::string> arguments = {name};
    for (const auto& argument : command->remaining()) arguments.push_back(argument);
    action = [arguments, what]() -> ExitCode {
      try {
        become_executor(arguments);
      } catch (const EnvironmentError& missing) {
        if (!asks_for_help(arguments)) throw;
        print(fmt::format("{}\nIts options are not known here: {}\n", what, missing.what()));
        return ExitCode::Done;
      }
    };
  });
}

}  // namespace

void add_executor_commands(CLI::App& app, Action& action)
{
  add(app, action, "run", "train a model as a plan prescribes, on real devices (isobar-exec)");
  add(app, action, "profile", "measure the time of every layer on this machine (isobar-exec)");
  add(app, action, "doctor", "check what this machine can do for a plan, and what prevents it (isobar-exec)");
  add(app, action, "export", "write a checkpoint as a Hugging Face model (isobar-exec)");
}

}  // namespace isobar::cli
