#pragma once

#include "core/errors.hpp"

#include <functional>

namespace CLI {
class App;
}

namespace isobar::cli {

/// What a command does once its options are parsed; returns the exit code.
using Action = std::function<ExitCode()>;

/// Each of these functions adds one command to `app`. If the user chooses that command, parsing sets `action` to its
/// work.
void add_plan_command(CLI::App& app, Action& action);
void add_simulate_command(CLI::App& app, Action& action);
void add_compare_command(CLI::App& app, Action& action);
void add_sweep_command(CLI::App& app, Action& action);
void add_check_command(CLI::App& app, Action& action);
void add_calibrate_command(CLI::App& app, Action& action);
void add_fidelity_command(CLI::App& app, Action& action);
void add_fit_command(CLI::App& app, Action& action);
void add_list_command(CLI::App& app, Action& action);
void add_platform_command(CLI::App& app, Action& action);
void add_workload_command(CLI::App& app, Action& action);
void add_schedule_command(CLI::App& app, Action& action);
void add_convert_command(CLI::App& app, Action& action);
void add_trace_command(CLI::App& app, Action& action);
void add_verify_command(CLI::App& app, Action& action);
void add_validate_command(CLI::App& app, Action& action);
void add_cluster_command(CLI::App& app, Action& action);
void add_share_command(CLI::App& app, Action& action);
void add_report_command(CLI::App& app, Action& action);
void add_plot_command(CLI::App& app, Action& action);
/// Adds the commands that isobar-exec implements: run, profile, doctor, export.
void add_executor_commands(CLI::App& app, Action& action);

}  // namespace isobar::cli
