#include "allocators/chain/placement_costs.hpp"

#include "allocators/chain/placement_moves.hpp"
#include "core/costs/step_recurrence.hpp"
#include "tests/allocators/exact/brute_force.hpp"
#include "tests/support/instances.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace isobar::allocators::placement_costs_test {

namespace {

using namespace testing_support;  // NOLINT: a test file

/// A cost model that keeps its workload and cluster alive.
struct Instance {
  Instance(std::mt19937_64& random, std::size_t layers, std::size_t devices, double memory)
      : workload(random_chain(random, layers)), platform(random_cluster(random, devices, memory))
  {
  }

  Workload workload;
  Cluster platform;
  CostModel cost{workload, platform};
};

/// (M-1) x the longest turn of a lane + the time of one micro-batch alone, by definition.
double bound_of_step(const CostModel& cost, const std::vector<StagePlacement>& stages, const Goal& goal)
{
  const bool is_free = goal.has_free_transfers();
  const TransferTimes input = is_free ? TransferTimes{} : cost.input_transfer(stages.front().device);
  Seconds longest = input.data;
  Seconds sum = input.total();
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [device, first, last] = stages[i];
    longest = std::max({longest, cost.forward_work(first, last) / cost.speed(device),
                        cost.backward_work(first, last) / cost.speed(device)});
    sum += cost.compute_time(device, first, last);
    if (is_free || i + 1 == stages.size()) continue;
    for (const auto& transfer : {cost.output_transfer(device, stages[i + 1].device, last + 1),
                                 cost.gradient_transfer(device, stages[i + 1].device, last + 1)}) {
      longest = std::max(longest, transfer.data);
      sum += transfer.total();
    }
  }
  return (static_cast<double>(goal.microbatches - 1) * longest + sum).value;
}

/// Compares a value with that of the placement `after`; for `step` it must be the bound of the header.
void expect_value(const PlacementCosts::Value& value, const CostModel& cost, const std::vector<StagePlacement>& after,
                  const Goal& goal)
{
  const auto expected = cost.evaluate(after, goal);
  if (goal.objective == Objective::Step) {
    const double bound = bound_of_step(cost, after, goal);
    EXPECT_NEAR(value.objective, bound, 1e-12 * bound);
    EXPECT_LE(value.objective, expected.objective.value * (1 + 1e-12));
    return;
  }
  EXPECT_NEAR(value.objective, expected.objective.value, 1e-12 * expected.objective.value);
  EXPECT_NEAR(value.bottleneck, expected.bottleneck.value, 1e-12 * expected.bottleneck.value);
  EXPECT_NEAR(value.sum, expected.sum.value, 1e-12 * expected.sum.value);
}

/// Value::above_threshold by definition.
double above_threshold_of(const CostModel& cost, const std::vector<StagePlacement>& stages, const Goal& goal,
                          double threshold)
{
  double above = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [device, first, last] = stages[i];
    Seconds send;
    if (i > 0)
      send += CostModel::counted(goal.communication, cost.gradient_transfer(stages[i - 1].device, device, first));
    if (i + 1 < stages.size())
      send += CostModel::counted(goal.communication, cost.output_transfer(device, stages[i + 1].device, last + 1));
    const double stage = CostModel::stage_cost(goal.communication, cost.compute_time(device, first, last), send).value;
    above += std::max(0.0, stage - threshold);
  }
  return above;
}

double excess_of(const CostModel& cost, const std::vector<StagePlacement>& stages, const Goal& goal)
{
  double total = 0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto in_flight =
        microbatches_in_flight(require_chain_schedule(goal.schedule), stages.size() - 1 - i, goal.microbatches);
    const auto& [device, first, last] = stages[i];
    total += std::max(0.0, (cost.memory(first, last, in_flight) - cost.cluster().devices[device].memory).value);
  }
  return total;
}

}  // namespace

