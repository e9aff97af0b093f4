#pragma once

#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>

namespace isobar::exec {

/// What the instructions of one rank do.
class RankWork {
 public:
  RankWork() = default;
  RankWork(const RankWork&) = delete;
  RankWork& operator=(const RankWork&) = delete;
  virtual ~RankWork() = default;

  /// Called from the lane's own thread, in the lane's order, once all that the instruction waits for is done.
  virtual void run(std::uint64_t step, const Instruction& instruction) = 0;
  /// Called by each lane at the end of its part of a step: whether there is another step. All ranks and lanes come to
  /// the same answer; it may wait until that is known.
  virtual bool goes_on(Lane lane, std::uint64_t step) = 0;
  /// What the rank holds now.
  virtual Bytes memory() const = 0;
  /// Called once from any thread when something failed: ends whatever `run` and `goes_on` wait for.
  virtual void cancel() noexcept = 0;
};

/// Plays one rank's part of a program step by step, from `first_step` to the last one: the compute lane on the calling
/// thread, every other lane that has instructions on a thread of its own, so that transfers overlap computation and
/// receives are posted ahead. A lane goes on to the next step by itself, but never two steps ahead of another.
///
/// Events go to `sink` (may be null) in the order in which they end, with times of the steady clock, one at a time but
/// from any of the threads; what the rank holds is looked at after each instruction. `step_ended` is called on the
/// calling thread after the compute lane's last instruction of each step; a rank without a compute lane, the data
/// server, is not asked. `failed` is told of what failed first, from any of the threads and before the work is
/// cancelled: an instruction of another lane may go on for long, and only then is that thrown.
/// @throws whatever failed first in `work`, `step_ended` or `sink`; Interrupted. All threads have ended then.
void play(const Program& program, std::size_t rank, std::uint64_t first_step, RankWork& work, TraceSink* sink,
          const std::function<void(std::uint64_t step)>& step_ended,
          const std::function<void(const std::exception_ptr& failure)>& failed = {});

}  // namespace isobar::exec
