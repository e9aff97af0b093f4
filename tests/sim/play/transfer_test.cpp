#include "sim/play/simulation.hpp"

#include "tests/support/simulated.hpp"
#include "tests/support/thrown_message.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

// The order and timing of the messages of a lane: A_k = max(r_k + L, A_(k-1)) + b_k / beta (docs/costs.md).
namespace isobar::sim::transfer_test {
namespace {

constexpr double tolerance = 1e-9;  // relative

double arrival_of_last(const EventList& trace, std::size_t to)
{
  return events_of(trace.events, Opcode::Recv, to).back().end.value;
}

void expect_span(const TraceEvent& event, double begin, double end)
{
  EXPECT_NEAR(event.begin.value, begin, tolerance * (1 + begin)) << "micro-batch " << event.instruction.microbatch;
  EXPECT_NEAR(event.end.value, end, tolerance * (1 + end)) << "micro-batch " << event.instruction.microbatch;
}

TEST(Transfers, OverlapInLatencyAndFollowBackToBack)
{
  PlatformFile file;
  two_hosts(file, "100MBps", "100ms");
  const Platform platform = file.load();
  constexpr std::size_t messages = 64;
  ListedProgram program(2);
  for (std::size_t i = 0; i < messages; ++i) program.transfer(0, 1, Bytes(1e6));
  EventList trace;
  const auto report = simulate(platform, program, on_hosts({"a", "b"}), 1, &trace);
  EXPECT_NEAR(report.step_times[0].value, 0.1 + 0.64, tolerance);
  const auto sends = events_of(trace.events, Opcode::Send, 0);
  const auto receives = events_of(trace.events, Opcode::Recv, 1);
  ASSERT_EQ(receives.size(), messages);
  for (std::size_t i = 0; i < messages; ++i) {
    const double left = 0.01 * static_cast<double>(i);
    expect_span(sends[i], left, left + 0.01);
    expect_span(receives[i], left + 0.1, left + 0.11);
  }
  EXPECT_DOUBLE_EQ(report.links[0].bytes.value, 64e6);
  EXPECT_NEAR(report.links[0].busy_time.value, 0.64, tolerance);
}

TEST(Transfers, OfASlowSenderEachPayTheLatency)
{
  PlatformFile file;
  two_hosts(file, "100MBps", "2s");
  const Platform platform = file.load();
  ListedProgram program(2);
  for (std::uint64_t i = 0; i < 5; ++i) {
    program.compute(0, Seconds(1));
    program.transfer(0, 1, Bytes(50e6), after_compute(i + 1));
  }
  EventList trace;
  simulate(platform, program, on_hosts({"a", "b"}), 1, &trace);
  const auto sends = events_of(trace.events, Opcode::Send, 0);
  const auto receives = events_of(trace.events, Opcode::Recv, 1);
  for (std::size_t i = 0; i < 5; ++i) {
    const double ready = 1.0 + static_cast<double>(i);
    expect_span(sends[i], ready, ready + 0.5);
    expect_span(receives[i], ready + 2, ready + 2.5);
  }
}

/// Largest difference between a simulated time of leaving or arriving and the closed form, relative to the step.
double distance_from_closed_form(unsigned seed)
{
  std::mt19937_64 random(seed);
  const auto uniform = [&](double most) { return std::uniform_real_distribution<>(0, most)(random); };
  const double latency = random() % 4 == 0 ? 0 : uniform(10);
  PlatformFile file;
  two_hosts(file, "100MBps", fmt::format("{:.17g}s", latency));
  const Platform platform = file.load();
  ListedProgram program(2);
  std::vector<double> ready;
  std::vector<double> data;
  double computed = 0;
  const std::uint64_t messages = 1 + random() % 40;
  for (std::uint64_t i = 0; i < messages; ++i) {
    const double work = random() % 3 == 0 ? 0 : uniform(2);
    program.compute(0, Seconds(work));
    computed += work;
    ready.push_back(computed);
    const double bytes = random() % 5 == 0 ? 0 : std::ceil(uniform(200e6));
    program.transfer(0, 1, Bytes(bytes), after_compute(i + 1));
    data.push_back(bytes / 100e6);
  }
  EventList trace;
  simulate(platform, program, on_hosts({"a", "b"}), 1, &trace);
  const auto sends = events_of(trace.events, Opcode::Send, 0);
  const auto receives = events_of(trace.events, Opcode::Recv, 1);
  double arrived = 0;
  double worst = receives.size() == ready.size() ? 0 : 1;
  for (std::size_t i = 0; i < ready.size(); ++i) {
    const double first_byte = std::max(ready[i] + latency, arrived);
    arrived = first_byte + data[i];
    worst = std::max({worst, std::abs(receives[i].begin.value - first_byte), std::abs(receives[i].end.value - arrived),
                      std::abs(sends[i].begin.value - (first_byte - latency)),
                      std::abs(sends[i].end.value - (arrived - latency))});
  }
  return worst / arrived;
}

TEST(Transfers, ArriveAtTheTimesOfTheClosedForm)
{
  std::vector<std::function<std::string()>> cases;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    cases.emplace_back([seed] { return fmt::format("{:.17g}", distance_from_closed_form(seed)); });
  }
  const auto results = run_in_children(cases, 2, Seconds(60));
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_LT(std::stod(results[i].output_or_throw()), 1e-9) << "seed " << i + 1;
  }
}

