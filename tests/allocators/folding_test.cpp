#include "allocators/folding.hpp"

#include "tests/support/instances.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace isobar::allocators::folding_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using schedules::Folding;
using testing::ElementsAre;
using testing::IsEmpty;

/// A device and a number of layers for each stage.
std::vector<std::pair<std::size_t, std::size_t>> sizes_of(const std::vector<StagePlacement>& stages)
{
  std::vector<std::pair<std::size_t, std::size_t>> sizes;
  for (const auto& [device, first, last] : stages) sizes.emplace_back(device, last - first + 1);
  return sizes;
}

Fold on(std::vector<std::size_t> devices, Folding folding, std::size_t parts)
{
  const std::vector<std::vector<std::uint64_t>> in_flight(devices.size(), std::vector<std::uint64_t>(parts, 1));
  return {std::move(devices), folding, parts, in_flight, {}};
}

/// The largest compute time of a device over all its stages.
Seconds largest_time(const CostModel& cost, const std::vector<StagePlacement>& stages)
{
  std::vector<Seconds> times(cost.devices());
  for (const auto& [device, first, last] : stages) times[device] += cost.compute_time(device, first, last);
  return *std::max_element(times.begin(), times.end());
}

TEST(FoldedStages, AreEqualOnEqualDevices)
{
  const Workload workload = chain(std::vector<double>(8, 1));
  const Cluster platform = cluster({1, 1});
  const CostModel cost(workload, platform);
  EXPECT_THAT(sizes_of(fold(cost, on({1, 0}, Folding::RoundRobin, 2))),
              ElementsAre(std::pair(1, 2), std::pair(0, 2), std::pair(1, 2), std::pair(0, 2)));
  EXPECT_THAT(sizes_of(fold(cost, on({0, 1}, Folding::V, 2))),
              ElementsAre(std::pair(0, 2), std::pair(1, 2), std::pair(1, 2), std::pair(0, 2)));
}

TEST(FoldedStages, FollowTheSpeedsOfTheirDevices)
{
  const Workload workload = chain(std::vector<double>(8, 1));
  const Cluster platform = cluster({1, 3});
  const CostModel cost(workload, platform);
  EXPECT_THAT(sizes_of(fold(cost, on({0, 1}, Folding::RoundRobin, 2))),
              ElementsAre(std::pair(0, 1), std::pair(1, 3), std::pair(0, 1), std::pair(1, 3)));
}

TEST(FoldedStages, BalanceDevicesAndNotStages)
{
  // The last layer is as heavy as ten others, as a model's head: its device has nothing else that takes time.
  std::vector<double> work(16, 1);
  work.front() = 0;
  work.back() = 10;
  const Workload workload = chain(work);
  const Cluster platform = cluster({1, 1, 1, 1});
  const CostModel cost(workload, platform);
  const auto stages = fold(cost, on({0, 1, 2, 3}, Folding::V, 2));
  EXPECT_EQ(largest_time(cost, stages), Seconds(30));
  std::vector<std::size_t> layers(4, 0);
  for (const auto& [device, count] : sizes_of(stages)) layers[device] += count;
  EXPECT_EQ(layers[0], 2U);
  EXPECT_THAT(std::vector(layers.begin() + 1, layers.end()), testing::UnorderedElementsAre(4, 5, 5));
}

TEST(FoldedStages, AreCutAsTheLayersOfEachDeviceAsk)
{
  const Workload workload = chain(std::vector<double>(18, 1));
  const Cluster platform = cluster({1, 1, 1, 1});
  const CostModel cost(workload, platform);
  Fold how = on({0, 1, 2, 3}, Folding::V, 2);
  how.layers = {5, 5, 4, 4};
  EXPECT_THAT(sizes_of(fold(cost, how)),
              ElementsAre(std::pair(0, 3), std::pair(1, 3), std::pair(2, 2), std::pair(3, 2), std::pair(3, 2),
                          std::pair(2, 2), std::pair(1, 2), std::pair(0, 2)));
  how.layers = {15, 1, 1, 1};
  EXPECT_THAT(fold(cost, how), IsEmpty());
}

/// The least largest time over all cuts.
Seconds least_largest_time(const CostModel& cost, const std::vector<std::size_t>& devices)
{
  Seconds least(std::numeric_limits<double>::infinity());
  std::vector<StagePlacement> stages;
  const std::function<void(std::size_t)> extend = [&](std::size_t first) {
    const std::size_t stage = stages.size();
    const bool is_last = stage + 1 == devices.size();
    for (std::size_t end = is_last ? cost.layers() : first + 1; end + (devices.size() - stage - 1) <= cost.layers();
         ++end) {
      stages.push_back({devices[stage], first, end - 1});
      if (is_last) {
        least = std::min(least, largest_time(cost, stages));
      } else {
        extend(end);
      }
      stages.pop_back();
    }
  };
  extend(0);
  return least;
}

