#include "core/cluster/nodes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace isobar::nodes_test {

namespace {

using testing::ElementsAre;

Cluster cluster_of(std::size_t devices)
{
  Cluster cluster;
  for (std::size_t i = 0; i < devices; ++i) {
    Device device;
    device.name = "d" + std::to_string(i);
    cluster.devices.push_back(device);
  }
  return cluster;
}

TEST(Nodes, AreDevicesThatTheFirstOneReachesFastest)
{
  Cluster cluster = cluster_of(5);
  std::vector<Path> paths;
  for (std::size_t from = 0; from < 5; ++from) {
    for (std::size_t to = 0; to < 5; ++to) {
      const bool is_near = (from % 2) == (to % 2);
      paths.push_back({Seconds(1e-5), BytesPerSecond(is_near ? 150e9 : 12.5e9)});
    }
  }
  cluster.network = std::make_shared<MatrixNetwork>(5, paths);
  EXPECT_THAT(nodes_of(cluster), ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3)));
}

TEST(Nodes, AreTheMachinesThatThePlatformNames)
{
  Cluster cluster = cluster_of(3);
  cluster.network = MatrixNetwork::uniform(3, {Seconds(1e-5), BytesPerSecond(1e9)});
  EXPECT_THAT(nodes_of(cluster), ElementsAre(ElementsAre(0, 1, 2)));
  for (auto& device : cluster.devices) device.machine = MachineLink{};
  cluster.devices[1].machine->machine = 1;
  EXPECT_THAT(nodes_of(cluster), ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
}

TEST(Nodes, HoldALoneDeviceEach)
{
  Cluster cluster = cluster_of(1);
  cluster.network = MatrixNetwork::uniform(1, {Seconds(0), BytesPerSecond(1e9)});
  EXPECT_THAT(nodes_of(cluster), ElementsAre(ElementsAre(0)));
}

}  // namespace

}  // namespace isobar::nodes_test