TEST(Transfers, OfManyMicroBatchesPayTheLatencyOnceEachWayUnderGPipe)
{
  PlatformFile file;
  chain_of_devices(file, 2, "125MBps", "100ms");
  const Platform platform = file.load();
  Workload workload = equal_layers(2, Bytes(12.5e6), Bytes(12.5e6));
  for (auto& layer : workload.layers) {
    layer.forward = Flops(1e6);
    layer.backward = Flops(2e6);
  }
  const auto report = simulate_plan(platform, workload, one_layer_per_device(names(2), ChainSchedule::GPipe, 64));
  // A forward, 64 activations, a forward; a backward, 64 gradients, a backward.
  const double expected = (0.001 + 0.1 + 64 * 0.1 + 0.001) + (0.002 + 0.1 + 64 * 0.1 + 0.002);
  EXPECT_NEAR(report.step_times[0].value, expected, 1e-6 * expected);
}

TEST(Transfers, OfTheDataServerLeaveOnceTheInputButOneBeforeHasBeenForwarded)
{
  PlatformFile file;
  device_with_data_server(file, "100MBps", "2s");
  const Platform platform = file.load();
  EventList trace;
  simulate_plan(platform, equal_layers(1, Bytes(50e6), Bytes(0)), one_layer_per_device({"d0"}, ChainSchedule::GPipe, 6),
                1, &trace);
  std::vector<double> forwarded;
  for (const auto& event : trace.events) {
    if (event.instruction.opcode == Opcode::Forward) forwarded.push_back(event.end.value);
  }
  const auto sends = events_of(trace.events, Opcode::Send, 1);
  const auto receives = events_of(trace.events, Opcode::Recv, 0);
  ASSERT_EQ(sends.size(), 6U);
  expect_span(sends[0], 0, 0.5);
  expect_span(sends[1], 0.5, 1);
  double arrived = 3;
  for (std::size_t i = 2; i < 6; ++i) {
    arrived = std::max(forwarded[i - 2] + 2, arrived) + 0.5;
    expect_span(sends[i], arrived - 2.5, arrived - 2);
    expect_span(receives[i], arrived - 0.5, arrived);
  }
}

TEST(Transfers, WithoutBytesTakeOnlyTheLatency)
{
  PlatformFile file;
  two_hosts(file, "100MBps", "100ms");
  const Platform platform = file.load();
  ListedProgram program(2);
  program.transfer(0, 1, Bytes(0));
  program.transfer(0, 1, Bytes(50e6));
  program.transfer(0, 1, Bytes(0));
  EventList trace;
  simulate(platform, program, on_hosts({"a", "b"}), 1, &trace);
  const auto receives = events_of(trace.events, Opcode::Recv, 1);
  expect_span(receives[0], 0.1, 0.1);
  expect_span(receives[1], 0.1, 0.6);
  expect_span(receives[2], 0.6, 0.6);
}

