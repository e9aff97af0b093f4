#include "exec/supervisor.hpp"

#include "core/child_process.hpp"
#include "core/interrupt.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <string>

namespace isobar::exec {

namespace {

/// In the child; what is printed there is not lost. "" when it was interrupted.
std::string exit_code_of(const std::function<ExitCode(std::uint64_t)>& attempt, std::uint64_t failed)
{
  catch_interrupts();
  try {
    const ExitCode code = attempt(failed);
    std::fflush(stdout);
    return std::to_string(static_cast<int>(code));
  } catch (const Interrupted&) {
    return "";
  }
}

bool is_worth_another(const ChildResult& result)
{
  using Status = ChildResult::Status;
  return result.status == Status::Crashed || result.status == Status::EnvironmentFault;
}

}  // namespace

ExitCode supervise(const std::function<ExitCode(std::uint64_t)>& attempt, const Supervision& supervision)
{
  const PatientStop stop;
  for (std::uint64_t failed = 0;; ++failed) {
    const ChildResult result = run_in_deputy([&] { return exit_code_of(attempt, failed); }, stop);
    if (result.status == ChildResult::Status::Done) {
      if (result.output.empty()) throw Interrupted();
      return static_cast<ExitCode>(std::stoi(result.output));
    }
    if (!is_worth_another(result)) result.output_or_throw();
    if (failed == supervision.restarts) throw AttemptsFailed(result.message);
    supervision.say(fmt::format("attempt {} of {} failed: {}; going on from {}", failed + 1, supervision.restarts + 1,
                                result.message, supervision.resume_point()));
  }
}

}  // namespace isobar::exec
