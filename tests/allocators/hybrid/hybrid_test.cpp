#include "allocators/hybrid/hybrid.hpp"
#include "allocators/plan_stages.hpp"
#include "allocators/played_plan.hpp"
#include "allocators/registry.hpp"
#include "tests/allocators/hybrid/brute_force.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/piper_model.hpp"
#include "tests/support/shards.hpp"
#include "tests/support/shared_trunk.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

namespace isobar::allocators::hybrid_test {
namespace {

using testing_support::best_by_piper;
using testing_support::chain;
using testing_support::cluster;
using testing_support::goal_under;
using testing_support::PiperPlan;

struct Instance {
  Workload workload;
  Cluster cluster;
  Goal goal;
};

constexpr Seconds never(std::numeric_limits<double>::infinity());

/// With and without memory that binds, transfers and gradients that take time, on up to `most_devices` devices.
Instance random_instance(std::mt19937_64& random, std::size_t most_devices, std::size_t most_layers,
                         std::uint64_t most_microbatches)
{
  const auto below = [&](std::size_t bound) {
    return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random);
  };
  const auto some = [&](double most) { return std::uniform_real_distribution<double>(0.2, 1)(random) * most; };
  const std::size_t devices = 2 + below(most_devices - 1);
  const std::size_t layers = 2 + below(most_layers - 1);
  std::vector<double> forward;
  for (std::size_t i = 0; i < layers; ++i) forward.push_back(some(4));
  const bool has_sync = below(2) == 0;
  const bool has_transfers = below(2) == 0;
  const bool has_little_memory = below(2) == 0;
  Instance instance;
  instance.workload = chain(forward, has_sync ? 4 : 0, 8, has_transfers ? some(4) : 0);
  const double all = 16 * 4.0 * static_cast<double>(layers) + 8.0 * static_cast<double>(layers);
  instance.cluster = testing_support::random_cluster(random, devices, has_little_memory ? all * some(1) : 1e9);
  const char* schedules[] = {"1f1b", "1f1b", "gpipe", "sequential", "zero-bubble-h1"};
  instance.goal = goal_under(schedules[below(5)], 1 + below(most_microbatches));
  return instance;
}

/// Whether each micro-batch stays on the devices of one pipeline.
bool has_whole_pipelines(const Plan& plan)
{
  const auto shares = [](const Stage& stage) {
    std::vector<std::uint64_t> microbatches;
    for (const auto& replica : stage.replicas) microbatches.push_back(replica.microbatches);
    return microbatches;
  };
  return std::all_of(plan.stages.begin(), plan.stages.end(),
                     [&](const Stage& stage) { return shares(stage) == shares(plan.stages.front()); });
}

void expect_brute_force(std::uint64_t seed, std::size_t devices, std::size_t layers, std::uint64_t microbatches)
{
  std::mt19937_64 random(seed);
  const auto [workload, cluster, goal] = random_instance(random, devices, layers, microbatches);
  SCOPED_TRACE(fmt::format("seed {}, {} devices, {} layers, M = {}, {}", seed, cluster.devices.size(),
                           workload.layers.size(), goal.microbatches, text_of(goal.schedule)));
  const double least = testing_support::BruteForce(workload, cluster, goal).best().objective.value_or(never).value;
  const Plan plan = allocate("hybrid", workload, cluster, goal, {});
  if (plan.stages.empty()) {
    EXPECT_EQ(least, std::numeric_limits<double>::infinity());
    return;
  }
  // Other plans, such as those with hierarchical syncs, are not among those of the brute force, and may be better.
  if (plan.sync == Sync{} && has_whole_pipelines(plan)) {
    EXPECT_NEAR(plan.objective->value, least, 1e-9 * least);
  }
  EXPECT_LE(plan.objective->value, least * (1 + 1e-9));
  EXPECT_LE(plan.objective_bound->value, plan.objective->value);
}

TEST(AllocateHybrid, FindsTheLeastStepOfAllPipelines)
{
  for (std::uint64_t seed = 1; seed <= 60; ++seed) expect_brute_force(seed, 3, 4, 5);
}

/// A plan of Piper's pipeline on the first devices; replicas take micro-batches as evenly as whole ones allow.
Plan plan_of(const PiperPlan& piper, const Workload& workload, const Cluster& cluster, const Goal& goal)
{
  const CostModel cost(workload, cluster);
  Plan plan;
  plan.goal = goal;
  std::size_t device = 0;
  for (const auto& stage : piper.stages) {
    std::vector<Replica> replicas;
    for (std::size_t i = 0; i < stage.replicas; ++i) {
      const std::uint64_t part = goal.microbatches / stage.replicas + (i < goal.microbatches % stage.replicas ? 1 : 0);
      replicas.push_back({stage.replicas == 1 ? 0 : part, {shard_on(cost, device++)}});
    }
    plan.stages.push_back({stage.first_layer, stage.last_layer, replicas});
  }
  return plan;
}

TEST(AllocateHybrid, IsNeverWorseThanPipersPlansOnOneType)
{
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> unit(0.2, 1);
  for (int i = 0; i < 100; ++i) {
    std::vector<double> forward(3 + random() % 10);
    for (double& work : forward) work = 4 * unit(random);
    const Workload workload = chain(forward, 4, 8, 0.1);
    const double all = (16 * 4 + 8) * static_cast<double>(forward.size());
    const Cluster devices = cluster(std::vector<double>(2 + random() % 11, 1), {Seconds(0.01), BytesPerSecond(100)},
                                    i % 2 == 0 ? all * unit(random) : 1e9);
    const Goal goal = goal_under("1f1b", 16 + random() % 48);
    const CostModel cost(workload, devices);
    const auto piper = best_by_piper(testing_support::piper_model_of(cost, goal.microbatches));
    if (!piper) continue;
    Plan rival = plan_of(*piper, workload, devices, goal);
    if (allocators::price(rival, cost)) continue;
    const Plan plan = allocate("hybrid", workload, devices, goal, {});
    ASSERT_FALSE(plan.stages.empty()) << i;
    EXPECT_LE(plan.objective->value, rival.objective->value * (1 + 1e-9)) << i;
  }
}

/// The endpoints of a cluster in another order, under other names, with some of them again: `of[i]` is the device that
/// device i is like. Two devices like the same one have a free path between them.
Cluster with_devices(const Cluster& cluster, const std::vector<std::size_t>& of)
{
  Cluster result = cluster;
  result.devices.clear();
  for (std::size_t i = 0; i < of.size(); ++i) {
    result.devices.push_back(cluster.devices[of[i]]);
    result.devices.back().name = fmt::format("other{}", i);
  }
  std::vector<std::size_t> endpoints = of;
  endpoints.push_back(cluster.devices.size());  // the data server
  std::vector<Path> paths;
  for (const std::size_t from : endpoints) {
    for (const std::size_t to : endpoints) {
      paths.push_back(from == to ? Path{Seconds(0), BytesPerSecond(1e30)} : cluster.path(from, to));
    }
  }
  result.network = std::make_shared<MatrixNetwork>(endpoints.size(), std::move(paths));
  return result;
}

/// A cluster with one path slower by a factor.
Cluster with_slower_path(const Cluster& cluster, std::size_t from, std::size_t to, double factor)
{
  Cluster result = cluster;
  const std::size_t count = cluster.devices.size() + 1;
  std::vector<Path> paths;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j < count; ++j) {
      Path path = i == j ? Path{} : cluster.path(i, j);
      if (i == from && j == to) path = {factor * path.latency, path.bandwidth / factor};
      paths.push_back(path);
    }
  }
  result.network = std::make_shared<MatrixNetwork>(count, std::move(paths));
  return result;
}

