#pragma once

#include "core/program/program.hpp"
#include "exec/net/deadlines.hpp"

#include <functional>
#include <string>

namespace isobar::exec {

/// How long a rank's transfers and sums may wait, and what is said of those that fail. From any thread.
class TransferWaits {
 public:
  using Work = std::function<void(const Deadline& deadline)>;

  /// `idle`: how long since any rank of the world was last at work; asked where the user sets no limit.
  TransferWaits(const TimeLimits& limits, std::function<Seconds()> idle);

  /// Does a transfer; an EnvironmentError of its is passed on, with what it was to bring in its text.
  void of(const Instruction& transfer, const Work& work) const;
  /// Does a sum.
  void of_sum(const Work& work) const;

 private:
  void timed(const Work& work, const std::function<std::string()>& what) const;

  TimeLimits limits_;
  std::function<Seconds()> idle_;
};

}  // namespace isobar::exec