TEST(Transfers, WithinAHostTakeNoTime)
{
  PlatformFile file;
  two_hosts(file, "100MBps", "100ms");
  const Platform platform = file.load();
  ListedProgram program(2);
  for (std::uint64_t i = 0; i < 3; ++i) {
    program.compute(0, Seconds(1));
    program.transfer(0, 1, Bytes(1e9), after_compute(i + 1));
    program.compute(1, Seconds(0), Wait{program.receive_lane(0, 1), 0, i + 1});
  }
  EventList trace;
  const auto report = simulate(platform, program, on_hosts({"a", "a"}), 2, &trace);
  for (const Seconds time : report.step_times) EXPECT_NEAR(time.value, 3, tolerance);
  EXPECT_EQ(report.activities, 6U);  // the computations
  EXPECT_TRUE(report.links.empty());
  const auto sends = events_of(trace.events, Opcode::Send, 0);
  const auto receives = events_of(trace.events, Opcode::Recv, 1);
  const auto computations = events_of(trace.events, Opcode::Forward, 1);
  ASSERT_EQ(receives.size(), 6U);
  for (std::size_t i = 0; i < 6; ++i) {
    const double time = 1.0 + static_cast<double>(i);
    expect_span(sends[i], time, time);
    expect_span(receives[i], time, time);
    expect_span(computations[i], time, time);
  }
}

TEST(Transfers, FromTwoRanksDoNotWaitForEachOther)
{
  PlatformFile file;
  for (const std::string host : {"a", "b", "c"}) file.device(host, "1Gf");
  file.link("far", "100MBps", "1s");
  file.link("near", "100MBps", "10ms");
  file.route("a", "c", {"far"});
  file.route("b", "c", {"near"});
  const Platform platform = file.load();
  ListedProgram program(3);
  program.transfer(0, 2, Bytes(50e6));
  program.transfer(1, 2, Bytes(50e6));
  EventList trace;
  simulate(platform, program, on_hosts({"a", "b", "c"}), 1, &trace);
  const auto receives = events_of(trace.events, Opcode::Recv, 2);
  ASSERT_EQ(receives.size(), 2U);
  EXPECT_EQ(receives[0].instruction.lane, program.receive_lane(1, 2));
  expect_span(receives[0], 0.01, 0.51);
  EXPECT_EQ(receives[1].instruction.lane, program.receive_lane(0, 2));
  expect_span(receives[1], 1, 1.5);
}

TEST(Transfers, OnAContendedTrunkSlowOnlyThoseThatShareIt)
{
  PlatformFile file;
  for (const std::string host : {"a", "b", "c", "d", "e", "f"}) file.device(host, "1Gf");
  file.link("trunk", "100MBps", "300ms");
  file.link("other", "100MBps", "300ms");
  file.route("a", "b", {"trunk"});
  file.route("c", "d", {"trunk"});
  file.route("e", "f", {"other"});
  const Platform platform = file.load();
  ListedProgram program(6);
  for (int i = 0; i < 20; ++i) {
    program.transfer(0, 1, Bytes(10e6));
    program.transfer(2, 3, Bytes(5e6));
    program.transfer(4, 5, Bytes(10e6));
  }
  EventList trace;
  const auto report = simulate(platform, program, on_hosts({"a", "b", "c", "d", "e", "f"}), 1, &trace);
  // Half each while both have data: 100 MB each in 2 s. Then the first has the whole trunk.
  const auto first = events_of(trace.events, Opcode::Recv, 1);
  EXPECT_NEAR(first[9].end.value, 0.3 + 2, 1e-6);
  EXPECT_NEAR(first[19].end.value, 0.3 + 2 + 1, 1e-6);
  EXPECT_NEAR(arrival_of_last(trace, 3), 0.3 + 2, 1e-6);
  EXPECT_NEAR(arrival_of_last(trace, 5), 0.3 + 2, 1e-6);
  ASSERT_EQ(report.links.size(), 2U);
  EXPECT_DOUBLE_EQ(report.links[0].bytes.value, 200e6);
  EXPECT_DOUBLE_EQ(report.links[1].bytes.value, 300e6);
  EXPECT_NEAR(report.links[1].busy_time.value, 3, 1e-6);
}

