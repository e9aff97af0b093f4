#include "exec/rank/interpreter.hpp"

#include "core/errors.hpp"
#include "tests/support/editable_program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::exec::interpreter_test {
namespace {

using testing::ElementsAre;

/// One rank, whose lanes have the given instructions in each step.
class OneRank : public testing_support::EditableProgram {
 public:
  explicit OneRank(const std::vector<std::vector<Instruction>>& instructions) : EditableProgram(1)
  {
    for (LaneId lane = 0; lane < instructions.size(); ++lane) {
      if (lane != compute_lane) connect({{0, "lane " + std::to_string(lane)}});
      for (const auto& instruction : instructions[lane]) add(0, lane, instruction);
    }
  }
};

Instruction waiting_for(const std::vector<Wait>& waits)
{
  Instruction instruction;
  for (const Wait& wait : waits) instruction.waits.add(wait);
  return instruction;
}

/// Its receive fails while it computes, and it computes until it is cancelled.
class BusyWork : public RankWork {
 public:
  void run(std::uint64_t, std::uint64_t, const Instruction& instruction) override
  {
    std::unique_lock lock(mutex_);
    if (instruction.lane != compute_lane) {
      changed_.wait(lock, [this] { return computes_; });
      throw EnvironmentError("nothing came");
    }
    computes_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return cancelled_; });
    happened.emplace_back("computed");
  }
  bool has_next_step(LaneId, std::uint64_t) override { return false; }
  Bytes memory(Tier /*tier*/) const override { return Bytes(0); }
  void cancel() noexcept override
  {
    const std::lock_guard lock(mutex_);
    happened.emplace_back("cancelled");
    cancelled_ = true;
    changed_.notify_all();
  }

  std::vector<std::string> happened;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool computes_ = false;
  bool cancelled_ = false;
};

TEST(Play, ReportsAFailureBeforeItCancelsTheWorkAndTheOtherLanesEnd)
{
  BusyWork work;
  const auto failed = [&work](const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const EnvironmentError& error) {
      work.happened.emplace_back(error.what());
    }
  };
  const auto nothing = [](std::uint64_t) {};
  const OneRank program({{Instruction()}, {Instruction()}});
  EXPECT_THROW(play(program, 0, 0, work, nullptr, nothing, failed), EnvironmentError);
  EXPECT_THAT(work.happened, ElementsAre("nothing came", "cancelled", "computed"));
}

/// An instruction that has begun: its step, lane and position.
using Begun = std::tuple<std::uint64_t, LaneId, std::uint64_t>;

/// Keeps the order in which instructions begin and end. Each takes a little while.
class RecordingWork : public RankWork {
 public:
  explicit RecordingWork(std::uint64_t last_step) : last_step_(last_step) {}

  void run(std::uint64_t step, std::uint64_t position, const Instruction& instruction) override
  {
    const Begun here{step, instruction.lane, position};
    {
      const std::lock_guard lock(mutex_);
      begins.push_back({here, ended.size()});
    }
    std::this_thread::sleep_for(std::chrono::microseconds(next_.fetch_add(1) * 2654435761U % 500));
    const std::lock_guard lock(mutex_);
    ended.push_back(here);
  }
  bool has_next_step(LaneId, std::uint64_t step) override { return step < last_step_; }
  Bytes memory(Tier /*tier*/) const override { return Bytes(0); }
  void cancel() noexcept override {}

  /// Whether `earlier` had ended when `later` began.
  bool are_in_order(const Begun& earlier, const Begun& later) const
  {
    const auto begin =
        std::find_if(begins.begin(), begins.end(), [&](const auto& each) { return each.first == later; });
    const auto end = std::find(ended.begin(), ended.end(), earlier);
    return begin != begins.end() && end != ended.end() &&
           end - ended.begin() < static_cast<std::ptrdiff_t>(begin->second);
  }

  std::vector<std::pair<Begun, std::size_t>> begins;  // with the number of those that had ended
  std::vector<Begun> ended;

 private:
  std::uint64_t last_step_;
  std::mutex mutex_;
  std::atomic<unsigned> next_ = 1;
};

const auto no_step_ended = [](std::uint64_t) {};

TEST(Play, WaitsForSeveralLanes)
{
  const OneRank program({{waiting_for({{1, 0, 1}, {2, 0, 2}})}, {Instruction()}, {Instruction(), Instruction()}});
  RecordingWork work(20);
  play(program, 0, 0, work, nullptr, no_step_ended);
  ASSERT_EQ(work.ended.size(), 21 * 4U);
  for (std::uint64_t step = 0; step <= 20; ++step) {
    EXPECT_TRUE(work.are_in_order({step, 1, 0}, {step, 0, 0})) << step;
    EXPECT_TRUE(work.are_in_order({step, 2, 1}, {step, 0, 0})) << step;
  }
}

TEST(Play, WaitsForInstructionsOfPeriodsBeforeThatTheRunHas)
{
  const OneRank program({{Instruction(), Instruction()}, {waiting_for({{0, 1, 2}}), waiting_for({{0, 2, 1}})}});
  RecordingWork work(27);
  play(program, 0, 7, work, nullptr, no_step_ended);  // steps 7 and 8 have no periods so far before them
  ASSERT_EQ(work.ended.size(), 21 * 4U);
  for (std::uint64_t step = 8; step <= 27; ++step) {
    EXPECT_TRUE(work.are_in_order({step - 1, 0, 1}, {step, 1, 0})) << step;
  }
  for (std::uint64_t step = 9; step <= 27; ++step) {
    EXPECT_TRUE(work.are_in_order({step - 2, 0, 0}, {step, 1, 1})) << step;
  }
}

TEST(Play, LetsNoLaneGetTwoStepsAhead)
{
  const OneRank program({{Instruction(), Instruction(), Instruction()}, {Instruction()}, {Instruction()}});
  RecordingWork work(30);
  play(program, 0, 0, work, nullptr, no_step_ended);
  for (std::uint64_t step = 2; step <= 30; ++step) {
    for (LaneId lane = 0; lane < 3; ++lane) {
      EXPECT_TRUE(work.are_in_order({step - 2, 0, 2}, {step, lane, 0})) << step;
      EXPECT_TRUE(work.are_in_order({step - 2, 1, 0}, {step, lane, 0})) << step;
    }
  }
}

TEST(Play, RecordsEachEventWithItsPosition)
{
  struct Sink : TraceSink {
    void record(const TraceEvent& event) override
    {
      events.emplace_back(event.step, event.instruction.lane, event.position);
    }
    std::vector<Begun> events;
  } sink;
  const std::vector<std::vector<Instruction>> lanes = {{Instruction(), Instruction()}};
  RecordingWork work(1);
  play(OneRank(lanes), 0, 0, work, &sink, no_step_ended);
  EXPECT_THAT(sink.events, ElementsAre(Begun{0, 0, 0}, Begun{0, 0, 1}, Begun{1, 0, 0}, Begun{1, 0, 1}));
}

}  // namespace
}  // namespace isobar::exec::interpreter_test
