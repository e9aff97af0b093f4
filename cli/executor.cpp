#include "cli/executor.hpp"

#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"

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

constexpr auto executor_name = "isobar-exec";

}  // namespace

void become_executor(const std::vector<std::string>& arguments)
{
  std::vector<char*> raw = {const_cast<char*>(executor_name)};
  for (const auto& argument : arguments) raw.push_back(const_cast<char*>(argument.c_str()));
  raw.push_back(nullptr);
  std::error_code unknown;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", unknown);
  if (!unknown) execv((self.parent_path() / executor_name).c_str(), raw.data());
  execvp(executor_name, raw.data());
  throw EnvironmentError(
      fmt::format("{} is neither next to isobar nor on the PATH ({}); build it with ./test or "
                  "-DISOBAR_BUILD_EXEC=ON",
                  executor_name, std::strerror(errno)));
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
    if (errno != EINTR)
      throw EnvironmentError(fmt::format("cannot wait for {}: {}", executor_name, std::strerror(errno)));
    if (interrupted()) kill(child, SIGINT);
  }
  if (WIFEXITED(status)) return static_cast<ExitCode>(WEXITSTATUS(status));
  throw EnvironmentError(fmt::format("{} {} died of signal {}", executor_name, arguments.front(), WTERMSIG(status)));
}

}  // namespace isobar::cli
