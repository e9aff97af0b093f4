#include "sim/play/simulation.hpp"

#include "tests/support/simulated.hpp"
#include "tests/support/thrown_message.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

// Hosts and links that change, stand still or are turned off while a step is simulated.
namespace isobar::sim::simulation_profile_test {
namespace {

constexpr double tolerance = 1e-6;  // relative

TEST(Simulate, FollowsAnAvailabilityProfile)
{
  PlatformFile file;
  file.device("d0", "1Gf", fmt::format("speed_file=\"{}\"", file.profile("d0.speed", "0 1.0\n2 0.5\n6 0\n10 1.0\n")));
  const Platform platform = file.load();
  const auto report = simulate_plan(platform, equal_layers(1, Bytes(0), Bytes(0)),
                                    one_layer_per_device({"d0"}, ChainSchedule::GPipe, 2));
  // 2 s at full speed, 4 s at half, 4 s at nothing, then the last 2 of 6 s.
  EXPECT_NEAR(step_time(report).value, 12, 12 * tolerance);
}

TEST(Simulate, StartsNothingOnADeviceThatStandsStill)
{
  PlatformFile file;
  file.device("d0", "1Gf", fmt::format("speed_file=\"{}\"", file.profile("d0.speed", "0 0\n5 1.0\n6 0\n9 2\n")));
  const Platform platform = file.load();
  const auto report = simulate_plan(platform, equal_layers(1, Bytes(0), Bytes(0)),
                                    one_layer_per_device({"d0"}, ChainSchedule::GPipe, 1));
  EXPECT_NEAR(step_time(report).value, 10, 10 * tolerance);
}

double transfer_under_profile(const std::string& profile, const std::string& latency, const std::string& props = "")
{
  return number_from_child([&] {
    PlatformFile file;
    two_hosts(file, "100MBps", latency, fmt::format("bandwidth_file=\"{}\"", file.profile("there.bandwidth", profile)),
              props);
    const Platform platform = file.load();
    ListedProgram program(2);
    program.transfer(0, 1, Bytes(300e6));
    return step_time(simulate(platform, program, on_hosts({"a", "b"}), 1, nullptr)).value;
  });
}

TEST(Simulate, FollowsABandwidthProfile)
{
  for (const std::string latency : {"0s", "100ms"}) {
    SCOPED_TRACE(latency);
    const double at_full = latency == "0s" ? 1.0 : 0.9;  // seconds of 100 MB/s in the first
    EXPECT_NEAR(transfer_under_profile("1 50e6\n", latency), 1 + (3 - at_full) * 2, 10 * tolerance);
    EXPECT_NEAR(transfer_under_profile("1 0\n4 100e6\n", latency), 4 + (3 - at_full), 10 * tolerance);
    EXPECT_NEAR(transfer_under_profile("1 0\n4 100e6\n5 0\n7 50e6\n", latency), 7 + (2 - at_full) * 2, 10 * tolerance);
  }
}

TEST(Simulate, SpeedsUpAFlowWithItsLink)
{
  EXPECT_NEAR(transfer_under_profile("1 200e6\n", "100ms"), 1 + 2.1 / 2, 10 * tolerance);
  EXPECT_NEAR(transfer_under_profile("1 200e6\n", "0s"), 2, 10 * tolerance);
  EXPECT_NEAR(transfer_under_profile("0.5 0\n1 100e6\n", "0s"), 3.5, 10 * tolerance);
}

/// A profile of a host or link in `fault_under`.
struct ChangingPart {
  std::string part;       ///< a, b, or the link "there"
  std::string attribute;  ///< speed_file, …
  std::string profile;
};

/// The fault that ends a simulation of one stage on host a and one on host b, with the links "there" and "back".
std::string fault_under(const std::vector<ChangingPart>& changes, const std::string& latency,
                        std::uint64_t microbatches = 1, Bytes output = Bytes(1))
{
  PlatformFile file("cluster");
  const auto attribute_of = [&](const std::string& part) {
    for (const auto& change : changes) {
      if (change.part == part) {
        return fmt::format("{}=\"{}\"", change.attribute, file.profile(part + ".profile", change.profile));
      }
    }
    return std::string();
  };
  for (const std::string host : {"a", "b"}) file.device(host, "1Gf", attribute_of(host));
  for (const std::string link : {"there", "back"}) file.link(link, "100MBps", latency, attribute_of(link));
  file.route("a", "b", {"there"});
  file.route("b", "a", {"back"});
  const Platform platform = file.load();
  return message_of([&] {
    simulate_plan(platform, equal_layers(2, output, Bytes(1)),
                  one_layer_per_device({"a", "b"}, ChainSchedule::GPipe, microbatches));
  });
}

TEST(Simulate, NamesTheHostThatIsOff)
{
  EXPECT_EQ(fault_under({{"b", "state_file", "2 0\n"}}, "500ms"),
            "InputError cluster: host b is off at 2 s, and Forward of micro-batch 0 (rank 1, step 0) needs it; the "
            "hosts and links of a plan must stay on");
}

TEST(Simulate, NamesTheHostThatIsOffBeforeATransfer)
{
  EXPECT_EQ(fault_under({{"b", "state_file", "0.5 0\n"}}, "500ms"),
            "InputError cluster: host b is off at 1 s, and Send activation of micro-batch 0 (rank 0, step 0) needs it; "
            "the hosts and links of a plan must stay on");
}

TEST(Simulate, NamesTheLinkThatIsOff)
{
  EXPECT_EQ(fault_under({{"there", "state_file", "1.25 0\n"}}, "500ms"),
            "InputError cluster: link there is off at 1.25 s, and Send activation of micro-batch 0 (rank 0, step 0) "
            "needs it; the hosts and links of a plan must stay on");
}

TEST(Simulate, GivesUpOnAHostThatStandsStillForGood)
{
  EXPECT_EQ(
      fault_under({{"a", "speed_file", "2 0\n"}, {"b", "speed_file", "PERIODICITY 1\n0 1.0\n0.5 0.9\n"}}, "10ms", 4),
      "InputError cluster: host a stands still: nothing has completed since 3.11 s, and Forward of micro-batch 2 "
      "(rank 0, step 0) waits for it; let its profile rise above 0 again");
}

TEST(Simulate, GivesUpOnALinkThatStandsStillForGood)
{
  EXPECT_EQ(fault_under({{"there", "bandwidth_file", "PERIODICITY 1\n0.25 0\n0.5 0\n"}}, "500ms", 1, Bytes(1e6)),
            "InputError cluster: link there stands still: nothing has completed since 1 s, and Send activation of "
            "micro-batch 0 (rank 0, step 0) waits for it; let its profile rise above 0 again");
}

TEST(Simulate, WaitsForADeviceThatRestsEveryDay)
{
  PlatformFile file;
  file.device("d0", "1Gf", fmt::format("speed_file=\"{}\"", file.profile("d0.speed", "1 0\n86400 1.0\n")));
  const Platform platform = file.load();
  const auto report = simulate_plan(platform, equal_layers(1, Bytes(0), Bytes(0)),
                                    one_layer_per_device({"d0"}, ChainSchedule::GPipe, 1));
  EXPECT_NEAR(step_time(report).value, 86402, 86402 * tolerance);
}

}  // namespace
}  // namespace isobar::sim::simulation_profile_test
