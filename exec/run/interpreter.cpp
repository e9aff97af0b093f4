#include "exec/run/interpreter.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/base/threads.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
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
    for (const Lane lane : all_lanes) lengths_[static_cast<std::size_t>(lane)] = program.length(rank, lane);
  }

  void play(const std::function<void(std::uint64_t)>& step_ended)
  {
    {
      std::vector<std::jthread> threads;
      try {
        for (const Lane lane : all_lanes) {
          if (lane == Lane::Compute || length(lane) == 0) continue;
          threads.push_back(start_thread([this, lane] { play_lane(lane, {}); }));
        }
        if (length(Lane::Compute) > 0) play_lane(Lane::Compute, step_ended);
      } catch (...) {
        fail(std::current_exception());
      }
    }
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::uint64_t length(Lane lane) const { return lengths_[static_cast<std::size_t>(lane)]; }

  void play_lane(Lane lane, const std::function<void(std::uint64_t)>& step_ended)
  {
    try {
      for (std::uint64_t step = first_step_;; ++step) {
        for (std::uint64_t position = 0; position < length(lane); ++position) {
          const Instruction instruction = program_.at(rank_, lane, position);
          if (!wait_for(step, instruction.wait)) return;
          play_instruction(step, instruction);
        }
        if (step_ended) step_ended(step);
        if (!work_.has_next_step(lane, step) || !others_follow(step)) return;
      }
    } catch (...) {
      fail(std::current_exception());
    }
  }

  void play_instruction(std::uint64_t step, const Instruction& instruction)
  {
    throw_if_interrupted();
    TraceEvent event{step, rank_, instruction, steady_time(), Seconds(0), work_.memory()};
    work_.run(step, instruction);
    event.end = steady_time();
    const std::lock_guard lock(mutex_);
    const Bytes memory = work_.memory();
    event.memory = std::max(event.memory, memory);
    if (sink_) {
      sink_->memory_changed(rank_, steady_time(), memory);
      sink_->record(event);
    }
    ++completed_[static_cast<std::size_t>(instruction.lane)];
    progress_.notify_all();
  }

  /// Waits for another lane's instruction; false if a lane has failed.
  bool wait_for(std::uint64_t step, const Wait& wait)
  {
    std::unique_lock lock(mutex_);
    const std::uint64_t needed = wait.count == 0 ? 0 : (step - first_step_) * length(wait.lane) + wait.count;
    progress_.wait(lock, [&] { return failure_ || completed_[static_cast<std::size_t>(wait.lane)] >= needed; });
    return !failure_;
  }

  /// Waits until all lanes have ended the step before `step`; false if a lane has failed. A lane two steps ahead would
  /// pile up messages that no lane takes yet.
  bool others_follow(std::uint64_t step)
  {
    std::unique_lock lock(mutex_);
    progress_.wait(lock, [&] {
      return failure_ || std::all_of(all_lanes.begin(), all_lanes.end(), [&](Lane lane) {
               return completed_[static_cast<std::size_t>(lane)] >= (step - first_step_) * length(lane);
             });
    });
    return !failure_;
  }

  void fail(const std::exception_ptr& failure)
  {
    {
      const std::lock_guard lock(mutex_);
      if (failure_) return;
      failure_ = failure;
      progress_.notify_all();
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
  std::array<std::uint64_t, lane_count> lengths_{};

  std::mutex mutex_;
  std::condition_variable progress_;
  std::array<std::uint64_t, lane_count> completed_{};  // over all steps
  std::exception_ptr failure_;
};

}  // namespace

void play(const Program& program, std::size_t rank, std::uint64_t first_step, RankWork& work, TraceSink* sink,
          const std::function<void(std::uint64_t)>& step_ended, const Failed& failed)
{
  Player(program, rank, first_step, work, sink, failed).play(step_ended);
}

}  // namespace isobar::exec
