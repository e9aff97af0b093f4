#include "exec/links/deadlines.hpp"

#include "core/errors.hpp"
#include "tests/exec/links/tcp_ranks.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace isobar::exec::deadlines_test {
namespace {

TEST(TimeLimits, GrowFromTheHeartbeatIntervalToTheConnectDeadline)
{
  const auto limits = time_limits(Seconds(2));
  EXPECT_EQ(limits.heartbeat_interval, Seconds(2));
  EXPECT_EQ(limits.heartbeat_timeout, Seconds(10));
  EXPECT_EQ(limits.transfer, Seconds(50));  // 30 s and ten steps
  EXPECT_EQ(limits.connect, Seconds(100));
  EXPECT_FALSE(limits.transfer_is_set);
}

TEST(TimeLimits, FollowADeadlineThatIsSet)
{
  const auto limits = time_limits(Seconds(100), Seconds(3));
  EXPECT_EQ(limits.transfer, Seconds(3));
  EXPECT_EQ(limits.heartbeat_timeout, Seconds(1.5));
  EXPECT_EQ(limits.connect, Seconds(6));
  EXPECT_TRUE(limits.transfer_is_set);
  EXPECT_EQ(time_limits(Seconds(1), Seconds(3600)).heartbeat_timeout, Seconds(10));
}

TEST(TimeLimits, FollowAHeartbeatThatIsSet)
{
  const auto limits = time_limits(Seconds(1), {}, Seconds(60));
  EXPECT_EQ(limits.heartbeat_interval, Seconds(12));
  EXPECT_EQ(limits.transfer, Seconds(130));
}

RC_GTEST_PROP(TimeLimits, AreInOrderForAnyOptions, (unsigned step, unsigned deadline, unsigned heartbeat))
{
  const auto option = [](unsigned number) {
    return number % 3 == 0 ? std::nullopt : std::optional(Seconds(0.1 + 0.37 * (number % 5000)));
  };
  try {
    const auto limits = time_limits(Seconds(0.1 * (step % 100'000)), option(deadline), option(heartbeat));
    RC_ASSERT(limits.heartbeat_interval < limits.heartbeat_timeout);
    RC_ASSERT(limits.heartbeat_timeout < limits.transfer);
    RC_ASSERT(limits.transfer < limits.connect);
  } catch (const InputError&) {
    RC_ASSERT(*option(heartbeat) >= *option(deadline));
  }
}

TEST(TimeLimits, AreRefusedWhenOutOfOrderOrOutOfRange)
{
  EXPECT_EQ(error_of([] { time_limits(Seconds(1), Seconds(5), Seconds(10)); }),
            "--heartbeat: 10 s is not below the deadline of transfers, 5 s, so dead ranks would be reported as late; "
            "lower it, or raise --deadline");
  EXPECT_EQ(error_of([] { time_limits(Seconds(1), Seconds(0)); }), "--deadline: 0 s is not in 0.1 s to 1e+06 s");
  EXPECT_EQ(error_of([] { time_limits(Seconds(1), {}, Seconds(2e6)); }),
            "--heartbeat: 2e+06 s is not in 0.1 s to 1e+06 s");
}

TEST(Deadline, PassesAfterItsLimit)
{
  EXPECT_GT(Deadline(plenty).left(), Seconds(0));
  EXPECT_LE(Deadline(Seconds(0)).left(), Seconds(0));
}

TEST(Deadline, IsExtendedUntilNothingWasDoneForItsLimit)
{
  Seconds idle(0);
  int asked = 0;
  Deadline deadline(Seconds(100), [&] {
    ++asked;
    return idle;
  });
  EXPECT_GT(deadline.left(), Seconds(90));
  EXPECT_EQ(asked, 0);  // nothing to extend before the limit is over
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
}  // namespace isobar::exec::deadlines_test
