#include "core/check/schedule_bound.hpp"

#include "core/costs/cost_model.hpp"
#include "tests/support/instances.hpp"

#include <gtest/gtest.h>

namespace isobar::schedule_bound_test {
namespace {

using testing_support::chain;
using testing_support::cluster;
using testing_support::plan_of;

/// Two stages and 8 micro-batches. The first stage takes 1.5 s and 3 s, the second 1 s and 2 s, a hop 1 s.
struct TwoDevices {
  Workload workload = chain({1, 1, 1, 1}, 1, 10, 2);
  Cluster devices = cluster({1, 2}, {Seconds(0.5), BytesPerSecond(4)}, 200);
  Plan plan = plan_of({{1, 0, 2}, {0, 3, 3}}, CostModel(workload, devices), Goal{.microbatches = 8});

  double bound() const { return least_step_of_orders(plan, {1, 0}, workload, devices); }
};

TEST(LeastStepOfOrders, IsTheWorkOfTheBusiestDeviceWhereMemoryAllows)
{
  EXPECT_EQ(TwoDevices().bound(), 8 * 4.5);
}

TEST(LeastStepOfOrders, CountsTheIdleTimeOfADeviceThatIsFull)
{
  TwoDevices two;
  // Room for two micro-batches: the first backward begins 6.5 s after the first forward, and 3 s of these are busy.
  two.devices.devices[1].memory = Bytes(88);
  EXPECT_EQ(two.bound(), 8 * 4.5 + 3.5);
}

TEST(LeastStepOfOrders, BeginsWithTheFirstInput)
{
  TwoDevices two;
  two.workload.input = Bytes(8);
  two.devices.data_server = "server";
  EXPECT_EQ(two.bound(), 0.5 + 8.0 / 4 + 8 * 4.5);
}

TEST(LeastStepOfOrders, CountsTheInputsOfASlowLane)
{
  TwoDevices two;
  two.workload.input = Bytes(40);
  two.devices.data_server = "server";
  // Eight inputs of 10 s, and the last one there and back: 4.5 + 3 + 2 * 1.
  EXPECT_EQ(two.bound(), 0.5 + 8 * 10 + 9.5);
}

}  // namespace
}  // namespace isobar::schedule_bound_test
