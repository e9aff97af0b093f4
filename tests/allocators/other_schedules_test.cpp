#include "allocators/other_schedules.hpp"

#include "allocators/played_plan.hpp"
#include "allocators/registry.hpp"
#include "allocators/schedule_numbers.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"
#include "schedules/orders/schedule.hpp"
#include "tests/support/instances.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace isobar::allocators::other_schedules_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string fault_of(const std::string& allocator, const Workload& workload, const Cluster& devices, const Goal& goal)
{
  try {
    allocate(allocator, workload, devices, goal, {});
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "";
}

/// A random chain whose backward passes can be split.
Workload random_split_chain(std::mt19937_64& random, std::size_t layers)
{
  Workload workload = random_chain(random, layers);
  for (auto& layer : workload.layers) layer.backward_weight = 0.1 * static_cast<double>(random() % 7) * layer.backward;
  return workload;
}

std::vector<std::size_t> devices_of_stages(const Plan& plan, const Cluster& cluster)
{
  std::vector<std::size_t> devices;
  for (const auto& stage : plan.stages) devices.push_back(cluster.device_index(stage.device()).value());
  return devices;
}

TEST(PlansByPlaying, HoldUnderEveryScheduleAndAreNotBelowTheirBounds)
{
  std::mt19937_64 random(7);
  std::size_t made = 0;
  for (int round = 0; round < 60; ++round) {
    const Workload workload = random_split_chain(random, 6 + random() % 10);
    const Cluster platform = random_cluster(random, 1 + random() % 4, 1e9);
    const std::uint64_t microbatches = 1 + random() % 9;
    for (const std::string schedule :
         {"1f1b(warm_up=auto)", "zero-bubble-h1", "zero-bubble-h1(warm_up=auto)", "zero-bubble-h2", "zero-bubble-v",
          "dualpipe-v", "v-half", "v-min", "interleaved", "interleaved(chunks=2)", "greedy"}) {
      for (const std::string allocator : {"even", "chain-dp"}) {
        Goal goal = goal_under(schedule, microbatches);
        if (round % 4 == 0) goal.communication = Communication::None;
        // The checker has passed it.
        const Plan plan = allocate(allocator, workload, platform, goal, {});
        if (plan.stages.empty()) continue;  // too few layers for the stages
        ++made;
        ASSERT_EQ(plan.predicted->step_time_by, StepTimeBy::Played);
        ASSERT_GE(plan.predicted->step_time.value, plan.step_bound->value * (1 - 1e-12)) << schedule << round;
        ASSERT_EQ(plan.schedule_bound.has_value(), schedule == "greedy");
        if (plan.schedule_bound) {
          ASSERT_GE(plan.predicted->step_time.value, plan.schedule_bound->value * (1 - 1e-12)) << round;
          ASSERT_GE(plan.schedule_bound->value, plan.step_bound->value * (1 - 1e-12)) << round;
        }
        ASSERT_GE(plan.objective->value, plan.objective_bound->value) << schedule << round;
        ASSERT_THAT(faults_of_certificate(plan, workload, platform), IsEmpty()) << schedule << round;
      }
    }
  }
  EXPECT_GT(made, 600U);
}

TEST(PlansByPlaying, TakeWhatTheRecurrenceSaysWhereTheOrderIsThatOf1f1b)
{
  std::mt19937_64 random(8);
  for (int round = 0; round < 50; ++round) {
    const Workload workload = random_chain(random, 4 + random() % 6);
    const Cluster platform = random_cluster(random, 2 + random() % 3, 1e9);
    const Plan chain_plan = allocate("even", workload, platform, goal_under("1f1b", 1 + random() % 12), {});
    Plan plan = chain_plan;
    auto& warm_up = plan.goal.schedule.numbers["warm_up"];
    for (std::size_t i = 0; i < plan.stages.size(); ++i) warm_up.push_back(plan.stages.size() - 1 - i);
    price_by_playing(plan, workload, platform);
    ASSERT_NEAR(plan.predicted->step_time.value, chain_plan.predicted->step_time.value,
                1e-12 * plan.predicted->step_time.value);
    ASSERT_NEAR(plan.step_bound->value, chain_plan.step_bound->value, 1e-12 * plan.step_bound->value);
    ASSERT_NEAR(plan.predicted->bottleneck.value, chain_plan.predicted->bottleneck.value, 1e-12);
    ASSERT_NEAR(plan.predicted->sequential.value, chain_plan.predicted->sequential.value, 1e-9);
    ASSERT_NEAR(plan.predicted->pipeline->value, chain_plan.predicted->pipeline->value, 1e-9);
    for (const auto& [device, peak] : chain_plan.predicted->peak_memory) {
      ASSERT_NEAR(plan.predicted->peak_memory.at(device).value, peak.value, 1e-9 * peak.value);
    }
  }
}

TEST(PlansByPlaying, ChooseAWarmUpThatHidesDelays)
{
  const Workload workload = chain(std::vector<double>(8, 1), 0, 1);
  const Cluster platform = cluster({1, 1, 1, 1}, {Seconds(10), BytesPerSecond(1e9)});
  const Plan plain = allocate("even", workload, platform, goal_under("1f1b", 64), {});
  const Plan warm = allocate("even", workload, platform, goal_under("1f1b(warm_up=auto)", 64), {});
  EXPECT_LT(warm.predicted->step_time.value, 0.7 * plain.predicted->step_time.value);
  const auto& numbers = warm.goal.schedule.numbers.at("warm_up");
  ASSERT_EQ(numbers.size(), 4U);
  EXPECT_EQ(numbers.back(), 0U);
  EXPECT_GT(numbers.front(), 3U);
  EXPECT_TRUE(std::is_sorted(numbers.rbegin(), numbers.rend()));
}

TEST(PlansByPlaying, ChooseAWarmUpWithinMemory)
{
  const Workload workload = chain(std::vector<double>(8, 1), 0, 10);
  const Path far{Seconds(10), BytesPerSecond(1e9)};
  // Each stage of two layers keeps 20 bytes a micro-batch.
  const Cluster platform = cluster({1, 1, 1, 1}, far, 120);
  const Plan plan = allocate("even", workload, platform, goal_under("1f1b(warm_up=auto)", 64), {});
  ASSERT_FALSE(plan.stages.empty()) << plan.reason;
  EXPECT_LE(plan.goal.schedule.numbers.at("warm_up").front(), 5U);
  for (const auto& [device, peak] : plan.predicted->peak_memory) EXPECT_LE(peak, Bytes(120)) << device;
}

TEST(PlansByPlaying, CountWhatAScheduleHoldsAndNot1f1b)
{
  const Workload workload = chain(std::vector<double>(4, 1), 0, 10);
  // 1f1b holds 4, 3, 2 and 1 micro-batches on its stages, zero-bubble-h1 4 on each.
  Cluster platform = cluster({1, 1, 1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 40);
  platform.devices[3].memory = Bytes(15);
  EXPECT_FALSE(allocate("even", workload, platform, goal_under("1f1b"), {}).stages.empty());
  const Plan plan = allocate("even", workload, platform, goal_under("zero-bubble-h1"), {});
  EXPECT_EQ(plan.outcome, Outcome::Infeasible);
  EXPECT_THAT(plan.reason, HasSubstr("device d3: layer 3 needs " + text_of(Bytes(40))));
}

TEST(PlansByPlaying, UseFewerDevicesWhereTheirCountsWouldBeTooLarge)
{
  // On three devices each stage would hold three micro-batches of at least 10 bytes, on two of them two of 20 and 10.
  const Workload workload = chain(std::vector<double>(3, 1), 0, 10);
  Cluster platform = cluster({1, 1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 25);
  platform.devices[0].memory = Bytes(40);
  const Plan plan = allocate("chain-dp", workload, platform, goal_under("zero-bubble-h1"), {});
  ASSERT_FALSE(plan.stages.empty()) << plan.reason;
  EXPECT_EQ(plan.stages.size(), 2U);
}

TEST(PlansByPlaying, HoldFewerMicroBatchesThan1f1bWhereMemoryNeedsIt)
{
  // Under 1f1b the first of three devices holds three micro-batches of 10 bytes.
  const Workload workload = chain(std::vector<double>(3, 1), 0, 10);
  const Cluster platform = cluster({1, 1, 1}, {Seconds(1), BytesPerSecond(1e30)}, 24);
  const Plan plain = allocate("even", workload, platform, goal_under("1f1b"), {});
  EXPECT_EQ(plain.outcome, Outcome::Infeasible);
  for (const std::string schedule : {"1f1b(warm_up=auto)", "greedy"}) {
    const Plan plan = allocate("even", workload, platform, goal_under(schedule), {});
    ASSERT_EQ(plan.stages.size(), 3U) << schedule << ": " << plan.reason;
    for (const auto& [device, peak] : plan.predicted->peak_memory) EXPECT_LE(peak, Bytes(24)) << schedule << device;
  }
}

TEST(PlansByPlaying, NameTheLeastMemoryThatWouldDo)
{
  const Workload workload = chain(std::vector<double>(3, 1), 0, 10);
  const Cluster platform = cluster({1, 1, 1}, {Seconds(1), BytesPerSecond(1e30)}, 9);
  for (const std::string schedule : {"1f1b(warm_up=auto)", "greedy"}) {
    const Plan plan = allocate("even", workload, platform, goal_under(schedule), {});
    EXPECT_THAT(plan.reason, HasSubstr("needs " + text_of(Bytes(10)) + " and it has " + text_of(Bytes(9)))) << schedule;
  }
}

std::vector<StagePlacement> placement_of(const Plan& plan, const Cluster& cluster)
{
  std::vector<StagePlacement> placement;
  for (const auto& stage : plan.stages) {
    placement.push_back({cluster.device_index(stage.device()).value(), stage.first_layer, stage.last_layer});
  }
  return placement;
}

TEST(PlansByPlaying, AreNeverWorseThanTheStart)
{
  std::mt19937_64 random(33);
  for (int round = 0; round < 40; ++round) {
    const Workload workload = random_split_chain(random, 6 + random() % 10);
    const Cluster platform = random_cluster(random, 2 + random() % 3, 1e9);
    for (const std::string schedule : {"1f1b(warm_up=auto)", "zero-bubble-h1", "greedy"}) {
      const Goal goal = goal_under(schedule, 4 + random() % 9);
      SearchLimits limits;
      limits.budget = 2'000;
      limits.seed = 2;
      const Plan start = allocate("local-search", workload, platform, goal, limits);
      limits.seed = 1;
      limits.start = placement_of(start, platform);
      const Plan plan = allocate("local-search", workload, platform, goal, limits);
      ASSERT_LE(plan.objective->value, start.objective->value * (1 + 1e-12)) << schedule << round;
    }
  }
}

/// The names and layers of the stages.
std::vector<std::string> stages_of(const Plan& plan)
{
  std::vector<std::string> stages;
  for (const auto& stage : plan.stages) stages.push_back(stage.device() + " " + std::to_string(stage.last_layer));
  return stages;
}

TEST(PlansByPlaying, OrderNoLongerStepsThanZeroBubbleOnTheSamePlacement)
{
  std::mt19937_64 random(31);
  std::size_t compared = 0;
  std::size_t shorter = 0;
  for (int round = 0; round < 40; ++round) {
    const bool is_tight = round % 2 == 1;
    Workload workload = random_split_chain(random, 6 + random() % 10);
    if (is_tight) workload.memory_model = MemoryModel::Training;
    const Cluster platform = random_cluster(random, 2 + random() % 3, is_tight ? 200 : 1e9);
    const std::uint64_t microbatches = 4 + random() % 9;
    // The checker has passed it: it recomputes the bound with the slots that memory leaves.
    const Plan plan = allocate("even", workload, platform, goal_under("greedy", microbatches), {});
    for (const std::string schedule : {"zero-bubble-h1", "zero-bubble-h1(warm_up=auto)", "zero-bubble-h2"}) {
      const Plan other = allocate("even", workload, platform, goal_under(schedule, microbatches), {});
      if (other.stages.empty() || stages_of(other) != stages_of(plan)) continue;
      ++compared;
      shorter += *plan.objective < *other.objective * (1 - 1e-9) ? 1U : 0U;
      ASSERT_LE(plan.objective->value, other.objective->value * (1 + 1e-12)) << schedule << round;
      ASSERT_LE(plan.schedule_bound->value, other.objective->value * (1 + 1e-12)) << schedule << round;
    }
  }
  EXPECT_GE(compared, 40U);
  EXPECT_GE(shorter, 20U);
}

/// A chain as of a model of 14 blocks with a head as heavy as ten of them.
Workload chain_with_a_head()
{
  std::vector<double> work(16, 1);
  work.front() = 0;
  work.back() = 10;
  Workload workload = chain(work);
  for (auto& layer : workload.layers) layer.backward_weight = 0.5 * layer.backward;
  return workload;
}

TEST(PlansByPlaying, GiveEachDeviceAsManyLayersByEven)
{
  const Cluster platform = cluster({1, 1, 1, 1});
  for (const std::string schedule : {"zero-bubble-v", "interleaved(chunks=2)"}) {
    const Plan plan = allocate("even", chain_with_a_head(), platform, goal_under(schedule), {});
    ASSERT_EQ(plan.stages.size(), 8U) << schedule;
    for (const auto& stage : plan.stages) EXPECT_EQ(stage.last_layer - stage.first_layer, 1U) << schedule;
  }
}

TEST(PlansByPlaying, CutStagesSoThatDevicesAreBalanced)
{
  const Workload workload = chain_with_a_head();
  const Cluster platform = cluster({1, 1, 1, 1});
  Plan by_hand;
  by_hand.goal = goal_under("zero-bubble-v");
  const std::vector<std::size_t> last_layers = {0, 2, 4, 6, 8, 10, 14, 15};
  const std::vector<std::string> devices = {"d0", "d1", "d2", "d3", "d3", "d2", "d1", "d0"};
  for (std::size_t i = 0; i < devices.size(); ++i) {
    by_hand.stages.push_back(stage_on(devices[i], i == 0 ? 0 : last_layers[i - 1] + 1, last_layers[i]));
  }
  price_by_playing(by_hand, workload, platform);
  for (const std::string allocator : {"chain-dp", "local-search"}) {
    const Plan plan = allocate(allocator, workload, platform, goal_under("zero-bubble-v"), {});
    EXPECT_LE(plan.objective->value, by_hand.objective->value * 1.02) << allocator;
  }
}

TEST(PlansByPlaying, ProveTheOrdersOfEqualStages)
{
  // 1f1b's order is the shortest: (p - 1) t of idle time next to M t. The last device holds one micro-batch, where
  // zero-bubble-h1 holds four.
  const Workload workload = chain(std::vector<double>(4, 1), 0, 10);
  Cluster platform = cluster({1, 1, 1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 40);
  platform.devices[3].memory = Bytes(15);
  const Plan plan = allocate("even", workload, platform, goal_under("greedy"), {});
  ASSERT_FALSE(plan.stages.empty()) << plan.reason;
  EXPECT_EQ(plan.predicted->step_time, Seconds(33));
  EXPECT_EQ(plan.schedule_bound, Seconds(33));
  EXPECT_EQ(plan.predicted->peak_memory.at("d3"), Bytes(10));
}

TEST(PlansByPlaying, KeepMadeOrdersInThePlanFile)
{
  std::mt19937_64 random(32);
  const Workload workload = random_split_chain(random, 9);
  const Cluster platform = random_cluster(random, 3, 1e9);
  Plan plan = allocate("even", workload, platform, goal_under("greedy", 12), {});
  plan.platform = plan.workload = {"file", "0"};
  ASSERT_EQ(plan.goal.schedule.orders.size(), 3U);
  const auto json = plan_to_json(plan);
  const Plan again = plan_from_json(json, "plan.json");
  EXPECT_EQ(again.goal.schedule, plan.goal.schedule);
  EXPECT_EQ(again.schedule_bound, plan.schedule_bound);
  EXPECT_EQ(plan_to_json(again), json);
}

TEST(PlansByPlaying, MakeNewOrdersForTheGoalOfAPlan)
{
  const Workload workload = chain(std::vector<double>(6, 1));
  const Plan before = allocate("even", workload, cluster({1, 1, 1}), goal_under("greedy"), {});
  const Plan plan = allocate("even", workload, cluster({1, 1}), before.goal, {});
  EXPECT_THAT(plan.goal.schedule.orders, testing::UnorderedElementsAre(testing::Key("d0"), testing::Key("d1")));
}

TEST(PlansByPlaying, MakeNoOrdersWhereNothingFits)
{
  const Workload workload = chain({1, 1}, 0, 10);
  const Cluster platform = cluster({1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 5);
  Plan plan = allocate("even", workload, platform, goal_under("greedy"), {});
  plan.platform = plan.workload = {"file", "0"};
  EXPECT_EQ(plan.outcome, Outcome::Infeasible);
  EXPECT_THAT(plan.goal.schedule.orders, IsEmpty());
  EXPECT_FALSE(plan.schedule_bound);
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "plan.json").goal.schedule, ScheduleChoice{"greedy"});
}

TEST(PlansByPlaying, RefuseToOrderMoreThanIsQuick)
{
  EXPECT_EQ(
      fault_of("even", chain({1, 1, 1, 1}), cluster({1, 1, 1, 1}), goal_under("greedy", 50'001)),
      "microbatches: 50001 on each of 4 devices; greedy takes at most 200000 on all devices together; use at most "
      "50000, or another schedule");
}

TEST(PipelineTimes, HaveTheHopsAndTheSlotsOfAPlacement)
{
  Workload workload = chain({1, 1}, 0, 10, 8);
  workload.layers[0].backward_weight = Flops(0.5);
  Cluster platform = cluster({1, 2}, {Seconds(3), BytesPerSecond(4)}, 1e3);
  platform.devices[0].memory = Bytes(16 + 30);  // two buffers, and three micro-batches
  const auto times = [&](const Goal& goal) {
    return pipeline_times(CostModel(workload, platform), {{0, 0, 0}, {1, 1, 1}}, goal);
  };
  const auto found = times(goal_under("greedy", 8));
  ASSERT_EQ(found.devices.size(), 2U);
  EXPECT_EQ(found.microbatches, 8U);
  EXPECT_TRUE(found.splits_backward);
  const auto& first = found.devices[0];
  EXPECT_EQ(first.forward, Seconds(1));
  EXPECT_EQ(first.backward_input, Seconds(1.5));
  EXPECT_EQ(first.backward_weight, Seconds(0.5));
  EXPECT_EQ(first.output, Seconds(5));
  EXPECT_EQ(first.output_data, Seconds(2));
  EXPECT_EQ(first.gradient, Seconds(5));
  EXPECT_EQ(first.gradient_data, Seconds(2));
  EXPECT_EQ(first.slots, 3U);
  EXPECT_EQ(found.devices[1].forward, Seconds(0.5));
  EXPECT_EQ(found.devices[1].output, Seconds(0));
  EXPECT_EQ(found.devices[1].slots, 8U);
  Goal free = goal_under("greedy", 8);
  free.communication = Communication::None;
  EXPECT_EQ(times(free).devices[0].output, Seconds(0));
  EXPECT_EQ(times(free).devices[0].gradient_data, Seconds(0));
}

TEST(PlansByPlaying, FoldTheChainOntoTheDevices)
{
  const Workload workload = chain(std::vector<double>(8, 1));
  const Cluster platform = cluster({1, 1});
  const Plan interleaved = allocate("even", workload, platform, goal_under("interleaved(chunks=2)"), {});
  EXPECT_THAT(devices_of_stages(interleaved, platform), ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(text_of(interleaved.goal.schedule), "interleaved(chunks=2)");
  const Plan folded = allocate("even", workload, platform, goal_under("zero-bubble-v"), {});
  EXPECT_THAT(devices_of_stages(folded, platform), ElementsAre(0, 1, 1, 0));
  // (p - 1) t / v of idle time, next to M t: half of 1f1b's.
  EXPECT_DOUBLE_EQ(interleaved.predicted->step_time.value, 8 * 12 + 12.0 / 2);
}

TEST(PlansByPlaying, HaveTheGroupsOfInterleavedThatWereGiven)
{
  const Cluster platform = cluster({1, 1}, {Seconds(3), BytesPerSecond(1e30)});  // a hop takes as long as a forward
  const Workload workload = chain(std::vector<double>(12, 1));
  const auto plan_with = [&](const std::string& schedule) {
    return allocate("even", workload, platform, goal_under(schedule, 12), {});
  };
  const Plan plain = plan_with("interleaved(chunks=2)");
  const Plan grouped = plan_with("interleaved(chunks=2;group=4)");
  EXPECT_EQ(text_of(grouped.goal.schedule), "interleaved(chunks=2;group=4)");
  EXPECT_LT(grouped.predicted->step_time, plain.predicted->step_time);
  EXPECT_EQ(plan_with("interleaved(chunks=2;group=2)").predicted->step_time, plain.predicted->step_time);
  EXPECT_EQ(fault_of("even", workload, platform, goal_under("interleaved(chunks=2;group=13)", 12)),
            "schedule: group is 13, more than the 12 micro-batches of a pipeline; use 12 or less");
  EXPECT_EQ(fault_of("even", workload, cluster({1, 1, 1, 1}), goal_under("interleaved(chunks=2;group=5)", 12)),
            "schedule: groups of 5 leave 2 of 12 micro-batches, fewer than the 4 devices; use 4 or 6");
  EXPECT_EQ(fault_of("even", workload, platform, goal_under("interleaved(group=auto)", 12)),
            "schedule: interleaved(group=auto): group is one number, at least that of the devices");
}

TEST(PlansByPlaying, ChooseTheChunksOfInterleaved)
{
  const Workload workload = chain(std::vector<double>(6, 1));
  const Plan plan = allocate("even", workload, cluster({1, 1}), goal_under("interleaved"), {});
  EXPECT_EQ(plan.goal.schedule.numbers.at("chunks"), std::vector<std::uint64_t>{3});
  EXPECT_EQ(plan.stages.size(), 6U);
}

TEST(PlansByPlaying, SayHowManyLayersAreMissing)
{
  const Plan plan = allocate("even", chain({1, 1, 1, 1}), cluster({1, 1}), goal_under("interleaved(chunks=3)"), {});
  EXPECT_EQ(plan.outcome, Outcome::Infeasible);
  EXPECT_EQ(plan.reason,
            "2 devices with 3 stages each need 6 layers that can be cut apart, and there are 4; leave "
            "devices out with --without");
  const auto reason_of = [](const std::vector<double>& layers, const std::string& schedule) {
    return allocate("even", chain(layers), cluster({1, 1}), goal_under(schedule), {}).reason;
  };
  EXPECT_EQ(reason_of({1, 1}, "interleaved(chunks=9)"),
            "9 stages on a device need as many layers that can be cut apart, and there are 2; use another schedule");
  EXPECT_EQ(reason_of({1}, "zero-bubble-v"),
            "2 stages on a device need as many layers that can be cut apart, and there is 1; use another schedule");
}

TEST(PlansByPlaying, SayThatAWarmUpIsForTooFewDevices)
{
  const Workload workload = chain(std::vector<double>(3, 1), 0, 10);
  const Cluster platform = cluster({1, 1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 1000);
  const Plan plan = allocate("even", workload, platform, goal_under("1f1b(warm_up=1/0)"), {});
  EXPECT_EQ(plan.outcome, Outcome::Infeasible);
  EXPECT_EQ(plan.reason,
            "warm_up is for 2 of 3 devices, and no placement on so few fits; give a number for each device, "
            "or auto");
}

TEST(PlansByPlaying, ReturnTheBestCandidatesFirst)
{
  std::mt19937_64 random(9);
  const Workload workload = random_split_chain(random, 12);
  const Cluster platform = random_cluster(random, 4, 1e9);
  SearchLimits limits;
  limits.candidates = 4;
  const auto plans = allocate_candidates("chain-dp", workload, platform, goal_under("zero-bubble-h1"), limits);
  ASSERT_GT(plans.size(), 1U);
  EXPECT_LE(plans.size(), 4U);
  for (std::size_t i = 1; i < plans.size(); ++i) EXPECT_LE(*plans[i - 1].objective, *plans[i].objective);
}

TEST(PlansByPlaying, LeaveNoNumbersToBeChosenInAPlanWithoutStages)
{
  const Workload workload = chain({1, 1}, 0, 10);
  const Cluster platform = cluster({1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 5);
  const Plan plan = allocate("even", workload, platform, goal_under("1f1b(warm_up=auto)"), {});
  EXPECT_EQ(plan.outcome, Outcome::Infeasible);
  EXPECT_EQ(text_of(plan.goal.schedule), "1f1b");
}

TEST(RequirePlannable, RefusesAllocatorsThatNeedARecurrence)
{
  const std::string fault = fault_of("exact", chain({1, 1}), cluster({1, 1}), goal_under("zero-bubble-h1"));
  EXPECT_THAT(fault, testing::StartsWith("allocator: exact knows the schedules sequential, gpipe and 1f1b; use "
                                         "amp, chain-dp, dtfm, dtfm-exact, even, grid, hybrid, local-search, metis, "));
  EXPECT_THAT(fault, testing::EndsWith(" under zero-bubble-h1"));
  // Those that need a stage on each device are no help where a device has several.
  EXPECT_THAT(fault_of("exact", chain({1, 1}), cluster({1, 1}), goal_under("interleaved")),
              testing::HasSubstr("use chain-dp, even, grid, hybrid, local-search, sky-dynamic"));
}

TEST(RequirePlannable, RefusesFormulasAndOrdersOfOnePlan)
{
  const Workload workload = chain({1, 1});
  Goal goal = Goal::with_defaults(Objective::Pipeline);
  goal.schedule = {"interleaved"};
  EXPECT_EQ(fault_of("even", workload, cluster({1, 1}), goal),
            "objective: pipeline is a formula for the schedules sequential, gpipe and 1f1b; use step under "
            "interleaved");
  goal.schedule = {"listed", {}, {{"d0", {}}}};
  EXPECT_EQ(fault_of("even", workload, cluster({1, 1}), goal),
            "schedule: listed has the orders of one plan; allocators place for the others");
}

TEST(RequirePlannable, RefusesUnknownSchedulesAndNumbers)
{
  const Workload workload = chain({1, 1});
  EXPECT_EQ(fault_of("even", workload, cluster({1, 1}), goal_under("interleave")),
            "schedule: \"interleave\" is not known; did you mean interleaved?");
  EXPECT_EQ(fault_of("even", workload, cluster({1, 1}), goal_under("1f1b(warm_up=1000000001/0)")),
            "schedule: warm_up: 1000000001 is above 1000000000; use less");
  EXPECT_EQ(fault_of("even", workload, cluster({1, 1}), goal_under("gpipe(chunks=2)")),
            "schedule: gpipe takes no chunks; leave it out");
  EXPECT_EQ(fault_of("even", workload, cluster({1, 1}), goal_under("interleaved(chunks=1)")),
            "schedule: interleaved(chunks=1): chunks is one number, at least 2");
  EXPECT_EQ(fault_of("even", workload, cluster({1, 1}), goal_under("1f1b(warm_up=2/1/0)")),
            "schedule: 3 numbers of warm_up, and the placement has 2 devices; give one for each, or auto");
}

TEST(MostMicrobatches, AreFewerTheMoreDevicesNeedOrders)
{
  EXPECT_EQ(most_microbatches({"greedy"}, 4), 50'000U);
  EXPECT_EQ(most_microbatches({"greedy"}, 64), 3'125U);
  EXPECT_EQ(most_microbatches({"zero-bubble-h1"}, 64), most_microbatches_by_recurrence);
}

TEST(CarryOver, TakesOnlySchedulesOfChains)
{
  const Workload workload = chain({1, 1});
  const Cluster platform = cluster({1, 1});
  const Plan plan = allocate("even", workload, platform, goal_under("1f1b"), {});
  EXPECT_FALSE(carry_over(plan, workload, platform, goal_under("zero-bubble-h1")));
  const Plan split = allocate("even", workload, platform, goal_under("zero-bubble-h1"), {});
  EXPECT_FALSE(carry_over(split, workload, platform, goal_under("1f1b")));
}

TEST(HeldCounts, AreThoseOfTheOrders)
{
  const auto held = [](const std::string& schedule, std::size_t ranks, std::size_t parts, std::uint64_t microbatches) {
    const ScheduleChoice choice = schedule_from_text(schedule);
    return held_counts(schedules::require_schedule(choice.name), choice, ranks, parts, microbatches);
  };
  EXPECT_THAT(held("1f1b", 4, 1, 8), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(held("1f1b", 4, 1, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(held("1f1b(warm_up=9/6/3/0)", 4, 1, 8), ElementsAre(1, 4, 7, 8));
  EXPECT_THAT(held("zero-bubble-h1", 4, 1, 8), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(held("zero-bubble-h2", 4, 1, 20), ElementsAre(7, 7, 7, 7));
  // 2 (p - 1 - i) + (v - 1) p + 1 of v parts each.
  EXPECT_THAT(held("interleaved", 2, 2, 8), ElementsAre(2, 3));
}

TEST(ChosenWarmUp, HasARoundTripForEachPeriodOfEqualStages)
{
  // Stages of 3 s, hops of 4 s there and 4 s back: 1 + ceil(8 / 3) forwards more from stage to stage.
  const Workload workload = chain({1, 1, 1}, 0, 0);
  const Cluster platform = cluster({1, 1, 1}, {Seconds(4), BytesPerSecond(1e30)});
  const CostModel cost(workload, platform);
  const std::vector<StagePlacement> stages = {{0, 0, 0}, {1, 1, 1}, {2, 2, 2}};
  const auto& schedule = schedules::require_schedule("1f1b");
  EXPECT_THAT(chosen_warm_up(schedule, cost, stages, goal_under("1f1b", 100)).value(), ElementsAre(8, 4, 0));
  Goal free = goal_under("1f1b", 100);
  free.communication = Communication::None;
  EXPECT_THAT(chosen_warm_up(schedule, cost, stages, free).value(), ElementsAre(2, 1, 0));
}

}  // namespace
}  // namespace isobar::allocators::other_schedules_test