/// Whether a plan is among those that the enumeration tries.
bool is_enumerated(const Plan& plan)
{
  return !plan.stages.empty() && plan.sync == Sync{} && has_whole_pipelines(plan);
}

TEST(AllocateHybrid, DependsOnSpeedsAndPathsOnly)
{
  std::mt19937_64 random(3);
  std::size_t compared = 0;
  for (int i = 0; i < 40; ++i) {
    const auto [workload, cluster, goal] = random_instance(random, 3, 4, 5);
    const Plan plan = allocate("hybrid", workload, cluster, goal, {});
    if (!is_enumerated(plan)) continue;
    ++compared;
    std::vector<std::size_t> order(cluster.devices.size());
    std::iota(order.rbegin(), order.rend(), std::size_t{0});
    const Plan other = allocate("hybrid", workload, with_devices(cluster, order), goal, {});
    EXPECT_LE(other.objective->value, plan.objective->value * (1 + 1e-9)) << i;

    order.push_back(random() % order.size());
    const Plan with_twin = allocate("hybrid", workload, with_devices(cluster, order), goal, {});
    EXPECT_LE(with_twin.objective->value, plan.objective->value * (1 + 1e-9)) << i;

    const std::size_t from = random() % cluster.devices.size();
    const std::size_t to = (from + 1) % cluster.devices.size();
    const Plan with_delay = allocate("hybrid", workload, with_slower_path(cluster, from, to, 3), goal, {});
    if (is_enumerated(with_delay)) {
      EXPECT_GE(with_delay.objective->value, plan.objective->value * (1 - 1e-9)) << i;
    }
  }
  EXPECT_GE(compared, 20U);
}

