#include "core/cluster/scaled_cluster.hpp"

#include <gtest/gtest.h>

namespace isobar::scaled_cluster_test {
namespace {

Cluster two_devices()
{
  Cluster cluster;
  for (const auto* name : {"a", "b"}) {
    Device device;
    device.name = name;
    device.speed = FlopsPerSecond(1e12);
    device.speed_in[DType::BFloat16] = FlopsPerSecond(4e12);
    device.memory = Bytes(1e9);
    device.machine = MachineLink{0, {Seconds(1e-5), BytesPerSecond(1e10)}, {Seconds(2e-5), BytesPerSecond(2e10)}};
    cluster.devices.push_back(device);
  }
  cluster.network = MatrixNetwork::uniform(2, {Seconds(1e-3), BytesPerSecond(1e9)});
  return cluster;
}

TEST(ScaledCluster, HasFactorsOnSpeedsAndPathsAndNothingElse)
{
  const Cluster cluster = two_devices();
  const Cluster other = scaled(cluster, {.speed = 2, .bandwidth = 0.5, .latency = 3});
  ASSERT_EQ(other.devices.size(), 2U);
  EXPECT_EQ(other.devices[1].name, "b");
  EXPECT_DOUBLE_EQ(other.devices[1].speed.value, 2e12);
  EXPECT_DOUBLE_EQ(other.devices[1].speed_at(DType::BFloat16).value, 8e12);
  EXPECT_DOUBLE_EQ(other.devices[1].memory.value, 1e9);
  EXPECT_DOUBLE_EQ(other.path(0, 1).latency.value, 3e-3);
  EXPECT_DOUBLE_EQ(other.path(0, 1).bandwidth.value, 0.5e9);
  EXPECT_DOUBLE_EQ(other.devices[0].machine->in.bandwidth.value, 0.5e10);
  EXPECT_DOUBLE_EQ(other.devices[0].machine->out.latency.value, 6e-5);
  EXPECT_EQ(other.network->links(0, 1), cluster.network->links(0, 1));
  const std::string link = cluster.network->links(0, 1).front();
  EXPECT_DOUBLE_EQ(other.network->path_with(0, 1, link, 4).bandwidth.value, 2e9);
  EXPECT_DOUBLE_EQ(cluster.path(0, 1).bandwidth.value, 1e9);
}

TEST(ScaledCluster, IsTheSameWithFactorsOfOne)
{
  const Cluster cluster = two_devices();
  EXPECT_EQ(cluster_to_json(scaled(cluster, {})), cluster_to_json(cluster));
}

}  // namespace
}  // namespace isobar::scaled_cluster_test
