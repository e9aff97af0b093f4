#include "exec/launch/world_profile.hpp"

#include "tests/exec/links/tcp_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace isobar::exec::world_profile_test {
namespace {

using testing::HasSubstr;
using testing::Not;

DeviceProfile some_device()
{
  DeviceProfile device;
  device.device = "G1";
  device.speed = FlopsPerSecond(8e9);
  device.memory = Bytes(12e9);
  LayerProfile layer;
  layer.name = "block";
  device.layers = {layer};
  return device;
}

MachineProfile some_machine()
{
  MachineProfile machine;
  machine.processor = "P1, 4 threads";
  machine.memory = Bytes(64e9);
  machine.update_speed = FlopsPerSecond(3e9);
  machine.busy_update_speed = FlopsPerSecond(2e9);
  machine.in = {Seconds(0.5), BytesPerSecond(7e9)};
  machine.out = {Seconds(0.25), BytesPerSecond(6e9)};
  machine.disk = DiskProfile{Bytes(1e12), BytesPerSecond(5e9), BytesPerSecond(4e9), true};
  return machine;
}

/// Two devices on one machine, and one on another; no links between them.
WorldProfile some_world()
{
  WorldProfile world;
  world.devices.assign(3, some_device());
  world.first_in_machine = {0, 0, 2};
  return world;
}

TEST(PlatformOf, HasNoMachinesThatWereNotMeasured)
{
  EXPECT_THAT(platform_of(some_world(), {1, 1, 1}, 1), Not(HasSubstr("machine")));
}

TEST(PlatformOf, HasEachMeasuredMachineOnceWithCopiesOfEachOfItsDevices)
{
  WorldProfile world = some_world();
  for (auto& device : world.devices) device.machine = some_machine();
  world.devices[1].machine->in.bandwidth = BytesPerSecond(9e9);
  world.devices[1].machine->memory = Bytes(1);  // the first device's counts
  world.devices[2].machine->memory = Bytes(32e9);
  world.devices[2].machine->disk.reset();
  const std::string platform = platform_of(world, {1, 4, 1}, 1);
  EXPECT_THAT(platform, HasSubstr(R"(    <host id="rank-1" speed="2000000000f">
      <prop id="memory" value="12000000000 B"/>
      <prop id="host" value="machine-0"/>
    </host>
    <host id="rank-2" speed="8000000000f">
      <prop id="memory" value="12000000000 B"/>
      <prop id="device" value="G1"/>
      <prop id="host" value="machine-2"/>
    </host>
    <host id="machine-0" speed="2000000000f,3000000000f">
      <prop id="role" value="machine"/>
      <prop id="memory" value="64000000000 B"/>
      <disk id="machine-0-disk" read_bw="5000000000Bps" write_bw="4000000000Bps"><prop id="capacity" value="1000000000000 B"/></disk>
    </host>
    <host id="machine-2" speed="2000000000f,3000000000f">
      <prop id="role" value="machine"/>
      <prop id="memory" value="32000000000 B"/>
    </host>
)"));
  EXPECT_THAT(platform, HasSubstr(R"(    <link id="in-1" bandwidth="9000000000Bps" latency="0.5s"/>
    <link id="out-1" bandwidth="6000000000Bps" latency="0.25s"/>
)"));
  EXPECT_THAT(platform, HasSubstr(R"(
    <route src="machine-0" dst="rank-1" symmetrical="NO"><link_ctn id="in-1"/></route>
    <route src="rank-1" dst="machine-0" symmetrical="NO"><link_ctn id="out-1"/></route>
    <route src="machine-2" dst="rank-2" symmetrical="NO"><link_ctn id="in-2"/></route>
)"));
}

TEST(MeasureThisMachine, MeasuresItOnceForAllRanks)
{
  int devices = 0;
  int machines = 0;
  Measurements measure;
  measure.device = [&] { return ++devices, some_device(); };
  EXPECT_FALSE(measure_this_machine(2, 1, measure).devices[0].machine);
  measure.machine = [&] { return ++machines, some_machine(); };
  const WorldProfile world = measure_this_machine(3, 1, measure);
  EXPECT_EQ(devices, 2);
  EXPECT_EQ(machines, 1);
  EXPECT_EQ(world.first_in_machine, (std::vector<std::size_t>{0, 0, 0}));
  for (const auto& device : world.devices) {
    EXPECT_EQ(device.memory, Bytes(4e9));
    EXPECT_EQ(device.machine.value().memory, Bytes(64e9));
  }
}

TEST(MeasureWorld, MeasuresAMachineFromEachOfItsDevicesInTurn)
{
  Ranks ranks(3);
  ranks.listeners.clear();  // each rank opens its own
  std::atomic<int> measuring = 0;
  std::atomic<int> devices = 0;
  std::atomic<int> machines = 0;
  std::optional<WorldProfile> world;
  std::vector<std::string> errors(3);
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Measurements measure;
      measure.device = [&] { return ++devices, some_device(); };
      measure.machine = [&, rank] {
        ++machines;
        EXPECT_EQ(++measuring, 1);
        pause(0.05);
        --measuring;
        MachineProfile machine = some_machine();
        machine.in.bandwidth = BytesPerSecond(1e9 * static_cast<double>(1 + rank));
        return machine;
      };
      errors[rank] = error_of([&] {
        auto measured = measure_world(rank, ranks.endpoints, 1, rank == 2 ? "cuda:0" : "cpu", measure, ranks.options);
        if (rank == 0) world = std::move(measured);
      });
    });
  }
  threads.clear();
  EXPECT_EQ(errors, std::vector<std::string>(3));
  EXPECT_EQ(devices, 2);
  EXPECT_EQ(machines, 2);
  ASSERT_TRUE(world);
  EXPECT_EQ(world->first_in_machine, (std::vector<std::size_t>{0, 0, 0}));
  EXPECT_EQ(world->devices[0].machine.value().in.bandwidth, BytesPerSecond(1e9));
  EXPECT_EQ(world->devices[1].machine.value().in.bandwidth, BytesPerSecond(1e9));
  EXPECT_EQ(world->devices[2].machine.value().in.bandwidth, BytesPerSecond(3e9));
}

}  // namespace
}  // namespace isobar::exec::world_profile_test