TEST(Transfers, OfUnequalLatencyShareALinkInInverseProportionToIt)
{
  PlatformFile file;
  for (const std::string host : {"a", "b", "c", "d"}) file.device(host, "1Gf");
  file.link("trunk", "100MBps", "0");
  file.link("near", "1GBps", "10ms");
  file.link("far", "1GBps", "40ms");
  file.route("a", "b", {"near", "trunk"});
  file.route("c", "d", {"far", "trunk"});
  const Platform platform = file.load();
  ListedProgram program(4);
  for (int i = 0; i < 10; ++i) {
    program.transfer(0, 1, Bytes(8e6));
    program.transfer(2, 3, Bytes(2e6));
  }
  EventList trace;
  simulate(platform, program, on_hosts({"a", "b", "c", "d"}), 1, &trace);
  // The near one has the whole trunk for 30 ms, then 80 of its 100 MB/s. The far one gets the rest.
  const double near = 0.04 + (80e6 - 0.03 * 100e6) / 80e6;
  EXPECT_NEAR(arrival_of_last(trace, 1), near, 1e-6);
  EXPECT_NEAR(arrival_of_last(trace, 3), near + (20e6 - (near - 0.04) * 20e6) / 100e6, 1e-6);
}

TEST(Transfers, OfALaneStayUnderItsWindowsWithoutABurst)
{
  PlatformFile file;
  two_hosts(file, "100MBps", "50ms", "", "<prop id=\"flows\" value=\"4\"/><prop id=\"window\" value=\"1 MB\"/>");
  const Platform platform = file.load();
  ListedProgram program(2);
  for (int i = 0; i < 10; ++i) program.transfer(0, 1, Bytes(4e6));
  program.compute(0, Seconds(5));
  program.transfer(0, 1, Bytes(4e6), after_compute(1));
  EventList trace;
  simulate(platform, program, on_hosts({"a", "b"}), 1, &trace);
  const auto receives = events_of(trace.events, Opcode::Recv, 1);
  for (std::size_t i = 0; i < 10; ++i) {  // 40 MB/s: 4 MB per round trip
    const double begin = 0.05 + 0.1 * static_cast<double>(i);
    EXPECT_NEAR(receives[i].begin.value, begin, 1e-6);
    EXPECT_NEAR(receives[i].end.value, begin + 0.1, 1e-6);
  }
  EXPECT_NEAR(receives[10].end.value, 5.15, 1e-6);
}

/// Two messages of half a second, ready at 0.5 s and 1.5 s, over a link whose latency changes at 1 s.
std::vector<TraceEvent> events_under_latencies(const std::string& before, const std::string& after)
{
  PlatformFile file;
  two_hosts(file, "100MBps", before,
            fmt::format("latency_file=\"{}\"", file.profile("there.latency", "1 " + after + "\n")));
  const Platform platform = file.load();
  ListedProgram program(2);
  program.compute(0, Seconds(0.5));
  program.transfer(0, 1, Bytes(50e6), after_compute(1));
  program.compute(0, Seconds(1));
  program.transfer(0, 1, Bytes(50e6), after_compute(2));
  EventList trace;
  simulate(platform, program, on_hosts({"a", "b"}), 1, &trace);
  return trace.events;
}

TEST(Transfers, HaveTheLatencyOfTheMomentWhenTheyAreReady)
{
  const auto events = events_under_latencies("2s", "3");
  const auto sends = events_of(events, Opcode::Send, 0);
  const auto receives = events_of(events, Opcode::Recv, 1);
  expect_span(sends[0], 0.5, 1);
  expect_span(receives[0], 2.5, 3);
  expect_span(sends[1], 1.5, 2);
  expect_span(receives[1], 4.5, 5);
}

