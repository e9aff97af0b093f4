#include "results/trace/trace_stats.hpp"

#include "results/trace/recorded_program.hpp"
#include "tests/results/trace/interleaved_stages.hpp"
#include "tests/results/trace/two_stages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace isobar::results::trace_stats_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double tolerance = 1e-9;

/// A step takes 10.75 s plus two transfers of half a second.
TraceStats stats_of_steps(std::uint64_t steps)
{
  const TwoStages program;
  const WrittenTrace file;
  file.write_steps(program, steps, 0.5);
  return stats_of(file.timeline(program), {"a", "b"});
}

TEST(TraceStats, DivideTheTimeOfEachDevice)
{
  const auto stats = stats_of_steps(1);
  EXPECT_EQ(stats.steps, 1U);
  EXPECT_NEAR(stats.step_time.value, 11.75, tolerance);
  const auto& a = stats.devices[0];
  EXPECT_EQ(a.device, "a");
  EXPECT_NEAR(a.busy.value, 1 + 2 + 0.5, tolerance);
  EXPECT_NEAR(a.communication.value, 0.5 + 0.5 + 0.25,
              tolerance);  // two transfers, and the AllReduce when both are there
  EXPECT_NEAR(a.hidden.value, 0, tolerance);
  ASSERT_TRUE(a.idle);
  EXPECT_NEAR(a.idle->link.value, 0.5 + 0.25, tolerance);  // its backward waits for the gradient
  EXPECT_NEAR(a.idle->straggler.value, 7.25 - 3.5, tolerance);
  EXPECT_NEAR(a.idle->total().value, 11.75 - 3.5, tolerance);
  const auto& b = stats.devices[1];
  EXPECT_NEAR(b.busy.value, 3 + 4 + 0.25, tolerance);
  EXPECT_NEAR(b.idle->link.value, 0.5 + 0.25, tolerance);
  EXPECT_NEAR(b.idle->straggler.value, 0, tolerance);
  EXPECT_NEAR(b.idle->bubble.value, 11.75 - 7.25 - 0.75, tolerance);
}

TEST(TraceStats, ExcludeTheFirstOfSeveralSteps)
{
  const auto once = stats_of_steps(1);
  const auto stats = stats_of_steps(4);
  EXPECT_EQ(stats.steps, 3U);
  EXPECT_EQ(stats.typical_step, 1U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(stats.devices[i].busy.value, once.devices[i].busy.value, tolerance);
    EXPECT_NEAR(stats.devices[i].communication.value, once.devices[i].communication.value, tolerance);
    EXPECT_NEAR(stats.devices[i].idle->link.value, once.devices[i].idle->link.value, tolerance);
  }
}

TEST(TraceStats, DivideTheCriticalPathByKind)
{
  const auto stats = stats_of_steps(2);
  ASSERT_EQ(stats.critical_path.size(), 5U);
  EXPECT_EQ(stats.critical_path[0].opcode, Opcode::Backward);
  EXPECT_NEAR(stats.critical_path[0].time.value, 4 + 2, tolerance);
  EXPECT_NEAR(stats.critical_path[0].fraction, 6 / 11.75, tolerance);
  EXPECT_EQ(stats.critical_path[1].opcode, Opcode::Forward);
  double sum = 0;
  for (const auto& share : stats.critical_path) sum += share.fraction;
  EXPECT_NEAR(sum, 1, tolerance);
}

TEST(TraceStats, ListTheLanesOfEachDeviceByName)
{
  const auto json = nlohmann::json::parse(stats_to_json(stats_of_steps(1)));
  const auto lanes = json["devices"][0]["lanes"];
  std::vector<std::string> names;
  for (const auto& lane : lanes) names.push_back(lane["lane"]);
  EXPECT_THAT(names, ElementsAre("compute", "send activation", "receive gradient", "sync"));
  EXPECT_NEAR(lanes[0]["busy_s"].get<double>(), 3.5, tolerance);
  EXPECT_NEAR(lanes[1]["busy_s"].get<double>(), 0.5, tolerance);
  EXPECT_NEAR(lanes[3]["busy_s"].get<double>(), 0.25, tolerance);
}

