#include "results/trace/trace_schema_1.hpp"

#include "results/trace/recorded_program.hpp"
#include "results/trace/trace_stats.hpp"
#include "tests/results/trace/trace_checks.hpp"
#include "tests/results/trace/trace_text.hpp"
#include "tests/results/trace/two_stages.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isobar::results::trace_schema_1_test {
namespace {

using testing::ElementsAre;

/// The track of the schema for a lane of TwoStages. The AllReduce is on the compute track.
int track_of(std::size_t rank, LaneId lane)
{
  if (lane == TwoStages::send) return rank == 0 ? 1 : 2;
  if (lane == TwoStages::receive) return rank == 0 ? 4 : 3;
  return 0;
}

/// A run of TwoStages as a trace of the schema.
std::string written_in_schema_1(const std::vector<TraceEvent>& events)
{
  std::vector<std::string> texts;
  for (const auto& event : events) {
    const Instruction& instruction = event.instruction;
    std::string more;
    if (is_transfer(instruction.opcode)) {
      more = transfer_1(event.rank == 0 ? "1" : "0", 0);
    } else {
      more = work_1;
      if (instruction.opcode == Opcode::AllReduce) more += event.rank == 0 ? R"(, "peer": 1)" : R"(, "peer": 0)";
    }
    for (const Wait& wait : instruction.waits) {
      // What waited for the compute track or the sync followed it there.
      if (instruction.lane == TwoStages::sync || wait.lane == TwoStages::sync) continue;
      more += fmt::format(R"(, "wait_tid": {}, "wait_count": {})", track_of(event.rank, wait.lane), wait.count);
    }
    texts.push_back(fmt::format(
        R"({{"ph": "X", "cat": "{}", "pid": {}, "tid": {}, "ts": {:.4f}, "dur": {:.4f}, "args": {{"step": {}, )"
        R"("stage": {}, "microbatch": 0, "first_layer": 0, "last_layer": 0, {}}}}})",
        name_of(instruction.opcode), event.rank, track_of(event.rank, instruction.lane), 1e6 * event.begin.value,
        1e6 * (event.end - event.begin).value, event.step, instruction.stage, more));
  }
  std::string text = trace_1(2, texts);
  for (const std::string name : {"d0", "d1"}) {
    text.replace(text.find('"' + name + '"'), name.size() + 2, name == "d0" ? R"("a")" : R"("b")");
  }
  return text;
}

class TraceSchema1 : public testing::Test {
 protected:
  TraceSchema1()
  {
    const auto events = events_of_steps(program_, 3, 0.5);
    old_.write(written_in_schema_1(events));
    new_.write(program_, events, {"a", "b"});
  }

