#pragma once

#include "core/failure.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace isobar::exec {

/// A run that failed although it was restarted as often as allowed, with the last attempt's failure.
class AttemptsFailed : public EnvironmentError {
 public:
  explicit AttemptsFailed(Failure failure) : EnvironmentError(failure.text), failure_(std::move(failure)) {}
  const Failure& failure() const { return failure_; }

 private:
  Failure failure_;
};

struct Supervision {
  std::uint64_t restarts = 0;  ///< how often a failed attempt is followed by another one
  /// Where the next attempt continues, such as "step 12"; called after one has failed.
  std::function<std::string()> resume_point;
  /// Receives each failure that is followed by another attempt, in one line.
  std::function<void(const std::string&)> report;
  /// Pause before the second attempt, since failed hardware may need time to recover. It doubles before each further
  /// attempt, up to half a minute. An interrupt ends it.
  Seconds pause{0.5};
};

/// Runs `attempt` in a child process, and repeats it after failures of the machine: an EnvironmentError, or the death
/// of the child. `failed`: number of attempts that have failed before. Call it before this process has threads.
///
/// When this process is asked to stop, it asks the attempt too, which may finish normally. That attempt is the last
/// one; its failure is thrown unchanged.
/// @returns the result of the attempt that succeeded.
/// @throws AttemptsFailed; InputError and std::logic_error of an attempt, which is not repeated; Interrupted.
ExitCode supervise(const std::function<ExitCode(std::uint64_t failed)>& attempt, const Supervision& supervision);

}  // namespace isobar::exec
