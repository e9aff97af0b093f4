#include "results/timeline.hpp"

#include "core/errors.hpp"
#include "tests/results/two_stages.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace isobar::results {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

double length_of(const Timeline::Span& span)
{
  return (span.end - span.begin).value;
}

std::string fault_of(const WrittenTrace& file, const Program& program)
{
  try {
    file.timeline(program);
    return "none";
  } catch (const InputError& error) {
    return error.what();
  }
}

std::string fault_of_program(const WrittenTrace& file)
{
  try {
    recorded_program(read_trace(file.name()));
    return "none";
  } catch (const InputError& error) {
    return error.what();
  }
}

/// A trace of processes named d0, d1, … with these events.
std::string trace_of(std::size_t processes, const std::vector<std::string>& events)
{
  std::string text = R"({"otherData": {"schema": "isobar-trace/1"}, "traceEvents": [)";
  for (std::size_t i = 0; i < processes; ++i) {
    text += fmt::format(R"({{"ph": "M", "name": "thread_name", "pid": {0}, "tid": 0, "args": {{"name": "compute"}}}},
                           {{"ph": "M", "name": "process_name", "pid": {0}, "args": {{"name": "d{0}"}}}},)",
                        i);
  }
  for (const auto& event : events) text += event + ",";
  text.back() = ']';
  return text + "}";
}

/// An event at 1 us; `more` goes into its args.
std::string event_of(const std::string& rank, int track, const std::string& opcode, const std::string& more)
{
  return fmt::format(R"({{"ph": "X", "cat": "{}", "pid": {}, "tid": {}, "ts": 1, "dur": 1, "args": {{"step": 0, )"
                     R"("stage": 0, "microbatch": 0, "first_layer": 0, "last_layer": 0, {}}}}})",
                     opcode, rank, track, more);
}

const std::string work = R"("flops": 1, "memory_bytes": 1)";

TEST(Timeline, HasEveryStepsTimeAndEveryInstructionsOwn)
{
  const TwoStages program;
  const WrittenTrace file;
  file.write_steps(program, 3, 0.5);
  const auto timeline = file.timeline(program);
  EXPECT_EQ(timeline.steps(), 3U);
  const auto times = timeline.step_times();
  ASSERT_EQ(times.size(), 3U);
  for (const Seconds time : times) EXPECT_NEAR(time.value, 11.75, 1e-9);
  EXPECT_NEAR(length_of(timeline.work(1, Lane::Compute, 2, 0)), 3, 1e-9);
  // A transfer counts from when both ends are there, and an AllReduce from when all ranks are.
  EXPECT_NEAR(length_of(timeline.work(0, Lane::SendActivation, 1, 0)), 0.5, 1e-9);
  EXPECT_NEAR(length_of(timeline.work(1, Lane::ReceiveActivation, 1, 0)), 0.5, 1e-9);
  EXPECT_NEAR(length_of(timeline.work(1, Lane::Compute, 1, 2)), 0.25, 1e-9);
}

TEST(CriticalPath, LeadsFromTheStepsEndToItsBeginAndAddsUpToItsTime)
{
  const TwoStages program;
  const WrittenTrace file;
  file.write_steps(program, 2, 0.5);
  const auto timeline = file.timeline(program);
  for (const std::uint64_t step : {0U, 1U}) {
    Seconds total;
    std::vector<std::pair<Opcode, std::size_t>> kinds;
    for (const auto& share : critical_path(timeline, step)) {
      total += share.time;
      kinds.emplace_back(share.opcode, share.rank);
    }
    EXPECT_NEAR(total.value, 11.75, 1e-9);
    using Kind = std::pair<Opcode, std::size_t>;
    EXPECT_THAT(kinds, ElementsAre(Kind(Opcode::Backward, 1), Kind(Opcode::Forward, 1), Kind(Opcode::Backward, 0),
                                   Kind(Opcode::Forward, 0), Kind(Opcode::Update, 0), Kind(Opcode::Send, 0),
                                   Kind(Opcode::Send, 1), Kind(Opcode::AllReduce, 0)));
  }
}

TEST(Timeline, RefusesATraceOfAnotherProgram)
{
  const TwoStages program;
  const WrittenTrace file;
  const std::string name = file.name().string();
  file.write(trace_of(3, {event_of("2", 0, "Forward", work)}));
  EXPECT_EQ(fault_of(file, program), name + ": an event of rank 2; the plan has 2 ranks");
  file.write(trace_of(2, {event_of("0", 0, "Forward", work)}));
  EXPECT_EQ(fault_of(file, program),
            name + ": rank 0, compute: 1 instructions in 1 steps; the plan has 4: a trace of another plan");
}

