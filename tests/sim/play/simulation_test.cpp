#include "sim/play/simulation.hpp"

#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/cost_model.hpp"
#include "core/plan/schedule_choice.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>
#include <random>

namespace isobar::sim {
namespace {

constexpr double tolerance = 1e-6;  // relative

Seconds step_time(const SimulationReport& report)
{
  return report.step_times.at(0);
}

/// Arrival time of the last transfer to each rank.
std::map<std::size_t, double> arrivals(const EventList& trace)
{
  std::map<std::size_t, double> result;
  for (const auto& event : trace.events) {
    if (event.instruction.opcode == Opcode::Recv) result[event.rank] = event.end.value;
  }
  return result;
}

// --- closed forms of schedules -----------------------------------------------------------------------------------

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
      file.device("d0", "1Gf");
      file.data_server("data");
      file.link("wan", "100MBps", "100ms");
      file.route("data", "d0", {"wan"});
      file.route("d0", "data", {"wan"});
      const Platform platform = file.load();
      const Workload workload = equal_layers(1, Bytes(input_bytes), Bytes(0));
      return step_time(simulate_plan(platform, workload, one_layer_per_device({"d0"}, ChainSchedule::Sequential, 4)))
          .value;
    });
  };
  EXPECT_NEAR(step(100e6), 1.1 + 4 * 3, 12 * tolerance);      // only the first input delays the step
  EXPECT_NEAR(step(400e6), 0.1 + 4 * 4 + 3, 20 * tolerance);  // the server is the bottleneck: inputs follow each other
}

// --- transfers ---------------------------------------------------------------------------------------------------

