#include "sim/play/simulation.hpp"

#include "core/base/child_process.hpp"
#include "core/costs/cost_model.hpp"
#include "core/model/layer_graph.hpp"
#include "core/order/schedule_choice.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

// What a simulation records: the events of its trace, the memory of ranks, and the bytes of links.
namespace isobar::sim::simulation_trace_test {
namespace {

TEST(Simulate, RecordsEachInstructionOnceInTheOrderOfEndsAndSendsAsTheyArrive)
{
  PlatformFile file;
  chain_of_devices(file, 3, "100MBps", "10ms");
  const Platform platform = file.load();
  const Workload workload = equal_layers(3, Bytes(50e6), Bytes(30e6));
  const Plan plan = one_layer_per_device(names(3), ChainSchedule::OneForwardOneBackward, 4);
  const auto program = schedules::make_program(plan, workload, platform.cluster());
  EventList trace;
  simulate(platform, *program, rank_hosts(plan, platform.cluster()), 2, &trace);

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
  spill.time = Seconds(1);
  spill.acquires = {Tier::Host, Bytes(30)};
  spill.releases = {Tier::Device, Bytes(40)};
  program.add(0, compute_lane, spill);
  MemoryLog log;
  simulate(platform, program, on_hosts({"d0"}), 1, &log);
  EXPECT_EQ(log.text, "0 device 0 100\n0 disk 0 7\n0 host 0 30\n0 device 1 60\n");
  EXPECT_EQ(log.device, Bytes(100));
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

}  // namespace
}  // namespace isobar::sim::simulation_trace_test
