#include "core/costs/step_recurrence.hpp"
#include "core/check/plan_checker.hpp"

#include "core/steps/step_player.hpp"
#include "tests/support/instances.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace isobar::step_recurrence_test {
namespace {

using namespace testing_support;  // NOLINT: a test file

constexpr ChainSchedule every_schedule[] = {ChainSchedule::Sequential, ChainSchedule::GPipe,
                                            ChainSchedule::OneForwardOneBackward};

TransferTimes transfer(double latency, double data)
{
  return {Seconds(latency), Seconds(data)};
}

/// Transfers without latency.
StageTimes times(double forward, double backward, double update = 0, double output = 0, double gradient = 0)
{
  return {Seconds(forward), Seconds(backward), Seconds(update), transfer(0, output), transfer(0, gradient)};
}

double step_time(ChainSchedule schedule, std::uint64_t microbatches, const std::vector<StageTimes>& stages,
                 TransferTimes input = {})
{
  return StepRecurrence(schedule, microbatches).step_time(input, stages).value;
}

PlayedTransfer as_played(const TransferTimes& times)
{
  return {times.latency.value, times.data.value};
}

}  // namespace

TEST(StepRecurrence, TakesAllStagesInTurnForEachMicroBatchWhenSequential)
{
  for (const std::uint64_t microbatches : {1U, 2U, 5U}) {
    const std::vector<StageTimes> stages = {times(1, 2, 0, 0.5, 0.25), times(3, 4, 0, 0.125, 1), times(5, 6)};
    EXPECT_DOUBLE_EQ(step_time(ChainSchedule::Sequential, microbatches, stages),
                     static_cast<double>(microbatches) * (21 + 1.875));
  }
}

TEST(StepRecurrence, FillsAndDrainsAPipelineOfEqualStagesWithAFreeNetwork)
{
  for (const ChainSchedule schedule : {ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}) {
    for (const std::size_t stages : {1U, 2U, 5U, 9U}) {
      for (const std::uint64_t microbatches : {1U, 2U, 5U, 12U}) {
        EXPECT_DOUBLE_EQ(step_time(schedule, microbatches, std::vector<StageTimes>(stages, times(1, 2))),
                         3 * static_cast<double>(stages + microbatches - 1));
      }
    }
  }
}

TEST(StepRecurrence, OverlapsWhatThePipelineFormulaAdds)
{
  // docs/costs.md: stages of 10 and 1 with M = 4 take 40, since the first works while the second does; the formula
  // gives 41.
  EXPECT_DOUBLE_EQ(step_time(ChainSchedule::OneForwardOneBackward, 4, {times(5, 5), times(0.5, 0.5)}), 40);
}

TEST(StepRecurrence, LetsAStageUpdateWhileGradientsAreInTransit)
{
  EXPECT_DOUBLE_EQ(step_time(ChainSchedule::GPipe, 1, {times(1, 1), times(1, 1, 0, 0, 0)}), 4);
  EXPECT_DOUBLE_EQ(step_time(ChainSchedule::GPipe, 1, {times(1, 1, 0, 0, 3), times(1, 1, 2)}), 7);
  EXPECT_DOUBLE_EQ(step_time(ChainSchedule::GPipe, 1, {times(1, 1, 0, 0, 3), times(1, 1, 5)}), 8);
}

TEST(StepRecurrence, FetchesOneInputWhileAnotherIsWorkedOn)
{
  // Inputs of 2 s, work of 1 s: the inputs arrive one after the other, then the last is processed.
  EXPECT_DOUBLE_EQ(step_time(ChainSchedule::Sequential, 4, {times(0.5, 0.5)}, transfer(0, 2)), 9);
  // Inputs of 1 s, work of 2 s: the stage waits only for the first.
  EXPECT_DOUBLE_EQ(step_time(ChainSchedule::Sequential, 4, {times(1, 1)}, transfer(0, 1)), 9);
}

TEST(StepRecurrence, SendsMessagesBackToBackHoweverLongTheLatency)
{
  // 64 micro-batches of 12.5 MB over 125 MB/s and 100 ms, without compute: all leave one after the other, and the
  // gradients do so once the last activations have arrived.
  StageTimes first = times(0, 0);
  first.output = first.gradient = transfer(0.1, 0.1);
  EXPECT_NEAR(step_time(ChainSchedule::GPipe, 64, {first, times(0, 0)}), 2 * (0.1 + 64 * 0.1), 1e-12);
}

TEST(StepRecurrence, PaysTheLatencyOfEachMessageOfASlowSender)
{
  // Forwards of 1 s, data of 0.25 s: each message arrives a latency and its data after its forward.
  StageTimes first = times(1, 0);
  first.output = transfer(3, 0.25);
  EXPECT_DOUBLE_EQ(step_time(ChainSchedule::GPipe, 5, {first, times(0.125, 0)}), 5 + 3 + 0.25 + 0.125);
}

TEST(StepRecurrence, WaitsForTheGradientsOfOneFlightUnder1f1b)
{
  // Two stages hold two micro-batches and one: over a latency as long as 10 stages of 1 s, a round trip of 2 + 20 s
  // brings two micro-batches back, the second a stage later.
  StageTimes first = times(0.5, 0.5);
  first.output = first.gradient = transfer(10, 0);
  const double step = step_time(ChainSchedule::OneForwardOneBackward, 20, {first, times(0.5, 0.5)});
  EXPECT_DOUBLE_EQ(step, 9 * 22 + 22 + 1);
}

