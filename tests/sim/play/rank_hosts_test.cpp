#include "sim/play/simulation.hpp"

#include "tests/support/simulated.hpp"
#include "tests/support/thrown_message.hpp"

#include <gtest/gtest.h>

namespace isobar::sim {
namespace {

TEST(RankHosts, AreTheDevicesOfThePlanThenTheDataServer)
{
  PlatformFile file("cluster");
  file.device("a", "2Gf");
  file.device("b", "3Gf", "", "<prop id=\"speed.fp16\" value=\"8 GFLOP/s\"/>");
  file.data_server("data");
  const Platform platform = file.load();
  Workload workload = equal_layers(2, Bytes(0), Bytes(0));
  workload.dtype = DType::Float16;
  const auto ranks =
      rank_hosts(one_layer_per_device({"b", "a"}, ChainSchedule::GPipe, 1), workload, platform.cluster());
  ASSERT_EQ(ranks.size(), 3U);
  EXPECT_EQ(ranks[0].host, "b");
  EXPECT_EQ(ranks[0].speed, FlopsPerSecond(8e9));
  EXPECT_EQ(ranks[1].host, "a");
  EXPECT_EQ(ranks[1].speed, FlopsPerSecond(2e9));
  EXPECT_EQ(ranks[2].host, "data");
  EXPECT_EQ(message_of([&] {
              rank_hosts(one_layer_per_device({"b", "c"}, ChainSchedule::GPipe, 1), workload, platform.cluster());
            }),
            "InputError cluster: there is no device c; the plan was made for another platform");
}

TEST(RankHosts, AreOnePerDeviceInTheOrderOfItsFirstStage)
{
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", "10ms");
  const Platform platform = file.load();
  const Plan plan = one_layer_per_device({"d1", "d0", "d1", "d0"}, ChainSchedule::GPipe, 1);
  const auto ranks = rank_hosts(plan, equal_layers(4, Bytes(0), Bytes(0)), platform.cluster());
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[0].host, "d1");
  EXPECT_EQ(ranks[1].host, "d0");
}

}  // namespace
}  // namespace isobar::sim
