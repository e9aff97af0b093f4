#include "core/costs/cost_model.hpp"

#include "tests/support/instances.hpp"

#include <gtest/gtest.h>

namespace isobar::cost_model_test {
namespace {

using testing_support::chain;
using testing_support::cluster;

// Two stages: t = 3 and 6 s per micro-batch, transfers of 1 s forward and 1 s back, no input.
struct TwoStages {
  Workload workload = chain({1, 1, 1}, 0, 0, 10);
  Cluster devices = cluster({1, 1}, {Seconds(0), BytesPerSecond(10)});
  CostModel cost{workload, devices};
  std::vector<StagePlacement> stages = {{0, 0, 0}, {1, 1, 2}};

  CostModel::Evaluation evaluate(Objective objective, Communication communication) const
  {
    return cost.evaluate(stages, {objective, communication, choice_of(ChainSchedule::OneForwardOneBackward), 4});
  }
};

TEST(CostModel, AddsTheStagesForSequential)
{
  const TwoStages two;
  EXPECT_DOUBLE_EQ(two.evaluate(Objective::Sequential, Communication::None).objective.value, 9);
  EXPECT_DOUBLE_EQ(two.evaluate(Objective::Sequential, Communication::Serial).objective.value, 11);
  EXPECT_DOUBLE_EQ(two.evaluate(Objective::Sequential, Communication::Overlapped).objective.value, 9);
}

TEST(CostModel, TakesTheSlowestStageForBottleneck)
{
  const TwoStages two;
  EXPECT_DOUBLE_EQ(two.evaluate(Objective::Bottleneck, Communication::None).objective.value, 6);
  EXPECT_DOUBLE_EQ(two.evaluate(Objective::Bottleneck, Communication::Serial).objective.value, 7);
}

TEST(CostModel, AddsTheSlowestStageForEachFurtherMicroBatchOfPipeline)
{
  const TwoStages two;
  EXPECT_DOUBLE_EQ(two.evaluate(Objective::Pipeline, Communication::None).objective.value, 3 * 6 + 9);
  EXPECT_DOUBLE_EQ(two.evaluate(Objective::Pipeline, Communication::Serial).objective.value, 3 * 7 + 11);
}

TEST(CostModel, OverlappedTakesTheLongerOfComputeAndSend)
{
  const auto workload = chain({1, 1}, 0, 0, 100);
  const auto devices = cluster({1, 1}, {Seconds(0), BytesPerSecond(10)});
  const CostModel cost(workload, devices);
  const Goal goal{Objective::Bottleneck, Communication::Overlapped, choice_of(ChainSchedule::GPipe), 2};
  EXPECT_DOUBLE_EQ(cost.evaluate({{0, 0, 0}, {1, 1, 1}}, goal).objective.value, 10);
}

TEST(CostModel, BoundsAStepByOneRoundTripAndTheStagesOwnWork)
{
  const TwoStages two;
  const auto evaluation = two.evaluate(Objective::Pipeline, Communication::None);
  EXPECT_DOUBLE_EQ(evaluation.step_bound.value, std::max(4 * 3.0, 3 + 1 + 1 + 4 * 6.0));
}

TEST(CostModel, BoundsAStepBelowThePipelineFormula)
{
  // Stages of 10 and 1 with M = 4: 1F1B takes 40 + 1, the bound is 40, the formula gives 41.
  const auto workload = chain({10.0 / 3, 1.0 / 3});
  const auto devices = cluster({1, 1});
  const CostModel cost(workload, devices);
  const auto evaluation = cost.evaluate({{0, 0, 0}, {1, 1, 1}}, {Objective::Pipeline, Communication::None,
                                                                 choice_of(ChainSchedule::OneForwardOneBackward), 4});
  EXPECT_NEAR(evaluation.objective.value, 41, 1e-12);
  EXPECT_NEAR(evaluation.step_bound.value, 40, 1e-12);
}

TEST(CostModel, CountsTheLatencyOfOverlappedTransfersOnlyOnThePath)
{
  // 5 s of latency and 2 s of data each way after a stage of 1.5 s.
  const auto workload = chain({0.5, 0.5}, 0, 0, 20);
  const auto devices = cluster({1, 1}, {Seconds(5), BytesPerSecond(10)});
  const CostModel cost(workload, devices);
  const auto evaluate = [&](Objective objective, Communication communication) {
    return cost.evaluate({{0, 0, 0}, {1, 1, 1}}, {objective, communication, choice_of(ChainSchedule::GPipe), 4});
  };
  EXPECT_DOUBLE_EQ(evaluate(Objective::Bottleneck, Communication::Overlapped).objective.value, 2);
  EXPECT_DOUBLE_EQ(evaluate(Objective::Bottleneck, Communication::Serial).objective.value, 8.5);
  EXPECT_DOUBLE_EQ(evaluate(Objective::Pipeline, Communication::Overlapped).objective.value, 3 * 2 + 4);
  EXPECT_DOUBLE_EQ(evaluate(Objective::Bottleneck, Communication::Overlapped).sequential.value, 3 + 14);
}

TEST(CostModel, BoundsAStepByItsBusiestLane)
{
  // Four micro-batches cross in 2 s each way; one of them also takes its path of 3 + 14 s.
  const auto workload = chain({0.5, 0.5}, 0, 0, 20);
  const auto devices = cluster({1, 1}, {Seconds(5), BytesPerSecond(10)});
  const CostModel cost(workload, devices);
  const std::vector<StagePlacement> stages = {{0, 0, 0}, {1, 1, 1}};
  const Goal goal{Objective::Step, Communication::Played, choice_of(ChainSchedule::GPipe), 4};
  EXPECT_DOUBLE_EQ(cost.evaluate(stages, goal).step_bound.value, 3 * 2 + 17);
  // All forwards go there in 0.5 + 5 + 4 x 2 + 0.5, then all backwards in 1 + 5 + 4 x 2 + 1.
  EXPECT_DOUBLE_EQ(cost.evaluate(stages, goal).objective.value, 14 + 15);
  const Goal free{Objective::Step, Communication::None, choice_of(ChainSchedule::GPipe), 4};
  EXPECT_DOUBLE_EQ(cost.evaluate(stages, free).step_bound.value, 6 + 1.5);
  EXPECT_DOUBLE_EQ(cost.evaluate(stages, free).objective.value, 7.5);
}

TEST(CostModel, FetchesInputFromTheDataServer)
{
  auto workload = chain({1});
  workload.input = Bytes(20);
  auto devices = cluster({1}, {Seconds(0.5), BytesPerSecond(10)});
  devices.data_server = "server";
  const CostModel cost(workload, devices);
  const auto evaluation = cost.evaluate(
      {{0, 0, 0}}, {Objective::Sequential, Communication::Serial, choice_of(ChainSchedule::Sequential), 1});
  EXPECT_DOUBLE_EQ(evaluation.objective.value, 2.5 + 3);
  EXPECT_DOUBLE_EQ(evaluation.step_bound.value, 2.5 + 3);
  EXPECT_DOUBLE_EQ(evaluation.sequential.value, 2.5 + 3);
}

TEST(CostModel, EndsASequentialStepWithTheLastUpdate)
{
  // The second stage updates 50 parameters (100 s) while the first still works backward (2 s) and updates itself.
  auto workload = chain({1, 1});
  workload.layers[1].parameters = 50;
  const auto devices = cluster({1, 1});
  const CostModel cost(workload, devices);
  const Goal goal{Objective::Step, Communication::Played, choice_of(ChainSchedule::Sequential), 1};
  EXPECT_DOUBLE_EQ(cost.evaluate({{0, 0, 0}, {1, 1, 1}}, goal).objective.value, 6 - 2 + 100);
}

TEST(CostModel, CountsTrainingMemoryWithMicroBatchesInFlight)
{
  auto workload = chain({1, 1, 1}, 10, 100, 7);
  workload.optimizer = Optimizer::Adam;
  const auto devices = cluster({1});
  const CostModel cost(workload, devices);
  EXPECT_DOUBLE_EQ(cost.memory(1, 1, 3).value, 10 * 16 + 3 * 100 + 4 * 7);
  EXPECT_DOUBLE_EQ(cost.memory(0, 2, 1).value, 30 * 16 + 3 * 100);
  EXPECT_DOUBLE_EQ(cost.buffers(1).value, 2 * 7);
  EXPECT_DOUBLE_EQ(cost.buffers(3).value, 0);
}

TEST(CostModel, IgnoresTheScheduleInSkysEstimator)
{
  auto workload = chain({1, 1}, 10, 100, 7);
  workload.memory_model = MemoryModel::Sky;
  for (auto& layer : workload.layers) layer.sky_memory = Bytes(11);
  const auto devices = cluster({1});
  const CostModel cost(workload, devices);
  EXPECT_DOUBLE_EQ(cost.memory(0, 1, 1).value, 22);
  EXPECT_DOUBLE_EQ(cost.memory(0, 1, 50).value, 22);
  EXPECT_EQ(cost.buffers(1), Bytes(0));
  EXPECT_EQ(cost.workspace(), Bytes(0));
}

TEST(CostModel, UsesTheRateOfTheWorkloadsDtype)
{
  auto workload = chain({1});
  workload.dtype = DType::BFloat16;
  auto devices = cluster({1});
  devices.devices[0].speed_in[DType::BFloat16] = FlopsPerSecond(8);
  EXPECT_DOUBLE_EQ(CostModel(workload, devices).compute_time(0, 0, 0).value, 3.0 / 8);
}

TEST(MicrobatchesInFlight, FollowsTheSchedule)
{
  EXPECT_EQ(microbatches_in_flight(ChainSchedule::Sequential, 5, 8), 1u);
  EXPECT_EQ(microbatches_in_flight(ChainSchedule::GPipe, 5, 8), 8u);
  EXPECT_EQ(microbatches_in_flight(ChainSchedule::OneForwardOneBackward, 5, 8), 6u);
  EXPECT_EQ(microbatches_in_flight(ChainSchedule::OneForwardOneBackward, 20, 8), 8u);
}

TEST(BytesPerParameter, IsSixteenForMixedPrecisionAdam)
{
  EXPECT_EQ(parameter_bytes(DType::BFloat16, Optimizer::Adam).all(), 16);
  EXPECT_EQ(parameter_bytes(DType::Float32, Optimizer::Adam).all(), 16);
  EXPECT_EQ(parameter_bytes(DType::Float32, Optimizer::Sgd).all(), 8);
  EXPECT_EQ(parameter_bytes(DType::Float32, Optimizer::Momentum).all(), 12);
}

TEST(CostModel, SpeedingUpEveryDeviceDividesComputeTime)
{
  std::mt19937_64 random(7);
  for (int round = 0; round < 100; ++round) {
    const auto workload = testing_support::random_chain(random, 9);
    auto slow = testing_support::random_cluster(random, 5, 1e9);
    auto fast = slow;
    for (auto& device : fast.devices) device.speed *= 4;
    const auto stages = testing_support::random_placement(random, 9, 5);
    const Goal goal{Objective::Pipeline, Communication::None, choice_of(ChainSchedule::GPipe), 3};
    EXPECT_NEAR(CostModel(workload, slow).evaluate(stages, goal).objective.value,
                4 * CostModel(workload, fast).evaluate(stages, goal).objective.value, 1e-9);
  }
}

}  // namespace
}  // namespace isobar::cost_model_test
