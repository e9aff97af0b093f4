#include "allocators/planners/expert_degrees.hpp"

#include "allocators/allocator.hpp"
#include "allocators/registry.hpp"
#include "core/check/plan_checker.hpp"
#include "core/model/sharding.hpp"
#include "tests/support/experts.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/shards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

// How many replicas divide experts, where the user leaves it open.
namespace isobar::allocators::expert_degrees_test {
namespace {

using testing::ElementsAre;

constexpr std::size_t microbatches = 8;

/// Layers of which every second one has `count` experts, with as much work as all else.
Workload mixture(std::size_t layers, std::uint64_t count, Bytes dispatched)
{
  Workload workload = testing_support::divisible(layers);
  for (std::size_t i = 1; i < layers; i += 2) {
    testing_support::add_experts(workload.layers[i], count, 64'000'000, workload.layers[i].forward, dispatched);
  }
  return workload;
}

Cluster cluster_of(const std::vector<double>& speeds)
{
  return testing_support::cluster(speeds, {Seconds(1e-5), BytesPerSecond(1e11)});
}

Goal goal()
{
  Goal goal;
  goal.schedule = {.name = "1f1b"};
  goal.microbatches = microbatches;
  return goal;
}

Seconds step_of(const char* allocator, const Workload& workload, const Cluster& cluster,
                const SearchLimits& limits = {})
{
  const Plan plan = allocate(allocator, workload, cluster, goal(), limits);
  return plan.objective.value_or(Seconds(std::numeric_limits<double>::infinity()));
}

TEST(ExpertDegrees, DivideExpertsAndMicroBatches)
{
  const Cluster eight = cluster_of(std::vector<double>(8, 1e12));
  EXPECT_THAT(expert_degrees(mixture(4, 16, Bytes(1e6)), eight, goal()), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(expert_degrees(mixture(4, 12, Bytes(1e6)), eight, goal()), ElementsAre(1, 2, 4));
  EXPECT_THAT(expert_degrees(mixture(4, 16, Bytes(1e6)), cluster_of({1e12, 1e12, 1e12}), goal()), ElementsAre(1, 2));
  EXPECT_THAT(expert_degrees(testing_support::divisible(4), eight, goal()), ElementsAre(1));
  EXPECT_THAT(expert_degrees(with_experts(mixture(4, 16, Bytes(1e6)), {4}), eight, goal()), ElementsAre(1));
}

TEST(ExpertDegrees, GridTakesTheBestOfAllThatItIsNotGiven)
{
  for (const double dispatched : {1e3, 1e9}) {
    const Workload workload = mixture(4, 16, Bytes(dispatched));
    const Cluster cluster = cluster_of(std::vector<double>(8, 1e12));
    Seconds least(std::numeric_limits<double>::infinity());
    for (const std::size_t degree : expert_degrees(workload, cluster, goal())) {
      SearchLimits limits;
      limits.grid.experts = degree;
      const ExpertParallelism experts{degree};
      const Workload divided = experts.divides() ? with_experts(workload, experts) : workload;
      least = std::min(least, step_of("grid", divided, cluster, limits));
    }
    const Plan plan = allocate("grid", workload, cluster, goal(), {});
    EXPECT_EQ(plan.objective, least);
    const Workload planned = plan.experts.divides() ? with_experts(workload, plan.experts) : workload;
    EXPECT_TRUE(faults_of(plan, planned, cluster).empty());
    EXPECT_EQ(plan.experts.divides(), dispatched < 1e6) << "experts that are far are not worth it";
  }
}

TEST(ExpertDegrees, HybridIsNeverSlowerThanGridAndBalancesStagesOfUnequalDevices)
{
  const Workload workload = mixture(12, 16, Bytes(1e4));
  std::vector<double> speeds(4, 3e12);
  speeds.insert(speeds.end(), 4, 1e12);
  const Cluster unequal = cluster_of(speeds);
  SearchLimits limits;
  limits.grid.experts = 4;
  const Workload divided = with_experts(workload, {4});
  EXPECT_LT(step_of("hybrid", divided, unequal), 0.9 * step_of("grid", divided, unequal));
  EXPECT_LE(step_of("hybrid", workload, unequal), step_of("hybrid", divided, unequal));
  EXPECT_LE(step_of("hybrid", workload, unequal), step_of("grid", workload, unequal));
  limits = {};
  limits.most_replicas = 4;
  const Plan plan = allocate("hybrid", divided, unequal, goal(), limits);
  EXPECT_EQ(plan.stages.front().replicas.size(), 4U);
  limits.most_replicas = 2;
  EXPECT_EQ(allocate("hybrid", divided, unequal, goal(), limits).reason,
            "no grid with experts in groups of 4 replicas has at most 2 replicas of at most 16 shards");
  EXPECT_LE(allocate("hybrid", workload, unequal, goal(), limits).stages.front().replicas.size(), 2U);
}

}  // namespace
}  // namespace isobar::allocators::expert_degrees_test