TEST(Simulate, TakesLatencyAndBytesOverBandwidthPerTransfer)
{
  for (const double bytes : {0.0, 1.0, 1000.0, 123456789.0, 5e9, 1e12}) {
    for (const std::string latency : {"0s", "2us", "50ms"}) {
      SCOPED_TRACE(fmt::format("{} B, {}", bytes, latency));
      const double time = number_from_child([&] {
        PlatformFile file;
        file.device("a", "1Gf");
        file.device("b", "1Gf");
        file.link("l", "1.25GBps", latency);
        file.route("a", "b", {"l"});
        file.route("b", "a", {"l"});
        const Platform platform = file.load();
        ListedProgram program(2);
        program.transfer(0, 1, Bytes(bytes));
        return step_time(simulate(platform, program, at_one_gigaflop({"a", "b"}), 1, nullptr)).value;
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
  const auto report = simulate(platform, program, at_one_gigaflop({"a", "b", "c", "d", "e", "f"}), 1, &trace);
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
  simulate(platform, program, at_one_gigaflop({"a", "b", "c", "d"}), 1, &trace);
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
  simulate(platform, program, at_one_gigaflop({"a", "b"}), 1, &trace);
  const auto arrival = arrivals(trace);
  EXPECT_NEAR(arrival.at(1), 0.01 + 0.1, tolerance);
  EXPECT_NEAR(arrival.at(0), 0.03 + 10, 10 * tolerance);
}

TEST(Simulate, ConservesTheBytesOfEachRoute)
{
  PlatformFile file;
  for (std::size_t i = 0; i < 3; ++i) file.device(fmt::format("d{}", i), "1Gf");
  for (const std::string link : {"up", "core", "down", "back"}) file.link(link, "100MBps", "1ms");
  file.route("d0", "d1", {"up", "core", "down"});
  file.route("d1", "d2", {"up", "core"});
  file.route("d1", "d0", {"back"});
  file.route("d2", "d1", {"back", "core"});
  const Platform platform = file.load();
  Workload workload = equal_layers(3, Bytes(1000), Bytes(300));
  workload.layers[1].output = Bytes(70);
  workload.layers[2].gradient = Bytes(9);
  const auto report =
      simulate_plan(platform, workload, one_layer_per_device(names(3), ChainSchedule::OneForwardOneBackward, 5), 2);
  const Boundaries cuts = boundaries_of(workload);
  const double first = 10 * cuts.output[1].value;
  const double second = 10 * cuts.output[2].value;
  const double first_back = 10 * cuts.gradient[1].value;
  const double second_back = 10 * cuts.gradient[2].value;
  std::map<std::string, double> bytes;
  for (const auto& link : report.links) bytes[link.name] = link.bytes.value;
  const std::map<std::string, double> expected = {{"up", first + second},
                                                  {"core", first + second + second_back},
                                                  {"down", first},
                                                  {"back", first_back + second_back}};
  EXPECT_EQ(bytes, expected);
}

// --- the trace ---------------------------------------------------------------------------------------------------

TEST(Simulate, RecordsEachInstructionOnceInTheOrderOfEndsAndSendsAsTheyArrive)
{
  PlatformFile file;
  chain_of_devices(file, 3, "100MBps", "10ms");
  const Platform platform = file.load();
  const Workload workload = equal_layers(3, Bytes(50e6), Bytes(30e6));
  const Plan plan = one_layer_per_device(names(3), ChainSchedule::OneForwardOneBackward, 4);
  const auto program = schedules::make_program(plan, workload);
  EventList trace;
  simulate(platform, *program, rank_hosts(plan, workload, platform.cluster()), 2, &trace);

  std::map<std::pair<std::size_t, LaneId>, std::uint64_t> events_of_lane;
  std::map<std::pair<std::size_t, LaneId>, Seconds> lane_end;
  Seconds latest;
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const auto& event = trace.events[i];
    const LaneId lane = event.instruction.lane;
    EXPECT_LE(event.begin, event.end);
    if (event.instruction.opcode == Opcode::Send) {
      const auto& arrival = trace.events.at(i + 1);
      const auto channel = program->lanes(event.rank).at(lane).channel;
      const End receiver = other_end(program->channels().at(channel.value()), event.rank, lane);
      EXPECT_EQ(arrival.instruction.opcode, Opcode::Recv);
      EXPECT_EQ(arrival.rank, receiver.rank);
      EXPECT_EQ(arrival.instruction.lane, receiver.lane);
      EXPECT_EQ(arrival.instruction.microbatch, event.instruction.microbatch);
    } else {
      EXPECT_GE(event.end, latest);
      latest = event.end;
    }
    EXPECT_GE(event.begin, (lane_end[{event.rank, lane}]));
    lane_end[{event.rank, lane}] = event.end;
    const std::uint64_t count = events_of_lane[{event.rank, lane}]++;
    EXPECT_EQ(event.step, count / program->length(event.rank, lane));
    EXPECT_EQ(event.position, count % program->length(event.rank, lane));
    const Instruction expected = program->at(event.rank, lane, event.position);
    EXPECT_EQ(event.instruction.opcode, expected.opcode);
    EXPECT_EQ(event.instruction.microbatch, expected.microbatch);
  }
  for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
    for (LaneId lane = 0; lane < program->lanes(rank).size(); ++lane) {
      EXPECT_EQ((events_of_lane[{rank, lane}]), 2 * program->length(rank, lane));
    }
  }
}

TEST(Simulate, PeaksAtTheMemoryOfTheCostModel)
{
  for (const ChainSchedule schedule :
       {ChainSchedule::Sequential, ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}) {
    SCOPED_TRACE(name_of(schedule));
    const auto child = [&] {
      PlatformFile file;
      chain_of_devices(file, 4, "100MBps", "10ms");
      const Platform platform = file.load();
      Workload workload = equal_layers(4, Bytes(5e6), Bytes(3e6));
      workload.layers[2].parameters = 12345;
      EventList trace;
      simulate_plan(platform, workload, one_layer_per_device(names(4), schedule, 6), 2, &trace);
      const CostModel costs(workload, platform.cluster());
      double worst = 0;
      for (std::size_t rank = 0; rank < 4; ++rank) {
        double peak = 0;
        for (const auto& event : trace.events) {
          if (event.rank == rank) peak = std::max(peak, event.memory.value);
        }
        worst = std::max(
            worst, std::abs(peak - costs.memory(rank, rank, microbatches_in_flight(schedule, 3 - rank, 6)).value));
      }
      return worst;
    };
    EXPECT_EQ(number_from_child(child), 0);
  }
}

TEST(Simulate, ReportsTheMemoryOfEachTier)
{
  class MemoryLog : public TraceSink {
   public:
    void record(const TraceEvent& event) override { device = event.memory; }
    void memory_changed(std::size_t rank, Tier tier, Seconds time, Bytes memory) override
    {
      text += fmt::format("{} {} {:.6g} {:.6g}\n", rank, name_of(tier), time.value, memory.value);
    }
    std::string text;
    Bytes device;
  };
  PlatformFile file;
  chain_of_devices(file, 1, "100MBps", "10ms");
  const Platform platform = file.load();
  ListedProgram program(1);
  program.listing[0].resident = {Bytes(100), Bytes(0), Bytes(7)};  // device, host, disk
  Instruction spill;
  spill.work = Flops(1e9);
  spill.acquires = {Tier::Host, Bytes(30)};
  spill.releases = {Tier::Device, Bytes(40)};
  program.add(0, compute_lane, spill);
  MemoryLog log;
  simulate(platform, program, at_one_gigaflop({"d0"}), 1, &log);
  EXPECT_EQ(log.text, "0 device 0 100\n0 disk 0 7\n0 host 0 30\n0 device 1 60\n");
  EXPECT_EQ(log.device, Bytes(100));
}

TEST(Simulate, GivesTheSameTraceTwice)
{
  const auto run = [] {
    PlatformFile file;
    chain_of_devices(file, 5, "100MBps", "10ms");
    const Platform platform = file.load();
    EventList trace;
    simulate_plan(platform, equal_layers(5, Bytes(50e6), Bytes(30e6)),
                  one_layer_per_device(names(5), ChainSchedule::OneForwardOneBackward, 9), 2, &trace);
    std::string text;
    for (const auto& event : trace.events) {
      text += fmt::format("{} {} {} {} {:a} {:a}\n", event.step, event.rank, event.instruction.lane,
                          event.instruction.microbatch, event.begin.value, event.end.value);
    }
    return text;
  };
  const auto results = run_in_children({run, run}, 2, Seconds(60));
  EXPECT_FALSE(results[0].output_or_throw().empty());
  EXPECT_EQ(results[0].output_or_throw(), results[1].output_or_throw());
}

// --- nothing to do, and deadlock --------------------------------------------------------------------------------

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
  EXPECT_NEAR(step_time(report).value, 4 * 0.01, tolerance);  // once each way, then the last micro-batches after them
  EXPECT_EQ(report.activities, 2U * 3 * 2);
  EXPECT_EQ(trace.events.size(), 2U * (2 * 7 + 4 * 3));
}

/// The message of a program that deadlocks.
std::string deadlock_of(const Program& program, std::uint64_t iterations = 1)
{
  PlatformFile file;
  chain_of_devices(file, program.ranks(), "100MBps", "10ms");
  const Platform platform = file.load();
  return message_of([&] { simulate(platform, program, at_one_gigaflop(names(program.ranks())), iterations, nullptr); });
}

TEST(Simulate, NamesTheWaitingInstructionsOfADeadlock)
{
  ListedProgram program(2);
  program.compute(0, Flops(1e9));
  program.compute(0, Flops(1e9), Wait{program.receive_lane(1, 0), 0, 1});
  program.transfer(1, 0, Bytes(1), after_compute(1));
  program.compute(1, Flops(1e9), Wait{program.send_lane(1, 0), 0, 1});
  EXPECT_EQ(deadlock_of(program),
            "bug the program deadlocks:\n"
            "  Forward of micro-batch 1 (rank 0, step 0) waits for 1 of its receive activation\n"
            "  Recv activation of micro-batch 0 (rank 0, step 0) waits for rank 1\n"
            "  Forward of micro-batch 0 (rank 1, step 0) waits for 1 of its send activation\n"
            "  Send activation of micro-batch 0 (rank 1, step 0) waits for 1 of its compute");
}

TEST(Simulate, NamesTheRanksThatACollectiveWaitsFor)
{
  const std::vector<std::size_t> all = {0, 1, 2, 3};
  ListedProgram program(4);
  for (const std::size_t rank : {0U, 1U}) program.compute(rank, Flops(1e9));
  for (const std::size_t rank : {2U, 3U}) program.compute(rank, Flops(1e9), Wait{program.sync_lane(rank, all), 0, 1});
  program.collective(Opcode::AllReduce, all, Bytes(1), after_compute(1));
  EXPECT_EQ(deadlock_of(program),
            "bug the program deadlocks:\n"
            "  AllReduce parameter gradient (rank 0, step 0) waits for ranks 2, 3\n"
            "  AllReduce parameter gradient (rank 1, step 0) waits for ranks 2, 3\n"
            "  Forward of micro-batch 0 (rank 2, step 0) waits for 1 of its sync\n"
            "  AllReduce parameter gradient (rank 2, step 0) waits for 1 of its compute\n"
            "  Forward of micro-batch 0 (rank 3, step 0) waits for 1 of its sync\n"
            "  AllReduce parameter gradient (rank 3, step 0) waits for 1 of its compute");
}

/// The message of a program in which rank 1 waits for itself, so that nothing arrives at rank 0.
std::string deadlock_without_arrivals(Waits waits_of_rank_0)
{
  ListedProgram program(2);
  program.compute(0, Flops(1e9), waits_of_rank_0);
  program.compute(1, Flops(1e9), Wait{program.send_lane(1, 0), 0, 1});
  program.transfer(1, 0, Bytes(1), after_compute(1));
  return deadlock_of(program, 3);
}

TEST(Simulate, NamesTheStepThatALaneWaitsForBeforeItEntersAnother)
{
  EXPECT_EQ(deadlock_without_arrivals({}),
            "bug the program deadlocks:\n"
            "  Forward of micro-batch 0 (rank 0, step 2) waits for the end of step 0 of its rank\n"
            "  Recv activation of micro-batch 0 (rank 0, step 0) waits for rank 1\n"
            "  Forward of micro-batch 0 (rank 1, step 0) waits for 1 of its send activation\n"
            "  Send activation of micro-batch 0 (rank 1, step 0) waits for 1 of its compute");
}

TEST(Simulate, NamesTheStepOfAWaitThatLooksBack)
{
  const LaneId receive_lane = 1;
  EXPECT_EQ(deadlock_without_arrivals(Wait{receive_lane, 1, 1}),
            "bug the program deadlocks:\n"
            "  Forward of micro-batch 0 (rank 0, step 1) waits for 1 of its receive activation in step 0\n"
            "  Recv activation of micro-batch 0 (rank 0, step 0) waits for rank 1\n"
            "  Forward of micro-batch 0 (rank 1, step 0) waits for 1 of its send activation\n"
            "  Send activation of micro-batch 0 (rank 1, step 0) waits for 1 of its compute");
}

TEST(Simulate, PassesOnWhatTheSinkThrows)
{
  class FullDisk : public TraceSink {
   public:
    void record(const TraceEvent&) override { throw EnvironmentError("disk full"); }
  };
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", "10ms");
  const Platform platform = file.load();
  FullDisk sink;
  EXPECT_THROW(simulate_plan(platform, equal_layers(2, Bytes(0), Bytes(0)),
                             one_layer_per_device(names(2), ChainSchedule::GPipe, 1), 1, &sink),
               EnvironmentError);
}

TEST(RankHosts, AreTheDevicesOfThePlanThenTheDataServer)
{
  PlatformFile file("cluster");
  file.device("a", "2Gf");
  file.device("b", "3Gf", "", "<prop id=\"speed.fp16\" value=\"8 GFLOP/s\"/>");
  file.data_server("data");
  const Platform platform = file.load();
  Workload workload = equal_layers(2, Bytes(0), Bytes(0));
  workload.dtype = DType::Float16;
  const auto ranks =
      rank_hosts(one_layer_per_device({"b", "a"}, ChainSchedule::GPipe, 1), workload, platform.cluster());
  ASSERT_EQ(ranks.size(), 3U);
  EXPECT_EQ(ranks[0].host, "b");
  EXPECT_EQ(ranks[0].speed, FlopsPerSecond(8e9));
  EXPECT_EQ(ranks[1].host, "a");
  EXPECT_EQ(ranks[1].speed, FlopsPerSecond(2e9));
  EXPECT_EQ(ranks[2].host, "data");
  EXPECT_EQ(message_of([&] {
              rank_hosts(one_layer_per_device({"b", "c"}, ChainSchedule::GPipe, 1), workload, platform.cluster());
            }),
            "InputError cluster: there is no device c; the plan was made for another platform");
}

TEST(RankHosts, AreOnePerDeviceInTheOrderOfItsFirstStage)
{
  PlatformFile file;
  chain_of_devices(file, 2, "100MBps", "10ms");
  const Platform platform = file.load();
  const Plan plan = one_layer_per_device({"d1", "d0", "d1", "d0"}, ChainSchedule::GPipe, 1);
  const auto ranks = rank_hosts(plan, equal_layers(4, Bytes(0), Bytes(0)), platform.cluster());
  ASSERT_EQ(ranks.size(), 2U);
  EXPECT_EQ(ranks[0].host, "d1");
  EXPECT_EQ(ranks[1].host, "d0");
}

TEST(Simulate, GivesUpAStepBeyondThePrecisionOfItsClock)
{
  PlatformFile file("slow");
  file.device("a", "1f");
  const Platform platform = file.load();
  Workload workload = equal_layers(1, Bytes(1), Bytes(1));
  workload.layers[0].forward = Flops(1e18);
  try {
    simulate_plan(platform, workload, one_layer_per_device({"a"}, ChainSchedule::Sequential, 1));
    ADD_FAILURE() << "no fault";
  } catch (const InputError& error) {
    EXPECT_STREQ(
        error.what(),
        "slow: the simulation takes more than 1e+15 s of simulated time; check the units of speeds, bandwidths "
        "and work, or lower --iterations");
  }
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

TEST(Simulate, RunsOncePerProcess)
{
  PlatformFile file;
  chain_of_devices(file, 1, "100MBps", "10ms");
  const Platform platform = file.load();
  const auto run = [&] {
    simulate_plan(platform, equal_layers(1, Bytes(0), Bytes(0)),
                  one_layer_per_device(names(1), ChainSchedule::GPipe, 1));
  };
  EXPECT_EQ(message_of(run), "no error");
  EXPECT_EQ(message_of(run), "bug SimGrid's clock and callbacks allow one simulation per process");
}

// --- properties --------------------------------------------------------------------------------------------------

/// A random platform, workload and plan; returns step time / step bound of the simulation.
double time_over_bound(unsigned seed)
{
  std::mt19937 random(seed);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  const auto below = [&](std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
  };
  const std::size_t stages = 1 + below(6);
  const bool has_data_server = below(2) == 0;
  const std::size_t links = 1 + below(8);
  PlatformFile file;
  for (std::size_t i = 0; i < stages; ++i) file.device(fmt::format("d{}", i), fmt::format("{}Gf", uniform(0.5, 20)));
  std::vector<std::string> endpoints = names(stages);
  if (has_data_server) {
    file.data_server("data");
    endpoints.push_back("data");
  }
  for (std::size_t i = 0; i < links; ++i) {
    file.link(fmt::format("l{}", i), fmt::format("{}MBps", uniform(1, 1000)), fmt::format("{}ms", uniform(0.01, 50)),
              below(4) == 0 ? "sharing_policy=\"FATPIPE\"" : "",
              below(4) == 0 ? "<prop id=\"flows\" value=\"2\"/><prop id=\"window\" value=\"1 MB\"/>" : "");
  }
  for (const auto& from : endpoints) {
    for (const auto& to : endpoints) {
      if (from == to) continue;
      std::vector<std::string> route = {fmt::format("l{}", below(links))};
      if (below(2) == 0) route.push_back(fmt::format("l{}", below(links)));
      file.route(from, to, route);
    }
  }
  const Platform platform = file.load();
  Workload workload = equal_layers(stages, Bytes(0), Bytes(0));
  workload.input = Bytes(uniform(0, 1e8));
  for (auto& layer : workload.layers) {
    layer.forward = Flops(uniform(0, 5e9));
    layer.backward = Flops(uniform(0, 9e9));
    layer.output = Bytes(uniform(0, 1e8));
    layer.gradient = Bytes(uniform(0, 1e8));
    layer.parameters = below(1000000000);
  }
  const ChainSchedule schedule =
      std::array{ChainSchedule::Sequential, ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}.at(below(3));
  const Plan plan = one_layer_per_device(names(stages), schedule, 1 + below(12));
  const Seconds simulated = step_time(simulate_plan(platform, workload, plan));
  std::vector<StagePlacement> placement;
  for (std::size_t i = 0; i < stages; ++i) {
    placement.push_back({platform.cluster().device_index(plan.stages[i].device()).value(), i, i});
  }
  return simulated / CostModel(workload, platform.cluster()).evaluate(placement, plan.goal).step_bound;
}

TEST(Simulate, IsNeverUnderTheStepBound)
{
  std::vector<std::function<std::string()>> cases;
  for (unsigned seed = 1; seed <= 120; ++seed) {
    cases.emplace_back([seed] { return fmt::format("{:.17g}", time_over_bound(seed)); });
  }
  const auto results = run_in_children(cases, 2, Seconds(60));
  for (std::size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(fmt::format("seed {}", i + 1));
    EXPECT_GE(std::stod(results[i].output_or_throw()), 1 - 1e-9);
  }
}

double peak_memory_bytes(std::uint64_t microbatches)
{
  return number_from_child([&] {
    PlatformFile file;
    chain_of_devices(file, 64, "100MBps", "10ms");
    const Platform platform = file.load();
    simulate_plan(platform, equal_layers(64, Bytes(5e6), Bytes(3e6)),
                  one_layer_per_device(names(64), ChainSchedule::OneForwardOneBackward, microbatches));
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) * 1024;
  });
}

TEST(Simulate, TakesNoMoreMemoryForMoreMicroBatches)
{
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps freed memory, so peak memory is meaningless";
#endif
  const double few = peak_memory_bytes(64);
  const double many = peak_memory_bytes(2048);
  EXPECT_LT(many, 1.03 * few);
}

}  // namespace
}  // namespace isobar::sim
