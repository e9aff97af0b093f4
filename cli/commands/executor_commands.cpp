#include "cli/commands.hpp"
#include "cli/executor.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

namespace {

void add(CLI::App& app, Action& action, const std::string& name, const std::string& what)
{
  auto* command = app.add_subcommand(name, what);
  command->prefix_command();
  command->set_help_flag();
  command->callback([command, name, &action] {
    std::vector<std::string> arguments = {name};
    for (const auto& argument : command->remaining()) arguments.push_back(argument);
    action = [arguments]() -> ExitCode { become_executor(arguments); };
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