TEST(AllocateHybrid, TakesAsLongOnEqualPipelinesAsOnOneOfThemWithItsShare)
{
  const Workload workload = chain({3, 1, 2, 2}, 0, 8, 0.5);  // no gradients to add up
  const Path path{Seconds(0), BytesPerSecond(100)};
  SearchLimits limits;
  limits.most_replicas = 1;
  const Plan one = allocate("hybrid", workload, cluster({1, 2}, path, 50), goal_under("1f1b", 6), limits);
  limits.most_replicas = 3;
  const Plan three =
      allocate("hybrid", workload, cluster({1, 2, 1, 2, 1, 2}, path, 50), goal_under("1f1b", 18), limits);
  EXPECT_LE(three.objective->value, one.objective->value * (1 + 1e-9));
  limits.most_replicas = 1;
  const Plan alone =
      allocate("hybrid", workload, cluster({1, 2, 1, 2, 1, 2}, path, 50), goal_under("1f1b", 18), limits);
  EXPECT_EQ(alone.stages.front().replicas.size(), 1U);
  EXPECT_GT(alone.objective->value, three.objective->value);
}

TEST(AllocateHybrid, DividesLayersThatAreTooLargeForADevice)
{
  const Workload workload = testing_support::divisible(4);
  const Cluster one = cluster({1});
  const CostModel cost(workload, one);
  const Cluster devices =
      cluster(std::vector<double>(8, 1), {Seconds(0.001), BytesPerSecond(1e6)}, 0.8 * cost.memory(0, 0, 1).value);
  SearchLimits limits;
  const Plan plan = allocate("hybrid", workload, devices, goal_under("1f1b", 4), limits);
  ASSERT_FALSE(plan.stages.empty()) << plan.reason;
  EXPECT_GT(plan.stages.front().replicas.front().shards.size(), 1U);
  limits.most_tensor = 1;
  EXPECT_EQ(allocate("hybrid", workload, devices, goal_under("1f1b", 4), limits).outcome, Outcome::Infeasible);
}

TEST(AllocateHybrid, IsNeverWorseThanGridAndAmp)
{
  std::mt19937_64 random(5);
  for (int i = 0; i < 20; ++i) {
    const auto [workload, small, goal] = random_instance(random, 3, 8, 12);
    const Cluster cluster = testing_support::random_sites(random, 2, 3, small.devices.front().memory.value);
    const Plan plan = allocate("hybrid", workload, cluster, goal, {});
    for (const char* rival : {"grid", "amp"}) {
      const Plan other = allocate(rival, workload, cluster, goal, {});
      if (other.stages.empty()) continue;
      ASSERT_FALSE(plan.stages.empty()) << rival << " " << i;
      EXPECT_LE(plan.objective->value, other.objective->value * (1 + 1e-9)) << rival << " " << i;
    }
  }
}

