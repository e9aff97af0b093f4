#include "allocators/chain/needed_devices.hpp"

#include "allocators/chain/chain_dp.hpp"
#include "allocators/chain/local_search.hpp"
#include "tests/allocators/exact/brute_force.hpp"
#include "tests/support/instances.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace isobar::allocators::needed_devices_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::ElementsAre;
using testing::SizeIs;

std::vector<std::size_t> needed(const std::vector<double>& speeds, std::size_t layers, DeviceOrder order,
                                std::vector<StagePlacement> start = {})
{
  const Workload workload = chain(std::vector<double>(layers, 1));
  const Cluster platform = cluster(speeds);
  const CostModel cost(workload, platform);
  SearchLimits limits;
  limits.start = std::move(start);
  return needed_devices({cost, Goal{}, limits}, order);
}

TEST(NeededDevices, AreAsManyAlikeAsThereAreLayers)
{
  std::vector<std::size_t> first(34);
  std::iota(first.begin(), first.end(), std::size_t{0});
  EXPECT_EQ(needed(std::vector<double>(1024, 1), 34, DeviceOrder::OfFile), first);
  EXPECT_EQ(needed(std::vector<double>(1024, 1), 34, DeviceOrder::Any), first);
  EXPECT_THAT(needed(std::vector<double>(7, 1), 8, DeviceOrder::Any), SizeIs(7));
}

TEST(NeededDevices, AreTheFirstOfEachKindInAnyOrder)
{
  EXPECT_THAT(needed({1, 1, 1, 2, 1, 2, 2, 3}, 2, DeviceOrder::Any), ElementsAre(0, 1, 3, 5, 7));
}

TEST(NeededDevices, AreTheNextOfEachKindInTheOrderOfTheFile)
{
  // Of two devices, a slow one after a fast one is device 4.
  EXPECT_THAT(needed({1, 1, 1, 2, 1, 2, 2, 3}, 2, DeviceOrder::OfFile), ElementsAre(0, 1, 3, 4, 5, 7));
  EXPECT_THAT(needed({1, 2, 1, 2, 1, 2, 1, 2}, 2, DeviceOrder::OfFile), ElementsAre(0, 1, 2, 3));
}

TEST(NeededDevices, HoldTheStart)
{
  EXPECT_THAT(needed({1, 1, 1, 1, 1}, 2, DeviceOrder::Any, {{4, 0, 0}, {2, 1, 1}}), ElementsAre(0, 1, 2, 4));
}

TEST(NeededDevices, AreAllWhereEachPathIsAnother)
{
  std::mt19937_64 random(1);
  Cluster platform = random_cluster(random, 6, 1e9);
  for (auto& device : platform.devices) device = testing_support::device(device.name, 1, 1e9);
  const Workload workload = chain({1, 1});
  const CostModel cost(workload, platform);
  EXPECT_THAT(needed_devices({cost, Goal{}, {}}, DeviceOrder::Any), SizeIs(6));
  Goal free{};
  free.communication = Communication::None;
  EXPECT_THAT(needed_devices({cost, free, {}}, DeviceOrder::Any), SizeIs(2));
}

/// Devices of two kinds in any order, with a path for each pair of kinds and sometimes a data server.
Cluster cluster_of_kinds(std::mt19937_64& random, std::size_t devices, double memory)
{
  const Cluster kinds = random_cluster(random, 2, memory);
  Cluster result;
  result.name = "kinds";
  result.data_server = kinds.data_server;
  std::vector<std::size_t> kind_of;
  for (std::size_t i = 0; i < devices; ++i) {
    kind_of.push_back(random() % 2);
    result.devices.push_back(kinds.devices[kind_of.back()]);
    result.devices.back().name = "d" + std::to_string(i);
  }
  kind_of.push_back(kinds.data_server_index());
  std::vector<Path> paths;
  for (const std::size_t from : kind_of) {
    for (const std::size_t to : kind_of) paths.push_back(kinds.path(from, to));
  }
  result.network = std::make_shared<MatrixNetwork>(devices + 1, std::move(paths));
  return result;
}

TEST(NeededDevices, HoldABestPlacementOfAll)
{
  std::mt19937_64 random(2);
  std::size_t feasible = 0;
  std::size_t fewer = 0;
  for (int round = 0; round < 150; ++round) {
    const Workload workload = random_chain(random, 1 + random() % 4);
    const double memory = round % 2 == 0 ? 1e9 : 60 * std::pow(0.5, static_cast<double>(random() % 4));
    const Cluster platform = cluster_of_kinds(random, 3 + random() % 4, memory);
    const CostModel cost(workload, platform);
    const auto goals = all_goals(1 + random() % 5);
    const auto least = least_objectives(cost, goals, false);
    for (std::size_t i = 0; i < goals.size(); ++i) {
      fewer += needed_devices({cost, goals[i], {}}, DeviceOrder::OfFile).size() < platform.devices.size() ? 1U : 0U;
      const Placement placement = place_by_chain_dp({cost, goals[i], {}});
      ASSERT_EQ(placement.stages.empty(), std::isinf(least[i])) << round;
      if (placement.stages.empty()) continue;
      ++feasible;
      ASSERT_TRUE(memory_holds(cost, placement.stages, goals[i])) << round;
      const double found = cost.evaluate(placement.stages, goals[i]).objective.value;
      ASSERT_GE(found, least[i] * (1 - 1e-12)) << round;
      if (goals[i].objective == Objective::Step) continue;  // a heuristic
      ASSERT_NEAR(found, least[i], 1e-12 * least[i]) << round;
    }
  }
  EXPECT_GT(feasible, 1'000U);
  EXPECT_GT(fewer, 1'000U);
}

TEST(NeededDevices, KeepSearchesOverAThousandEqualDevicesShort)
{
  // A pass of chain-dp and the default moves of local-search over all devices would take minutes.
  const Workload workload = chain(std::vector<double>(34, 1), 0, 1, 1);
  const Cluster platform = cluster(std::vector<double>(1024, 1), {Seconds(0.01), BytesPerSecond(1e3)});
  const CostModel cost(workload, platform);
  Goal goal;
  const Placement best = place_by_chain_dp({cost, goal, {}});
  EXPECT_THAT(best.stages, SizeIs(34));
  for (std::size_t i = 0; i < best.stages.size(); ++i) EXPECT_EQ(best.stages[i].device, i);
  const Placement moved = place_by_local_search({cost, goal, {}});
  EXPECT_EQ(moved.outcome, Outcome::Feasible);
  EXPECT_LE(cost.evaluate(moved.stages, goal).objective, cost.evaluate(best.stages, goal).objective);
}

}  // namespace
}  // namespace isobar::allocators::needed_devices_test
