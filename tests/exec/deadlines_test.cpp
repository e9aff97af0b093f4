#include "exec/deadlines.hpp"

#include "core/errors.hpp"
#include "tests/exec/tcp_ranks.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace isobar::exec {
namespace {

OperationDeadline usual(std::uint64_t per_step)
{
  return {time_limits(Seconds(1)), per_step};
}

TEST(TimeLimits, GrowFromTheBeatToTheConnecting)
{
  const auto limits = time_limits(Seconds(2));
  EXPECT_EQ(limits.beat, Seconds(2));
  EXPECT_EQ(limits.heartbeat, Seconds(10));
  EXPECT_EQ(limits.transfer, Seconds(50));  // 30 s and ten steps
  EXPECT_EQ(limits.connect, Seconds(100));
  EXPECT_EQ(limits.slack, Seconds(30));
}

TEST(TimeLimits, FollowADeadlineThatIsSaid)
{
  const auto limits = time_limits(Seconds(100), Seconds(3));
  EXPECT_EQ(limits.transfer, Seconds(3));
  EXPECT_EQ(limits.heartbeat, Seconds(1.5));
  EXPECT_EQ(limits.connect, Seconds(6));
  EXPECT_EQ(limits.slack, std::nullopt);
  EXPECT_EQ(time_limits(Seconds(1), Seconds(3600)).heartbeat, Seconds(10));
}

TEST(TimeLimits, FollowAHeartbeatThatIsSaid)
{
  const auto limits = time_limits(Seconds(1), {}, Seconds(60));
  EXPECT_EQ(limits.beat, Seconds(12));
  EXPECT_EQ(limits.transfer, Seconds(130));
  EXPECT_EQ(limits.slack, Seconds(120));
}

RC_GTEST_PROP(TimeLimits, AreInOrderWhateverIsAsked, (unsigned step, unsigned deadline, unsigned heartbeat))
{
  const auto asked = [](unsigned number) {
    return number % 3 == 0 ? std::nullopt : std::optional(Seconds(0.1 + 0.37 * (number % 5000)));
  };
  try {
    const auto limits = time_limits(Seconds(0.1 * (step % 100'000)), asked(deadline), asked(heartbeat));
    RC_ASSERT(limits.beat < limits.heartbeat);
    RC_ASSERT(limits.heartbeat < limits.transfer);
    RC_ASSERT(limits.transfer < limits.connect);
    if (limits.slack) RC_ASSERT(limits.heartbeat < *limits.slack);
  } catch (const InputError&) {
    RC_ASSERT(*asked(heartbeat) >= *asked(deadline));
  }
}

TEST(TimeLimits, OutOfOrderAreRefused)
{
  EXPECT_EQ(error_of([] { time_limits(Seconds(1), Seconds(5), Seconds(10)); }),
            "--heartbeat: 10 s is not below the deadline of transfers, 5 s: a rank that is dead would be taken for one "
            "that is late");
  EXPECT_EQ(error_of([] { time_limits(Seconds(1), Seconds(0)); }), "--deadline: 0 s is not in 0.1 s to 1e+06 s");
  EXPECT_EQ(error_of([] { time_limits(Seconds(1), {}, Seconds(2e6)); }),
            "--heartbeat: 2e+06 s is not in 0.1 s to 1e+06 s");
}

TEST(OperationDeadline, IsThePredictionsUntilFiveStepsAreDone)
{
  auto deadline = usual(3);
  for (int i = 0; i < 14; ++i) {
    EXPECT_EQ(deadline.limit(), Seconds(40));
    deadline.done_after(Seconds(0.5));
  }
  deadline.done_after(Seconds(0.5));
  EXPECT_DOUBLE_EQ(deadline.limit().value, 30 + 0.5 + 10 * 0.05);
}

TEST(OperationDeadline, CountsTheLongestWaitOfEachStep)
{
  // The first gradient of a step waits for the pipeline to fill, the others for one micro-batch.
  auto deadline = usual(8);
  for (int step = 0; step < 30; ++step) {
    for (int i = 0; i < 8; ++i) deadline.done_after(Seconds(i == 0 ? 100 : 1));
  }
  EXPECT_DOUBLE_EQ(deadline.limit().value, 30 + 100 + 10 * 10);
}

TEST(OperationDeadline, GrowsWithTheJitter)
{
  auto deadline = usual(1);
  for (int step = 0; step < 20; ++step) deadline.done_after(Seconds(step % 2 == 0 ? 10 : 20));
  EXPECT_DOUBLE_EQ(deadline.limit().value, 30 + 20 + 10 * 10);
}

TEST(OperationDeadline, ForgetsWhatWasLongAgo)
{
  auto deadline = usual(1);
  for (int step = 0; step < 20; ++step) deadline.done_after(Seconds(1000));
  for (int step = 0; step < 20; ++step) deadline.done_after(Seconds(10));
  EXPECT_DOUBLE_EQ(deadline.limit().value, 30 + 10 + 10 * 1);
}

TEST(OperationDeadline, IsWhatWasSaidWhateverIsMeasured)
{
  OperationDeadline deadline(time_limits(Seconds(1), Seconds(3)), 1);
  for (int step = 0; step < 20; ++step) deadline.done_after(Seconds(2.9));
  EXPECT_EQ(deadline.limit(), Seconds(3));
}

}  // namespace
}  // namespace isobar::exec
