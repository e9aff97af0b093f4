#pragma once

#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>

namespace isobar::exec {

/// Executes the instructions of one rank.
class RankWork {
 public:
  RankWork() = default;
  RankWork(const RankWork&) = delete;
  RankWork& operator=(const RankWork&) = delete;
  virtual ~RankWork() = default;

  /// Waits until an instruction may begin, after everything it waits for is done; the wait is not part of its time.
  virtual void await_turn(std::uint64_t /*step*/, std::uint64_t /*position*/, const Instruction& /*instruction*/) {}
  /// Executes an instruction, the one at `position` of its lane in `step`. Called on the lane's own thread, in the
  /// lane's order, after everything it waits for is done.
  virtual void run(std::uint64_t step, std::uint64_t position, const Instruction& instruction) = 0;
  /// Whether another step follows `step`. Each lane calls it at the end of its part of a step, and it may block until
  /// that is known. All ranks and lanes must get the same answer.
  virtual bool has_next_step(LaneId lane, std::uint64_t step) = 0;
  /// Whether all lanes that meet no other rank must have ended `step`, and rest, while `step_ended` is called for it.
  virtual bool rests_after(std::uint64_t /*step*/) { return false; }
  /// Memory of a tier that the rank holds now.
  virtual Bytes memory(Tier tier) const = 0;
  /// Ends all waits of `run` and `has_next_step`. Called once, from any thread, after a failure.
  virtual void cancel() noexcept = 0;
};

/// Executes one rank's part of a program, step by step from `first_step` to the last one. A step is a period of the
/// program.
///
/// The compute lane runs on the calling thread and every other lane with instructions on a thread of its own, so that
/// transfers overlap computation and receives are posted ahead. A completed instruction wakes the lanes that wait for
/// it, and no others. Lanes enter the next step independently, but no lane is ever two steps ahead of another.
///
/// `sink`, if not null, receives events in the order of their ends, and the rank's memory of each tier after each
/// instruction. Times
/// are those of the steady clock. Any of the threads may call it, one call at a time. `step_ended` is called on the
/// calling thread after the compute lane's last instruction of each step, and after those of other lanes that follow an
/// Update; never for a rank whose compute lane is empty, the data server. `failed` is called with the first failure, on
/// any of the threads, before `work.cancel()`. The exception itself is thrown only once all lanes have ended, which may
/// take as long as another lane's instruction.
/// @throws the first failure of `work`, `step_ended` or `sink`; Interrupted. All threads have ended by then.
void play(const Program& program, std::size_t rank, std::uint64_t first_step, RankWork& work, TraceSink* sink,
          const std::function<void(std::uint64_t step)>& step_ended,
          const std::function<void(const std::exception_ptr& failure)>& failed = {});

}  // namespace isobar::exec