TEST(Transfers, DoNotOvertakeWhereALatencyFalls)
{
  const auto events = events_under_latencies("4s", "0.1");
  const auto sends = events_of(events, Opcode::Send, 0);
  const auto receives = events_of(events, Opcode::Recv, 1);
  expect_span(receives[0], 4.5, 5);
  expect_span(receives[1], 5, 5.5);
  expect_span(sends[1], 4.9, 5.4);
}

TEST(Transfers, ThatSpeedUpWithTheirLinkPayNoSecondLatency)
{
  PlatformFile file;
  // 40 MB per round trip of 0.2 s: 200 MB/s, which the link can carry from 1 s.
  two_hosts(file, "100MBps", "100ms",
            fmt::format("bandwidth_file=\"{}\"", file.profile("there.bandwidth", "1 400e6\n")),
            "<prop id=\"flows\" value=\"1\"/><prop id=\"window\" value=\"40 MB\"/>");
  const Platform platform = file.load();
  ListedProgram program(2);
  program.transfer(0, 1, Bytes(300e6));
  program.transfer(0, 1, Bytes(20e6));
  EventList trace;
  simulate(platform, program, on_hosts({"a", "b"}), 1, &trace);
  const auto receives = events_of(trace.events, Opcode::Recv, 1);
  EXPECT_NEAR(receives[0].end.value, 1 + 210.0 / 200, 1e-6);
  EXPECT_NEAR(receives[1].end.value, 1 + 230.0 / 200, 1e-6);
}

TEST(Transfers, MayBeOnTheirWayForMoreThanAWeek)
{
  PlatformFile file;
  two_hosts(file, "100MBps", "900000s");
  const Platform platform = file.load();
  ListedProgram program(2);
  program.transfer(0, 1, Bytes(100e6));
  program.transfer(0, 1, Bytes(100e6));
  const auto report = simulate(platform, program, on_hosts({"a", "b"}), 2, nullptr);
  ASSERT_EQ(report.step_times.size(), 2U);
  EXPECT_NEAR(report.step_times[0].value, 900002, 1e-3);
  EXPECT_NEAR(report.step_times[1].value, 2, 1e-3);  // they followed those of the first step
}

TEST(Transfers, AreLostWithALinkThatGoesOffWhileTheyAreOnTheirWay)
{
  PlatformFile file("cluster");
  two_hosts(file, "100MBps", "10s", fmt::format("state_file=\"{}\"", file.profile("there.state", "3 0\n4 1\n")));
  const Platform platform = file.load();
  ListedProgram program(2);
  program.transfer(0, 1, Bytes(1));
  EXPECT_EQ(message_of([&] {
              simulate(platform, program, on_hosts({"a", "b"}), 1, nullptr);
            }),
            "InputError cluster: link there is off at 3 s, and Send activation of micro-batch 0 (rank 0, step 0) needs "
            "it; the hosts and links of a plan must stay on");
}

TEST(Transfers, ReportLinksThatCarryTheirDataToASink)
{
  class LinkLog : public TraceSink {
   public:
    void record(const TraceEvent&) override {}
    void link_changed(const std::string& link, Seconds time, std::size_t transfers) override
    {
      text += fmt::format("{} {:.6g} {}\n", link, time.value, transfers);
    }
    std::string text;
  };
  PlatformFile file;
  two_hosts(file, "100MBps", "10s");
  const Platform platform = file.load();
  ListedProgram program(2);
  program.transfer(0, 1, Bytes(100e6));
  program.transfer(0, 1, Bytes(100e6));
  LinkLog log;
  simulate(platform, program, on_hosts({"a", "b"}), 1, &log);
  EXPECT_EQ(log.text, "there 10 1\nthere 11 0\nthere 11 1\nthere 12 0\n");
}

}  // namespace
}  // namespace isobar::sim::transfer_test