  TwoStages program_;
  WrittenTrace old_;
  WrittenTrace new_;
};

TEST_F(TraceSchema1, HasTheProgramOfTheSameRunToday)
{
  expect_same_program(*recorded_program(read_trace(old_.name())), program_);
}

TEST_F(TraceSchema1, HasTheTimelineAndTheStatisticsOfTheSameRunToday)
{
  const auto trace = read_trace(old_.name());
  EXPECT_THAT(trace.devices, ElementsAre("a", "b"));
  const auto old_program = recorded_program(trace);
  const auto then = Timeline::of(trace, *old_program);
  const auto beside = Timeline::of(trace, program_);
  const auto now = new_.timeline(program_);
  ASSERT_EQ(then.steps(), now.steps());
  ASSERT_EQ(beside.steps(), now.steps());
  for (std::size_t rank = 0; rank < 2; ++rank) {
    for (LaneId lane = 0; lane < 4; ++lane) {
      for (std::uint64_t step = 0; step < now.steps(); ++step) {
        for (std::uint64_t position = 0; position < program_.length(rank, lane); ++position) {
          const auto expected = now.at(rank, lane, step, position);
          for (const auto* timeline : {&then, &beside}) {
            const auto found = timeline->at(rank, lane, step, position);
            EXPECT_NEAR(found.begin.value, expected.begin.value, 1e-12);
            EXPECT_NEAR(found.end.value, expected.end.value, 1e-12);
          }
        }
      }
    }
  }
  EXPECT_EQ(stats_to_json(stats_of(then, {"a", "b"})), stats_to_json(stats_of(now, {"a", "b"})));
  EXPECT_EQ(stats_to_json(stats_of(beside, {"a", "b"})), stats_to_json(stats_of(now, {"a", "b"})));
}

TEST_F(TraceSchema1, KeepsTheOrderOfInstructionsThatTakeNoTime)
{
  old_.write(trace_1(1, {event_text("0", 0, "Forward", work_1), event_text("0", 0, "Update", work_1)}));
  const auto trace = read_trace(old_.name());
  EXPECT_EQ(trace.events[0].instruction.opcode, Opcode::Forward);
  EXPECT_EQ(trace.events[0].position, 0U);
  EXPECT_EQ(trace.events[1].position, 1U);
  EXPECT_EQ(trace.lanes[0].size(), 1U);  // a rank has no lanes of transfers that it has never made
}

TEST_F(TraceSchema1, WaitsForTheGradientSyncWhereItWaitedForTheComputeTrack)
{
  // Each Send waits for one instruction more of the compute track: the forward, the AllReduce, the update.
  std::vector<std::string> events;
  for (const int rank : {0, 1}) {
    const std::string peer = rank == 0 ? "1" : "0";
    const auto on = std::to_string(rank);
    for (const std::string opcode : {"Forward", "AllReduce", "Update"}) {
      events.push_back(event_text(on, 0, opcode, work_1 + (opcode == "AllReduce" ? R"(, "peer": )" + peer : "")));
    }
    for (int position = 0; position < 3; ++position) {
      std::string more = transfer_1(peer, position);
      if (rank == 0) more += fmt::format(R"(, "wait_tid": 0, "wait_count": {})", position + 1);
      events.push_back(event_text(on, rank == 0 ? 1 : 3, rank == 0 ? "Send" : "Recv", more));
    }
  }
  old_.write(trace_1(2, events));
  const auto program = recorded_program(read_trace(old_.name()));
  const LaneId send = 1;
  const LaneId sync = 2;
  EXPECT_EQ(program->lanes(0)[sync].name, "sync");
  const auto wait_of = [&](std::uint64_t position) { return *program->at(0, send, position).waits.begin(); };
  EXPECT_EQ(wait_of(0), (Wait{compute_lane, 0, 1}));
  EXPECT_EQ(wait_of(1), (Wait{sync, 0, 1}));
  EXPECT_EQ(wait_of(2), (Wait{compute_lane, 0, 2}));
  EXPECT_EQ(*program->at(0, sync, 0).waits.begin(), (Wait{compute_lane, 0, 1}));
  EXPECT_EQ(*program->at(0, compute_lane, 1).waits.begin(), (Wait{sync, 0, 1}));
}

void expect_fault(std::size_t processes, const std::vector<std::string>& events, const std::string& fault)
{
  const WrittenTrace file;
  file.write(trace_1(processes, events));
  EXPECT_EQ(fault_of_recorded_program(file), file.name().string() + ": " + fault);
}

TEST_F(TraceSchema1, RefusesInstructionsOnOtherTracks)
{
  expect_fault(1, {event_text("\"a\"", 0, "Forward", work_1)},
               "traceEvents[2]: pid: \"a\": not a whole number below 1000000");
  expect_fault(1, {event_text("1", 0, "Forward", work_1)}, "an event of process 1, which has no name");
  expect_fault(1, {event_text("0", 5, "Forward", work_1)}, "traceEvents[2]: tid: 5: not a whole number below 5");
  expect_fault(1, {event_text("0", 0, "Jump", work_1)}, "traceEvents[2]: cat: Jump: not an instruction");
  expect_fault(1, {event_text("0", 0, "AllGather", work_1)},
               "traceEvents[2]: cat: AllGather: not an instruction of isobar-trace/1");
  expect_fault(1, {event_text("0", 1, "Forward", work_1)}, "a Forward on track send activation");
  expect_fault(1, {event_text("0", 1, "Recv", transfer_1("0", 0))}, "a Recv on track send activation");
}

TEST_F(TraceSchema1, RefusesInstructionsThatCanNeverRun)
{
  const std::string deadlock = "deadlock, each waits for the next and the last for the first: ";
  expect_fault(1, {event_text("0", 0, "Forward", work_1 + R"(, "wait_tid": 1, "wait_count": 1)")},
               "Forward 0 of rank 0 waits for 1 instructions of send activation; there are 0");
  expect_fault(1, {event_text("0", 0, "Forward", work_1 + R"(, "wait_tid": 0, "wait_count": 1)")},
               deadlock + "rank 0, lane compute, position 0");
  // Each waits for the other's transfer.
  expect_fault(2,
               {event_text("0", 1, "Send", transfer_1("1", 0) + R"(, "wait_tid": 3, "wait_count": 1)"),
                event_text("1", 3, "Recv", transfer_1("0", 0)),
                event_text("1", 1, "Send", transfer_1("0", 0) + R"(, "wait_tid": 3, "wait_count": 1)"),
                event_text("0", 3, "Recv", transfer_1("1", 0))},
               deadlock +
                   "rank 0, lane send activation, position 0; rank 0, lane receive activation, position 0; "
                   "rank 1, lane send activation, position 0; rank 1, lane receive activation, position 0");
  // The AllReduce waits for an instruction that follows it on the other rank.
  expect_fault(
      2,
      {event_text("0", 0, "Forward", work_1 + R"(, "wait_tid": 3, "wait_count": 1)"),
       event_text("0", 0, "AllReduce", work_1 + R"(, "peer": 1)"), event_text("0", 3, "Recv", transfer_1("1", 0)),
       event_text("1", 0, "AllReduce", work_1 + R"(, "peer": 0)"),
       event_text("1", 1, "Send", transfer_1("0", 0) + R"(, "wait_tid": 0, "wait_count": 1)")},
      deadlock +
          "rank 0, lane compute, position 0; rank 0, lane receive activation, position 0; rank 1, lane "
          "send activation, position 0; rank 1, lane sync, position 0; rank 0, lane sync, position 0");
}

TEST_F(TraceSchema1, RefusesTransfersThatDoNotMatch)
{
  const auto send = [](const std::string& peer, int position) {
    return event_text("0", 1, "Send", transfer_1(peer, position));
  };
  expect_fault(2, {send("1", 0)}, "Send 0 of rank 0 has no other end on its peer");
  expect_fault(2, {send("7", 0)}, "Send 0 of rank 0 has no other end on its peer");
  expect_fault(2, {send("1", 0), send("0", 1)}, "Send 0 of rank 0 has peer 0; its track has peer 1");
  expect_fault(2, {send("1", 1)}, "Send 0 of rank 0 has peer_position 1; it is instruction 0 of its track");
  expect_fault(2, {send("1", 0), send("1", 1), event_text("1", 3, "Recv", transfer_1("0", 0))},
               "rank 1, receive activation: 1 instructions in step 0; 2 at the other end, rank 0, send activation");
}

TEST_F(TraceSchema1, RefusesAnAllReduceThatIsNoRing)
{
  const auto all_reduce = [](const std::string& rank, const std::string& peer) {
    return event_text(rank, 0, "AllReduce", work_1 + R"(, "peer": )" + peer);
  };
  const std::string no_ring = "the ranks of the AllReduce do not form a ring";
  expect_fault(2, {all_reduce("0", "1")}, no_ring);
  expect_fault(2, {all_reduce("0", "0"), all_reduce("1", "1")}, no_ring);
  expect_fault(3, {all_reduce("0", "1"), all_reduce("1", "2"), all_reduce("2", "1")}, no_ring);
  expect_fault(1, {all_reduce("0", "0"), all_reduce("0", "0")}, "rank 0 has a second AllReduce in a step");
}

}  // namespace
}  // namespace isobar::results::trace_schema_1_test