TEST(FoldedStages, AreMostlyAsBalancedAsAnyCuts)
{
  std::mt19937_64 random(11);
  constexpr int rounds = 300;
  int best = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto folding = round % 2 == 0 ? Folding::V : Folding::RoundRobin;
    const std::size_t devices = 2 + random() % 2;
    const std::size_t parts = folding == Folding::V ? 2 : 2 + random() % 2;
    Workload workload = random_chain(random, devices * parts + random() % 6);
    if (round % 3 == 0) workload.layers.back().forward *= 8;
    const Cluster platform = random_cluster(random, devices, 1e9);
    const CostModel cost(workload, platform);
    std::vector<std::size_t> order(devices);
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto stages = fold(cost, on(order, folding, parts));
    std::vector<std::size_t> devices_of_stages;
    for (const auto& stage : stages) devices_of_stages.push_back(stage.device);
    const double least = least_largest_time(cost, devices_of_stages).value;
    const double found = largest_time(cost, stages).value;
    ASSERT_GE(found, least * (1 - 1e-12)) << round;
    ASSERT_LE(found, 1.5 * least) << round;
    best += found <= 1.01 * least ? 1 : 0;
  }
  EXPECT_GE(best, rounds * 7 / 10);
}

TEST(FoldedStages, StayWithinMemoryWhereTheyCan)
{
  const Workload workload = chain(std::vector<double>(8, 1), 0, 10);
  Cluster platform = cluster({1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 60);
  platform.devices[0].memory = Bytes(20);
  const CostModel cost(workload, platform);
  EXPECT_THAT(sizes_of(fold(cost, on({0, 1}, Folding::RoundRobin, 2))),
              ElementsAre(std::pair(0, 1), std::pair(1, 3), std::pair(0, 1), std::pair(1, 3)));
  platform.devices[1].memory = Bytes(20);  // not enough for the chain: memory is ignored
  EXPECT_EQ(fold(cost, on({0, 1}, Folding::RoundRobin, 2)).size(), 4U);
}

TEST(FoldedStages, HaveOneWorkspaceOnADeviceAndNoBuffersBetweenThem)
{
  // Three times as fast, the second device takes six layers of 10 bytes. With the workspace of 100 and buffers of 40
  // they need 200 of its 300 bytes. A workspace and buffers for each of its two stages would need 340.
  Workload workload = chain(std::vector<double>(8, 1), 0, 10, 10);
  workload.workspace = Bytes(100);
  Cluster platform = cluster({1, 3}, {Seconds(0), BytesPerSecond(1e30)}, 1e6);
  platform.devices[1].memory = Bytes(300);
  const CostModel cost(workload, platform);
  EXPECT_THAT(sizes_of(fold(cost, on({0, 1}, Folding::V, 2))),
              ElementsAre(std::pair(0, 1), std::pair(1, 3), std::pair(1, 3), std::pair(0, 1)));
}

TEST(FoldedStages, NeedALayerEach)
{
  const Workload workload = chain({1, 1, 1});
  const Cluster platform = cluster({1, 1});
  const CostModel cost(workload, platform);
  EXPECT_THAT(fold(cost, on({0, 1}, Folding::RoundRobin, 2)), IsEmpty());
}

TEST(FoldedStages, CoverRandomChains)
{
  std::mt19937_64 random(3);
  for (int round = 0; round < 500; ++round) {
    const std::size_t devices = 1 + random() % 4;
    const std::size_t parts = 2 + random() % 3;
    const Workload workload = random_chain(random, devices * parts + random() % 10);
    const Cluster platform = random_cluster(random, devices, 1 + static_cast<double>(random() % 40));
    const CostModel cost(workload, platform);
    std::vector<std::size_t> order(devices);
    for (std::size_t i = 0; i < devices; ++i) order[i] = i;
    const auto stages = fold(cost, on(order, Folding::RoundRobin, parts));
    ASSERT_EQ(stages.size(), devices * parts);
    std::size_t next = 0;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      ASSERT_EQ(stages[i].device, i % devices);
      ASSERT_EQ(stages[i].first_layer, next);
      ASSERT_GE(stages[i].last_layer, next);
      next = stages[i].last_layer + 1;
    }
    ASSERT_EQ(next, workload.layers.size());
  }
}

}  // namespace
}  // namespace isobar::allocators::folding_test
