#include "exec/run/interpreter.hpp"

#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

namespace isobar::exec {
namespace {

using testing::ElementsAre;

/// One rank that computes once and receives once per step.
class TwoLanes : public Program {
 public:
  std::size_t ranks() const override { return 1; }
  Bytes resident_memory(std::size_t) const override { return Bytes(0); }
  std::uint64_t length(std::size_t, Lane lane) const override
  {
    return lane == Lane::Compute || lane == Lane::ReceiveActivation ? 1 : 0;
  }
  Instruction at(std::size_t, Lane lane, std::uint64_t) const override
  {
    Instruction instruction;
    instruction.lane = lane;
    return instruction;
  }
};

/// Its receive fails while it computes, and it computes until it is cancelled.
class BusyWork : public RankWork {
 public:
  void run(std::uint64_t, const Instruction& instruction) override
  {
    std::unique_lock lock(mutex_);
    if (instruction.lane == Lane::ReceiveActivation) {
      changed_.wait(lock, [this] { return computes_; });
      throw EnvironmentError("nothing came");
    }
    computes_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return cancelled_; });
    happened.emplace_back("computed");
  }
  bool has_next_step(Lane, std::uint64_t) override { return false; }
  Bytes memory() const override { return Bytes(0); }
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
  EXPECT_THROW(play(TwoLanes(), 0, 0, work, nullptr, nothing, failed), EnvironmentError);
  EXPECT_THAT(work.happened, ElementsAre("nothing came", "cancelled", "computed"));
}

}  // namespace
}  // namespace isobar::exec
