#include "exec/net/deadlines.hpp"

#include "core/errors.hpp"
#include "tests/exec/net/tcp_ranks.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace isobar::exec {
namespace {

TEST(TimeLimits, GrowFromTheBeatToTheConnecting)
{
  const auto limits = time_limits(Seconds(2));
  EXPECT_EQ(limits.beat, Seconds(2));
  EXPECT_EQ(limits.heartbeat, Seconds(10));
  EXPECT_EQ(limits.transfer, Seconds(50));  // 30 s and ten steps
  EXPECT_EQ(limits.connect, Seconds(100));
  EXPECT_FALSE(limits.transfer_is_said);
}

TEST(TimeLimits, FollowADeadlineThatIsSaid)
{
  const auto limits = time_limits(Seconds(100), Seconds(3));
  EXPECT_EQ(limits.transfer, Seconds(3));
  EXPECT_EQ(limits.heartbeat, Seconds(1.5));
  EXPECT_EQ(limits.connect, Seconds(6));
  EXPECT_TRUE(limits.transfer_is_said);
  EXPECT_EQ(time_limits(Seconds(1), Seconds(3600)).heartbeat, Seconds(10));
}

TEST(TimeLimits, FollowAHeartbeatThatIsSaid)
{
  const auto limits = time_limits(Seconds(1), {}, Seconds(60));
  EXPECT_EQ(limits.beat, Seconds(12));
  EXPECT_EQ(limits.transfer, Seconds(130));
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

TEST(Deadline, PassesOnceItsLimitIsOver)
{
  EXPECT_GT(Deadline(plenty).left(), Seconds(0));
  EXPECT_LE(Deadline(Seconds(0)).left(), Seconds(0));
}

TEST(Deadline, IsPutOffUntilNothingWasDoneForItsLimit)
{
  Seconds idle(0);
  int asked = 0;
  Deadline deadline(Seconds(100), [&] {
    ++asked;
    return idle;
  });
  EXPECT_GT(deadline.left(), Seconds(90));
  EXPECT_EQ(asked, 0);  // before its limit is over there is nothing to put off
  Deadline over(Seconds(0.01), [&] {
    ++asked;
    return idle;
  });
  while (asked == 0) over.left();
  EXPECT_GT(Seconds(0.01) - idle, Seconds(0));
  idle = Seconds(0.02);
  while (over.left() > Seconds(0)) continue;
  EXPECT_GE(asked, 2);
  EXPECT_LE(over.left(), Seconds(0));
}

}  // namespace
}  // namespace isobar::exec
