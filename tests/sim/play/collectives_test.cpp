#include "sim/play/simulation.hpp"

#include "core/errors.hpp"
#include "core/program/collective.hpp"
#include "tests/support/simulated.hpp"
#include "tests/support/thrown_message.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

// Collectives as rounds of flows: alone, with transfers on their links, and on links that change.
namespace isobar::sim::collectives_test {
namespace {

/// Ranks 0, 1, …, as ends of a collective.
std::vector<std::size_t> all_of(std::size_t ranks)
{
  std::vector<std::size_t> all(ranks);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

/// A profile that links have, such as bandwidth_file.
struct LinkProfile {
  std::string attribute;
  std::string content;
};

/// d0 → d1 → … → d0, each over its own link.
void ring_of_devices(PlatformFile& file, std::size_t devices, const std::string& bandwidth, const std::string& latency,
                     const std::string& props = "", const LinkProfile& profile = {})
{
  for (std::size_t i = 0; i < devices; ++i) file.device(fmt::format("d{}", i), "1Gf");
  for (std::size_t i = 0; i < devices; ++i) {
    const std::string link = fmt::format("on{}", i);
    const std::string attribute =
        profile.attribute.empty()
            ? ""
            : fmt::format("{}=\"{}\"", profile.attribute, file.profile(link + ".profile", profile.content));
    file.link(link, bandwidth, latency, attribute, props);
    file.route(fmt::format("d{}", i), fmt::format("d{}", (i + 1) % devices), {link});
  }
}

/// Devices whose flows each pass the link "up" of the sender and "down" of the receiver.
void star_of_devices(PlatformFile& file, std::size_t devices, const std::string& bandwidth, const std::string& latency)
{
  for (std::size_t i = 0; i < devices; ++i) {
    file.device(fmt::format("d{}", i), "1Gf");
    file.link(fmt::format("up{}", i), bandwidth, latency);
    file.link(fmt::format("down{}", i), bandwidth, latency);
  }
  for (std::size_t from = 0; from < devices; ++from) {
    for (std::size_t to = 0; to < devices; ++to) {
      if (from == to) continue;
      file.route(fmt::format("d{}", from), fmt::format("d{}", to),
                 {fmt::format("up{}", from), fmt::format("down{}", to)});
    }
  }
}

/// A collective of all ranks, each after a second of computation, of the last one after 3 s.
double time_after_computation(PlatformFile& file, std::size_t ranks, Opcode opcode, Bytes size, Algorithm algorithm)
{
  ListedProgram program(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) program.compute(rank, Seconds(rank + 1 < ranks ? 1 : 3));
  program.collective(opcode, all_of(ranks), size, after_compute(1), algorithm);
  return simulate(file.load(), program, on_hosts(names(ranks)), 1, nullptr).step_times.at(0).value - 3;
}

TEST(SimulatedAllReduce, TakesTheRoundsOfTheRingAfterTheLastRankJoins)
{
  for (const std::size_t ranks : {2U, 3U, 7U, 8U}) {
    for (const double size : {0.0, 1.0, 17.0, 100e6}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} bytes", ranks, size));
      const double time = number_from_child([&] {
        PlatformFile file;
        ring_of_devices(file, ranks, "100MBps", "10ms");
        return time_after_computation(file, ranks, Opcode::AllReduce, Bytes(size), Algorithm::Ring);
      });
      const auto n = static_cast<double>(ranks);
      const double expected = 2 * (n - 1) * (0.01 + std::ceil(size / n) / 100e6);
      EXPECT_NEAR(time, expected, 1e-6 * expected);
    }
  }
}

TEST(SimulatedAllReduce, BeginsWhenTheLastRankJoinsAndEndsForAllAtOnce)
{
  PlatformFile file;
  ring_of_devices(file, 3, "100MBps", "10ms");
  ListedProgram program(3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    // The computation of a step waits for the AllReduce of the one before, as that of a forward pass for the update.
    program.compute(rank, Seconds(static_cast<double>(rank + 1)), Wait{program.sync_lane(rank, all_of(3)), 1, 1});
  }
  program.collective(Opcode::AllReduce, all_of(3), Bytes(300e6), after_compute(1));
  EventList trace;
  const auto report = simulate(file.load(), program, on_hosts(names(3)), 2, &trace);
  std::size_t reductions = 0;
  for (const auto& event : trace.events) {
    if (event.instruction.opcode != Opcode::AllReduce) continue;
    ++reductions;
    const double step_begin = event.step == 0 ? 0 : report.step_times[0].value;
    EXPECT_NEAR(event.begin.value, step_begin + 3, 1e-6);
    EXPECT_NEAR(event.end.value, step_begin + report.step_times[0].value, 1e-6);
  }
  EXPECT_EQ(reductions, 6U);
  EXPECT_NEAR(report.step_times[1].value, report.step_times[0].value, 1e-6);
  // Each link carries four messages of a third of 300 MB, in each of two steps.
  ASSERT_EQ(report.links.size(), 3U);
  for (const auto& link : report.links) {
    EXPECT_DOUBLE_EQ(link.bytes.value, 2 * 4 * 100e6);
    EXPECT_NEAR(link.busy_time.value, 2 * 4 * 1.0, 1e-5);
  }
}

TEST(SimulatedAllReduce, TakesAnActivityPerFlow)
{
  PlatformFile file;
  ring_of_devices(file, 64, "100MBps", "10ms");
  ListedProgram program(64);
  program.collective(Opcode::AllReduce, all_of(64), Bytes(64e6));
  const auto report = simulate(file.load(), program, on_hosts(names(64)), 1, nullptr);
  EXPECT_EQ(report.activities, 64U);
  EXPECT_NEAR(report.step_times[0].value, 126 * (0.01 + 0.01), 1e-6);
}

TEST(SimulatedAllReduce, SharesItsLinksWithTransfers)
{
  PlatformFile file;
  ring_of_devices(file, 2, "100MBps", "10ms");
  ListedProgram program(2);
  program.transfer(0, 1, Bytes(100e6));
  program.collective(Opcode::AllReduce, {0, 1}, Bytes(100e6));
  EventList trace;
  simulate(file.load(), program, on_hosts(names(2)), 1, &trace);
  // The transfer has the link from 10 ms, and shares it from 20 ms with the flow of 100 MB. That has 1 MB left at 2 s.
  EXPECT_NEAR(events_of(trace.events, Opcode::Recv, 1).at(0).end.value, 2, 1e-6);
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_NEAR(events_of(trace.events, Opcode::AllReduce, rank).at(0).end.value, 2.01, 1e-6);
  }
}

TEST(SimulatedAllReduce, WaitsForNoMessageOfALane)
{
  PlatformFile file;
  ring_of_devices(file, 2, "100MBps", "10ms");
  ListedProgram program(2);
  program.collective(Opcode::AllReduce, {0, 1}, Bytes(100e6));
  for (int i = 0; i < 4; ++i) program.transfer(1, 0, Bytes(100e6));
  EventList trace;
  simulate(file.load(), program, on_hosts(names(2)), 1, &trace);
  // The messages of the lane follow each other; the flow has half of the link beside them.
  EXPECT_NEAR(events_of(trace.events, Opcode::AllReduce, 0).at(0).end.value, 0.02 + 2, 1e-6);
  EXPECT_NEAR(events_of(trace.events, Opcode::Recv, 0).back().end.value, 0.01 + 5, 1e-6);
}

TEST(SimulatedAllReduce, StaysUnderTheWindowsOfItsLinks)
{
  PlatformFile file;
  // 4 MB per round trip of 0.1 s.
  ring_of_devices(file, 2, "100MBps", "50ms", "<prop id=\"flows\" value=\"4\"/><prop id=\"window\" value=\"1 MB\"/>");
  ListedProgram program(2);
  program.collective(Opcode::AllReduce, {0, 1}, Bytes(40e6));
  const auto report = simulate(file.load(), program, on_hosts(names(2)), 1, nullptr);
  EXPECT_NEAR(report.step_times[0].value, 2 * 0.05 + 1, 1e-6);
}

/// The time of an AllReduce of 300 MB between two ranks, over links whose bandwidth rises to 200 MB/s at 1 s.
double time_under_rising_bandwidth(const std::string& latency, const std::string& props)
{
  return number_from_child([&] {
    PlatformFile file;
    ring_of_devices(file, 2, "100MBps", latency, props, {"bandwidth_file", "1 200e6\n"});
    ListedProgram program(2);
    program.collective(Opcode::AllReduce, {0, 1}, Bytes(300e6));
    const auto report = simulate(file.load(), program, on_hosts(names(2)), 1, nullptr);
    ensure(report.activities == 2, "a flow that was started again counts once");
    for (const auto& link : report.links) ensure(link.bytes == Bytes(300e6), "and so do its bytes");
    return report.step_times.at(0).value;
  });
}

TEST(SimulatedAllReduce, SpeedsUpWithItsLinks)
{
  // Two messages of 150 MB: 100 MB/s in the first second, 200 MB/s after that.
  EXPECT_NEAR(time_under_rising_bandwidth("0s", ""), 2, 1e-6);
  // A window of 200 MB/s, and two latencies before the data.
  const std::string window = "<prop id=\"flows\" value=\"1\"/><prop id=\"window\" value=\"40 MB\"/>";
  EXPECT_NEAR(time_under_rising_bandwidth("100ms", window), 1 + 220.0 / 200, 1e-6);
}

TEST(SimulatedAllReduce, NamesTheLinkThatGoesOffBeforeItsDataArrive)
{
  PlatformFile file("cluster");
  ring_of_devices(file, 2, "100MBps", "10s", "", {"state_file", "3 0\n4 1\n"});
  const Platform platform = file.load();
  ListedProgram program(2);
  program.collective(Opcode::AllReduce, {0, 1}, Bytes(1));
  const std::string message = message_of([&] { simulate(platform, program, on_hosts(names(2)), 1, nullptr); });
  EXPECT_TRUE(message.starts_with("InputError cluster: link on")) << message;
  EXPECT_NE(message.find(" is off at 3 s, and AllReduce parameter gradient (rank "), std::string::npos) << message;
  EXPECT_TRUE(message.ends_with(", step 0) needs it; the hosts and links of a plan must stay on")) << message;
}

TEST(SimulatedAllReduce, ComesBeforeTheUpdateWhereNormsAreClipped)
{
  const auto step = [](bool clipped) {
    return number_from_child([&] {
      PlatformFile file;
      ring_of_devices(file, 3, "100MBps", "10ms");
      Workload workload = equal_layers(3, Bytes(0), Bytes(0));
      if (clipped) workload.training.clip_norm = 1.0;
      const auto plan = one_layer_per_device(names(3), ChainSchedule::Sequential, 1);
      return simulate_plan(file.load(), workload, plan).step_times.at(0).value;
    });
  };
  const double rounds = 4 * (0.01 + 6 / 100e6);
  EXPECT_NEAR(step(true) - step(false), rounds, 1e-6);
}

/// The time of an AllReduce of 40 MB between two devices in each of two sites. Within a site each device has a link of
/// 1 GB/s and 1 ms to the other; all flows from one site to the other share a link of 100 MB/s and 50 ms.
double time_over_two_sites(Algorithm algorithm, const std::vector<std::size_t>& ranks)
{
  return number_from_child([&] {
    PlatformFile file;
    const std::vector<std::string> hosts = {"a0", "a1", "b0", "b1"};
    for (const auto& host : hosts) {
      file.device(host, "1Gf", "", fmt::format("<prop id=\"site\" value=\"{}\"/>", host[0]));
    }
    file.link("a-b", "100MBps", "50ms");
    file.link("b-a", "100MBps", "50ms");
    for (const auto& from : hosts) {
      file.link("lan-" + from, "1GBps", "1ms");
      for (const auto& to : hosts) {
        if (from == to) continue;
        file.route(from, to, {from[0] == to[0] ? "lan-" + from : fmt::format("{}-{}", from[0], to[0])});
      }
    }
    ListedProgram program(4);
    program.collective(Opcode::AllReduce, ranks, Bytes(40e6), {}, algorithm);
    return simulate(file.load(), program, on_hosts(hosts), 1, nullptr).step_times.at(0).value;
  });
}

TEST(SimulatedAllReduce, OfAHierarchyPassesALongLinkTwice)
{
  // Reduce-scatter of two parts of 20 MB, two rings of two messages of 10 MB on one link, all-gather.
  const double hierarchical = 2 * (0.001 + 20e6 / 1e9) + 2 * 0.05 + 40e6 / 100e6;
  EXPECT_NEAR(time_over_two_sites(Algorithm::Hierarchical, {0, 1, 2, 3}), hierarchical, 1e-6);
  EXPECT_NEAR(time_over_two_sites(Algorithm::Hierarchical, {0, 2, 1, 3}), hierarchical, 1e-6);
  // A ring passes it for each of its six messages of 10 MB.
  EXPECT_NEAR(time_over_two_sites(Algorithm::Ring, {0, 1, 2, 3}), 6 * (0.05 + 10e6 / 100e6), 1e-6);
}

TEST(SimulatedCollectives, SendToOneAtATimeInAnAllToAll)
{
  PlatformFile file;
  star_of_devices(file, 4, "100MBps", "5ms");
  ListedProgram program(4);
  program.collective(Opcode::AllToAll, all_of(4), Bytes(40e6));
  const auto report = simulate(file.load(), program, on_hosts(names(4)), 1, nullptr);
  EXPECT_EQ(report.activities, 12U);
  EXPECT_NEAR(report.step_times[0].value, 3 * (0.01 + 10e6 / 100e6), 1e-6);
  for (const auto& link : report.links) EXPECT_DOUBLE_EQ(link.bytes.value, 30e6);
}

TEST(SimulatedCollectives, PlayTheRoundsOfEachAlgorithmOneAfterAnother)
{
  for (const Opcode opcode :
       {Opcode::AllReduce, Opcode::ReduceScatter, Opcode::AllGather, Opcode::AllToAll, Opcode::Broadcast}) {
    for (const Algorithm algorithm : {Algorithm::Ring, Algorithm::Tree}) {
      SCOPED_TRACE(fmt::format("{} {}", name_of(opcode), name_of(algorithm)));
      constexpr std::size_t ranks = 5;
      const Bytes size(50e6);
      const double time = number_from_child([&] {
        PlatformFile file;
        star_of_devices(file, ranks, "100MBps", "5ms");
        return time_after_computation(file, ranks, opcode, size, algorithm);
      });
      // No end sends or receives more than one flow of such a round.
      double expected = 0;
      for (const auto& round : rounds_of(opcode, std::vector<Bytes>(ranks, size), algorithm)) {
        double longest = 0;
        for (const auto& flow : round) {
          longest = std::max(longest, static_cast<double>(flow.messages) * 0.01 + flow.size().value / 100e6);
        }
        expected += longest;
      }
      EXPECT_GT(expected, 0.01);
      EXPECT_NEAR(time, expected, 1e-6 * expected);
    }
  }
}

TEST(SimulatedCollectives, FollowEachOtherInALane)
{
  PlatformFile file;
  ring_of_devices(file, 2, "100MBps", "10ms");
  ListedProgram program(2);
  for (int i = 0; i < 3; ++i) program.collective(Opcode::AllReduce, {0, 1}, Bytes(100e6));
  EventList trace;
  const auto report = simulate(file.load(), program, on_hosts(names(2)), 1, &trace);
  EXPECT_EQ(report.activities, 6U);
  const auto events = events_of(trace.events, Opcode::AllReduce, 1);
  ASSERT_EQ(events.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(events[i].begin.value, 1.02 * static_cast<double>(i), 1e-6);
    EXPECT_NEAR(events[i].end.value, 1.02 * static_cast<double>(i + 1), 1e-6);
  }
}

TEST(SimulatedCollectives, TakeNoTimeWithinAHost)
{
  PlatformFile file;
  ring_of_devices(file, 2, "100MBps", "10ms");
  ListedProgram program(4);
  program.collective(Opcode::AllReduce, {0, 1}, Bytes(1e9));
  program.collective(Opcode::AllReduce, {0, 1, 2, 3}, Bytes(200e6));
  const auto report = simulate(file.load(), program, on_hosts({"d0", "d0", "d1", "d1"}), 1, nullptr);
  EXPECT_EQ(report.activities, 2U);  // from one host to the other, and back
  EXPECT_NEAR(report.step_times[0].value, 6 * (0.01 + 0.5), 1e-6);
}

}  // namespace
}  // namespace isobar::sim::collectives_test
