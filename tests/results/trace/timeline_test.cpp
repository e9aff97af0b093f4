#include "results/trace/timeline.hpp"

#include "core/errors.hpp"
#include "tests/results/trace/two_stages.hpp"

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

TEST(Timeline, HoldsTheTimeOfEveryStepAndInstruction)
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
  // A transfer begins when both ends have reached it, an AllReduce when all ranks have.
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

/// Rank 0 computes and sends twice; rank 1 computes on each message.
class TwoMessages : public Program {
 public:
  std::size_t ranks() const override { return 2; }
  Bytes resident_memory(std::size_t) const override { return Bytes(0); }
  std::uint64_t length(std::size_t rank, Lane lane) const override
  {
    return lane == Lane::Compute || lane == (rank == 0 ? Lane::SendActivation : Lane::ReceiveActivation) ? 2 : 0;
  }
  Instruction at(std::size_t rank, Lane lane, std::uint64_t position) const override
  {
    Instruction instruction;
    instruction.lane = lane;
    instruction.microbatch = position;
    instruction.peer = 1 - rank;
    instruction.peer_position = position;
    if (lane == Lane::SendActivation) {
      instruction.opcode = Opcode::Send;
      instruction.wait = {Lane::Compute, position + 1};
    } else if (lane == Lane::ReceiveActivation) {
      instruction.opcode = Opcode::Recv;
    } else if (rank == 1) {
      instruction.wait = {Lane::ReceiveActivation, position + 1};
    }
    return instruction;
  }
};

/// As the simulator plays it: work, then one second for the bytes of each message, which arrive five seconds later.
void write_messages_of_long_latency(const Program& program, const WrittenTrace& file)
{
  std::ofstream out(file.name());
  ChromeTraceWriter writer(out, {"a", "b"});
  const auto event = [&](std::size_t rank, Lane lane, std::uint64_t position, double begin, double end) {
    writer.record({0, rank, program.at(rank, lane, position), Seconds(begin), Seconds(end), Bytes(0)});
  };
  event(0, Lane::Compute, 0, 0, 1);
  event(0, Lane::Compute, 1, 1, 1.5);
  event(0, Lane::SendActivation, 0, 1, 2);
  event(1, Lane::ReceiveActivation, 0, 6, 7);
  event(0, Lane::SendActivation, 1, 2, 3);
  event(1, Lane::ReceiveActivation, 1, 7, 8);
  event(1, Lane::Compute, 0, 7, 7.5);
  event(1, Lane::Compute, 1, 8, 9);
  writer.finish();
}

TEST(Timeline, CountsATransferFromItsFirstByteSentToItsLastByteReceived)
{
  const TwoMessages program;
  const WrittenTrace file;
  write_messages_of_long_latency(program, file);
  const auto timeline = file.timeline(program);
  EXPECT_NEAR(timeline.work(0, Lane::SendActivation, 0, 0).begin.value, 1, 1e-9);
  EXPECT_NEAR(timeline.work(0, Lane::SendActivation, 0, 0).end.value, 7, 1e-9);
  EXPECT_NEAR(timeline.work(1, Lane::ReceiveActivation, 0, 0).begin.value, 1, 1e-9);
  // The second one begins when the receiver has the first.
  EXPECT_NEAR(timeline.work(1, Lane::ReceiveActivation, 0, 1).begin.value, 7, 1e-9);
  EXPECT_NEAR(timeline.work(1, Lane::ReceiveActivation, 0, 1).end.value, 8, 1e-9);
}

TEST(CriticalPath, CountsTheLatencyOfAStreamOnce)
{
  const TwoMessages program;
  const WrittenTrace file;
  write_messages_of_long_latency(program, file);
  const auto shares = critical_path(file.timeline(program), 0);
  ASSERT_EQ(shares.size(), 3U);
  EXPECT_EQ(shares[0].opcode, Opcode::Send);
  EXPECT_NEAR(shares[0].time.value, 1 + 5 + 1, 1e-9);
  EXPECT_NEAR(shares[1].time.value, 1, 1e-9);  // the last forward
  EXPECT_NEAR(shares[2].time.value, 1, 1e-9);  // and the first
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
            name + ": rank 0, compute: 1 instructions in 1 steps, and 4 in the plan; the trace is of another plan");
}

TEST(TraceFile, RefusesOtherFiles)
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
  const std::string no_trace = "otherData.schema: not isobar-trace/1; pass a trace of isobar simulate or isobar run";
  expect_fault("[]", no_trace);
  expect_fault(R"({"otherData": {"schema": "isobar-trace/2"}})", no_trace);
  expect_fault(R"({"otherData": {"schema": "isobar-trace/1"}, "traceEvents": []})",
               "traceEvents: holds no instructions");
  expect_fault(trace_of(1, {event_of("\"a\"", 0, "Forward", work)}), "pid: \"a\": not a whole number below 1000000");
  expect_fault(trace_of(1, {event_of("1", 0, "Forward", work)}), "an event of process 1, which has no name");
  expect_fault(R"({"otherData": {"schema": "isobar-trace/1"}, "traceEvents": [
                   {"ph": "M", "name": "thread_name", "pid": 1, "tid": 0, "args": {"name": "compute"}}]})",
               "process 0 is missing");
  expect_fault(trace_of(1, {event_of("0", 5, "Forward", work)}), "tid: 5: not a whole number below 5");
  expect_fault(trace_of(1, {event_of("0", 0, "Jump", work)}), "cat: Jump: not an instruction");
  expect_fault(trace_of(1, {event_of("0", 1, "Forward", work)}), "a Forward on track send activation");
}

TEST(RecordedProgram, EqualsTheProgramOfTheTrace)
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

TEST(RecordedProgram, RefusesInstructionsThatCanNeverRun)
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
               "Forward 0 of rank 0 waits for an instruction that never runs");
  expect_fault(2, {event_of("0", 1, "Send", send("1", 0))}, "Send 0 of rank 0 has no other end on its peer");
  expect_fault(2, {event_of("0", 1, "Send", send("7", 0))}, "Send 0 of rank 0 has no other end on its peer");
  expect_fault(2, {event_of("0", 0, "AllReduce", work + R"(, "peer": 1)")},
               "the ranks of the AllReduce do not form a ring");
  expect_fault(
      2,
      {event_of("0", 0, "AllReduce", work + R"(, "peer": 0)"), event_of("1", 0, "AllReduce", work + R"(, "peer": 1)")},
      "the ranks of the AllReduce do not form a ring");
  // Each waits for the other's transfer.
  expect_fault(2,
               {event_of("0", 1, "Send", send("1", 0) + R"(, "wait_tid": 3, "wait_count": 1)"),
                event_of("1", 3, "Recv", send("0", 0)),
                event_of("1", 1, "Send", send("0", 0) + R"(, "wait_tid": 3, "wait_count": 1)"),
                event_of("0", 3, "Recv", send("1", 0))},
               "Send 0 of rank 0 waits for an instruction that never runs");
  // The AllReduce waits for an instruction that follows it on the other rank.
  expect_fault(2,
               {event_of("0", 0, "Forward", work + R"(, "wait_tid": 3, "wait_count": 1)"),
                event_of("0", 0, "AllReduce", work + R"(, "peer": 1)"), event_of("0", 3, "Recv", send("1", 0)),
                event_of("1", 0, "AllReduce", work + R"(, "peer": 0)"),
                event_of("1", 1, "Send", send("0", 0) + R"(, "wait_tid": 0, "wait_count": 1)")},
               "Forward 0 of rank 0 waits for an instruction that never runs");
}

}  // namespace
}  // namespace isobar::results
