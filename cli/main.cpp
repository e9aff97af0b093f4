// The command isobar: parses options, calls the libraries, turns exceptions into one line and an exit code.

#include "cli/commands.hpp"
#include "core/base/command_options.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"
#include "core/failure.hpp"
#include "sim/platform/platform.hpp"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include <exception>

namespace isobar::cli {
namespace {

constexpr auto main_footer = R"(Exit codes: 0 done · 1 a bug in isobar · 2 a wrong file, option or plan
            3 the machine failed · 4 infeasible · 5 a check failed
            130 interrupted

Example:
  isobar compare platforms/sky64.xml workloads/bert160.yaml
)";

ExitCode run(int argc, char** argv)
{
  CLI::App app("Isobar places the layers of a model over unequal, far-apart devices: plan, simulate, compare.",
               "isobar");
  app.set_version_flag("--version", "isobar " ISOBAR_VERSION " (SimGrid " + sim::simgrid_version() + ")");
  app.formatter(help_formatter());
  app.footer(main_footer);
  app.require_subcommand(1);
  Action action;
  add_plan_command(app, action);
  add_simulate_command(app, action);
  add_compare_command(app, action);
  add_sweep_command(app, action);
  add_check_command(app, action);
  add_calibrate_command(app, action);
  add_fidelity_command(app, action);
  add_fit_command(app, action);
  add_list_command(app, action);
  add_platform_command(app, action);
  add_workload_command(app, action);
  add_schedule_command(app, action);
  add_convert_command(app, action);
  add_trace_command(app, action);
  add_verify_command(app, action);
  add_validate_command(app, action);
  add_cluster_command(app, action);
  add_share_command(app, action);
  add_report_command(app, action);
  add_plot_command(app, action);
  add_executor_commands(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // --help, --version
    print_help(app, asked);
    return ExitCode::Done;
  } catch (const CLI::ParseError& error) {
    throw fault_of_command_line(app, error);
  }
  return action();
}

}  // namespace
}  // namespace isobar::cli

int main(int argc, char** argv)
{
  using namespace isobar;
  open_standard_streams();
  spdlog::set_default_logger(spdlog::stderr_logger_st("isobar"));
  spdlog::set_pattern("isobar: %v");
  catch_interrupts();
  ExitCode code = ExitCode::OurBug;
  try {
    code = cli::run(argc, argv);
  } catch (const std::exception& error) {
    const Failure failure = failure_of(error);
    code = failure.code;
    spdlog::error("{}", printable(line_of(failure)));
  }
  return static_cast<int>(code);
}
