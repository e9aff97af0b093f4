#include "results/utilization.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isobar::results::utilization_test {
namespace {

StageMetrics stage(const std::string& device, Seconds compute, Seconds idle)
{
  StageMetrics metrics;
  metrics.device = device;
  metrics.compute = compute;
  metrics.idle = idle;
  return metrics;
}

/// Two layers of 3 FLOP each on devices of 1 and 3 FLOP/s in float32 and, the second one, 5 in bf16.
struct Step {
  Workload workload;
  Cluster cluster;
  std::vector<StageMetrics> stages = {stage("a", Seconds(12), Seconds(4)), stage("b", Seconds(4), Seconds(12))};

  Step()
  {
    workload.micro_batch = 2;
    workload.sequence = 10;
    workload.layers.resize(2);
    for (auto& layer : workload.layers) layer.forward = Flops(1), layer.backward = Flops(2);
    cluster.devices.resize(3);
    const char* names[] = {"a", "b", "unused"};
    for (std::size_t i = 0; i < 3; ++i) cluster.devices[i].name = names[i];
    cluster.devices[0].speed = FlopsPerSecond(1);
    cluster.devices[1].speed = FlopsPerSecond(3);
    cluster.devices[1].speed_in[DType::BFloat16] = FlopsPerSecond(5);
    cluster.devices[2].speed = FlopsPerSecond(100);
  }
  Utilization of(bool measured = false) const
  {
    return utilization_of(workload, measured, cluster, stages, 4, Seconds(16));
  }
};

TEST(Utilization, CountsTokensModelWorkAndIdleDevices)
{
  const Utilization used = Step().of();
  EXPECT_EQ(used.tokens_per_s, 4 * 2 * 10 / 16.0);
  EXPECT_EQ(used.mfu_fraction, 4 * 6 / (16 * 4.0));
  EXPECT_EQ(used.bubble_fraction, 16 / 32.0);
}

TEST(Utilization, CountsADeviceWithSeveralStagesOnce)
{
  Step step;
  step.stages.push_back(stage("a", Seconds(4), Seconds(4)));
  EXPECT_EQ(step.of().mfu_fraction, Step().of().mfu_fraction);
  EXPECT_EQ(step.of().bubble_fraction, Step().of().bubble_fraction);
}

TEST(Utilization, UsesTheRatesOfTheWorkloadsDtype)
{
  Step step;
  step.workload.dtype = DType::BFloat16;
  EXPECT_EQ(step.of().mfu_fraction, 4 * 6 / (16 * 6.0));
}

TEST(Utilization, DoesNotCountRecomputation)
{
  Step step;
  const auto without = step.of().mfu_fraction;
  step.workload.recompute = {1};
  step.workload.layers[1].backward = Flops(3);
  EXPECT_EQ(step.of().mfu_fraction, without);
}

TEST(Utilization, HasNoTokensWithoutSequencesAndNoMfuOfMeasuredTimes)
{
  Step step;
  step.workload.sequence = 1;
  EXPECT_EQ(step.of().tokens_per_s, std::nullopt);
  EXPECT_EQ(step.of(true).mfu_fraction, std::nullopt);
  EXPECT_TRUE(step.of(true).bubble_fraction);
}

}  // namespace
}  // namespace isobar::results::utilization_test