TEST(PlacementCosts, AgreesWithTheCostModelAfterEveryRandomMove)
{
  std::mt19937_64 random(1);
  std::size_t moves = 0;
  std::size_t overfull = 0;
  for (int round = 0; round < 150; ++round) {
    const std::size_t layers = 1 + random() % 40;
    const std::size_t devices = 1 + random() % 12;
    const Instance instance(random, layers, devices, round % 3 == 0 ? 1e9 : 60);
    const auto goals = all_goals(1 + random() % 8);
    for (int k = 0; k < 4; ++k) {
      const Goal& goal = goals[random() % goals.size()];
      PlacementCosts costs(instance.cost, goal);
      costs.assign(random_placement(random, layers, devices));
      FastRandom draws(random());
      std::vector<StagePlacement> after;
      for (int move = 0; move < 100; ++move) {
        if (!propose_random_move(costs, draws, random() % costs.size())) continue;
        ++moves;
        costs.placement_after(after);
        const auto expected = instance.cost.evaluate(after, goal);
        const bool holds = memory_holds(instance.cost, after, goal);
        overfull += holds ? 0 : 1;
        expect_value(costs.value_after(), instance.cost, after, goal);
        ASSERT_EQ(costs.fits_after(), holds);
        EXPECT_EQ(costs.excess_after(), excess_of(instance.cost, after, goal));
        if (random() % 2 == 0) continue;
        costs.apply();
        ASSERT_EQ(costs.size(), after.size());
        for (std::size_t i = 0; i < after.size(); ++i) {
          ASSERT_EQ(costs.stage(i).device, after[i].device);
          ASSERT_EQ(costs.stage(i).first_layer, after[i].first_layer);
          ASSERT_EQ(costs.stage(i).last_layer, after[i].last_layer);
        }
        EXPECT_EQ(costs.unused_devices().size(), devices - after.size());
        expect_value(costs.value(), instance.cost, after, goal);
        EXPECT_EQ(costs.fits(), holds);
        EXPECT_EQ(costs.excess(), excess_of(instance.cost, after, goal));
        const double threshold = expected.bottleneck.value * std::uniform_real_distribution<double>(0.3, 1.1)(random);
        costs.set_threshold(threshold);
        if (goal.objective == Objective::Step) continue;
        const double above = above_threshold_of(instance.cost, after, goal, threshold);
        EXPECT_NEAR(costs.value().above_threshold, above, 1e-12 * expected.sum.value);
        ASSERT_FALSE(HasFailure()) << "round " << round << ", move " << move;
      }
    }
  }
  EXPECT_GT(moves, 20'000U);
  EXPECT_GT(overfull, 5'000U);
}

TEST(PlacementCosts, FindsTheStepOfTheRecurrenceAfterEveryRandomMove)
{
  std::mt19937_64 random(2);
  std::size_t moves = 0;
  for (int round = 0; round < 150; ++round) {
    const std::size_t layers = 1 + random() % 40;
    const std::size_t devices = 1 + random() % 16;
    const Instance instance(random, layers, devices, 1e9);
    for (const auto schedule :
         {ChainSchedule::Sequential, ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}) {
      for (const auto communication : {Communication::Played, Communication::None}) {
        const Goal goal{Objective::Step, communication, choice_of(schedule), 1 + random() % 12};
        PlacementCosts costs(instance.cost, goal);
        costs.assign(random_placement(random, layers, devices));
        FastRandom draws(random());
        std::vector<StagePlacement> after;
        for (int move = 0; move < 40; ++move) {
          if (!propose_random_move(costs, draws, random() % costs.size())) continue;
          ++moves;
          costs.placement_after(after);
          const double expected = step_time_by_recurrence(instance.cost, after, goal).value;
          ASSERT_NEAR(costs.step_time_after(), expected, 1e-12 * expected) << name_of(schedule) << ", round " << round;
          EXPECT_LE(costs.value_after().objective, expected * (1 + 1e-12));
          if (random() % 2 == 0) continue;
          costs.apply();
          ASSERT_NEAR(costs.step_time(), expected, 1e-12 * expected) << name_of(schedule) << ", round " << round;
        }
      }
    }
  }
  EXPECT_GT(moves, 15'000U);
}

TEST(PlacementCosts, KnowsAStageOfLargestCost)
{
  const Workload workload = chain({1, 5, 1, 1});
  const Cluster platform = cluster({1, 1, 1});
  const CostModel cost(workload, platform);
  PlacementCosts costs(cost, Goal{});
  costs.assign({{0, 0, 0}, {2, 1, 1}, {1, 2, 3}});
  EXPECT_EQ(costs.bottleneck_stage(), 1U);
  ASSERT_TRUE(costs.swap_devices(0, 2));
  costs.apply();
  EXPECT_EQ(costs.stage(0).device, 1U);
  EXPECT_EQ(costs.bottleneck_stage(), 1U);
}

TEST(PlacementCosts, ProposesNoInvalidMove)
{
  const Workload workload = chain({1, 1, 1, 1, 1});
  const Cluster platform = cluster({1, 1, 1, 1});
  const CostModel cost(workload, platform);
  PlacementCosts costs(cost, Goal{});
  costs.assign({{0, 0, 1}, {1, 2, 3}, {2, 4, 4}});
  EXPECT_FALSE(costs.shift_boundary(0, 1));       // nothing lies before the first stage
  EXPECT_FALSE(costs.shift_boundary(3, 1));       // no such stage
  EXPECT_FALSE(costs.shift_boundary(1, 2));       // stage 1 would be empty
  EXPECT_FALSE(costs.shift_boundary(1, -2));      // stage 0 would be empty
  EXPECT_FALSE(costs.shift_boundaries(1, 2, 1));  // stage 2 would be empty
  EXPECT_FALSE(costs.swap_devices(1, 1));
  EXPECT_FALSE(costs.exchange_stages(0, 3));
  EXPECT_FALSE(costs.move_stage(2, 2));
  EXPECT_FALSE(costs.reverse_stages(2, 1));
  EXPECT_FALSE(costs.replace_device(0, 1));           // in use
  EXPECT_FALSE(costs.replace_device(0, 4));           // no such device
  EXPECT_FALSE(costs.split_stage(2, 3, 1, true));     // has only one layer
  EXPECT_FALSE(costs.split_stage(0, 2, 1, true));     // in use
  EXPECT_FALSE(costs.drop_stage(0, 1));               // no stage before it
  EXPECT_FALSE(costs.drop_stage(2, 0));               // no stage after it
  EXPECT_FALSE(costs.move_device(0, 0, 1, 1, true));  // a neighbour
  EXPECT_TRUE(costs.move_device(2, 1, 0, 1, true));
}

TEST(PlacementCosts, LooksUpNoPathWithoutCommunication)
{
  class NoPaths : public Network {
   public:
    Path path(std::size_t, std::size_t) const override { throw std::logic_error("asked for a path"); }
    std::vector<std::string> links(std::size_t, std::size_t) const override { return {}; }
  };
  const Workload workload = chain({1, 1, 1});
  Cluster platform = cluster({1, 2});
  platform.network = std::make_shared<NoPaths>();
  const CostModel cost(workload, platform);
  Goal goal;
  goal.communication = Communication::None;
  PlacementCosts costs(cost, goal);
  costs.assign({{0, 0, 1}, {1, 2, 2}});
  ASSERT_TRUE(costs.shift_boundary(1, -1));
  EXPECT_EQ(costs.value_after().bottleneck, 2);  // a backward
  EXPECT_EQ(costs.step_time_after(), step_time_by_recurrence(cost, {{0, 0, 0}, {1, 1, 2}}, goal).value);
}

}  // namespace isobar::allocators::placement_costs_test
