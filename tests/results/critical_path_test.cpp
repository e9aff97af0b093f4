#include "results/critical_path.hpp"

#include <gtest/gtest.h>

#include <random>

namespace isobar::results::critical_path_test {
namespace {

constexpr auto one_f_one_b = ChainSchedule::OneForwardOneBackward;

TransferTimes transfer(double latency, double data)
{
  return {Seconds(latency), Seconds(data)};
}

StageTimes stage(double forward, double backward, TransferTimes output = {}, TransferTimes gradient = {},
                 double update = 0)
{
  return {Seconds(forward), Seconds(backward), Seconds(update), output, gradient};
}

double sum_of(const CriticalPath& path)
{
  double sum = (path.input.data + path.input.latency).value;
  for (const auto& stage : path.stages) {
    sum += stage.compute.value;
    for (const auto& lane : {stage.output, stage.gradient}) sum += (lane.data + lane.latency).value;
  }
  return sum;
}

TEST(CriticalPath, FollowsOneMicroBatchThereAndBack)
{
  const std::vector<StageTimes> stages = {stage(1, 2, transfer(10, 3), transfer(20, 5), 7), stage(4, 8)};
  const auto path = critical_path(ChainSchedule::Sequential, 1, transfer(100, 6), stages);
  EXPECT_EQ(path.step_time.value, 166);
  EXPECT_EQ(path.input.data.value, 6);
  EXPECT_EQ(path.input.latency.value, 100);
  EXPECT_EQ(path.stages[0].compute.value, 10);  // forward, backward and the update after it
  EXPECT_EQ(path.stages[1].compute.value, 12);
  EXPECT_EQ(path.stages[0].output.data.value, 3);
  EXPECT_EQ(path.stages[0].output.latency.value, 10);
  EXPECT_EQ(path.stages[0].gradient.data.value, 5);
  EXPECT_EQ(path.stages[0].gradient.latency.value, 20);
  EXPECT_EQ(path.stages[0].waits_for_room, 0U);
}

TEST(CriticalPath, StaysOnALaneWhoseMessagesQueue)
{
  // Messages of 10 s behind forwards of 1 s: one latency, and the lane is busy from then on.
  const std::vector<StageTimes> stages = {stage(1, 0, transfer(5, 10)), stage(1, 0)};
  const auto path = critical_path(ChainSchedule::GPipe, 4, {}, stages);
  EXPECT_EQ(path.step_time.value, 1 + 5 + 4 * 10 + 1);
  EXPECT_EQ(path.stages[0].output.data.value, 40);
  EXPECT_EQ(path.stages[0].output.latency.value, 5);
}

TEST(CriticalPath, CountsWaitingForRoomWhereTheLimitOfMicroBatchesBinds)
{
  // The first stage may hold two micro-batches and gets a gradient back after 20 s of latency each time. Its local
  // input is always available: it waits from 2 to 24 for its first gradient although it has the third micro-batch.
  const std::vector<StageTimes> stages = {stage(1, 1, transfer(10, 0), transfer(10, 0)), stage(1, 1)};
  const auto path = critical_path(one_f_one_b, 6, {}, stages);
  EXPECT_GT(path.stages[0].waits_for_room, 0U);
  EXPECT_EQ(path.stages[1].waits_for_room, 0U);
  EXPECT_GT(path.stages[0].idle_for_room.value, 0);
  const auto more = critical_path(one_f_one_b, 6, {}, stages, {1});
  EXPECT_LT(more.step_time, path.step_time);
  const auto none = critical_path(ChainSchedule::GPipe, 6, {}, stages);
  EXPECT_EQ(none.stages[0].waits_for_room, 0U);
  EXPECT_EQ(none.stages[0].idle_for_room.value, 0);
}

TEST(CriticalPath, IgnoresMoreInFlightUnderOtherSchedules)
{
  const std::vector<StageTimes> stages = {stage(1, 1, transfer(10, 0), transfer(10, 0)), stage(1, 1)};
  for (const auto schedule : {ChainSchedule::Sequential, ChainSchedule::GPipe}) {
    EXPECT_EQ(critical_path(schedule, 6, {}, stages, {2}).step_time, critical_path(schedule, 6, {}, stages).step_time);
  }
}

TEST(CriticalPath, WaitsUntilAnotherInputMayBeSent)
{
  // At most two inputs are in flight; the third leaves when the first was forwarded, and takes 10 s.
  const auto path = critical_path(ChainSchedule::GPipe, 3, transfer(10, 0), {stage(1, 0)});
  EXPECT_EQ(path.step_time.value, 22);
  EXPECT_EQ(path.input.latency.value, 20);
  EXPECT_EQ(path.stages[0].compute.value, 2);
}

TEST(CriticalPath, SumsExactlyToTheStepOfTheRecurrenceOnRandomChains)
{
  // Whole seconds, so that no sum is rounded.
  std::mt19937 random(15);
  const auto draw = [&random](int most) { return static_cast<double>(std::uniform_int_distribution(0, most)(random)); };
  for (int trial = 0; trial < 1000; ++trial) {
    const auto schedule = static_cast<ChainSchedule>(trial % 3);
    const auto microbatches = static_cast<std::uint64_t>(1 + draw(11));
    const int most_latency = trial % 2 == 0 ? 5 : 200;
    std::vector<StageTimes> stages;
    const auto count = static_cast<std::size_t>(1 + draw(5));
    for (std::size_t i = 0; i < count; ++i) {
      stages.push_back(stage(1 + draw(9), 1 + draw(19), transfer(draw(most_latency), draw(12)),
                             transfer(draw(most_latency), draw(12)), draw(9)));
    }
    const auto input = transfer(draw(most_latency), draw(12));
    const auto path = critical_path(schedule, microbatches, input, stages);
    ASSERT_EQ(path.step_time, StepRecurrence(schedule, microbatches).step_time(input, stages)) << trial;
    ASSERT_EQ(sum_of(path), path.step_time.value) << trial;
  }
}

}  // namespace
}  // namespace isobar::results::critical_path_test
