#pragma once

#include "core/errors.hpp"

#include <cstddef>
#include <functional>

namespace CLI {
class App;
}

namespace isobar::exec {

/// Runs a subcommand, once its options are parsed; returns the exit code.
using Action = std::function<ExitCode()>;

/// Checks --threads. @throws InputError unless it is in 1 to 1024.
void check_threads(std::size_t threads);

/// Add one subcommand each to `app`. Parsing sets `action` to the subcommand that the user chose.
void add_run_command(CLI::App& app, Action& action);
void add_profile_command(CLI::App& app, Action& action);
void add_doctor_command(CLI::App& app, Action& action);
void add_export_command(CLI::App& app, Action& action);

}  // namespace isobar::exec
