#pragma once

#include "core/program/program.hpp"
#include "exec/links/deadlines.hpp"

#include <cstdint>
#include <functional>
#include <string>

namespace isobar::exec {

/// Gives a rank's waits for other ranks their deadlines, and describes those that fail. Usable from any thread.
class TransferWaits {
 public:
  using Work = std::function<void(const Deadline& deadline)>;

  /// `idle`: time since any rank was last at work; called only where the user sets no limit.
  TransferWaits(const TimeLimits& limits, std::function<Seconds()> idle);

  /// Runs a transfer or collective. Rethrows its EnvironmentError with a description of it added to the text.
  void transfer(const Instruction& instruction, const Work& work) const;
  /// Runs a wait for rank 0's decision about a step; errors likewise.
  void decision(std::uint64_t step, const Work& work) const;
  /// Runs a wait for this rank's turn among the jobs of a mix; errors likewise.
  void turn(std::uint64_t step, const Work& work) const;
  /// Runs a wait for the other ranks' addends to the loss of a step; errors likewise.
  void loss(std::uint64_t step, const Work& work) const;

 private:
  void run(const Work& work, const std::function<std::string()>& description) const;

  TimeLimits limits_;
  std::function<Seconds()> idle_;
};

}  // namespace isobar::exec
