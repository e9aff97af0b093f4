#pragma once

#include "core/program/program.hpp"
#include "exec/net/deadlines.hpp"

#include <functional>
#include <string>

namespace isobar::exec {

/// Gives a rank's transfers and all-reduces their deadlines, and describes those that fail. Usable from any thread.
class TransferWaits {
 public:
  using Work = std::function<void(const Deadline& deadline)>;

  /// `idle`: time since any rank was last at work; called only where the user sets no limit.
  TransferWaits(const TimeLimits& limits, std::function<Seconds()> idle);

  /// Runs a transfer. Rethrows its EnvironmentError with a description of the transfer added to the text.
  void transfer(const Instruction& instruction, const Work& work) const;
  /// Runs an all-reduce; errors likewise.
  void all_reduce(const Work& work) const;

 private:
  void run(const Work& work, const std::function<std::string()>& description) const;

  TimeLimits limits_;
  std::function<Seconds()> idle_;
};

}  // namespace isobar::exec
