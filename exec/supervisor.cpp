#include "exec/supervisor.hpp"

#include "core/child_process.hpp"
#include "core/interrupt.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace isobar::exec {

namespace {

constexpr Seconds until_stopped{60};

/// In the child; what is printed there is not lost.
std::string exit_code_of(const std::function<ExitCode(std::uint64_t)>& attempt, std::uint64_t failed)
{
  catch_interrupts();
  ExitCode code = ExitCode::Interrupted;
  try {
    code = attempt(failed);
  } catch (const Interrupted&) {
    // The code says it.
  }
  std::fflush(stdout);
  return std::to_string(static_cast<int>(code));
}

bool is_worth_another(const ChildResult& result)
{
  using Status = ChildResult::Status;
  return result.status == Status::Crashed ||
         (result.status == Status::EnvironmentFault && result.message.find(would_fail_again) == std::string::npos);
}

}  // namespace

ExitCode supervise(const std::function<ExitCode(std::uint64_t)>& attempt, const Supervision& supervision)
{
  for (std::uint64_t failed = 0;; ++failed) {
    const ChildResult result = run_in_deputy([&] { return exit_code_of(attempt, failed); }, until_stopped);
    if (result.status == ChildResult::Status::Done) {
      const auto code = static_cast<ExitCode>(std::stoi(result.output));
      if (code == ExitCode::Interrupted) throw Interrupted();
      return code;
    }
    if (!is_worth_another(result)) result.output_or_throw();
    if (failed == supervision.restarts) throw AttemptsFailed(result.message);
    supervision.say(fmt::format("attempt {} of {} failed: {}; going on from {}", failed + 1, supervision.restarts + 1,
                                result.message, supervision.resume_point()));
  }
}

}  // namespace isobar::exec
