#include "sim/play/simulation.hpp"

#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>

// Durations of steps and of transfers, by closed forms.
namespace isobar::sim::simulation_test {
namespace {

constexpr double tolerance = 1e-6;  // relative

/// Arrival time of the last transfer to each rank.
std::map<std::size_t, double> arrivals(const EventList& trace)
{
  std::map<std::size_t, double> result;
  for (const auto& event : trace.events) {
    if (event.instruction.opcode == Opcode::Recv) result[event.rank] = event.end.value;
  }
  return result;
}

// --- steps -------------------------------------------------------------------------------------------------------

TEST(Simulate, TakesTheSumOfComputeAndTransfersWhenSequential)
{
  PlatformFile file;
  chain_of_devices(file, 3, "100MBps", "10ms");
  const Platform platform = file.load();
  const Workload workload = equal_layers(3, Bytes(50e6), Bytes(30e6));
  const auto report =
      simulate_plan(platform, workload, one_layer_per_device(names(3), ChainSchedule::Sequential, 2), 3);
  const double microbatch = 3 * 3.0 + 2 * (0.01 + 0.5) + 2 * (0.01 + 0.3);
  ASSERT_EQ(report.step_times.size(), 3U);
  for (const auto time : report.step_times) EXPECT_NEAR(time.value, 2 * microbatch, tolerance * microbatch);
  EXPECT_EQ(report.activities, 3U * 2 * (6 + 4));
}

TEST(Simulate, TakesSlotsForEachStageAndMicroBatchWhenPipelined)
{
  for (const ChainSchedule schedule : {ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}) {
    for (const std::size_t stages : std::initializer_list<std::size_t>{1, 2, 3, 7, 64}) {
      for (const std::uint64_t microbatches : std::initializer_list<std::uint64_t>{1, 2, 5, 100}) {
        SCOPED_TRACE(fmt::format("{} S = {} M = {}", name_of(schedule), stages, microbatches));
        const double time = number_from_child([&] {
          PlatformFile file;
          chain_of_devices(file, stages, "1000GBps", "0s");
          const Platform platform = file.load();
          const Workload workload = equal_layers(stages, Bytes(1), Bytes(1));
          return step_time(
                     simulate_plan(platform, workload, one_layer_per_device(names(stages), schedule, microbatches)))
              .value;
        });
        const double expected = 3.0 * static_cast<double>(stages + microbatches - 1);
        EXPECT_NEAR(time, expected, tolerance * expected);
      }
    }
  }
}

TEST(Simulate, AddsTheSlowestUpdateToASequentialStep)
{
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", "0s");
  const Platform platform = file.load();
  Workload workload = equal_layers(2, Bytes(100e6), Bytes(100e6));
  workload.layers[0].parameters = 1'000'000'000;  // 2 FLOP each by sgd: 2 s
  const auto report = simulate_plan(platform, workload, one_layer_per_device(names(2), ChainSchedule::Sequential, 1));
  EXPECT_NEAR(step_time(report).value, 1 + 1 + 1 + 2 + 1 + 2 + 2, tolerance);
}

TEST(Simulate, ComputesAtTheRateOfTheWorkloadsDtype)
{
  PlatformFile file;
  file.device("d0", "1Gf", "", "<prop id=\"speed.bf16\" value=\"4 GFLOP/s\"/>");
  const Platform platform = file.load();
  Workload workload = equal_layers(1, Bytes(0), Bytes(0));
  workload.dtype = DType::BFloat16;
  EXPECT_NEAR(step_time(simulate_plan(platform, workload, one_layer_per_device({"d0"}, ChainSchedule::GPipe, 2))).value,
              1.5, tolerance);
}

TEST(Simulate, FetchesTheNextInputWhileItComputes)
{
  const auto step = [](double input_bytes) {
    return number_from_child([&] {
      PlatformFile file;
      device_with_data_server(file, "100MBps", "100ms");
      const Platform platform = file.load();
      const Workload workload = equal_layers(1, Bytes(input_bytes), Bytes(0));
      return step_time(simulate_plan(platform, workload, one_layer_per_device({"d0"}, ChainSchedule::Sequential, 4)))
          .value;
    });
  };
  EXPECT_NEAR(step(100e6), 1.1 + 4 * 3, 12 * tolerance);      // only the first input delays the step
  EXPECT_NEAR(step(400e6), 0.1 + 4 * 4 + 3, 20 * tolerance);  // the server is the bottleneck: inputs follow each other
}

TEST(Simulate, PassesOverInstructionsWithoutWork)
{
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", "10ms");
  const Platform platform = file.load();
  Workload workload = equal_layers(2, Bytes(0), Bytes(0));
  for (auto& layer : workload.layers) layer.forward = layer.backward = Flops(0);
  EventList trace;
  const auto report = simulate_plan(platform, workload,
                                    one_layer_per_device(names(2), ChainSchedule::OneForwardOneBackward, 3), 2, &trace);
  // The last micro-batch leaves the first stage when the first one is back there, after two latencies.
  EXPECT_NEAR(step_time(report).value, 4 * 0.01, tolerance);
  EXPECT_EQ(report.activities, 2U * 3 * 2);
  EXPECT_EQ(trace.events.size(), 2U * (2 * 7 + 4 * 3));
}

TEST(Simulate, PlaysAStepOfCenturies)
{
  PlatformFile file;
  chain_of_devices(file, 2, "1Bps", "0s");
  const Platform platform = file.load();
  Workload workload = equal_layers(2, Bytes(1e12), Bytes(1e12));
  const auto report = simulate_plan(platform, workload, one_layer_per_device(names(2), ChainSchedule::Sequential, 1));
  EXPECT_NEAR(step_time(report).value, 2e12, 1e6);
}

// --- transfers ---------------------------------------------------------------------------------------------------

TEST(Simulate, TakesLatencyAndBytesOverBandwidthPerTransfer)
{
  for (const double bytes : {0.0, 1.0, 1000.0, 123456789.0, 5e9, 1e12}) {
    for (const std::string latency : {"0s", "2us", "50ms"}) {
      SCOPED_TRACE(fmt::format("{} B, {}", bytes, latency));
      const double time = number_from_child([&] {
        PlatformFile file;
        two_hosts(file, "1.25GBps", latency);
        const Platform platform = file.load();
        ListedProgram program(2);
        program.transfer(0, 1, Bytes(bytes));
        return step_time(simulate(platform, program, on_hosts({"a", "b"}), 1, nullptr)).value;
      });
      const double expected = (latency == "0s" ? 0 : latency == "2us" ? 2e-6 : 0.05) + bytes / 1.25e9;
      EXPECT_NEAR(time, expected, tolerance * expected);
    }
  }
}

TEST(Simulate, SharesATrunkInHalvesAndLeavesOthersAlone)
{
  PlatformFile file;
  for (const std::string host : {"a", "b", "c", "d", "e", "f"}) file.device(host, "1Gf");
  file.link("trunk", "100MBps", "10ms");
  file.link("other", "100MBps", "10ms");
  file.route("a", "b", {"trunk"});
  file.route("c", "d", {"trunk"});
  file.route("e", "f", {"other"});
  const Platform platform = file.load();
  ListedProgram program(6);
  program.transfer(0, 1, Bytes(100e6));
  program.transfer(2, 3, Bytes(50e6));
  program.transfer(4, 5, Bytes(100e6));
  EventList trace;
  const auto report = simulate(platform, program, on_hosts({"a", "b", "c", "d", "e", "f"}), 1, &trace);
  const auto arrival = arrivals(trace);
  EXPECT_NEAR(arrival.at(3), 0.01 + 1.0, tolerance);  // half the trunk throughout
  EXPECT_NEAR(arrival.at(1), 0.01 + 1.5, tolerance);  // half of it for 1 s, all of it for 0.5 s
  EXPECT_NEAR(arrival.at(5), 0.01 + 1.0, tolerance);
  ASSERT_EQ(report.links.size(), 2U);
  EXPECT_EQ(report.links[0].name, "other");
  EXPECT_EQ(report.links[1].name, "trunk");
  EXPECT_DOUBLE_EQ(report.links[1].bytes.value, 150e6);
  EXPECT_NEAR(report.links[0].busy_time.value, 1.0, tolerance);
  EXPECT_NEAR(report.links[1].busy_time.value, 1.5, tolerance);
}

TEST(Simulate, LimitsAFlowToItsWindowPerRoundTrip)
{
  PlatformFile file;
  for (const std::string host : {"a", "b", "c", "d"}) file.device(host, "1Gf");
  file.link("wan", "100MBps", "50ms", "", "<prop id=\"flows\" value=\"4\"/><prop id=\"window\" value=\"1 MB\"/>");
  file.link("back", "100MBps", "50ms");
  file.link("free", "100MBps", "50ms");
  file.route("a", "b", {"wan"});
  file.route("b", "a", {"back"});
  file.route("c", "d", {"free"});
  file.route("d", "c", {"back"});
  const Platform platform = file.load();
  ListedProgram program(4);
  program.transfer(0, 1, Bytes(40e6));
  program.transfer(0, 1, Bytes(20e6));
  program.transfer(2, 3, Bytes(100e6));
  EventList trace;
  simulate(platform, program, on_hosts({"a", "b", "c", "d"}), 1, &trace);
  const auto arrival = arrivals(trace);
  EXPECT_NEAR(arrival.at(1), 0.05 + 1.0 + 0.5, tolerance);  // 4 MB per 0.1 s
  EXPECT_NEAR(arrival.at(3), 0.05 + 1.0, tolerance);        // other flows have no cap
}

TEST(Simulate, SendsEachWayOverItsOwnLink)
{
  PlatformFile file;
  file.device("a", "1Gf");
  file.device("b", "1Gf");
  file.link("there", "10GBps", "10ms");
  file.link("back", "100MBps", "30ms");
  file.route("a", "b", {"there"});
  file.route("b", "a", {"back"});
  const Platform platform = file.load();
  ListedProgram program(2);
  program.transfer(0, 1, Bytes(1e9));
  program.transfer(1, 0, Bytes(1e9));
  EventList trace;
  simulate(platform, program, on_hosts({"a", "b"}), 1, &trace);
  const auto arrival = arrivals(trace);
  EXPECT_NEAR(arrival.at(1), 0.01 + 0.1, tolerance);
  EXPECT_NEAR(arrival.at(0), 0.03 + 10, 10 * tolerance);
}

}  // namespace
}  // namespace isobar::sim::simulation_test