TEST(TraceFile, RefusesWhatIsNoTrace)
{
  const TwoStages program;
  const WrittenTrace file;
  const std::string name = file.name().string();
  const auto expect_fault = [&](const std::string& content, const std::string& fault) {
    file.write(content);
    EXPECT_EQ(fault_of(file, program), name + ": " + fault) << content;
  };
  file.write("{");
  EXPECT_THAT(fault_of(file, program), HasSubstr(name + ": "));
  const std::string no_trace =
      "otherData.schema: not isobar-trace/1; a trace of isobar simulate or isobar run is needed";
  expect_fault("[]", no_trace);
  expect_fault(R"({"otherData": {"schema": "isobar-trace/2"}})", no_trace);
  expect_fault(R"({"otherData": {"schema": "isobar-trace/1"}, "traceEvents": []})",
               "traceEvents: holds no instruction");
  expect_fault(trace_of(1, {event_of("\"a\"", 0, "Forward", work)}), "pid: \"a\": not a whole number below 1000000");
  expect_fault(trace_of(1, {event_of("1", 0, "Forward", work)}), "an event of process 1, which has no name");
  expect_fault(R"({"otherData": {"schema": "isobar-trace/1"}, "traceEvents": [
                   {"ph": "M", "name": "thread_name", "pid": 1, "tid": 0, "args": {"name": "compute"}}]})",
               "process 0 is missing");
  expect_fault(trace_of(1, {event_of("0", 5, "Forward", work)}), "tid: 5: not a whole number below 5");
  expect_fault(trace_of(1, {event_of("0", 0, "Jump", work)}), "cat: Jump: no instruction");
  expect_fault(trace_of(1, {event_of("0", 1, "Forward", work)}), "a Forward on track send activation");
}

TEST(RecordedProgram, IsThatOfTheTrace)
{
  const TwoStages program;
  const WrittenTrace file;
  file.write_steps(program, 2, 0.5);
  const auto trace = read_trace(file.name());
  EXPECT_EQ(trace.devices, (std::vector<std::string>{"a", "b"}));
  const auto recorded = recorded_program(trace);
  ASSERT_EQ(recorded->ranks(), program.ranks());
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    for (const Lane lane : all_lanes) {
      ASSERT_EQ(recorded->length(rank, lane), program.length(rank, lane));
      for (std::uint64_t position = 0; position < program.length(rank, lane); ++position) {
        const auto expected = program.at(rank, lane, position);
        const auto found = recorded->at(rank, lane, position);
        EXPECT_EQ(found.opcode, expected.opcode);
        EXPECT_EQ(found.peer, expected.peer);
        EXPECT_EQ(found.wait.count, expected.wait.count);
        EXPECT_EQ(found.wait.lane, expected.wait.lane);
      }
    }
  }
}

TEST(RecordedProgram, RefusesInstructionsThatNeverEnd)
{
  const WrittenTrace file;
  const std::string name = file.name().string();
  const auto expect_fault = [&](std::size_t processes, const std::vector<std::string>& events,
                                const std::string& fault) {
    file.write(trace_of(processes, events));
    EXPECT_EQ(fault_of_program(file), name + ": " + fault);
  };
  const auto send = [](const std::string& peer, int position) {
    return fmt::format(R"("peer": {}, "peer_position": {}, "bytes": 1)", peer, position);
  };
  expect_fault(1, {event_of("0", 0, "Forward", work + R"(, "wait_tid": 1, "wait_count": 1)")},
               "Forward 0 of rank 0 waits for 1 instructions of send activation; there are 0");
  expect_fault(1, {event_of("0", 0, "Forward", work + R"(, "wait_tid": 0, "wait_count": 1)")},
               "Forward 0 of rank 0 waits for what never comes");
  expect_fault(2, {event_of("0", 1, "Send", send("1", 0))}, "Send 0 of rank 0 has no other end");
  expect_fault(2, {event_of("0", 1, "Send", send("7", 0))}, "Send 0 of rank 0 has no other end");
  expect_fault(2, {event_of("0", 0, "AllReduce", work + R"(, "peer": 1)")}, "the ranks of the AllReduce are no ring");
  expect_fault(
      2,
      {event_of("0", 0, "AllReduce", work + R"(, "peer": 0)"), event_of("1", 0, "AllReduce", work + R"(, "peer": 1)")},
      "the ranks of the AllReduce are no ring");
  // Each waits for the other's transfer.
  expect_fault(2,
               {event_of("0", 1, "Send", send("1", 0) + R"(, "wait_tid": 3, "wait_count": 1)"),
                event_of("1", 3, "Recv", send("0", 0)),
                event_of("1", 1, "Send", send("0", 0) + R"(, "wait_tid": 3, "wait_count": 1)"),
                event_of("0", 3, "Recv", send("1", 0))},
               "Send 0 of rank 0 waits for what never comes");
  // The AllReduce waits for what comes after it on the other rank.
  expect_fault(2,
               {event_of("0", 0, "Forward", work + R"(, "wait_tid": 3, "wait_count": 1)"),
                event_of("0", 0, "AllReduce", work + R"(, "peer": 1)"), event_of("0", 3, "Recv", send("1", 0)),
                event_of("1", 0, "AllReduce", work + R"(, "peer": 0)"),
                event_of("1", 1, "Send", send("0", 0) + R"(, "wait_tid": 0, "wait_count": 1)")},
               "Forward 0 of rank 0 waits for what never comes");
}

}  // namespace
}  // namespace isobar::results
