#include "core/program/chrome_trace.hpp"

#include "tests/support/editable_program.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace isobar::chrome_trace_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// Ranks a and b, each with a compute lane; a sends to b over `lanes` lanes, each with two messages a step. Both sum
/// something up.
class Messages : public testing_support::EditableProgram {
 public:
  explicit Messages(std::size_t lanes = 1, std::uint32_t stages = 1) : EditableProgram(2)
  {
    for (const std::size_t rank : {0U, 1U}) {
      for (const std::uint64_t microbatch : {0U, 1U}) compute(rank, Opcode::Forward, microbatch);
    }
    for (std::size_t i = 0; i < lanes; ++i) {
      const auto channel = connect({{0, fmt::format("send {}", i)}, {1, fmt::format("receive {}", i)}});
      for (const std::uint64_t microbatch : {0U, 1U}) transfer(channel, Payload::Activation, microbatch, 16);
    }
    collective(connect({{0, "sync"}, {1, "sync"}}), Opcode::AllReduce, Payload::GradientFacts, 16);
    for (auto& rank : listing) {
      for (auto& instructions : rank.instructions) {
        for (std::uint32_t i = 0; i < instructions.size(); ++i) instructions[i].stage = i % stages;
      }
    }
  }

  LaneId sync() const { return static_cast<LaneId>(lanes(0).size() - 1); }
};

TraceEvent event(const Program& program, std::uint64_t step, std::size_t rank, LaneId lane, std::uint64_t position,
                 double begin_us, double end_us)
{
  return {step,    rank, position, program.at(rank, lane, position), Seconds(1e-6 * begin_us), Seconds(1e-6 * end_us),
          Bytes(7)};
}

nlohmann::json written(const Program& program, const std::vector<TraceEvent>& events)
{
  std::ostringstream out;
  ChromeTraceWriter writer(out, program, {"a", "b"});
  for (const auto& each : events) writer.record(each);
  writer.finish();
  return nlohmann::json::parse(out.str());
}

TEST(ChromeTraceWriter, NamesProcessesTracksAndInstructions)
{
  const Messages program;
  std::ostringstream out;
  ChromeTraceWriter writer(out, program, {"gpu \"0\"", "b"});
  writer.record(event(program, 0, 0, 1, 1, 1, 3));
  writer.finish();
  const auto text = out.str();
  EXPECT_THAT(text, testing::StartsWith(R"({"displayTimeUnit":"ms","otherData":{"schema":"isobar-trace/2"},)"));
  EXPECT_THAT(text, HasSubstr(R"("args":{"name":"gpu \"0\""})"));
  EXPECT_THAT(text, HasSubstr(R"("pid":0,"tid":1,"args":{"name":"send 0"})"));
  EXPECT_THAT(text, HasSubstr(R"("pid":1,"tid":2,"args":{"name":"sync"})"));
  EXPECT_THAT(
      text,
      HasSubstr(R"({"ph":"X","name":"Send activation 1","cat":"Send","pid":0,"tid":1,"ts":1.0000,"dur":2.0000,)"));
  EXPECT_TRUE(text.ends_with("\n]}\n"));
}

TEST(ChromeTraceWriter, SaysOfEachInstructionWhatItIsAndWhatItWaitsFor)
{
  const Messages program(2);
  auto forward = event(program, 3, 0, compute_lane, 1, 0, 1);
  forward.instruction.first_layer = 4;
  forward.instruction.last_layer = 5;
  forward.instruction.time = Seconds(6);
  forward.instruction.waits.add({1, 0, 2});
  forward.instruction.waits.add({3, 1, 1});
  auto json =
      written(program, {forward, event(program, 3, 1, 2, 1, 1, 2), event(program, 3, 1, program.sync(), 0, 2, 3)});
  std::vector<std::string> args;
  for (const auto& item : json["traceEvents"]) {
    if (item["ph"] == "X") args.push_back(item["args"].dump());
  }
  EXPECT_THAT(
      args,
      ElementsAre(
          R"({"alone_s":6,"first_layer":4,"last_layer":5,"memory_bytes":7,"microbatch":1,"position":1,"stage":0,)"
          R"("step":3,"waits":[{"count":2,"periods_back":0,"tid":1},{"count":1,"periods_back":1,"tid":3}]})",
          R"({"bytes":16,"channel":1,"first_layer":0,"last_layer":0,"microbatch":1,"payload":"activation","peer":0,)"
          R"("position":1,"stage":0,"step":3})",
          R"({"bytes":16,"channel":2,"first_layer":0,"last_layer":0,"microbatch":0,"payload":"gradient facts",)"
          R"("position":0,"stage":0,"step":3})"));
}

std::vector<std::string> names_of(const nlohmann::json& trace)
{
  std::vector<std::string> names;
  for (const auto& item : trace["traceEvents"]) {
    if (item["ph"] == "X") names.push_back(item["name"]);
  }
  return names;
}

TEST(ChromeTraceWriter, NamesTheStageWhereARankHoldsSeveral)
{
  const auto events = [](const Program& program, LaneId sync) {
    auto update = event(program, 0, 0, compute_lane, 1, 1, 2);
    update.instruction.opcode = Opcode::Update;
    return std::vector<TraceEvent>{event(program, 0, 0, compute_lane, 1, 0, 1), update,
                                   event(program, 0, 0, 1, 1, 0, 1), event(program, 0, 0, sync, 0, 1, 2)};
  };
  const Messages one(1, 1);
  EXPECT_THAT(names_of(written(one, events(one, one.sync()))),
              ElementsAre("Forward 1", "Update", "Send activation 1", "AllReduce gradient facts"));
  const Messages two(1, 2);
  EXPECT_THAT(
      names_of(written(two, events(two, two.sync()))),
      ElementsAre("Forward 1, stage 1", "Update, stage 1", "Send activation 1, stage 1", "AllReduce gradient facts"));
}