TEST(AllocateHybrid, IsPredictedNoSlowerThanGridAmpAndAChainWhereLinksAreShared)
{
  std::mt19937_64 random(6);
  std::size_t contended = 0;
  for (int i = 0; i < 40; ++i) {
    const Workload workload = testing_support::random_chain(random, 4 + random() % 5);
    const Cluster cluster = testing_support::random_nodes(random, 2 + random() % 3, 1e9);
    const Goal goal = goal_under("1f1b", 4 + random() % 9);
    const Plan plan = allocate("hybrid", workload, cluster, goal, {});
    for (const char* name : {"grid", "amp", "local-search"}) {
      const Plan rival = allocate(name, workload, cluster, goal, {});
      if (rival.stages.empty()) continue;
      ASSERT_FALSE(plan.stages.empty()) << name << " " << i;
      EXPECT_LE(plan.predicted->step_time.value, rival.predicted->step_time.value * (1 + 1e-9)) << name << " " << i;
      Cluster with_own_links = cluster;
      std::vector<Path> paths;
      for (std::size_t from = 0; from <= cluster.devices.size(); ++from) {
        for (std::size_t to = 0; to <= cluster.devices.size(); ++to) paths.push_back(cluster.path(from, to));
      }
      with_own_links.network = std::make_shared<MatrixNetwork>(cluster.devices.size() + 1, std::move(paths));
      Plan alone = rival;
      if (is_chain(alone)) continue;
      price_by_playing(alone, workload, with_own_links);
      if (alone.predicted->step_time < rival.predicted->step_time * (1 - 1e-9)) ++contended;
    }
  }
  EXPECT_GE(contended, 10U);
}

TEST(AllocateHybrid, ChoosesWarmUpsThatHideDelays)
{
  const Workload workload = chain(std::vector<double>(8, 1), 0, 8, 4);
  const Cluster devices = cluster(std::vector<double>(4, 1), {Seconds(2), BytesPerSecond(100)});
  SearchLimits limits;
  limits.most_replicas = 1;
  const Plan plain = allocate("hybrid", workload, devices, goal_under("1f1b", 12), limits);
  const Plan chosen = allocate("hybrid", workload, devices, goal_under("1f1b(warm_up=auto)", 12), limits);
  EXPECT_LT(chosen.objective->value, plain.objective->value);
}

TEST(AllocateHybrid, IsTheSameForASeed)
{
  std::mt19937_64 random(8);
  const Workload workload = chain(std::vector<double>(12, 2), 4, 8, 0.5);
  const Cluster cluster = testing_support::random_sites(random, 2, 6, 600);
  SearchLimits limits;
  limits.seed = 4;
  const Plan first = allocate("hybrid", workload, cluster, goal_under("1f1b", 32), limits);
  const Plan second = allocate("hybrid", workload, cluster, goal_under("1f1b", 32), limits);
  EXPECT_EQ(first.objective->value, second.objective->value);
}

TEST(AllocateHybrid, ReturnsCandidatesOfSeveralKinds)
{
  std::mt19937_64 random(8);
  const Workload workload = chain(std::vector<double>(12, 2), 4, 8, 0.5);
  const Cluster cluster = testing_support::random_sites(random, 2, 6, 600);
  SearchLimits limits;
  limits.candidates = 12;
  const auto plans = allocate_candidates("hybrid", workload, cluster, goal_under("1f1b", 32), limits);
  EXPECT_GT(plans.size(), 6U);
  EXPECT_LE(plans.size(), 12U);
  limits.candidates = 1;
  const Plan best = allocate("hybrid", workload, cluster, goal_under("1f1b", 32), limits);
  EXPECT_LE(plans.front().objective->value, best.objective->value * (1 + 1e-9));
}

TEST(AllocateHybrid, DISABLED_FindsTheLeastStepOfAThousandInstances)
{
  for (std::uint64_t seed = 1001; seed <= 1960; ++seed) expect_brute_force(seed, 4, 5, 6);
  for (std::uint64_t seed = 2001; seed <= 2040; ++seed) expect_brute_force(seed, 5, 6, 8);
}

}  // namespace
}  // namespace isobar::allocators::hybrid_test
