#include "allocators/variants.hpp"

#include "allocators/allocator.hpp"
#include "allocators/planners/grid.hpp"
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

// How replicas divide experts and sequences, and whether layers recompute, where the user leaves it open.
namespace isobar::allocators::variants_test {
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

std::vector<std::size_t> degrees_of(const Workload& workload, const Cluster& cluster)
{
  std::vector<std::size_t> degrees;
  for (const auto& variant : variants_of(&grid_allocator, workload, cluster, goal(), {})) {
    EXPECT_FALSE(variant.recomputes_all || variant.context.divides());
    degrees.push_back(variant.experts.degree);
  }
  return degrees;
}

TEST(Variants, DivideExpertsAndMicroBatches)
{
  const Cluster eight = cluster_of(std::vector<double>(8, 1e12));
  EXPECT_THAT(degrees_of(mixture(4, 16, Bytes(1e6)), eight), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(degrees_of(mixture(4, 12, Bytes(1e6)), eight), ElementsAre(1, 2, 4));
  EXPECT_THAT(degrees_of(mixture(4, 16, Bytes(1e6)), cluster_of({1e12, 1e12, 1e12})), ElementsAre(1, 2));
  EXPECT_THAT(degrees_of(testing_support::divisible(4), eight), ElementsAre(1));
  EXPECT_THAT(degrees_of(with_experts(mixture(4, 16, Bytes(1e6)), {4}), eight), ElementsAre(4));
}

TEST(Variants, GridTakesTheBestOfAllThatItIsNotGiven)
{
  for (const double dispatched : {1e3, 1e9}) {
    const Workload workload = mixture(4, 16, Bytes(dispatched));
    const Cluster cluster = cluster_of(std::vector<double>(8, 1e12));
    Seconds least(std::numeric_limits<double>::infinity());
    for (const std::size_t degree : degrees_of(workload, cluster)) {
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

TEST(Variants, HybridIsNeverSlowerThanGridAndBalancesStagesOfUnequalDevices)
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

/// A gpt of long sequences.
Workload long_gpt()
{
  return workload_from_text(
      "model: gpt\nlayers: 4\nhidden: 512\nheads: 8\nvocabulary: 1000\nsequence: 4096\nmicro_batch: 1\n"
      "unit: operator\ncompute: operators\nframework: megatron-core-0.8\ndtype: bf16\noptimizer: adam\n",
      "gpt.yaml");
}

TEST(Variants, DivideSequencesByEveryExchangeIfAnyContextIsWanted)
{
  const Cluster four = cluster_of(std::vector<double>(4, 1e12));
  SearchLimits limits;
  EXPECT_EQ(variants_of(&grid_allocator, long_gpt(), four, goal(), limits).size(), 1U);
  limits.grid.any_context = true;
  const auto variants = variants_of(&grid_allocator, long_gpt(), four, goal(), limits);
  ASSERT_EQ(variants.size(), 1U + 2 * 3);  // 3 parts are not equal chunks
  EXPECT_FALSE(variants.front().context.divides());
  EXPECT_EQ(variants.front().microbatches, microbatches);
  EXPECT_EQ(variants[1].context, (ContextParallelism{2, ContextExchange::Ring}));
  EXPECT_EQ(variants[1].microbatches, 2 * microbatches);
  EXPECT_EQ(variants.back().context, (ContextParallelism{4, ContextExchange::AllToAll}));
  EXPECT_EQ(as_variant(long_gpt(), variants.back()).context.degree, 4U);
  const Workload divided = with_context(long_gpt(), {2});
  EXPECT_EQ(variants_of(&grid_allocator, divided, four, goal(), limits).size(), 1U) << "it is divided already";
  EXPECT_EQ(variants_of(nullptr, long_gpt(), four, goal(), limits).size(), 1U) << "of an external program";
}

TEST(Variants, AllowThePartsOfMicroBatchesThatAStepMayHave)
{
  SearchLimits limits;
  limits.grid.any_context = true;
  Goal long_step = goal();
  long_step.microbatches = most_microbatches_by_recurrence / 2;
  for (const auto& variant :
       variants_of(&grid_allocator, long_gpt(), cluster_of({1e12, 1e12, 1e12, 1e12}), long_step, limits)) {
    EXPECT_LE(variant.context.degree, 2U);
  }
}

TEST(Variants, RecomputeWhereOnlyThatFits)
{
  Workload workload = testing_support::divisible(4);
  for (auto& layer : workload.layers) {
    layer.activations = Bytes(1e9);
    layer.output = Bytes(1e3);
  }
  for (const double memory : {2e9, 1e12}) {
    Cluster cluster = cluster_of({1e12, 1e12});
    for (auto& device : cluster.devices) device.memory = Bytes(memory);
    SearchLimits limits;
    const Plan kept = allocate("grid", workload, cluster, goal(), limits);
    limits.chooses_recomputation = true;
    const Plan chosen = allocate("grid", workload, cluster, goal(), limits);
    ASSERT_FALSE(chosen.stages.empty()) << chosen.reason;
    EXPECT_EQ(chosen.recompute.empty(), !kept.stages.empty());
    if (!kept.stages.empty()) {
      EXPECT_EQ(chosen.objective, kept.objective);
    }
    const Workload planned =
        chosen.recompute.empty() ? workload : with_recomputation(workload, all_recomputed(workload));
    EXPECT_TRUE(faults_of(chosen, planned, cluster).empty());
  }
}

TEST(Variants, AreOptimalOnlyIfNoOtherMayBeBetter)
{
  const Workload workload = testing_support::divisible(2);
  const Cluster one = cluster_of({1e12});
  SearchLimits limits;
  limits.chooses_recomputation = true;
  const Plan chosen = allocate("exact", workload, one, goal(), limits);
  EXPECT_EQ(chosen.outcome, Outcome::Optimal);
  EXPECT_TRUE(chosen.recompute.empty());
}

}  // namespace
}  // namespace isobar::allocators::variants_test
