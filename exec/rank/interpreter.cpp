#include "exec/rank/interpreter.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/threads.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace isobar::exec {

namespace {

using Failed = std::function<void(const std::exception_ptr&)>;

class Player {
 public:
  Player(const Program& program, std::size_t rank, std::uint64_t first_step, RankWork& work, TraceSink* sink,
         const Failed& failed)
      : program_(program), rank_(rank), first_step_(first_step), work_(work), sink_(sink), failed_(failed)
  {
    const auto count = static_cast<LaneId>(program.lanes(rank).size());
    for (LaneId lane = 0; lane < count; ++lane) lanes_.emplace_back(program.length(rank, lane));
    for (LaneId lane = 0; lane < count; ++lane) {
      if (follows_updates(lane)) after_updates_.push_back(lane);
    }
  }

  void play(const std::function<void(std::uint64_t)>& step_ended)
  {
    {
      std::vector<std::jthread> threads;
      try {
        for (LaneId lane = 0; lane < lanes(); ++lane) {
          if (lane == compute_lane || lanes_[lane].length == 0) continue;
          threads.push_back(start_thread([this, lane] { play_lane(lane, {}); }));
        }
        if (lanes_[compute_lane].length > 0) play_lane(compute_lane, step_ended);
      } catch (...) {
        fail(std::current_exception());
      }
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  /// A lane that waits until another one has completed `needed` instructions.
  struct Waiter {
    LaneId lane = 0;
    std::uint64_t needed = 0;
  };
  struct LaneState {
    explicit LaneState(std::uint64_t lane_length) : length(lane_length) {}

    std::uint64_t length;         // of a step
    std::uint64_t completed = 0;  // over all steps
    std::vector<Waiter> waiters;  // for this lane
    std::condition_variable wake;
  };

  void play_lane(LaneId lane, const std::function<void(std::uint64_t)>& step_ended)
  {
    try {
      for (std::uint64_t step = first_step_;; ++step) {
        for (std::uint64_t position = 0; position < lanes_[lane].length; ++position) {
          const Instruction instruction = program_.at(rank_, lane, position);
          if (!wait_for(lane, step, instruction.waits)) return;
          play_instruction(lane, step, position, instruction);
        }
        if (step_ended) {
          if (!wait_for_updated(step)) return;
          step_ended(step);
          end_rest(step);
        } else if (!rest(lane, step)) {
          return;
        }
        if (!work_.has_next_step(lane, step) || !others_follow(lane, step)) return;
      }
    } catch (...) {
      fail(std::current_exception());
    }
  }

  void play_instruction(LaneId lane, std::uint64_t step, std::uint64_t position, const Instruction& instruction)
  {
    throw_if_interrupted();
    work_.await_turn(step, position, instruction);
    TraceEvent event{step, rank_, position, instruction, steady_time(), Seconds(0), work_.memory(Tier::Device)};
    work_.run(step, position, instruction);
    event.end = steady_time();
    const std::lock_guard lock(mutex_);
    event.memory = std::max(event.memory, work_.memory(Tier::Device));
    if (sink_) {
      for (const Tier tier : {Tier::Device, Tier::Host, Tier::Disk}) {
        sink_->memory_changed(rank_, tier, steady_time(), work_.memory(tier));
      }
      sink_->record(event);
    }
    complete(lanes_[lane]);
  }

  /// Counts an instruction and wakes the lanes that waited for it.
  void complete(LaneState& lane)
  {
    ++lane.completed;
    std::erase_if(lane.waiters, [&](const Waiter& waiter) {
      if (lane.completed < waiter.needed) return false;
      lanes_[waiter.lane].wake.notify_one();
      return true;
    });
  }

  /// How many instructions, over all steps, an awaited lane must have completed.
  std::uint64_t needed_for(std::uint64_t step, const Wait& wait) const
  {
    const std::uint64_t steps_before = step - first_step_;
    if (wait.periods_back > steps_before) return 0;
    return (steps_before - wait.periods_back) * lanes_.at(wait.lane).length + wait.count;
  }

  /// Waits for other lanes' instructions; false if a lane has failed.
  bool wait_for(LaneId lane, std::uint64_t step, const Waits& waits)
  {
    std::unique_lock lock(mutex_);
    for (const Wait& wait : waits) await(lock, lane, wait.lane, needed_for(step, wait));
    return !failure_;
  }

  /// Whether the last instruction of a lane waits for an Update of its step.
  bool follows_updates(LaneId lane) const
  {
    if (lane == compute_lane || lanes_[lane].length == 0) return false;
    const Waits waits = program_.at(rank_, lane, lanes_[lane].length - 1).waits;
    return std::any_of(waits.begin(), waits.end(), [&](const Wait& wait) {
      return wait.lane == compute_lane && wait.periods_back == 0 &&
             program_.at(rank_, compute_lane, wait.count - 1).opcode == Opcode::Update;
    });
  }

  /// Waits until the lanes that follow Updates have ended `step`, or all that rest then; false if a lane has failed.
  bool wait_for_updated(std::uint64_t step)
  {
    const bool all_rest = work_.rests_after(step);
    std::unique_lock lock(mutex_);
    const auto await_end = [&](LaneId lane) {
      await(lock, compute_lane, lane, (step - first_step_ + 1) * lanes_[lane].length);
    };
    for (const LaneId lane : after_updates_) await_end(lane);
    for (LaneId lane = 0; lane < lanes() && all_rest; ++lane) {
      if (can_rest(lane)) await_end(lane);
    }
    return !failure_;
  }

  /// Whether a lane meets no other rank, and is not the one that others rest for.
  bool can_rest(LaneId lane) const
  {
    return lane != compute_lane && program_.lanes(rank_)[lane].engine != Engine::Network;
  }

  /// Waits until a step has ended after which the lane rests; false if a lane has failed.
  bool rest(LaneId lane, std::uint64_t step)
  {
    if (!can_rest(lane) || lanes_[compute_lane].length == 0 || !work_.rests_after(step)) return true;
    std::unique_lock lock(mutex_);
    lanes_[lane].wake.wait(lock, [&] { return failure_ || ended_steps_ > step - first_step_; });
    return !failure_;
  }

  void end_rest(std::uint64_t step)
  {
    const std::lock_guard lock(mutex_);
    ended_steps_ = step - first_step_ + 1;
    for (LaneId lane = 0; lane < lanes(); ++lane) {
      if (can_rest(lane)) lanes_[lane].wake.notify_one();
    }
  }

  LaneId lanes() const { return static_cast<LaneId>(lanes_.size()); }

  /// Waits until all lanes have ended the step before `step`; false if a lane has failed. A lane two steps ahead would
  /// pile up messages that no lane takes yet.
  bool others_follow(LaneId lane, std::uint64_t step)
  {
    std::unique_lock lock(mutex_);
    for (LaneId other = 0; other < lanes(); ++other) {
      await(lock, lane, other, (step - first_step_) * lanes_[other].length);
    }
    return !failure_;
  }

  /// Waits, as `lane`, until `other` has completed `needed` instructions, or a lane has failed.
  void await(std::unique_lock<std::mutex>& lock, LaneId lane, LaneId other, std::uint64_t needed)
  {
    LaneState& awaited = lanes_[other];
    if (failure_ || awaited.completed >= needed) return;
    awaited.waiters.push_back({lane, needed});
    lanes_[lane].wake.wait(lock, [&] { return failure_ || awaited.completed >= needed; });
  }

  void fail(const std::exception_ptr& failure)
  {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = failure;
      for (auto& lane : lanes_) lane.wake.notify_one();
    }
    if (failed_) failed_(failure);
    work_.cancel();
  }

  const Program& program_;
  std::size_t rank_;
  std::uint64_t first_step_;
  RankWork& work_;
  TraceSink* sink_;
  const Failed& failed_;

  std::mutex mutex_;
  std::deque<LaneState> lanes_;  // by LaneId; each lane's thread alone waits on its `wake`
  std::vector<LaneId> after_updates_;
  std::uint64_t ended_steps_ = 0;  // of the compute lane, with the call of step_ended
  std::exception_ptr failure_;
};

}  // namespace

void play(const Program& program, std::size_t rank, std::uint64_t first_step, RankWork& work, TraceSink* sink,
          const std::function<void(std::uint64_t)>& step_ended, const Failed& failed)
{
  Player(program, rank, first_step, work, sink, failed).play(step_ended);
}

}  // namespace isobar::exec
