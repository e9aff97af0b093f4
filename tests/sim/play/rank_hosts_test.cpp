#include "sim/play/simulation.hpp"

#include "tests/support/simulated.hpp"
#include "tests/support/thrown_message.hpp"

#include <gtest/gtest.h>

namespace isobar::sim::rank_hosts_test {
namespace {

TEST(RankHosts, AreTheDevicesOfThePlanThenTheDataServer)
{
  PlatformFile file("cluster");
  file.device("a", "2Gf");
  file.device("b", "3Gf", "", "<prop id=\"speed.fp16\" value=\"8 GFLOP/s\"/>");
  file.data_server("data");
  const Platform platform = file.load();
  const auto ranks = rank_hosts(one_layer_per_device({"b", "a"}, ChainSchedule::GPipe, 1), platform.cluster());
  ASSERT_EQ(ranks.size(), 3U);
  EXPECT_EQ(ranks[0].host, "b");
  EXPECT_EQ(ranks[1].host, "a");
  EXPECT_EQ(ranks[2].host, "data");
  EXPECT_EQ(message_of([&] {
              rank_hosts(one_layer_per_device({"b", "c"}, ChainSchedule::GPipe, 1), platform.cluster());
            }),
            "InputError cluster: there is no device c; the plan was made for another platform");
}

TEST(RankHosts, HaveTheMachineOfTheirDeviceAtTheRatesOfThePlansSystem)
{
  PlatformFile file;
  file.device("a", "1Gf", "", "<prop id=\"host\" value=\"cpu\"/>");
  file.device("b", "1Gf", "", "<prop id=\"host\" value=\"cpu\"/>");
  file.machine("cpu", "2Gf,3Gf",
               "<disk id=\"nvme\" read_bw=\"2GBps\" write_bw=\"1GBps\"><prop id=\"capacity\" value=\"1 TB\"/></disk>");
  file.link("pcie", "10GBps", "1us");
  for (const std::string device : {"a", "b"}) {
    file.route("cpu", device, {"pcie"});
    file.route(device, "cpu", {"pcie"});
  }
  file.systems("l2l: {copy_bandwidth: 4.2 GB/s, update_speed: 7 GFLOP/s, backward_delay: 373 ms}\n");
  const Platform platform = file.load();
  Plan plan = one_layer_per_device({"b"}, ChainSchedule::GPipe, 1);
  plan.system = TrainingSystem{"l2l"};
  const auto ranks = rank_hosts(plan, platform.cluster());
  ASSERT_TRUE(ranks.at(0).machine.has_value());
  const RankMachine& machine = *ranks[0].machine;
  EXPECT_EQ(machine.host, "cpu");
  EXPECT_EQ(machine.disk, "nvme");
  EXPECT_EQ(machine.rates.in.bandwidth, BytesPerSecond(4.2e9));
  EXPECT_EQ(machine.rates.out.latency, Seconds(1e-6));
  EXPECT_EQ(machine.rates.read.bandwidth, BytesPerSecond(2e9));
  EXPECT_EQ(machine.rates.update_speed, FlopsPerSecond(7e9));
  EXPECT_EQ(machine.rates.backward_delay, Seconds(0.373));
}

TEST(RankHosts, AreOnePerDeviceInTheOrderOfItsFirstStage)
{
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", "10ms");
  const Platform platform = file.load();
  const Plan plan = one_layer_per_device({"d1", "d0", "d1", "d0"}, ChainSchedule::GPipe, 1);
  const auto ranks = rank_hosts(plan, platform.cluster());
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[0].host, "d1");
  EXPECT_EQ(ranks[1].host, "d0");
}

}  // namespace
}  // namespace isobar::sim::rank_hosts_test
