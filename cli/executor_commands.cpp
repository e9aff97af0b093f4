#include "cli/command.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>

#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace isobar::cli {

namespace {

constexpr auto program = "isobar-exec";

/// Becomes isobar-exec, the one beside this program, else one on the PATH.
[[noreturn]] void become_executor(const std::vector<std::string>& arguments)
{
  std::vector<char*> raw;
  for (const auto& argument : arguments) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);
  std::error_code unknown;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (!unknown) execv((self.parent_path() / program).c_str(), raw.data());
  execvp(program, raw.data());
  throw EnvironmentError(
      fmt::format("{} is neither beside isobar nor on the PATH ({}); ./test builds it, and so does "
                  "-DISOBAR_BUILD_EXEC=ON",
                  program, std::strerror(errno)));
}

void add(CLI::App& app, Action& action, const std::string& name, const std::string& what)
{
  auto* command = app.add_subcommand(name, what);
  command->prefix_command();
  command->set_help_flag();
  command->callback([command, name, &action] {
    std::vector<std::string> arguments = {program, name};
    for (const auto& argument : command->remaining()) arguments.push_back(argument);
    action = [arguments]() -> ExitCode { become_executor(arguments); };
  });
}

}  // namespace

void add_executor_commands(CLI::App& app, Action& action)
{
  add(app, action, "run", "train a model as a plan says, on real devices (isobar-exec)");
  add(app, action, "profile", "time every layer on this machine (isobar-exec)");
}

}  // namespace isobar::cli
