#pragma once

#include "core/errors.hpp"

#include <CLI/CLI.hpp>

#include <cstddef>
#include <functional>

namespace isobar::exec {

/// What a subcommand does once its options are read; returns the exit code.
using Action = std::function<ExitCode()>;

/// Refuses --threads out of 1 to 1024.
void check_threads(std::size_t threads);

/// Each adds one subcommand to `app`; when the user chose it, `action` is set to what it does.
void add_run_command(CLI::App& app, Action& action);
void add_profile_command(CLI::App& app, Action& action);
void add_doctor_command(CLI::App& app, Action& action);
void add_export_command(CLI::App& app, Action& action);

}  // namespace isobar::exec
