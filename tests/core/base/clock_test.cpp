#include "core/base/clock.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sched.h>
#include <atomic>
#include <filesystem>
#include <thread>

namespace isobar::clock_test {
namespace {

/// Pins the calling thread to one of its processors.
void stay_on_one_processor()
{
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  int first = 0;
  while (!CPU_ISSET(first, &allowed)) ++first;
  CPU_ZERO(&allowed);
  CPU_SET(first, &allowed);
  ASSERT_EQ(::sched_setaffinity(0, sizeof allowed, &allowed), 0);
}

TEST(ProcessorWaitTest, CountsTheTimeInWhichAnotherThreadHasTheProcessor)
{
  if (!std::filesystem::exists("/proc/thread-self/schedstat")) GTEST_SKIP() << "the system does not count it";
  std::atomic<bool> is_done = false;
  const std::jthread other([&] {
    stay_on_one_processor();
    while (!is_done) continue;
  });
  double fraction = 0;
  std::jthread([&] {
    stay_on_one_processor();
    const ProcessorWait wait;
    while (fraction < 0.25) fraction = wait.fraction();
    is_done = true;
  }).join();
  EXPECT_LE(fraction, 1);
}

TEST(ProcessorWaitTest, WarnsFromATenthOfTheTime)
{
  EXPECT_EQ(note_of_busy_machine("rank 1 (b)", 0.09), "");
  EXPECT_EQ(note_of_busy_machine("rank 1 (b)", 0.384),
            "rank 1 (b) waited for a processor 38 % of the time: its machine is busy, which distorts measured times");
}

}  // namespace
}  // namespace isobar::clock_test
