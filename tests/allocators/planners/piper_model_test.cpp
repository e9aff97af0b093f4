#include "tests/support/piper_model.hpp"

#include "tests/support/instances.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <random>
#include <vector>

namespace isobar::piper_model_test {
namespace {

using namespace testing_support;  // NOLINT: a test file

constexpr double never = std::numeric_limits<double>::infinity();

/// Tries every pipeline whose stages begin at layer `first`, on at most so many devices.
double least_load(const PiperModel& model, std::vector<PiperStage>& stages, std::size_t first, std::size_t devices)
{
  if (first == model.layers) {
    double load = 0;
    std::size_t behind = 0;
    for (std::size_t i = stages.size(); i-- > 0;) {
      if (!model.fits(stages[i], piper_in_flight(behind, stages[i].replicas))) return never;
      load = std::max(load, model.load(stages[i]));
      behind += stages[i].replicas;
    }
    return load;
  }
  double least = never;
  for (std::size_t last = first; last < model.layers; ++last) {
    for (const std::size_t shards : model.shards) {
      for (std::size_t replicas = 1; replicas * shards <= devices; ++replicas) {
        stages.push_back({first, last, replicas, shards});
        least = std::min(least, least_load(model, stages, last + 1, devices - replicas * shards));
        stages.pop_back();
      }
    }
  }
  return least;
}

double load_of(const PiperModel& model, const PiperPlan& plan)
{
  double load = 0;
  for (const auto& stage : plan.stages) load = std::max(load, model.load(stage));
  return load;
}

TEST(BestByPiper, EqualsBruteForce)
{
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> unit(0, 1);
  std::size_t feasible = 0;
  std::size_t infeasible = 0;
  for (int instance = 0; instance < 300; ++instance) {
    const Workload workload = random_chain(random, 1 + random() % 5);
    const Cluster devices = cluster(std::vector<double>(1 + random() % 5, 1 + unit(random)),
                                    {Seconds(0.1 * unit(random)), BytesPerSecond(1 + 9 * unit(random))},
                                    instance % 2 == 0 ? 1e9 : 60 * unit(random));
    const CostModel cost(workload, devices);
    const PiperModel model = piper_model_of(cost, 1 + random() % 16);
    std::vector<PiperStage> stages;
    const double least = least_load(model, stages, 0, model.devices);
    const auto plan = best_by_piper(model);
    ASSERT_EQ(plan.has_value(), least < never) << instance;
    ++(plan ? feasible : infeasible);
    if (!plan) continue;
    EXPECT_DOUBLE_EQ(plan->time_per_microbatch, least) << instance;
    EXPECT_DOUBLE_EQ(load_of(model, *plan), least) << instance;
  }
  EXPECT_GT(feasible, 100U);
  EXPECT_GT(infeasible, 20U);
}

TEST(BestByPiper, EqualsBruteForceWithShards)
{
  std::mt19937_64 random(4);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int instance = 0; instance < 100; ++instance) {
    std::vector<double> work(1 + random() % 4);
    for (auto& each : work) each = unit(random);
    PiperModel model;
    model.layers = work.size();
    model.devices = 1 + random() % 6;
    model.shards = {1, 2, 4};
    const double efficiency = unit(random);
    const double memory = 4 * unit(random);
    model.load = [&](const PiperStage& stage) {
      double all = 0;
      for (std::size_t i = stage.first_layer; i <= stage.last_layer; ++i) all += work[i];
      const auto shards = static_cast<double>(stage.shards);
      return all / (1 + efficiency * (shards - 1)) / static_cast<double>(stage.replicas);
    };
    model.fits = [&](const PiperStage& stage, std::size_t in_flight) {
      const auto layers = static_cast<double>(stage.last_layer + 1 - stage.first_layer);
      return layers * (0.5 + static_cast<double>(in_flight)) / static_cast<double>(stage.shards) <= memory;
    };
    std::vector<PiperStage> stages;
    const double least = least_load(model, stages, 0, model.devices);
    const auto plan = best_by_piper(model);
    ASSERT_EQ(plan.has_value(), least < never) << instance;
    if (plan) {
      EXPECT_DOUBLE_EQ(plan->time_per_microbatch, least) << instance;
    }
  }
}

TEST(BestByPiper, DividesWorkAmongReplicasWhereNothingIsSent)
{
  // Three layers of work 3 on three devices of speed 1: together they take 3 for each micro-batch.
  const Workload workload = chain({1, 1, 1});
  const Cluster devices = cluster({1, 1, 1});
  const CostModel cost(workload, devices);
  const auto plan = best_by_piper(piper_model_of(cost, 8));
  ASSERT_TRUE(plan.has_value());
  EXPECT_DOUBLE_EQ(plan->time_per_microbatch, 3);
}

TEST(BestByPiper, ReplicatesTheHeavyLayer)
{
  // Parameters are dear to add up, but for the heavy layer without any: alone it would take 6, on two devices 3.
  Workload workload = chain({1, 2, 1}, 1'000'000);
  workload.layers[1].parameters = 0;
  const Cluster devices = cluster({1, 1, 1, 1}, {Seconds(0), BytesPerSecond(1000)});
  const CostModel cost(workload, devices);
  const auto plan = best_by_piper(piper_model_of(cost, 8));
  ASSERT_TRUE(plan.has_value());
  EXPECT_DOUBLE_EQ(plan->time_per_microbatch, 3);
  ASSERT_EQ(plan->stages.size(), 3U);
  EXPECT_EQ(plan->stages[1], (PiperStage{1, 1, 2, 1}));
}

TEST(BestByPiper, CountsActivationsOfAllReplicasBehind)
{
  // A first stage of one replica before one of two holds three micro-batches; the memory has room for two.
  const Workload workload = chain({1, 2}, 0, 100);
  const Cluster devices = cluster({1, 1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 250);
  const CostModel cost(workload, devices);
  PiperModel model = piper_model_of(cost, 8);
  EXPECT_TRUE(model.fits({0, 0, 1, 1}, piper_in_flight(1, 1)));
  EXPECT_FALSE(model.fits({0, 0, 1, 1}, piper_in_flight(2, 1)));
  EXPECT_TRUE(model.fits({1, 1, 2, 1}, piper_in_flight(0, 2)));
  const auto plan = best_by_piper(model);
  ASSERT_TRUE(plan.has_value());
  // Three replicas of all layers hold one micro-batch of both.
  EXPECT_DOUBLE_EQ(plan->time_per_microbatch, 3);
  EXPECT_EQ(plan->stages.size(), 1U);
  EXPECT_EQ(plan->stages.front().replicas, 3U);
}

}  // namespace
}  // namespace isobar::piper_model_test
