#pragma once

#include "core/program.hpp"
#include "exec/deadlines.hpp"

#include <cstddef>
#include <functional>
#include <vector>

namespace isobar::exec {

/// How long a rank's transfers and sums may wait, and what is said of those that fail. Each lane by its own thread.
class TransferWaits {
 public:
  using Work = std::function<void(Seconds deadline)>;

  TransferWaits(const Program& program, std::size_t rank, const TimeLimits& limits);

  /// Does a transfer; an EnvironmentError of its is passed on, with what it was to bring in its text.
  void of(const Instruction& transfer, const Work& work);
  /// Does a sum, on the compute lane.
  void of_sum(const Work& work) { timed(Lane::Compute, work); }

 private:
  void timed(Lane lane, const Work& work);

  std::vector<OperationDeadline> deadlines_;  // by lane
};

}  // namespace isobar::exec
