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
  std::string output;  ///< what the work returned, or what the command printed
  /// None if the child succeeded. Otherwise what the work threw, or how the child ended: Died with "died of signal 9
  /// (Killed)" or the like and its last line on stderr, or Silent if it was killed at its time limit. A child that
  /// SIGINT ended before the child could catch it counts as interrupted.
  std::optional<Failure> failure = {};
  std::string errors = {};  ///< of `run_command` only: the last 64 KiB of its stderr

  /// The output. @throws what the work threw, or EnvironmentError if the child died or reached its time limit.
  const std::string& output_or_throw() const;
};

/// The time limit of a child.
struct ChildLimit {
  ChildLimit(Seconds limit, const char* its_option = nullptr)  // NOLINT(google-explicit-constructor)
      : seconds(limit), option(its_option)
  {
  }

  Seconds seconds;
  const char* option;  ///< the option that sets it, for messages; nullptr: none
};

/// Runs each piece of work in its own forked child, `parallel` at a time, and returns the results in order.
///
/// A child that crashes or hangs affects only its own result. Children get SIGKILL when this process dies. `on_end`, if
/// given, is called as each child ends, with the work's index and result. `grace_after_fault` is for work that belongs
/// together: once one child has failed, the running ones are killed after that time; with `belong_together`, those of
/// which it is true.
/// @throws Interrupted, after all children were killed and reaped, when the process was asked to stop.
std::vector<ChildResult> run_in_children(const std::vector<std::function<std::string()>>& work, std::size_t parallel,
                                         ChildLimit time_limit,
                                         const std::function<void(std::size_t, const ChildResult&)>& on_end = {},
                                         std::optional<Seconds> grace_after_fault = {},
                                         const std::function<bool(std::size_t, std::size_t)>& belong_together = {});

/// Runs one piece of work in a forked child.
ChildResult run_in_child(const std::function<std::string()>& work, ChildLimit time_limit);

/// Runs one piece of work in a forked child that shares this process's stderr and has no time limit.
///
/// The first request to stop this process is passed on to the child as SIGINT; the child ignores the other signals.
/// The child handles it as a first request (see `catch_interrupts`) and may finish normally. It starts without any
/// earlier request or GracefulStop.
/// @throws Interrupted if this process was asked to stop before the start, or is asked a second time; the child is then
/// killed.
ChildResult run_supervised_child(const std::function<std::string()>& work, const GracefulStop& stop);

/// Runs a program with `input` on its standard input; the result's `output` is its standard output. An exit code other
/// than 0 is a failure (Died). @throws EnvironmentError when the program cannot be started; Interrupted.
ChildResult run_command(const std::vector<std::string>& arguments, const std::string& input, ChildLimit time_limit);

}  // namespace isobar
