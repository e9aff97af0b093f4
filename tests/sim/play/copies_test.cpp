#include "tests/support/simulated.hpp"
#include "tests/support/thrown_message.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

// Copies between devices and their machines, and of the machines' disks.
namespace isobar::sim::copies_test {
namespace {

constexpr double exact = 1e-9;

const std::string disk =
    "<disk id=\"nvme\" read_bw=\"400MBps\" write_bw=\"200MBps\"><prop id=\"capacity\" value=\"1 TB\"/></disk>";

/// Devices d0, d1, … at 1 GFLOP/s in the machine "cpu". Each has a link of its own to the machine and one back, 100
/// MB/s and 10 ms.
void devices_in_a_machine(PlatformFile& file, std::size_t devices, const std::string& attributes_of_in = "")
{
  for (std::size_t i = 0; i < devices; ++i) {
    const std::string name = fmt::format("d{}", i);
    file.device(name, "1Gf", "", "<prop id=\"host\" value=\"cpu\"/>");
    file.link("in " + name, "100MBps", "10ms", attributes_of_in);
    file.link("out " + name, "100MBps", "10ms");
    file.route("cpu", name, {"in " + name});
    file.route(name, "cpu", {"out " + name});
  }
  file.machine("cpu", "1Gf", disk);
}

/// Plays a program whose rank i is device i of d0, d1, …
SimulationReport play(const Platform& platform, const Program& program, TraceSink* sink = nullptr,
                      const std::string& system = "", std::uint64_t steps = 1)
{
  Plan plan = one_layer_per_device(names(program.ranks()), ChainSchedule::GPipe, 1);
  if (!system.empty()) plan.system = TrainingSystem{system};
  const Workload workload = equal_layers(program.ranks(), Bytes(0), Bytes(0));
  return simulate(platform, program, rank_hosts(plan, platform.cluster()), steps, sink);
}

TEST(Copies, TakeTheLatencyAndTheDataOneAfterTheOther)
{
  PlatformFile file;
  devices_in_a_machine(file, 1);
  const Platform platform = file.load();
  ListedProgram program(1);
  for (int i = 0; i < 3; ++i) program.copy(0, Opcode::Load, Bytes(1e7));
  EventList trace;
  const auto report = play(platform, program, &trace);
  const auto loads = events_of(trace.events, Opcode::Load, 0);
  ASSERT_EQ(loads.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(loads[i].begin.value, 0.11 * static_cast<double>(i), exact);
    EXPECT_NEAR(loads[i].end.value, 0.11 * static_cast<double>(i + 1), exact);
  }
  EXPECT_EQ(report.activities, 3U);
  ASSERT_EQ(report.links.size(), 1U);
  EXPECT_EQ(report.links[0].name, "in d0");
  EXPECT_EQ(report.links[0].bytes, Bytes(3e7));
  EXPECT_NEAR(report.links[0].busy_time.value, 0.3, exact);
}

TEST(Copies, InBothDirectionsAtOnceDoNotDisturbEachOther)
{
  PlatformFile file;
  devices_in_a_machine(file, 1);
  const Platform platform = file.load();
  ListedProgram program(1);
  program.copy(0, Opcode::Load, Bytes(1e7));
  program.copy(0, Opcode::Store, Bytes(3e7));
  EventList trace;
  play(platform, program, &trace);
  EXPECT_NEAR(events_of(trace.events, Opcode::Load, 0).at(0).end.value, 0.11, exact);
  EXPECT_NEAR(events_of(trace.events, Opcode::Store, 0).at(0).end.value, 0.31, exact);
}

TEST(Copies, WithoutBytesTakeTheLatency)
{
  PlatformFile file;
  devices_in_a_machine(file, 1);
  const Platform platform = file.load();
  ListedProgram program(1);
  program.copy(0, Opcode::Load, Bytes(0));
  program.copy(0, Opcode::Read, Bytes(0));
  EventList trace;
  play(platform, program, &trace);
  EXPECT_NEAR(events_of(trace.events, Opcode::Load, 0).at(0).end.value, 0.01, exact);
  EXPECT_EQ(events_of(trace.events, Opcode::Read, 0).at(0).end, Seconds(0));
}

/// When the load of each device ends.
std::vector<double> ends_of_loads(const EventList& trace, std::size_t ranks)
{
  std::vector<double> ends;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    ends.push_back(events_of(trace.events, Opcode::Load, rank).at(0).end.value);
  }
  return ends;
}

TEST(Copies, OfDevicesBehindOneSwitchShareItsLink)
{
  PlatformFile file;
  file.machine("cpu", "1Gf");
  file.link("switch", "100MBps", "5ms");
  for (const std::string name : {"d0", "d1"}) {
    file.device(name, "1Gf", "", "<prop id=\"host\" value=\"cpu\"/>");
    file.link("pcie " + name, "100MBps", "5ms");
    file.route("cpu", name, {"switch", "pcie " + name});
    file.route(name, "cpu", {"pcie " + name, "switch"});
  }
  const Platform platform = file.load();
  ListedProgram program(2);
  program.copy(0, Opcode::Load, Bytes(1e7));
  program.copy(1, Opcode::Load, Bytes(3e7));
  EventList trace;
  const auto report = play(platform, program, &trace);
  const auto ends = ends_of_loads(trace, 2);
  EXPECT_NEAR(ends[0], 0.01 + 0.2, exact) << "half the switch";
  EXPECT_NEAR(ends[1], 0.01 + 0.4, exact) << "half of it until the other has ended, then all";
  EXPECT_EQ(report.links.back().name, "switch");
  EXPECT_EQ(report.links.back().bytes, Bytes(4e7));
}

TEST(Copies, OfASystemAreNoFasterThanItWasMeasured)
{
  PlatformFile file;
  devices_in_a_machine(file, 1);
  file.systems("pageable: {copy_bandwidth: 25 MB/s}\nfast: {copy_bandwidth: 1 GB/s}\n");
  const Platform platform = file.load();
  const auto end = [&](const std::string& system, Opcode opcode) {
    return number_from_child([&] {
      ListedProgram program(1);
      program.copy(0, opcode, Bytes(1e7));
      return step_time(play(platform, program, nullptr, system)).value;
    });
  };
  for (const Opcode opcode : {Opcode::Load, Opcode::Store}) {
    EXPECT_NEAR(end("", opcode), 0.11, exact);
    EXPECT_NEAR(end("pageable", opcode), 0.41, exact);
    EXPECT_NEAR(end("fast", opcode), 0.11, exact) << "the links are slower";
    EXPECT_NEAR(end("unknown", opcode), 0.11, exact);
  }
}

TEST(Copies, OfParametersForABackwardPassStartAfterTheDelayOfTheSystem)
{
  PlatformFile file;
  devices_in_a_machine(file, 1);
  file.systems("slow: {backward_delay: 300 ms}\n");
  const Platform platform = file.load();
  ListedProgram program(1);
  program.copy(0, Opcode::Load, Bytes(1e7), {}, Payload::Parameter);
  program.copy(0, Opcode::Load, Bytes(1e7), {}, Payload::Parameter).pass = Opcode::Backward;
  program.copy(0, Opcode::Load, Bytes(1e7), {}, Payload::Activation).pass = Opcode::Backward;
  program.copy(0, Opcode::Store, Bytes(1e7), {}, Payload::Parameter).pass = Opcode::Backward;
  EventList trace;
  const auto report = play(platform, program, &trace, "slow");
  const auto loads = events_of(trace.events, Opcode::Load, 0);
  EXPECT_NEAR(loads.at(0).end.value, 0.11, exact);
  EXPECT_NEAR(loads.at(1).end.value, 0.11 + 0.41, exact);
  EXPECT_NEAR(loads.at(2).end.value, 0.11 + 0.41 + 0.11, exact);
  EXPECT_NEAR(events_of(trace.events, Opcode::Store, 0).at(0).end.value, 0.11, exact);
  EXPECT_NEAR(report.links.at(0).busy_time.value, 0.3, exact) << "the link is free while the copy is delayed";
}

TEST(Copies, AcquireAndReleaseMemoryOfTheirTier)
{
  class Tiers : public TraceSink {
   public:
    void record(const TraceEvent&) override {}
    void memory_changed(std::size_t, Tier tier, Seconds time, Bytes size) override
    {
      text += fmt::format("{} {:.2f} {:.0f}\n", name_of(tier), time.value, size.value);
    }
    std::string text;
  };
  PlatformFile file;
  devices_in_a_machine(file, 1);
  const Platform platform = file.load();
  ListedProgram program(1);
  program.listing[0].resident = {Bytes(1), Bytes(20), Bytes(300)};
  Instruction& store = program.copy(0, Opcode::Store, Bytes(1e7));
  store.acquires = {Tier::Host, Bytes(5)};
  store.releases = {Tier::Device, Bytes(1)};
  Instruction& write = program.copy(0, Opcode::Write, Bytes(2e7), Wait{program.lane_of(0, Engine::CopyOut), 0, 1});
  write.acquires = {Tier::Disk, Bytes(6)};
  write.releases = {Tier::Host, Bytes(5)};
  Tiers tiers;
  play(platform, program, &tiers);
  EXPECT_EQ(tiers.text,
            "device 0.00 1\nhost 0.00 20\ndisk 0.00 300\nhost 0.00 25\ndevice 0.11 0\ndisk 0.11 306\nhost 0.21 20\n");
}

TEST(Disks, ReadAndWriteAtTheirRates)
{
  PlatformFile file;
  devices_in_a_machine(file, 1);
  const Platform platform = file.load();
  ListedProgram program(1);
  program.copy(0, Opcode::Read, Bytes(4e7));
  program.copy(0, Opcode::Read, Bytes(8e7));
  program.copy(0, Opcode::Write, Bytes(4e7), Wait{program.lane_of(0, Engine::DiskRead), 0, 2});
  EventList trace;
  const auto report = play(platform, program, &trace);
  EXPECT_NEAR(events_of(trace.events, Opcode::Read, 0).at(0).end.value, 0.1, exact);
  EXPECT_NEAR(events_of(trace.events, Opcode::Read, 0).at(1).end.value, 0.3, exact);
  EXPECT_NEAR(events_of(trace.events, Opcode::Write, 0).at(0).end.value, 0.5, exact);
  EXPECT_EQ(report.activities, 3U);
  EXPECT_TRUE(report.links.empty());
}

TEST(Disks, ShareTheLargerRateBetweenReadsAndWrites)
{
  PlatformFile file;
  devices_in_a_machine(file, 3);
  const Platform platform = file.load();
  ListedProgram program(3);
  program.copy(0, Opcode::Read, Bytes(4e7));
  program.copy(1, Opcode::Read, Bytes(4e7));
  program.copy(2, Opcode::Write, Bytes(4e7));
  EventList trace;
  play(platform, program, &trace);
  const double all_at_once = 3 * 4e7 / 4e8;  // a third of 400 MB/s each
  EXPECT_NEAR(events_of(trace.events, Opcode::Read, 0).at(0).end.value, all_at_once, exact);
  EXPECT_NEAR(events_of(trace.events, Opcode::Read, 1).at(0).end.value, all_at_once, exact);
  EXPECT_NEAR(events_of(trace.events, Opcode::Write, 2).at(0).end.value, all_at_once, exact);
}

/// The message of a program that the platform stops.
std::string fault_of(PlatformFile& file, const Program& program, const std::string& system = "")
{
  const Platform platform = file.load();
  return message_of([&] { play(platform, program, nullptr, system); });
}

TEST(Copies, NeedAMachine)
{
  PlatformFile file;
  file.device("d0", "1Gf");
  ListedProgram program(1);
  program.copy(0, Opcode::Load, Bytes(1));
  EXPECT_EQ(fault_of(file, program),
            "InputError test: device d0 is in no machine, and Load parameter gradient (rank 0, step 0) needs one; name "
            "it with the prop host");
}

TEST(Copies, OfADiskNeedOneWithACapacity)
{
  PlatformFile file;
  file.device("d0", "1Gf");
  file.machine("cpu", "1Gf", "<disk id=\"nvme\" read_bw=\"1GBps\" write_bw=\"1GBps\"/>");
  file.link("pcie", "100MBps", "10ms");
  file.route("d0", "cpu", {"pcie"});
  file.route("cpu", "d0", {"pcie"});
  ListedProgram program(1);
  program.copy(0, Opcode::Write, Bytes(1), {}, Payload::Optimizer);
  EXPECT_EQ(fault_of(file, program),
            "InputError test: machine cpu has no disk with the prop capacity, and Write optimizer (rank 0, step 0) "
            "needs one");
}

TEST(Copies, OfASystemNeedALatencyToBeSlowedDown)
{
  PlatformFile file;
  file.device("d0", "1Gf");
  file.machine("cpu", "1Gf");
  file.link("pcie", "1GBps", "0");
  file.route("d0", "cpu", {"pcie"});
  file.route("cpu", "d0", {"pcie"});
  file.systems("pageable: {copy_bandwidth: 25 MB/s}\n");
  ListedProgram program(1);
  program.copy(0, Opcode::Load, Bytes(1));
  EXPECT_EQ(fault_of(file, program, "pageable"),
            "InputError test: the route from cpu to d0 has no latency, which SimGrid needs to limit its copies to 25.0 "
            "MB/s; give a link of it one, such as 1us");
}

TEST(Copies, EndTheRunWhenTheirLinkIsOff)
{
  for (const auto& [off_at, at] : {std::pair(0.0, "0"), std::pair(0.005, "0.005"), std::pair(0.05, "0.05")}) {
    const auto message = run_in_child(
        [&, off_at = off_at] {
          PlatformFile file;
          const auto profile = file.profile("off.profile", fmt::format("{} 0\n", off_at));
          devices_in_a_machine(file, 1, fmt::format("state_file=\"{}\"", profile));
          ListedProgram program(1);
          program.copy(0, Opcode::Load, Bytes(1e7));
          return fault_of(file, program);
        },
        Seconds(60));
    EXPECT_EQ(message.output_or_throw(),
              fmt::format("InputError test: link in d0 is off at {} s, and Load parameter gradient (rank 0, step 0) "
                          "needs it; the hosts and links of a plan must stay on",
                          at));
  }
}

/// The message when the machine is turned off after 50 ms, in which `opcode` copies for 100 ms.
std::string fault_when_the_machine_is_off(Opcode opcode, Bytes size)
{
  PlatformFile file;
  file.device("d0", "1Gf");
  const auto profile = file.profile("off.profile", "0.05 0\n");
  file.machine("cpu", "1Gf", disk, fmt::format("state_file=\"{}\"", profile));
  file.link("pcie", "100MBps", "10ms");
  file.route("d0", "cpu", {"pcie"});
  file.route("cpu", "d0", {"pcie"});
  ListedProgram program(1);
  program.copy(0, opcode, size);
  return fault_of(file, program);
}

TEST(Copies, EndTheRunWhenTheirMachineIsOff)
{
  EXPECT_EQ(fault_when_the_machine_is_off(Opcode::Load, Bytes(1e7)),
            "InputError test: host cpu is off at 0.05 s, and Load parameter gradient (rank 0, step 0) needs it; the "
            "hosts and links of a plan must stay on");
}

TEST(Disks, EndTheRunWhenTheirMachineIsOff)
{
  EXPECT_EQ(fault_when_the_machine_is_off(Opcode::Read, Bytes(4e7)),
            "InputError test: host cpu is off at 0.05 s, and Read parameter gradient (rank 0, step 0) needs it; the "
            "hosts and links of a plan must stay on");
}

TEST(Copies, FollowTheProfileOfTheirLink)
{
  PlatformFile file;
  const auto profile = file.profile("slower.profile", "0 1e8\n0.06 2e7\n");
  devices_in_a_machine(file, 1, fmt::format("bandwidth_file=\"{}\"", profile));
  const Platform platform = file.load();
  ListedProgram program(1);
  program.copy(0, Opcode::Load, Bytes(1e7));
  EventList trace;
  play(platform, program, &trace);
  EXPECT_NEAR(ends_of_loads(trace, 1)[0], 0.06 + 5e6 / 2e7, exact) << "5 MB in 50 ms, then the rest";
}

}  // namespace
}  // namespace isobar::sim::copies_test
