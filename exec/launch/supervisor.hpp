#pragma once

#include "core/failure.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace isobar::exec {

/// A run that failed for good, as often as it was started again, with the last attempt's failure.
class AttemptsFailed : public EnvironmentError {
 public:
  explicit AttemptsFailed(Failure failure) : EnvironmentError(failure.text), failure_(std::move(failure)) {}
  const Failure& failure() const { return failure_; }

 private:
  Failure failure_;
};

struct Supervision {
  std::uint64_t restarts = 0;  ///< how often a failed attempt is followed by another one
  /// Where the next attempt goes on, such as "step 12"; asked after one has failed.
  std::function<std::string()> resume_point;
  /// Told of each failure that is followed by another attempt, in one line.
  std::function<void(const std::string&)> say;
  /// Before the second attempt, for what has failed may take a while to come back; twice as long before each further
  /// one, up to half a minute. An interrupt ends it.
  Seconds pause{0.5};
};

/// Runs a piece of work in a child process of its own, and again when it fails and it is the machine that failed: an
/// EnvironmentError, or the death of the child. `attempt` is told how many have failed before it. Call it before this
/// process has threads. When this process is asked to stop, the attempt is asked too, and may come to a good end; it is
/// the last one, and what it fails with is thrown as it is.
/// @returns what the attempt returned that ended well.
/// @throws AttemptsFailed; InputError and std::logic_error as an attempt throws it, which is not repeated; Interrupted.
ExitCode supervise(const std::function<ExitCode(std::uint64_t failed)>& attempt, const Supervision& supervision);

}  // namespace isobar::exec
