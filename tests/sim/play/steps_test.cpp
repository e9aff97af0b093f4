#include "sim/play/simulation.hpp"

#include "core/model/workload.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

// What instructions wait for, and how one step follows another.
namespace isobar::sim::steps_test {
namespace {

constexpr double tolerance = 1e-9;

std::vector<double> begins_of(const EventList& trace, std::size_t rank)
{
  std::vector<double> begins;
  for (const auto& event : events_of(trace.events, Opcode::Forward, rank)) begins.push_back(event.begin.value);
  return begins;
}

void expect_times(const std::vector<double>& times, const std::vector<double>& expected)
{
  ASSERT_EQ(times.size(), expected.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    EXPECT_NEAR(times[i], expected[i], tolerance * (1 + expected[i])) << "instruction " << i;
  }
}

// --- waits -------------------------------------------------------------------------------------------------------

TEST(Waits, AreAllOverBeforeAnInstructionBegins)
{
  PlatformFile file;
  for (std::size_t i = 0; i < 4; ++i) file.device(fmt::format("d{}", i), "1Gf");
  for (std::size_t i = 1; i < 4; ++i) {
    const std::string link = fmt::format("from{}", i);
    file.link(link, "100MBps", "0s");
    file.route(fmt::format("d{}", i), "d0", {link});
  }
  const Platform platform = file.load();
  ListedProgram program(4);
  // The second message of each rank arrives at 2, 6 and 4 s.
  for (int i = 0; i < 2; ++i) {
    program.transfer(1, 0, Bytes(100e6));
    program.transfer(2, 0, Bytes(300e6));
    program.transfer(3, 0, Bytes(200e6));
  }
  const auto arrivals_of = [&program](const std::vector<std::pair<std::size_t, std::uint64_t>>& counts) {
    Waits waits;
    for (const auto& [rank, count] : counts) waits.add({program.receive_lane(rank, 0), 0, count});
    return waits;
  };
  program.compute(0, Seconds(0), arrivals_of({{1, 1}, {3, 1}}));
  program.compute(0, Seconds(0), arrivals_of({{1, 2}, {2, 1}, {3, 1}}));
  program.compute(0, Seconds(0), arrivals_of({{2, 2}, {3, 2}, {1, 2}}));
  program.compute(0, Seconds(0), arrivals_of({{1, 1}, {2, 1}, {3, 1}}));
  EventList trace;
  simulate(platform, program, on_hosts(names(4)), 1, &trace);
  expect_times(begins_of(trace, 0), {2, 3, 6, 6});
}

TEST(Waits, OfManyLanesForOneAreWokenByTheirCounts)
{
  constexpr std::size_t receivers = 12;
  PlatformFile file;
  file.device("d0", "1Gf");
  for (std::size_t i = 1; i <= receivers; ++i) {
    file.device(fmt::format("d{}", i), "1Gf");
    file.link(fmt::format("to{}", i), "100MBps", "0s");
    file.route("d0", fmt::format("d{}", i), {fmt::format("to{}", i)});
  }
  const Platform platform = file.load();
  ListedProgram program(receivers + 1);
  for (std::size_t i = 0; i < receivers; ++i) program.compute(0, Seconds(1));
  // Rank i receives after 7 i modulo 13 computations, so that the lanes are woken in another order than theirs.
  for (std::size_t i = 1; i <= receivers; ++i) program.transfer(0, i, Bytes(0), after_compute(7 * i % 13));
  EventList trace;
  simulate(platform, program, on_hosts(names(receivers + 1)), 1, &trace);
  for (std::size_t i = 1; i <= receivers; ++i) {
    EXPECT_NEAR(events_of(trace.events, Opcode::Recv, i).at(0).end.value, static_cast<double>(7 * i % 13), 1e-6);
  }
}

TEST(Waits, MayLookAPeriodBack)
{
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", "0s");
  const Platform platform = file.load();
  ListedProgram program(2);
  // A message takes 2 s, and the first computation of a step waits for that of the step before.
  program.compute(0, Seconds(1), Wait{program.send_lane(0, 1), 1, 1});
  program.compute(0, Seconds(1));
  program.transfer(0, 1, Bytes(200e6), after_compute(1));
  EventList trace;
  const auto report = simulate(platform, program, on_hosts(names(2)), 3, &trace);
  // Messages are on their way from 1 to 3 s, from 4 to 6 s, and from 7 to 9 s.
  expect_times(begins_of(trace, 0), {0, 1, 3, 4, 6, 7});
  expect_times({report.step_times[0].value, report.step_times[1].value, report.step_times[2].value}, {3, 3, 3});
}

TEST(Waits, MayBeForTheLaneItself)
{
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", "1s");
  const Platform platform = file.load();
  ListedProgram program(2);
  const LaneId lane = program.send_lane(0, 1);
  program.transfer(0, 1, Bytes(100e6));
  program.transfer(0, 1, Bytes(100e6));
  program.transfer(0, 1, Bytes(100e6), Wait{lane, 0, 2});
  EventList trace;
  simulate(platform, program, on_hosts(names(2)), 1, &trace);
  const auto receives = events_of(trace.events, Opcode::Recv, 1);
  ASSERT_EQ(receives.size(), 3U);
  EXPECT_NEAR(receives[1].end.value, 3, 1e-6);
  EXPECT_NEAR(receives[2].begin.value, 4, 1e-6);  // a latency after the second one has arrived
  EXPECT_NEAR(receives[2].end.value, 5, 1e-6);
}

// --- steps -------------------------------------------------------------------------------------------------------

struct TwoStages {
  double forward[2];
  double backward[2];
  double update[2];
  double activation;  // seconds of data
  double gradient;
  double latency;
};

/// Ends of steps of two stages under 1F1B.
std::vector<double> ends_by_recurrence(const TwoStages& times, std::uint64_t microbatches, std::uint64_t steps)
{
  double busy[2] = {0, 0};  // until then
  double activation = 0;    // arrival of the last one
  double gradient = 0;
  const auto compute = [&busy](std::size_t stage, double arrival, double duration) {
    return busy[stage] = std::max(busy[stage], arrival) + duration;
  };
  const auto forward_on_first_stage = [&] {
    activation = std::max(compute(0, 0, times.forward[0]) + times.latency, activation) + times.activation;
  };
  std::vector<double> ends;
  for (std::uint64_t step = 0; step < steps; ++step) {
    forward_on_first_stage();
    for (std::uint64_t m = 0; m < microbatches; ++m) {
      compute(1, activation, times.forward[1]);
      const double done = compute(1, 0, times.backward[1]);
      gradient = std::max(done + times.latency, gradient) + times.gradient;
      if (m + 1 < microbatches) forward_on_first_stage();
      compute(0, gradient, times.backward[0]);
    }
    for (const std::size_t stage : {0U, 1U}) compute(stage, 0, times.update[stage]);
    ends.push_back(std::max(busy[0], busy[1]));
  }
  return ends;
}

std::vector<Seconds> simulated_step_times(const TwoStages& times, std::uint64_t microbatches, std::uint64_t steps)
{
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", fmt::format("{:.17g}s", times.latency));
  const Platform platform = file.load();
  Workload workload = equal_layers(2, Bytes(100e6 * times.activation), Bytes(100e6 * times.gradient));
  for (const std::size_t i : {0U, 1U}) {
    workload.layers[i].forward = Flops(1e9 * times.forward[i]);
    workload.layers[i].backward = Flops(1e9 * times.backward[i]);
    workload.layers[i].parameters = static_cast<std::uint64_t>(0.5e9 * times.update[i]);  // 2 FLOP each by sgd
  }
  const Plan plan = one_layer_per_device(names(2), ChainSchedule::OneForwardOneBackward, microbatches);
  return simulate_plan(platform, workload, plan, steps).step_times;
}

/// The last stage takes long to update, while the first one computes ahead.
constexpr TwoStages slow_last_update = {{1, 1}, {2, 2}, {0, 6}, 0.5, 0.25, 0.125};

TEST(Steps, FlowIntoEachOtherAsByTheRecurrence)
{
  constexpr std::uint64_t microbatches = 4;
  constexpr std::uint64_t steps = 4;
  const auto ends = ends_by_recurrence(slow_last_update, microbatches, steps);
  const auto step_times = simulated_step_times(slow_last_update, microbatches, steps);
  ASSERT_EQ(step_times.size(), steps);
  double begin = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    EXPECT_NEAR(step_times[i].value, ends[i] - begin, 1e-6) << "step " << i;
    begin = ends[i];
  }
  EXPECT_LT(step_times[1].value, step_times[0].value - 1);  // it overlaps with the first one
}

TEST(Steps, AreTheSameFirstStepWhateverTheirNumber)
{
  const auto first_of = [](std::uint64_t steps) {
    return number_from_child([steps] { return simulated_step_times(slow_last_update, 4, steps).at(0).value; });
  };
  EXPECT_NEAR(first_of(1), first_of(3), tolerance);
}

TEST(Steps, OfALaneAreAtMostOneAheadOfAnother)
{
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", "0s");
  const Platform platform = file.load();
  ListedProgram program(2);
  program.compute(0, Seconds(1));
  program.transfer(0, 1, Bytes(300e6));
  program.compute(1, Seconds(0.5));
  EventList trace;
  const auto report = simulate(platform, program, on_hosts(names(2)), 6, &trace);
  // A message takes 3 s. That of step k has arrived at 3 (k + 1) s, when step k + 2 may begin.
  expect_times(begins_of(trace, 0), {0, 1, 3, 6, 9, 12});
  expect_times(begins_of(trace, 1), {0, 0.5, 3, 6, 9, 12});
  for (const Seconds time : report.step_times) EXPECT_NEAR(time.value, 3, 1e-6);
}

TEST(Steps, OfRanksWithoutChannelsWaitForNoOtherRank)
{
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", "0s");
  const Platform platform = file.load();
  ListedProgram program(2);
  program.compute(0, Seconds(1));
  program.compute(1, Seconds(4));
  EventList trace;
  const auto report = simulate(platform, program, on_hosts(names(2)), 5, &trace);
  expect_times(begins_of(trace, 0), {0, 1, 2, 3, 4});
  ASSERT_EQ(report.step_times.size(), 5U);
  for (const Seconds time : report.step_times) EXPECT_NEAR(time.value, 4, 1e-6);
}

TEST(Steps, HaveMessagesOnTheirWayBehindThoseOfTheStepBefore)
{
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", "2s");
  const Platform platform = file.load();
  ListedProgram program(2);
  for (int i = 0; i < 2; ++i) program.transfer(0, 1, Bytes(100e6));
  EventList trace;
  const auto report = simulate(platform, program, on_hosts(names(2)), 2, &trace);
  const auto receives = events_of(trace.events, Opcode::Recv, 1);
  ASSERT_EQ(receives.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(receives[i].step, i / 2);
    EXPECT_EQ(receives[i].position, i % 2);
  }
  EXPECT_NEAR(receives[1].end.value, 4, 1e-6);
  EXPECT_NEAR(receives[2].begin.value, 4, 1e-6);
  EXPECT_NEAR(report.step_times[1].value, 2, 1e-6);
}

TEST(Steps, PrefetchTheInputOfTheNextOne)
{
  PlatformFile file;
  device_with_data_server(file, "100MBps", "1s");
  const Platform platform = file.load();
  EventList trace;
  const auto report = simulate_plan(platform, equal_layers(1, Bytes(50e6), Bytes(0)),
                                    one_layer_per_device({"d0"}, ChainSchedule::GPipe, 2), 3, &trace);
  // Inputs arrive at 1.5 and 2 s. Two forward passes end at 3.5 s, two backward passes at 7.5 s. The first input of the
  // next step leaves after the first forward pass, at 2.5 s, and the second one after the second, at 3.5 s.
  expect_times(begins_of(trace, 0), {1.5, 2.5, 7.5, 8.5, 13.5, 14.5});
  EXPECT_NEAR(report.step_times[0].value, 7.5, 1e-6);
  EXPECT_NEAR(report.step_times[1].value, 6, 1e-6);
  EXPECT_NEAR(report.step_times[2].value, 6, 1e-6);
  const auto receives = events_of(trace.events, Opcode::Recv, 0);
  ASSERT_EQ(receives.size(), 6U);
  EXPECT_NEAR(receives[2].end.value, 2.5 + 1.5, 1e-6);
  EXPECT_NEAR(receives[3].end.value, 3.5 + 1.5, 1e-6);
}

}  // namespace
}  // namespace isobar::sim::steps_test
