#include "cli/command.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

namespace isobar::cli {

namespace {

constexpr auto program = "isobar-exec";

/// Becomes isobar-exec, the one beside this program, else one on the PATH.
[[noreturn]] void become_executor(const std::vector<std::string>& arguments)
{
  std::vector<char*> raw = {const_cast<char*>(program)};
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
    std::vector<std::string> arguments = {name};
    for (const auto& argument : command->remaining()) arguments.push_back(argument);
    action = [arguments]() -> ExitCode { become_executor(arguments); };
  });
}

}  // namespace

void add_executor_commands(CLI::App& app, Action& action)
{
  add(app, action, "run", "train a model as a plan says, on real devices (isobar-exec)");
  add(app, action, "profile", "time every layer on this machine (isobar-exec)");
  add(app, action, "doctor", "say what this machine can do for a plan, and what stands in the way (isobar-exec)");
  add(app, action, "export", "write a checkpoint as a Hugging Face model (isobar-exec)");
}

ExitCode run_executor(const std::vector<std::string>& arguments)
{
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw EnvironmentError(fmt::format("cannot start a process: {}", std::strerror(errno)));
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(static_cast<int>(ExitCode::EnvironmentError));
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(nowhere, STDOUT_FILENO);
    try {
      become_executor(arguments);
    } catch (const std::exception& error) {
      say(error.what());
      _exit(static_cast<int>(ExitCode::EnvironmentError));
    }
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw EnvironmentError(fmt::format("cannot wait for {}: {}", program, std::strerror(errno)));
    if (interrupted()) kill(child, SIGINT);
  }
  if (WIFEXITED(status)) return static_cast<ExitCode>(WEXITSTATUS(status));
  throw EnvironmentError(fmt::format("{} {} died of signal {}", program, arguments.front(), WTERMSIG(status)));
}

}  // namespace isobar::cli
