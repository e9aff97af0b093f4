#pragma once

#include "core/base/interrupt.hpp"
#include "core/failure.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// How a child process ended.
struct ChildResult {
  std::string output;  ///< what the work returned, or the command printed
  /// None where the child came to a good end. What the work threw; or, of a child that a signal or an exit of its own
  /// ended, "died of signal 9 (Killed)" or the like with its last line on stderr (Died); or that it was killed at its
  /// time limit (Silent). A child that was asked to stop (SIGINT) before it could notice was interrupted.
  std::optional<Failure> failure = {};
  std::string errors = {};  ///< of `run_command`: what it said on stderr, the last 64 KiB of it

  /// Throws what the work threw (of a child that died or took too long, an EnvironmentError).
  const std::string& output_or_throw() const;
};

/// How long a child may take.
struct ChildLimit {
  ChildLimit(Seconds limit, const char* its_option = nullptr)  // NOLINT(google-explicit-constructor)
      : seconds(limit), option(its_option)
  {
  }

  Seconds seconds;
  const char* option;  ///< by which the user sets it; nullptr: none
};

/// Runs each piece of work in a forked child of its own, `parallel` at a time, and returns their results in order.
/// A child that crashes or hangs costs its own result and nothing else. Children get SIGKILL when this process dies.
/// `on_end`, if given, is called at each end with the work's index and result. Where the work belongs together, the
/// others are ended `grace_after_fault` after one of them has failed.
/// @throws Interrupted after killing and reaping all children when the process was asked to stop.
std::vector<ChildResult> run_in_children(const std::vector<std::function<std::string()>>& work, std::size_t parallel,
                                         ChildLimit time_limit,
                                         const std::function<void(std::size_t, const ChildResult&)>& on_end = {},
                                         std::optional<Seconds> grace_after_fault = {});

/// One piece of work in one child.
ChildResult run_in_child(const std::function<std::string()>& work, ChildLimit time_limit);

/// One piece of work in one child that writes to this process's stderr and may take as long as it will. When this
/// process is asked to stop the child is asked too (SIGINT, and by nothing else): it catches that as `catch_interrupts`
/// has it, with no request and no GracefulStop before, and may come to a good end.
/// @throws Interrupted when this process was asked before, and, after killing the child, when it is asked once more.
ChildResult run_supervised_child(const std::function<std::string()>& work, const GracefulStop& stop);

/// Runs a program with `input` on its standard input; `output` is its standard output. It has failed (Died) also when
/// it exits with another code than 0. @throws EnvironmentError when it cannot be started.
ChildResult run_command(const std::vector<std::string>& arguments, const std::string& input, ChildLimit time_limit);

}  // namespace isobar
