#pragma once

#include "core/errors.hpp"

#include <string>
#include <vector>

namespace isobar::cli {

/// Replaces this process by isobar-exec: the program next to this one, else the one on the PATH.
/// @throws EnvironmentError when there is none.
[[noreturn]] void become_executor(const std::vector<std::string>& arguments);

/// Runs isobar-exec to its end and returns its exit code. Unless the code is Done, isobar-exec has printed the reason
/// to stderr. Its standard output is dropped. @throws EnvironmentError when a signal ends it.
ExitCode run_executor(const std::vector<std::string>& arguments);

}  // namespace isobar::cli
