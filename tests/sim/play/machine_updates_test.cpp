#include "core/base/child_process.hpp"
#include "tests/support/simulated.hpp"
#include "tests/support/thrown_message.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

// Updates on the processors of machines.
namespace isobar::sim::machine_updates_test {
namespace {

constexpr double exact = 1e-9;

/// Devices d0, d1, … at 1 GFLOP/s in the machine "cpu".
void devices_in_a_machine(PlatformFile& file, std::size_t devices, const std::string& update_speeds,
                          const std::string& attributes = "")
{
  file.machine("cpu", update_speeds, "", attributes);
  for (const auto& name : names(devices)) {
    file.device(name, "1Gf", "", "<prop id=\"host\" value=\"cpu\"/>");
    file.link("pcie " + name, "100MBps", "10ms");
    file.route(name, "cpu", {"pcie " + name});
    file.route("cpu", name, {"pcie " + name});
  }
}

/// The hosts of d0, d1, … with their machines, for a plan of a system.
std::vector<RankHost> hosts_of(const Platform& platform, std::size_t devices, const std::string& system = "")
{
  Plan plan = one_layer_per_device(names(devices), ChainSchedule::GPipe, 1);
  if (!system.empty()) plan.system = TrainingSystem{system};
  return rank_hosts(plan, platform.cluster());
}

std::vector<TraceEvent> updates_of(const Platform& platform, const Program& program, std::size_t rank = 0,
                                   const std::string& system = "")
{
  EventList trace;
  simulate(platform, program, hosts_of(platform, program.ranks(), system), 1, &trace);
  return events_of(trace.events, Opcode::Update, rank);
}

TEST(UpdatesOnMachines, RunAtTheRateOfAnIdleDevice)
{
  PlatformFile file;
  devices_in_a_machine(file, 1, "2Gf,4Gf");
  const Platform platform = file.load();
  ListedProgram program(1);
  program.update_on_machine(0, Flops(8e9) / FlopsPerSecond(4e9));
  program.update_on_machine(0, Flops(2e9) / FlopsPerSecond(4e9));
  program.update_on_machine(0, Flops(0) / FlopsPerSecond(4e9));
  const auto updates = updates_of(platform, program);
  EXPECT_NEAR(updates.at(0).end.value, 2, exact);
  EXPECT_NEAR(updates.at(1).end.value, 2.5, exact);
  EXPECT_NEAR(updates.at(2).end.value, 2.5, exact);
}

TEST(UpdatesOnMachines, ChangeTheirRateWhenTheDeviceBeginsAndEndsToCompute)
{
  PlatformFile file;
  devices_in_a_machine(file, 1, "2Gf,4Gf");
  const Platform platform = file.load();
  ListedProgram program(1);
  program.update_on_machine(0, Flops(4e9) / FlopsPerSecond(4e9));
  program.compute(0, Seconds(1), Wait{program.lane_of(0, Engine::Host), 0, 1});
  program.update_on_machine(0, Flops(10e9) / FlopsPerSecond(4e9));
  const auto updates = updates_of(platform, program);
  EXPECT_NEAR(updates.at(0).end.value, 1, exact);
  EXPECT_NEAR(updates.at(1).end.value, 2 + 8.0 / 4, exact) << "2 GFLOP while the device computes, 8 after it";
}

TEST(UpdatesOnMachines, KeepTheSlowRateFromOneComputationToTheNext)
{
  PlatformFile file;
  devices_in_a_machine(file, 1, "2Gf,4Gf");
  const Platform platform = file.load();
  ListedProgram program(1);
  for (int i = 0; i < 1000; ++i) program.compute(0, Seconds(0.001));  // 1 ms each
  program.update_on_machine(0, Flops(6e9) / FlopsPerSecond(4e9));
  EventList trace;
  const auto report = simulate(platform, program, hosts_of(platform, 1), 1, &trace);
  EXPECT_NEAR(events_of(trace.events, Opcode::Update, 0).at(0).end.value, 2, exact) << "2 GFLOP in the first second";
  EXPECT_EQ(report.activities, 1001U);
}

TEST(UpdatesOnMachines, KeepTheirTotalOverManyChangesOfTheirRate)
{
  PlatformFile file;
  devices_in_a_machine(file, 1, "1Gf,3Gf");
  const Platform platform = file.load();
  ListedProgram program(1);
  const LaneId loads = program.lane_of(0, Engine::CopyIn);
  for (std::uint64_t i = 0; i < 200; ++i) {
    program.copy(0, Opcode::Load, Bytes(0), i == 0 ? Waits() : Waits(after_compute(i)));  // 10 ms
    program.compute(0, Seconds(0.03), Wait{loads, 0, i + 1});                             // 30 ms
  }
  program.update_on_machine(0, Flops(12e9) / FlopsPerSecond(3e9));  // 60 MFLOP in each 40 ms
  EXPECT_NEAR(updates_of(platform, program).at(0).end.value, 8, 1e-8);
}

TEST(UpdatesOnMachines, AreSlowedByEachDeviceOfTheirMachineAndNoOther)
{
  PlatformFile file;
  devices_in_a_machine(file, 2, "1Gf,2Gf");
  file.machine("other", "1Gf,2Gf");
  file.device("d2", "1Gf", "", "<prop id=\"host\" value=\"other\"/>");
  file.link("pcie", "100MBps", "10ms");
  file.route("d2", "other", {"pcie"});
  file.route("other", "d2", {"pcie"});
  const Platform platform = file.load();
  ListedProgram program(3);
  program.compute(1, Seconds(1));
  program.update_on_machine(0, Flops(4e9) / FlopsPerSecond(2e9));
  program.update_on_machine(2, Flops(4e9) / FlopsPerSecond(2e9));
  EventList trace;
  simulate(platform, program, hosts_of(platform, 3), 1, &trace);
  EXPECT_NEAR(events_of(trace.events, Opcode::Update, 0).at(0).end.value, 1 + 3.0 / 2, exact);
  EXPECT_NEAR(events_of(trace.events, Opcode::Update, 2).at(0).end.value, 2, exact);
}

TEST(UpdatesOnMachines, OfSeveralRanksShareTheMachine)
{
  PlatformFile file;
  devices_in_a_machine(file, 2, "1Gf,2Gf");
  const Platform platform = file.load();
  ListedProgram program(2);
  program.compute(0, Seconds(1));
  program.update_on_machine(0, Flops(1e9) / FlopsPerSecond(2e9));
  program.update_on_machine(1, Flops(3e9) / FlopsPerSecond(2e9));
  EventList trace;
  simulate(platform, program, hosts_of(platform, 2), 1, &trace);
  // 0.5 GFLOP each in the first second, at half of 1 GFLOP/s; then half of 2 GFLOP/s, and all of it from 1.5 s on.
  EXPECT_NEAR(events_of(trace.events, Opcode::Update, 0).at(0).end.value, 1.5, exact);
  EXPECT_NEAR(events_of(trace.events, Opcode::Update, 1).at(0).end.value, 1.5 + 2.0 / 2, exact);
}

TEST(UpdatesOnMachines, HaveACoreEach)
{
  PlatformFile file;
  devices_in_a_machine(file, 3, "1Gf,2Gf", "core=\"2\"");
  const Platform platform = file.load();
  ListedProgram program(3);
  for (std::size_t rank = 0; rank < 3; ++rank) program.update_on_machine(rank, Flops(4e9) / FlopsPerSecond(2e9));
  program.compute(0, Seconds(1));
  const auto updates = updates_of(platform, program);
  // Two cores for three updates: 2/3 GFLOP each in the first second, then 4/3 GFLOP/s.
  EXPECT_NEAR(updates.at(0).end.value, 1 + (4 - 2.0 / 3) / (4.0 / 3), exact);
}

TEST(UpdatesOnMachines, RunAtTheMeasuredRatesOfTheSystem)
{
  PlatformFile file;
  devices_in_a_machine(file, 1, "2Gf,4Gf");
  file.systems("both: {update_speed: 8 GFLOP/s, busy_update_speed: 5 GFLOP/s}\none: {update_speed: 1 GFLOP/s}\n");
  const Platform platform = file.load();
  const auto end = [&](const std::string& system) {
    return number_from_child([&] {
      ListedProgram program(1);
      program.compute(0, Seconds(1));
      const auto hosts = hosts_of(platform, 1, system);
      program.update_on_machine(0, Flops(13e9) / hosts.at(0).machine.value().rates.update_speed);
      return updates_of(platform, program, 0, system).at(0).end.value;
    });
  };
  EXPECT_NEAR(end("both"), 2, exact);
  EXPECT_NEAR(end("one"), 13, exact);
  EXPECT_NEAR(end(""), 1 + 11.0 / 4, exact);
}

TEST(UpdatesOnMachines, MayEndAtTheTimeAtWhichTheirRateChanges)
{
  PlatformFile file;
  devices_in_a_machine(file, 1, "2Gf,4Gf");
  const Platform platform = file.load();
  ListedProgram program(1);
  program.compute(0, Seconds(1));
  program.update_on_machine(0, Flops(2e9) / FlopsPerSecond(4e9));
  program.update_on_machine(0, Flops(4e9) / FlopsPerSecond(4e9));
  EventList trace;
  const auto report = simulate(platform, program, hosts_of(platform, 1), 1, &trace);
  const auto updates = events_of(trace.events, Opcode::Update, 0);
  EXPECT_NEAR(updates.at(0).end.value, 1, exact);
  EXPECT_NEAR(updates.at(1).end.value, 2, exact);
  EXPECT_EQ(report.activities, 3U);
}

TEST(UpdatesOnMachines, FollowTheProfileOfTheirMachine)
{
  PlatformFile file;
  const auto profile = file.profile("half.profile", "0 1\n1 0.5\n");
  devices_in_a_machine(file, 1, "2Gf", fmt::format("speed_file=\"{}\"", profile));
  const Platform platform = file.load();
  ListedProgram program(1);
  program.update_on_machine(0, Flops(4e9) / FlopsPerSecond(2e9));
  EXPECT_NEAR(updates_of(platform, program).at(0).end.value, 3, exact);
}

std::string fault_of(PlatformFile& file, const Program& program)
{
  const Platform platform = file.load();
  return message_of([&] { simulate(platform, program, hosts_of(platform, 1), 1, nullptr); });
}

TEST(UpdatesOnMachines, NeedAMachine)
{
  PlatformFile file;
  file.device("d0", "1Gf");
  ListedProgram program(1);
  program.update_on_machine(0, Seconds(1));
  EXPECT_EQ(fault_of(file, program),
            "InputError test: device d0 is in no machine, and Update (rank 0, step 0) needs one; name it with the prop "
            "host");
}

TEST(UpdatesOnMachines, EndTheRunWhenTheirMachineIsOff)
{
  PlatformFile file;
  const auto profile = file.profile("off.profile", "0.5 0\n");
  devices_in_a_machine(file, 1, "2Gf", fmt::format("state_file=\"{}\"", profile));
  ListedProgram program(1);
  program.update_on_machine(0, Flops(4e9) / FlopsPerSecond(2e9));
  EXPECT_EQ(fault_of(file, program),
            "InputError test: host cpu is off at 0.5 s, and Update (rank 0, step 0) needs it; the hosts and links of a "
            "plan must stay on");
}

TEST(UpdatesOnMachines, EndTheRunWhenTheirMachineStandsStillForGood)
{
  PlatformFile file;
  const auto profile = file.profile("still.profile", "0.5 0\n");
  devices_in_a_machine(file, 1, "2Gf", fmt::format("speed_file=\"{}\"", profile));
  ListedProgram program(1);
  program.update_on_machine(0, Flops(4e9) / FlopsPerSecond(2e9));
  EXPECT_EQ(
      fault_of(file, program),
      "InputError test: host cpu stands still: nothing has completed since 0 s, and Update (rank 0, step 0) waits "
      "for it; let its profile rise above 0 again");
}

}  // namespace
}  // namespace isobar::sim::machine_updates_test