TEST(StepRecurrence, SendsAnInputOnceTheForwardTwoBeforeItHasEnded)
{
  // Inputs of 2 s latency and 1 s of data, work of 1 s: the third leaves when the first forward of 0.5 s has ended, at
  // 3.5, and arrives at 6.5; the fourth leaves at 4.5, follows it on the wire, and arrives at 7.5.
  EXPECT_DOUBLE_EQ(step_time(ChainSchedule::Sequential, 4, {times(0.5, 0.5)}, transfer(2, 1)), 8.5);
}

TEST(StepRecurrence, AgreesWithThePlayerOfThePlanChecker)
{
  std::mt19937_64 random(3);
  const auto draw = [&random] {
    return random() % 4 == 0 ? 0.0 : std::uniform_real_distribution<double>(0, 1)(random);
  };
  for (int round = 0; round < 3000; ++round) {
    const ChainSchedule schedule = every_schedule[round % 3];
    const std::uint64_t microbatches = 1 + random() % 20;
    std::vector<StageTimes> stages(1 + random() % 12);
    for (auto& stage : stages) {
      stage = times(draw(), draw(), draw());
      stage.output = transfer(10 * draw(), draw());
      stage.gradient = transfer(10 * draw(), draw());
    }
    std::vector<PlayedStage> played;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      played.push_back({stages[i].forward.value, stages[i].backward.value, stages[i].update.value,
                        as_played(stages[i].output), i > 0 ? as_played(stages[i - 1].gradient) : PlayedTransfer{}});
    }
    const TransferTimes input = transfer(10 * draw(), draw());
    const double expected = play_step(schedule, microbatches, {input.latency.value, input.data.value}, played);
    EXPECT_NEAR(step_time(schedule, microbatches, stages, input), expected, 1e-12 * expected) << "round " << round;
  }
}

TEST(StepRecurrence, IsNeverBelowTheStepBound)
{
  std::mt19937_64 random(4);
  for (int round = 0; round < 300; ++round) {
    const auto workload = random_chain(random, 1 + random() % 12);
    const auto platform = random_cluster(random, 6, 1e9);
    const CostModel cost(workload, platform);
    const auto stages = random_placement(random, cost.layers(), cost.devices());
    for (const ChainSchedule schedule : every_schedule) {
      for (const auto communication : {Communication::Played, Communication::None}) {
        const Goal goal{Objective::Step, communication, choice_of(schedule), 1 + random() % 10};
        const auto evaluation = cost.evaluate(stages, goal);
        EXPECT_GE(evaluation.objective.value, evaluation.step_bound.value * (1 - 1e-12));
      }
    }
  }
}

TEST(FaultsOf, RecomputesAStepTimeByRecurrence)
{
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    const auto workload = random_chain(random, 10);
    const auto platform = random_cluster(random, 5, 1e9);
    const CostModel cost(workload, platform);
    const Goal goal{Objective::Pipeline, Communication::Overlapped, choice_of(every_schedule[round % 3]),
                    1 + random() % 20};
    const auto stages = random_placement(random, 10, 5);
    Plan plan = plan_of(stages, cost, goal);
    EXPECT_THAT(faults_of(plan, workload, platform), testing::IsEmpty());
    const Plan again = plan_from_json(plan_to_json(plan), "plan.json");
    EXPECT_EQ(again.predicted->step_time_by, StepTimeBy::Recurrence);
    plan.predicted->step_time *= 0.999;
    EXPECT_THAT(faults_of(plan, workload, platform),
                testing::ElementsAre(testing::StartsWith("predicted.step_time_s: claims ")));
  }
}

TEST(FaultsOf, RefusesAStepTimeByRecurrenceThatTakesLongToCheck)
{
  const auto workload = chain({1, 1});
  const auto platform = cluster({1, 1});
  const CostModel cost(workload, platform);
  const Goal goal{Objective::Pipeline, Communication::Overlapped, choice_of(ChainSchedule::OneForwardOneBackward),
                  65'537};
  Plan plan = plan_of({{0, 0, 0}, {1, 1, 1}}, cost, goal);
  EXPECT_THAT(faults_of(plan, workload, platform),
              testing::ElementsAre("microbatches: 65537; a step by recurrence has at most 65536"));
}

TEST(PlanFile, AssumesTheFormulaForAStepTimeWithoutAKind)
{
  const auto workload = chain({1, 1});
  const auto platform = cluster({1, 1});
  const CostModel cost(workload, platform);
  Plan plan = plan_of({{0, 0, 0}, {1, 1, 1}}, cost, Goal::with_defaults(Objective::Pipeline));
  plan.predicted->pipeline.reset();
  std::string json = plan_to_json(plan);
  const std::string key = "\"step_time_by\": \"recurrence\",";
  ASSERT_NE(json.find(key), std::string::npos);
  json.erase(json.find(key), key.size());
  EXPECT_EQ(plan_from_json(json, "plan.json").predicted->step_time_by, StepTimeBy::Formula);
}

}  // namespace isobar::step_recurrence_test
