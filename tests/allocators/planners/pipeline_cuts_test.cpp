#include "allocators/planners/pipeline_cuts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace isobar::allocators::pipeline_cuts_test {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

/// Layers with work and memory, stages with speeds and memories, and hops that differ by stage and layer.
struct RandomCosts {
  std::vector<double> work;
  std::vector<double> speed;
  std::vector<double> memory;
  std::vector<std::vector<double>> hops;

  static RandomCosts of(std::mt19937_64& random, std::size_t stages, std::size_t layers, double memory)
  {
    std::uniform_real_distribution<double> unit(0, 1);
    RandomCosts costs;
    for (std::size_t i = 0; i < layers; ++i) costs.work.push_back(random() % 8 == 0 ? 0 : unit(random));
    for (std::size_t i = 0; i < stages; ++i) {
      costs.speed.push_back(0.5 + unit(random));
      costs.memory.push_back(memory * (1 + unit(random)));
      auto& hops = costs.hops.emplace_back();
      for (std::size_t layer = 0; layer < layers; ++layer) hops.push_back(2 * unit(random));
    }
    return costs;
  }

  Seconds time(std::size_t stage, std::size_t first, std::size_t last) const
  {
    double all = 0;
    for (std::size_t i = first; i <= last; ++i) all += work[i];
    return Seconds(all / speed[stage]);
  }
  bool fits(std::size_t stage, std::size_t first, std::size_t last) const
  {
    return static_cast<double>(last + 1 - first) <= memory[stage];
  }
  Seconds hop(std::size_t stage, std::size_t layer) const { return Seconds(hops[stage][layer]); }

  double step(const std::vector<std::size_t>& first_layer, std::uint64_t microbatches) const
  {
    double largest = 0;
    double sum = 0;
    for (std::size_t i = 0; i < first_layer.size(); ++i) {
      const std::size_t last = (i + 1 < first_layer.size() ? first_layer[i + 1] : work.size()) - 1;
      if (!fits(i, first_layer[i], last)) return never;
      const double each = time(i, first_layer[i], last).value;
      largest = std::max(largest, each);
      sum += each + (i == 0 ? 0 : hops[i][first_layer[i]]);
    }
    return static_cast<double>(microbatches - 1) * largest + sum;
  }

  /// The least step of all cuts that begin with these.
  double least_step(std::vector<std::size_t>& first_layer, std::uint64_t microbatches) const
  {
    if (first_layer.size() == speed.size()) return step(first_layer, microbatches);
    double least = never;
    for (std::size_t next = first_layer.back() + 1; next < work.size(); ++next) {
      first_layer.push_back(next);
      least = std::min(least, least_step(first_layer, microbatches));
      first_layer.pop_back();
    }
    return least;
  }
};

TEST(CutPipeline, HasTheLeastStepOfAllCuts)
{
  std::mt19937_64 random(2);
  std::size_t feasible = 0;
  std::size_t infeasible = 0;
  for (int instance = 0; instance < 1000; ++instance) {
    const std::size_t stages = 1 + random() % 4;
    const std::size_t layers = 1 + random() % 9;
    const RandomCosts costs = RandomCosts::of(random, stages, layers, instance % 2 == 0 ? 1e9 : 2);
    const std::uint64_t microbatches = 1 + random() % 10;
    std::vector<std::size_t> first_layer = {0};
    const double least = costs.least_step(first_layer, microbatches);
    const auto cuts = cut_pipeline(costs, stages, layers, microbatches);
    ASSERT_EQ(cuts.has_value(), least < never) << instance;
    ++(cuts ? feasible : infeasible);
    if (!cuts) continue;
    EXPECT_NEAR(cuts->step.value, least, 1e-12 * least) << instance;
    EXPECT_NEAR(costs.step(cuts->first_layer, microbatches), least, 1e-12 * least) << instance;
  }
  EXPECT_GT(feasible, 500U);
  EXPECT_GT(infeasible, 50U);
}

TEST(CutPipeline, BalancesManyMicrobatchesAndAvoidsDearHopsForOne)
{
  RandomCosts costs;
  costs.work = {1, 1, 1, 1};
  costs.speed = {1, 1};
  costs.memory = {4, 4};
  costs.hops = {{}, {0, 9, 5, 1}};
  EXPECT_EQ(cut_pipeline(costs, 2, 4, 100)->first_layer, (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(cut_pipeline(costs, 2, 4, 1)->first_layer, (std::vector<std::size_t>{0, 3}));
}

TEST(CutPipeline, HasNoneForMoreStagesThanLayers)
{
  std::mt19937_64 random(2);
  EXPECT_FALSE(cut_pipeline(RandomCosts::of(random, 3, 2, 9), 3, 2, 4).has_value());
}

}  // namespace
}  // namespace isobar::allocators::pipeline_cuts_test