TEST(TraceStats, AreThoseOfTheDeviceWhereItHoldsSeveralStages)
{
  const InterleavedStages program;
  const WrittenTrace file;
  file.write(program, program.events(), {"a", "b"});
  const auto trace = read_trace(file.name());
  const auto recorded = recorded_program(trace);
  const auto stats = stats_of(Timeline::of(trace, *recorded), trace.devices);
  EXPECT_EQ(stats_to_json(stats), stats_to_json(stats_of(file.timeline(program), trace.devices)));
  EXPECT_NEAR(stats.step_time.value, 10.5, tolerance);
  EXPECT_NEAR(stats.devices[0].hidden.value, 0, tolerance);
  EXPECT_NEAR(stats.devices[1].hidden.value, 0.25, tolerance);  // its last gradient leaves during its updates
  for (const auto& device : stats.devices) {
    EXPECT_NEAR(device.busy.value, 5, tolerance);
    EXPECT_NEAR(device.communication.value, 1.5, tolerance);
    // Each computation but the first of a device, and but the backward of the last stage, waits for a message.
    EXPECT_NEAR(device.idle->link.value, 0.75, tolerance);
    EXPECT_EQ(device.lanes.size(), 7U);
  }
  EXPECT_EQ(stats.devices[0].lanes[1].name, "send activation 1");
  ASSERT_EQ(stats.critical_path.size(), 4U);
  EXPECT_NEAR(stats.critical_path[0].time.value, 4, tolerance);
  EXPECT_NEAR(stats.critical_path[1].time.value, 4, tolerance);
  EXPECT_EQ(stats.critical_path[2].opcode, Opcode::Send);
  EXPECT_NEAR(stats.critical_path[2].time.value, 1.5, tolerance);
  EXPECT_EQ(stats.critical_path[3].opcode, Opcode::Update);
  EXPECT_NEAR(stats.critical_path[3].time.value, 1, tolerance);
}

/// A device that computes for 1 s, in step 0 and 1, and whose machine updates for 3 s after that. Its update waits for
/// a copy that comes as it computes, and ends half a second later.
TraceStats stats_with_a_machine()
{
  ListedProgram program(1);
  program.listing[0].lanes.push_back({"copy out", Engine::CopyOut, {}});
  program.listing[0].lanes.push_back({"host update", Engine::Host, {}});
  program.listing[0].instructions.resize(3);
  program.add(0, 0, Opcode::Forward);
  program.add(0, 1, Opcode::Store);
  program.add(0, 2, Opcode::Update);
  std::vector<TraceEvent> events;
  for (const std::uint64_t step : {0U, 1U}) {
    const double start = 5.0 * static_cast<double>(step);
    const auto event = [&](LaneId lane, double begin, double end) {
      events.push_back({step, 0, 0, program.at(0, lane, 0), Seconds(start + begin), Seconds(start + end), Bytes(0)});
    };
    event(0, 0, 1);
    event(1, 0.5, 1.5);
    event(2, 2, 5);
  }
  const WrittenTrace file;
  file.write(program, events, {"a"});
  const auto trace = read_trace(file.name());
  return stats_of(Timeline::of(trace, *recorded_program(trace)), {"a"});
}

TEST(TraceStats, TellHowLongADeviceIsIdleWhileItsMachineWorks)
{
  const auto stats = stats_with_a_machine();
  EXPECT_NEAR(stats.devices[0].busy.value, 1, tolerance);
  EXPECT_NEAR(stats.devices[0].idle->machine.value, 0.5 + 3, tolerance);
  EXPECT_NEAR(stats.devices[0].idle->bubble.value, 0.5, tolerance);
  EXPECT_NEAR(stats.devices[0].idle->total().value, 4, tolerance);
  const auto json = nlohmann::json::parse(stats_to_json(stats));
  EXPECT_NEAR(json["devices"][0]["idle_machine_s"].get<double>(), 3.5, tolerance);
  const auto text = stats_to_text(stats);
  EXPECT_THAT(
      text, HasSubstr("device  copy out  host update\n------  --------  -----------\na         1.00 s       3.00 s\n"));
  EXPECT_THAT(text, HasSubstr("device    idle  for link  for machine  straggler  bubble\n"));
  EXPECT_THAT(text, HasSubstr("a       4.00 s       0 s       3.50 s        0 s  500 ms\n"));
}

TEST(TraceStats, AreWrittenAsJsonAndAsText)
{
  const auto stats = stats_of_steps(1);
  const auto json = nlohmann::json::parse(stats_to_json(stats));
  EXPECT_EQ(json["schema"], "isobar-trace-stats/1");
  EXPECT_EQ(json["devices"][1]["device"], "b");
  EXPECT_NEAR(json["devices"][0]["communication_exposed_s"].get<double>(), 1.25, tolerance);
  EXPECT_EQ(json["critical_path_by_kind"][0]["opcode"], "Backward");
  EXPECT_EQ(json["critical_path"][0]["device"], "b");
  const auto text = stats_to_text(stats);
  EXPECT_THAT(text, HasSubstr("mean of 1 step: 11.8 s\n"));
  EXPECT_THAT(text, HasSubstr("device    idle  for link  straggler  bubble\n"));
  EXPECT_THAT(text, HasSubstr("critical path of step 0: Backward 51.1 % (6.00 s), Forward 34.0 % (4.00 s)"));
}

}  // namespace
}  // namespace isobar::results::trace_stats_test
