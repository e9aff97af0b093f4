#include "results/device_count.hpp"

#include "tests/support/instances.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>

namespace isobar::results::device_count_test {
namespace {

using namespace testing_support;  // NOLINT: a test file

DeviceCount count_of(const Workload& workload, const Cluster& devices, Objective objective,
                     std::uint64_t microbatches = 1)
{
  return devices_worth_using(
      CostModel(workload, devices),
      {objective, Communication::None, choice_of(ChainSchedule::OneForwardOneBackward), microbatches});
}

TEST(DevicesWorthUsing, AreAllForTheBottleneckAndOneForTheSum)
{
  const Workload workload = chain({1, 1, 1});
  const Cluster devices = cluster({1, 5, 2});
  EXPECT_EQ(count_of(workload, devices, Objective::Bottleneck).by_speed, 3U);
  EXPECT_EQ(count_of(workload, devices, Objective::Sequential).by_speed, 1U);
  EXPECT_EQ(count_of(workload, devices, Objective::Pipeline, 1).by_speed, 1U);
}

TEST(DevicesWorthUsing, InAPipelineAreThoseWhoseSpeedMakesUpForOneMoreStage)
{
  // M = 4, F = 300: one device 4 x 300 / 4 = 300, two 5 x 300 / 6 = 250, three 6 x 300 / 7 = 257.1.
  const Workload workload = chain(std::vector<double>(100, 1));
  EXPECT_EQ(count_of(workload, cluster({2, 4, 1}), Objective::Pipeline, 4).by_speed, 2U);
  // Equal devices: (M-1+k) / k always falls when M > 1, and never when M = 1.
  EXPECT_EQ(count_of(workload, cluster({2, 2, 2, 2}), Objective::Pipeline, 2).by_speed, 4U);
  EXPECT_EQ(count_of(workload, cluster({2, 2, 2, 2}), Objective::Pipeline, 1).by_speed, 1U);
}

TEST(DevicesWorthUsing, InAPipelineAreTheLeastOfTheFormula)
{
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> unit(0, 1);
  const Workload workload = chain({1, 1});
  for (int round = 0; round < 500; ++round) {
    std::vector<double> speeds(1 + random() % 40);
    for (auto& speed : speeds) speed = 0.1 + 10 * unit(random) * unit(random);
    const std::uint64_t microbatches = 1 + random() % 64;
    const auto count = count_of(workload, cluster(speeds), Objective::Pipeline, microbatches);
    std::sort(speeds.begin(), speeds.end(), std::greater<>());
    double least = std::numeric_limits<double>::infinity();
    std::size_t best = 0;
    double sum = 0;
    for (std::size_t k = 1; k <= speeds.size(); ++k) {
      sum += speeds[k - 1];
      const double time = (static_cast<double>(microbatches - 1) + static_cast<double>(k)) / sum;
      if (time < least * (1 - 1e-12)) {
        least = time;
        best = k;
      }
    }
    EXPECT_EQ(count.by_speed, best);
    EXPECT_EQ(count.with_memory, best);
  }
}

TEST(DevicesWorthUsing, AreMoreWhereTheMemoryOfTheFastestDoesNotHoldTheModel)
{
  // 60 bytes of activations; the fastest device has 20, the next 30 and the last 50.
  const Workload workload = chain(std::vector<double>(6, 1), 0, 10);
  Cluster devices = cluster({1, 3, 2});
  devices.devices[0].memory = Bytes(50);
  devices.devices[1].memory = Bytes(20);
  devices.devices[2].memory = Bytes(30);
  EXPECT_EQ(count_of(workload, devices, Objective::Sequential).with_memory, 3U);
  devices.devices[2].memory = Bytes(40);
  EXPECT_EQ(count_of(workload, devices, Objective::Sequential).with_memory, 2U);
  devices.devices[2].memory = Bytes(1);
  devices.devices[0].memory = Bytes(1);
  EXPECT_EQ(count_of(workload, devices, Objective::Sequential).with_memory, 3U);  // not even all hold it
}

}  // namespace
}  // namespace isobar::results::device_count_test
