#include "core/cluster/cluster.hpp"

#include "core/errors.hpp"
#include "tests/support/instances.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <optional>

namespace isobar::cluster_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Throws;
using testing::ThrowsMessage;

TEST(WithoutDevices, KeepsTheOthersWithTheirPaths)
{
  std::mt19937_64 random(1);
  auto whole = testing_support::random_cluster(random, 5, 1e9);
  whole.data_server = "server";
  std::vector<Path> paths;
  for (int i = 0; i < 36; ++i) paths.push_back({Seconds(i), BytesPerSecond(1 + i)});
  whole.network = std::make_shared<const MatrixNetwork>(6, paths);
  const auto rest =
      without_devices(whole, {whole.devices[3].name, whole.devices[0].name, whole.devices[3].name}, "--without");
  const std::vector<std::size_t> kept = {1, 2, 4, 5};
  ASSERT_EQ(rest.devices.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(rest.devices[i].name, whole.devices[kept[i]].name);
  EXPECT_EQ(rest.data_server, whole.data_server);
  for (std::size_t from = 0; from < 4; ++from) {
    for (std::size_t to = 0; to < 4; ++to) {
      if (from == to) continue;
      EXPECT_EQ(rest.path(from, to).latency, whole.path(kept[from], kept[to]).latency);
      EXPECT_EQ(rest.network->links(from, to), whole.network->links(kept[from], kept[to]));
      const auto link = rest.network->links(from, to).front();
      EXPECT_EQ(rest.network->path_with(from, to, link, 2).bandwidth, 2 * whole.path(kept[from], kept[to]).bandwidth);
    }
  }
}

/// Devices d0, d1 and d2, of which d0 and d2 are in a machine each.
Cluster devices_in_machines()
{
  Cluster cluster = testing_support::cluster({1, 2, 3});
  const Disk disk{"nvme", Bytes(1e12), BytesPerSecond(2e9), BytesPerSecond(1e9)};
  cluster.machines = {{"cpu0", Bytes(64e9), FlopsPerSecond(4e9), FlopsPerSecond(2e9), std::nullopt},
                      {"cpu1", Bytes(32e9), FlopsPerSecond(1e9), FlopsPerSecond(1e9), disk}};
  const Path in{Seconds(1e-5), BytesPerSecond(12e9)};
  const Path out{Seconds(2e-5), BytesPerSecond(6e9)};
  cluster.devices[0].machine = MachineLink{0, in, out};
  cluster.devices[2].machine = MachineLink{1, in, out};
  return cluster;
}

TEST(WithoutDevices, KeepsTheMachinesOfTheOthers)
{
  const auto rest = without_devices(devices_in_machines(), {"d0"}, "--without");
  ASSERT_EQ(rest.devices.size(), 2U);
  EXPECT_FALSE(rest.devices[0].machine.has_value());
  EXPECT_EQ(rest.machines.at(rest.devices[1].machine->machine).name, "cpu1");
}

TEST(ClusterToJson, HasTheMachinesOfDevices)
{
  const auto json = nlohmann::json::parse(cluster_to_json(devices_in_machines()));
  EXPECT_EQ(json["machines"], nlohmann::json::parse(R"([
    {"name": "cpu0", "memory_bytes": 64e9, "update_flops_per_s": 4e9, "busy_update_flops_per_s": 2e9, "disk": null},
    {"name": "cpu1", "memory_bytes": 32e9, "update_flops_per_s": 1e9, "busy_update_flops_per_s": 1e9,
     "disk": {"name": "nvme", "capacity_bytes": 1e12, "read_bytes_per_s": 2e9, "write_bytes_per_s": 1e9}}])"));
  EXPECT_EQ(json["devices"][0]["machine"], nlohmann::json::parse(R"({"name": "cpu0", "in_latency_s": 1e-5,
    "in_bytes_per_s": 12e9, "out_latency_s": 2e-5, "out_bytes_per_s": 6e9})"));
  EXPECT_TRUE(json["devices"][1]["machine"].is_null());
}

TEST(ClusterToJson, SaysNothingOfMachinesWhereThereAreNone)
{
  const auto json = nlohmann::json::parse(cluster_to_json(testing_support::cluster({1, 2})));
  EXPECT_FALSE(json.contains("machines"));
  EXPECT_FALSE(json["devices"][0].contains("machine"));
}

/// Four devices; d3 has no site, and d2 has the name of another's site.
Cluster devices_at_sites()
{
  auto cluster = testing_support::cluster({1, 2, 3, 4});
  cluster.devices[0].site = "fra";
  cluster.devices[1].site = "d2";
  cluster.devices[2].site = "fra";
  return cluster;
}

TEST(DevicesNamed, AreAllDevicesOfASite)
{
  const auto cluster = devices_at_sites();
  EXPECT_THAT(devices_named(cluster, {"d3", "fra"}, "--without"), ElementsAre("d3", "d0", "d2"));
  EXPECT_THAT(devices_named(cluster, {"d2", "fra", "d0"}, "--without"), ElementsAre("d2", "d0"))
      << "a name of a device and a site is the device";
  EXPECT_THAT(devices_named(cluster, {}, "--without"), IsEmpty());
}

TEST(DevicesNamed, RefuseNamesOfNeitherADeviceNorASite)
{
  EXPECT_THAT(
      [] {
        devices_named(devices_at_sites(), {"d0", "fran"}, "--without");
      },
      ThrowsMessage<InputError>("--without: \"fran\" is neither a device nor a site of cluster; its devices are "
                                "d0, d1, d2, d3; its sites are fra, d2"));
  EXPECT_THAT([] { devices_named(devices_at_sites(), {""}, "--without"); }, Throws<InputError>());
  EXPECT_THAT(
      [] {
        devices_named(testing_support::cluster({1, 2}), {"fra"}, "--without");
      },
      ThrowsMessage<InputError>("--without: \"fra\" is not a device of cluster; its devices are d0, d1"));
}

TEST(WithoutDevices, NamesTheExistingDevices)
{
  const auto whole = testing_support::cluster({1, 2});
  EXPECT_THAT([&] { without_devices(whole, {"d2"}, "--without"); },
              ThrowsMessage<InputError>("--without: \"d2\" is not a device of cluster; its devices are d0, d1"));
  EXPECT_THAT(
      [&] {
        without_devices(whole, {"d1", "d0"}, "--without");
      },
      ThrowsMessage<InputError>("--without: leaves out every device of cluster"));
}

}  // namespace
}  // namespace isobar::cluster_test
