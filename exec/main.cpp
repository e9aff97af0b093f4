// The command isobar-exec: runs plans on real devices. isobar run, profile, doctor and export execute it.

#include "core/base/command_options.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"
#include "core/failure.hpp"
#include "exec/commands.hpp"
#include "exec/links/tcp_connect.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <string>

namespace isobar::exec {

void check_threads(std::size_t threads)
{
  constexpr std::size_t most = 1024;
  if (threads >= 1 && threads <= most) return;
  throw InputError("--threads", std::to_string(threads) + " is not in 1 to " + std::to_string(most));
}

namespace {

constexpr auto footer = R"(Exit codes: 0 done · 1 a bug of ours · 2 a wrong file, option or plan
            3 the machine failed · 4 infeasible · 130 interrupted

Example:
  isobar-exec run workloads/bert10.yaml --plan plan.json --spawn
)";

ExitCode run(int argc, char** argv)
{
  CLI::App app("Isobar's executor: trains a model as a plan prescribes, on real devices.", "isobar-exec");
  app.set_version_flag("--version", "isobar-exec " ISOBAR_VERSION);
  app.formatter(help_formatter());
  app.footer(footer);
  app.require_subcommand(1);
  Action action;
  add_run_command(app, action);
  add_profile_command(app, action);
  add_doctor_command(app, action);
  add_export_command(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    print_help(app, request);
    return ExitCode::Done;
  } catch (const CLI::ParseError& error) {
    throw fault_of_command_line(app, error);
  }
  const ExitCode code = action();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw EnvironmentError("cannot write to standard output");
  return code;
}

}  // namespace
}  // namespace isobar::exec

int main(int argc, char** argv)
{
  using namespace isobar;
  open_standard_streams();
  catch_interrupts();
  exec::allow_all_descriptors();
  ExitCode code = ExitCode::OurBug;
  std::string message;
  try {
    code = exec::run(argc, argv);
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    code = failure.code;
    message = line_of(failure);
  }
  if (!message.empty()) std::fprintf(stderr, "isobar: %s\n", printable(message).c_str());
  return static_cast<int>(code);
}