TEST(NameOfEvent, SaysTheMicrobatchWhereThereIsOne)
{
  Instruction instruction;
  instruction.microbatch = 3;
  const auto name = [&](Opcode opcode, Payload payload = Payload::Activation) {
    instruction.opcode = opcode;
    instruction.payload = payload;
    return name_of_event(instruction);
  };
  EXPECT_EQ(name(Opcode::Forward), "Forward 3");
  EXPECT_EQ(name(Opcode::BackwardInput), "BackwardInput 3");
  EXPECT_EQ(name(Opcode::Update), "Update");
  EXPECT_EQ(name(Opcode::Recv, Payload::Gradient), "Recv gradient 3");
  EXPECT_EQ(name(Opcode::AllGather), "AllGather activation 3");
  EXPECT_EQ(name(Opcode::ReduceScatter, Payload::ParameterGradient), "ReduceScatter parameter gradient");
}

TEST(ChromeTraceWriter, DrawsAnArrowFromEachSendToItsReceive)
{
  const Messages program;
  std::vector<TraceEvent> events;
  for (std::uint64_t step = 0; step < 2; ++step) {
    // Two transfers at once: each end finds its own.
    for (const std::size_t rank : {0U, 1U}) {
      for (std::uint64_t position = 0; position < 2; ++position) {
        const auto begin = static_cast<double>(10 * step + position);
        events.push_back(event(program, step, rank, 1, position, begin, begin + (rank == 0 ? 1 : 2)));
      }
    }
  }
  std::vector<std::string> starts;
  std::vector<std::string> ends;
  const auto trace = written(program, events);
  for (const auto& item : trace["traceEvents"]) {
    const auto phase = item["ph"].get<std::string>();
    if (phase != "s" && phase != "f") continue;
    EXPECT_EQ(item.value("bp", ""), phase == "f" ? "e" : "");
    EXPECT_EQ(item["cat"], "transfer");
    (phase == "s" ? starts : ends)
        .push_back(fmt::format("{} {} {} {} {}", item["id"].get<int>(), item["name"].get<std::string>(),
                               item["pid"].get<int>(), item["tid"].get<int>(), item["ts"].get<double>()));
  }
  // A step has two messages and a sum.
  EXPECT_EQ(starts, (std::vector<std::string>{"1 activation 0 0 1 0", "2 activation 1 0 1 1", "4 activation 0 0 1 10",
                                              "5 activation 1 0 1 11"}));
  EXPECT_EQ(ends, (std::vector<std::string>{"1 activation 0 1 1 2", "2 activation 1 1 1 3", "4 activation 0 1 1 12",
                                            "5 activation 1 1 1 13"}));
}

TEST(ChromeTraceWriter, PairsTheArrowsOfEveryChannelStepAndPositionInAnyOrder)
{
  const Messages program(3);
  std::vector<TraceEvent> events;
  for (std::uint64_t step = 0; step < 2; ++step) {
    for (const std::size_t rank : {0U, 1U}) {
      for (LaneId lane = 1; lane <= 3; ++lane) {
        for (std::uint64_t position = 0; position < 2; ++position) {
          events.push_back(event(program, step, rank, lane, position, 0, 1));
        }
      }
    }
  }
  std::reverse(events.begin(), events.end());
  // By id: the phase, the track and the name of both ends.
  std::map<int, std::vector<std::string>> arrows;
  const auto trace = written(program, events);
  for (const auto& item : trace["traceEvents"]) {
    const auto phase = item["ph"].get<std::string>();
    if (phase != "s" && phase != "f") continue;
    arrows[item["id"].get<int>()].push_back(
        fmt::format("{} {} {}", phase, item["tid"].get<int>(), item["name"].get<std::string>()));
  }
  EXPECT_EQ(arrows.size(), 2U * 3U * 2U);
  for (const auto& [id, ends] : arrows) {
    ASSERT_EQ(ends.size(), 2U) << id;
    EXPECT_EQ(ends[0][0], 'f');
    EXPECT_EQ(ends[1], "s" + ends[0].substr(1));
  }
}

TEST(ChromeTraceWriter, CountsTheMemoryOfEachTierThatHoldsAny)
{
  const Messages program;
  std::ostringstream out;
  ChromeTraceWriter writer(out, program, {"a", "b"});
  writer.memory_changed(0, Tier::Device, Seconds(0), Bytes(0));
  writer.memory_changed(0, Tier::Host, Seconds(0), Bytes(0));
  writer.memory_changed(0, Tier::Disk, Seconds(0), Bytes(0));
  writer.memory_changed(0, Tier::Host, Seconds(1e-6), Bytes(5));
  writer.memory_changed(0, Tier::Host, Seconds(2e-6), Bytes(0));
  writer.finish();
  const auto text = out.str();
  EXPECT_THAT(text, HasSubstr(R"({"ph":"C","name":"memory","pid":0,"ts":0.0000,"args":{"bytes":0}})"));
  EXPECT_THAT(text, HasSubstr(R"({"ph":"C","name":"host","pid":0,"ts":1.0000,"args":{"bytes":5}})"));
  EXPECT_THAT(text, HasSubstr(R"({"ph":"C","name":"host","pid":0,"ts":2.0000,"args":{"bytes":0}})"));
  EXPECT_THAT(text, Not(HasSubstr(R"("name":"host","pid":0,"ts":0.0000)")));
  EXPECT_THAT(text, Not(HasSubstr("disk")));
}

}  // namespace
}  // namespace isobar::chrome_trace_test
