#include "exec/watch/supervisor.hpp"

#include "core/base/child_process.hpp"
#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

namespace isobar::exec {

namespace {

/// Runs in the child, and checks that the child's standard output was written.
std::string exit_code_of(const std::function<ExitCode(std::uint64_t)>& attempt, std::uint64_t failed)
{
  const ExitCode code = attempt(failed);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw EnvironmentError("cannot write to standard output");
  return std::to_string(static_cast<int>(code));
}

bool is_worth_repeating(const ChildResult& result)
{
  return result.failure && result.failure->code == ExitCode::EnvironmentError;
}

void pause_unless_stopped(Seconds pause, const GracefulStop& stop)
{
  constexpr std::chrono::milliseconds next_look(50);
  const auto end = deadline_in(pause);
  while (!stop.requested() && Clock::now() < end) std::this_thread::sleep_for(next_look);
}

}  // namespace

ExitCode supervise(const std::function<ExitCode(std::uint64_t)>& attempt, const Supervision& supervision)
{
  constexpr Seconds longest_pause(30);
  const GracefulStop stop;
  Seconds pause = supervision.pause;
  for (std::uint64_t failed = 0;; ++failed) {
    const ChildResult result = run_supervised_child([&] { return exit_code_of(attempt, failed); }, stop);
    if (stop.requested() || !is_worth_repeating(result))
      return static_cast<ExitCode>(std::stoi(result.output_or_throw()));
    if (failed == supervision.restarts) throw AttemptsFailed(*result.failure);
    supervision.report(fmt::format("attempt {} of {} failed: {}; continuing from {}", failed + 1,
                                   supervision.restarts + 1, result.failure->text, supervision.resume_point()));
    pause_unless_stopped(pause, stop);
    pause = std::min(pause * 2, longest_pause);
  }
}

}  // namespace isobar::exec
