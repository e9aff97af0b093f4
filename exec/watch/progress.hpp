#pragma once

#include "core/base/clock.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace isobar::exec {

/// What one rank is doing. Usable from any thread.
class Progress {
 public:
  /// For its lifetime, the rank counts as being at work on this. Waiting for another rank is not work.
  class Work {
   public:
    /// `progress`: nullptr where it is not needed.
    Work(Progress* progress, std::uint64_t step, const Instruction& instruction);
    /// `what`: a string literal, such as "checkpoint".
    Work(Progress* progress, std::uint64_t step, const char* what);
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;
    ~Work();

   private:
    Progress* progress_;
    std::uint64_t number_ = 0;
  };
  using Happened = std::function<bool()>;

  /// `moves`: returns a count that grows whenever bytes arrive or leave over the rank's links; called from any thread.
  explicit Progress(std::function<std::uint64_t()> moves) : moves_(std::move(moves)), moves_seen_(moves_()) {}

  /// Adds work on a GPU, in the order of its stream. The rank is at work between `begun` and `ended`, which must not
  /// block.
  void queued(Happened begun, Happened ended);

  struct State {
    Seconds idle;      ///< time since the rank was last at work or moved bytes; 0: it is at work
    std::string work;  ///< that began first, such as "Backward 3 of step 0"; "" while the rank waits, or works on a GPU
    Seconds since;     ///< time since that began
  };
  /// Work that has begun and ended since the last call counts as done now.
  State state();

 private:
  struct Begun {
    std::uint64_t step = 0;
    Instruction instruction = {};
    const char* what = nullptr;  // nullptr: the instruction
    Clock::time_point began = {};
  };

  std::uint64_t begin(Begun work);
  void end(std::uint64_t number);

  std::mutex mutex_;
  std::function<std::uint64_t()> moves_;
  std::uint64_t moves_seen_;
  bool was_at_work_ = false;  // since the last call of `state`
  std::uint64_t next_number_ = 0;
  std::map<std::uint64_t, Begun> begun_;  // and not ended, in the order of their begins
  struct OnGpu {
    Happened begun;
    Happened ended;
  };
  std::deque<OnGpu> queued_;
  Clock::time_point last_at_work_ = Clock::now();
};

}  // namespace isobar::exec
