#include "exec/watch/progress.hpp"

#include "tests/exec/links/tcp_ranks.hpp"

#include <gtest/gtest.h>

#include <optional>

namespace isobar::exec::progress_test {
namespace {

Instruction forward(std::uint64_t microbatch)
{
  Instruction instruction;
  instruction.microbatch = microbatch;
  return instruction;
}

std::uint64_t no_moves()
{
  return 0;
}

TEST(Progress, IsIdleForLongerAndLongerWhileItWaits)
{
  Progress progress(no_moves);
  const Seconds before = progress.state().idle;
  pause(0.05);
  const auto state = progress.state();
  EXPECT_GE(state.idle - before, Seconds(0.05));
  EXPECT_EQ(state.work, "");
}

TEST(Progress, IsNotIdleAtWorkAndNamesTheWorkAndItsDuration)
{
  Progress progress(no_moves);
  const Progress::Work work(&progress, 7, forward(3));
  pause(0.05);
  const auto state = progress.state();
  EXPECT_EQ(state.idle, Seconds(0));
  EXPECT_EQ(state.work, "Forward 3 of step 7");
  EXPECT_GE(state.since, Seconds(0.05));
}

TEST(Progress, CountsWorkThatBeganAndEndedSinceTheLastCall)
{
  Progress progress(no_moves);
  pause(0.05);
  {
    const Progress::Work work(&progress, 1, "checkpoint");
    EXPECT_EQ(progress.state().work, "checkpoint of step 1");
  }
  pause(0.01);
  EXPECT_GT(progress.state().idle, Seconds(0));
  {
    const Progress::Work work(&progress, 2, forward(0));
  }
  EXPECT_EQ(progress.state().idle, Seconds(0));
}

TEST(Progress, CountsBytesThatMove)
{
  std::uint64_t moves = 5;
  Progress progress([&moves] { return moves; });
  pause(0.01);
  EXPECT_GT(progress.state().idle, Seconds(0));
  ++moves;
  EXPECT_EQ(progress.state().idle, Seconds(0));
  pause(0.01);
  EXPECT_GT(progress.state().idle, Seconds(0));
}

TEST(Progress, IsNotIdleWhileWorkOnAGpuHasBegunAndNotEnded)
{
  Progress progress(no_moves);
  struct Work {
    bool begun = false;
    bool ended = false;
  };
  Work first;
  Work second;
  for (const Work* work : {&first, &second}) {
    progress.queued([work] { return work->begun; }, [work] { return work->ended; });
  }
  pause(0.01);
  EXPECT_GT(progress.state().idle, Seconds(0));  // it waits for another rank
  first.begun = true;
  EXPECT_EQ(progress.state().idle, Seconds(0));
  first.ended = true;
  EXPECT_EQ(progress.state().idle, Seconds(0));  // work ended since the last call
  pause(0.01);
  EXPECT_GT(progress.state().idle, Seconds(0));
  second = {true, true};
  EXPECT_EQ(progress.state().idle, Seconds(0));
  pause(0.01);
  EXPECT_GT(progress.state().idle, Seconds(0));
}

TEST(Progress, IsOptionalForWork)
{
  const Progress::Work work(nullptr, 0, forward(0));
}

}  // namespace
}  // namespace isobar::exec::progress_test
