#include "results/trace/trace_file.hpp"

#include "tests/results/trace/trace_checks.hpp"
#include "tests/results/trace/trace_text.hpp"
#include "tests/results/trace/two_stages.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace isobar::results::trace_file_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string fault_of(const WrittenTrace& file)
{
  return fault_in(file, [](const TraceFile&) {});
}

TEST(TraceFile, KnowsTheTracksOfEachRankByName)
{
  const TwoStages program;
  const WrittenTrace file;
  file.write_steps(program, 2, 0.5);
  const auto trace = read_trace(file.name());
  EXPECT_THAT(trace.devices, ElementsAre("a", "b"));
  ASSERT_EQ(trace.lanes.size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(trace.lanes[rank].size(), program.lanes(rank).size());
    for (std::size_t lane = 0; lane < trace.lanes[rank].size(); ++lane) {
      EXPECT_EQ(trace.lanes[rank][lane].name, program.lanes(rank)[lane].name);
      EXPECT_EQ(trace.lanes[rank][lane].engine, program.lanes(rank)[lane].engine);
      EXPECT_EQ(trace.lanes[rank][lane].channel, program.lanes(rank)[lane].channel);
    }
  }
  ASSERT_EQ(trace.channels.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(trace.channels[i].ends, program.channels()[i].ends);
}

TEST(TraceFile, HoldsWhatTheWriterWasGiven)
{
  const TwoStages program;
  const WrittenTrace file;
  auto events = events_of_steps(program, 1, 0.5);
  for (auto& event : events) {
    const auto n = static_cast<double>(&event - events.data());
    event.instruction.microbatch = 3;
    event.instruction.first_layer = 4;
    event.instruction.last_layer = 5;
    (is_computation(event.instruction.opcode) ? event.instruction.time.value : event.instruction.size.value) = n;
    if (is_computation(event.instruction.opcode)) event.memory = Bytes(100 + n);
  }
  events[0].instruction.waits.add({TwoStages::receive, 3, 1});
  file.write(program, events, {"a", "b"});
  const auto trace = read_trace(file.name());
  ASSERT_EQ(trace.events.size(), events.size());
  for (std::size_t i = 0; i < events.size(); ++i) {
    const auto& found = trace.events[i];
    EXPECT_EQ(found.step, 0U);
    EXPECT_EQ(found.rank, events[i].rank);
    EXPECT_EQ(found.position, events[i].position);
    EXPECT_NEAR(found.begin.value, events[i].begin.value, 1e-9);
    EXPECT_NEAR(found.end.value, events[i].end.value, 1e-9);
    EXPECT_EQ(found.memory, events[i].memory);
    const Instruction& expected = events[i].instruction;
    EXPECT_EQ(found.instruction.opcode, expected.opcode);
    EXPECT_EQ(found.instruction.payload, expected.payload);
    EXPECT_EQ(found.instruction.lane, expected.lane);
    EXPECT_EQ(found.instruction.stage, expected.stage);
    EXPECT_EQ(found.instruction.microbatch, 3U);
    EXPECT_EQ(found.instruction.first_layer, 4U);
    EXPECT_EQ(found.instruction.last_layer, 5U);
    EXPECT_EQ(found.instruction.time, expected.time);
    EXPECT_EQ(found.instruction.size, expected.size);
    EXPECT_TRUE(std::equal(found.instruction.waits.begin(), found.instruction.waits.end(), expected.waits.begin(),
                           expected.waits.end()))
        << i;
  }
}

TEST(TraceFile, RefusesOtherFiles)
{
  const WrittenTrace file;
  const auto expect_fault = [&](const std::string& content, const std::string& fault) {
    file.write(content);
    EXPECT_EQ(fault_of(file), file.name().string() + ": " + fault) << content;
  };
  file.write("{");
  EXPECT_THAT(fault_of(file), HasSubstr(file.name().string() + ": "));
  file.write("{\n\"traceEvents\": [{\"ts\": Infinity}]}");
  EXPECT_EQ(fault_of(file), file.name().string() + ":2: ts: Infinity is not a number in JSON; write a finite one");
  const std::string no_trace =
      "otherData.schema: not isobar-trace/1 or isobar-trace/2; pass a trace of isobar simulate or isobar run";
  const std::string list =
      "is a list of events, as of PyTorch's autograd profiler or Horovod; pass a trace of isobar simulate or isobar "
      "run "
      "(isobar trace stats also reads those of torch.profiler)";
  expect_fault(R"([{"name": "aten::add", "ph": "X", "ts": 1, "dur": 2, "tid": 1, "pid": "CPU functions", "args": {}}])",
               list);
  expect_fault("\n[\n{\"ph\": \"M\"},\n", list);  // Horovod leaves the list open
  expect_fault("2", no_trace);
  expect_fault(R"({"otherData": {"schema": "isobar-trace/3"}})", no_trace);
  expect_fault(R"({"otherData": {"schema": 1}})", no_trace);
  for (const int schema : {1, 2}) {
    const std::string head = fmt::format(R"({{"otherData": {{"schema": "isobar-trace/{}"}}, "traceEvents": [)", schema);
    expect_fault(head + "]}", "traceEvents: holds no instructions");
    expect_fault(head.substr(0, head.size() - 1) + "5}", "traceEvents: not a list");
    expect_fault(head + "5]}", "traceEvents[0]: 5: not an object");
    expect_fault(head + R"({"ph": "M", "name": "thread_name", "pid": 1, "tid": 0, "args": {"name": "compute"}}]})",
                 "process 0 is missing");
  }
}

TEST(TraceFile, RefusesTracksWithoutAName)
{
  const WrittenTrace file;
  const auto expect_fault = [&](const std::string& content, const std::string& fault) {
    file.write(content);
    EXPECT_EQ(fault_of(file), file.name().string() + ": " + fault) << content;
  };
  expect_fault(trace_2({{"compute"}}, {event_text("1", 0, "Forward", work_2(0))}),
               "traceEvents[2]: an event of process 1, which has no name");
  expect_fault(trace_2({{"compute"}}, {event_text("0", 5, "Forward", work_2(0))}),
               "traceEvents[2]: an event on track 5 of process 0, which has no name");
  expect_fault(trace_2({{"compute"}}, {event_text("0", 70'000, "Forward", work_2(0))}),
               "traceEvents[2]: tid: 70000: not a whole number below 65536");
  expect_fault(trace_2({{"compute", "copy", "copy"}}, {event_text("0", 0, "Forward", work_2(0))}),
               "process 0: tracks 1 and 2 are both named copy");
  expect_fault(R"({"otherData": {"schema": "isobar-trace/2"}, "traceEvents": [
                   {"ph": "M", "name": "thread_name", "pid": 0, "tid": 0, "args": {"name": "compute"}},
                   {"ph": "M", "name": "thread_name", "pid": 0, "tid": 2, "args": {"name": "sync"}}]})",
               "process 0: track 1 is missing");
}

TEST(TraceFile, RefusesInstructionsThatContradictEachOther)
{
  const WrittenTrace file;
  const std::vector<std::vector<std::string>> tracks = {{"compute", "send"}, {"compute", "receive"}};
  const auto expect_fault = [&](const std::vector<std::string>& events, const std::string& fault) {
    file.write(trace_2(tracks, events));
    EXPECT_EQ(fault_of(file), file.name().string() + ": " + fault);
  };
  const auto send = event_text("0", 1, "Send", transfer_2(0, 0, 1));
  const auto receive = event_text("1", 1, "Recv", transfer_2(0, 0, 0));
  const std::string one_of_each = "; it needs one that sends and one that receives, or collectives only";
  expect_fault({event_text("\"a\"", 0, "Forward", work_2(0))},
               "traceEvents[6]: pid: \"a\": not a whole number below 1000000");
  expect_fault({event_text("0", 0, "Jump", work_2(0))}, "traceEvents[6]: cat: Jump: not an instruction");
  expect_fault({send, event_text("0", 1, "Forward", work_2(1))},
               "traceEvents[7]: Forward 0 of rank 0, on track send, is of another kind than those before it");
  expect_fault({send, event_text("0", 1, "Send", transfer_2(1, 2, 1))},
               "traceEvents[7]: Send 0 of rank 0, on track send, has channel 2, and those before it channel 0");
  expect_fault({send, event_text("0", 1, "Send", transfer_2(1, 0, 0))},
               "traceEvents[7]: Send 0 of rank 0, on track send, has peer 0, and those before it peer 1");
  expect_fault({send}, "channel 0: 1 tracks send, 0 receive and 0 have collectives" + one_of_each);
  expect_fault({send, receive, event_text("1", 0, "Recv", transfer_2(0, 0, 0))},
               "channel 0: 1 tracks send, 2 receive and 0 have collectives" + one_of_each);
  expect_fault({send, event_text("1", 1, "AllReduce", collective_2(0, 0))},
               "channel 0: 1 tracks send, 0 receive and 1 have collectives" + one_of_each);
  expect_fault({send, event_text("1", 1, "Recv", transfer_2(0, 0, 7))},
               "process 1, track receive: peer 7; channel 0 leads to process 0");
  expect_fault({event_text("0", 0, "Forward", work_2(0) + waits_2(2, 1))},
               "traceEvents[6]: tid: 2: not a whole number below 2");
  expect_fault({event_text("0", 0, "Forward", work_2(0) + R"(, "waits": {})")},
               "traceEvents[6]: waits: {}: not a list of at most 4");
  expect_fault({event_text("0", 0, "Forward", work_2(0) + R"(, "waits": [1, 2, 3, 4, 5])")},
               "traceEvents[6]: waits: [1,2,3,4,5]: not a list of at most 4");
  expect_fault({event_text("0", 1, "Send", R"("position": 0, "channel": 0, "payload": "tea", "bytes": 1, "peer": 1)")},
               "traceEvents[6]: payload: tea: not a payload");
}

TEST(TraceFile, RefusesMembersOfAnotherTypeOrRange)
{
  const WrittenTrace file;
  const auto expect_fault = [&](const std::string& opcode, const std::string& key, const std::string& value,
                                const std::string& what) {
    const bool is_send = opcode == "Send";
    auto json = nlohmann::json::parse(trace_2(
        {{"compute", "send"}}, {event_text("0", is_send ? 1 : 0, opcode, is_send ? transfer_2(0, 0, 1) : work_2(0))}));
    auto& event = json["traceEvents"].back();
    auto& object = event["args"].contains(key) ? event["args"] : event;
    object[key] = nlohmann::json::parse(value);
    file.write(json.dump());
    EXPECT_EQ(fault_of(file),
              fmt::format("{}: traceEvents[3]: {}: {}: not {}", file.name().string(), key, object[key].dump(), what));
  };
  expect_fault("Forward", "alone_s", "-1", "a number from 0 to 1e+18");
  expect_fault("Forward", "alone_s", "1e300", "a number from 0 to 1e+18");
  expect_fault("Forward", "memory_bytes", "null", "a number from -1e+18 to 1e+18");
  expect_fault("Forward", "dur", "-1", "a number from 0 to 1e+24");
  expect_fault("Forward", "ts", "\"1\"", "a number from -1e+24 to 1e+24");
  expect_fault("Forward", "cat", "5", "a text");
  expect_fault("Forward", "args", "[]", "an object");
  expect_fault("Send", "payload", "[]", "a text");
  expect_fault("Send", "bytes", "{}", "a number from 0 to 1e+18");
}

TEST(TraceFile, NamesTheEventThatCannotBeRead)
{
  const WrittenTrace file;
  for (const std::string key : {"position", "channel", "payload", "bytes", "peer"}) {
    auto json =
        nlohmann::json::parse(trace_2({{"compute", "send"}}, {event_text("0", 1, "Send", transfer_2(0, 0, 1))}));
    json["traceEvents"].back()["args"].erase(key);
    file.write(json.dump());
    EXPECT_EQ(fault_of(file), fmt::format("{}: traceEvents[3]: key '{}' not found", file.name().string(), key));
  }
}

}  // namespace
}  // namespace isobar::results::trace_file_test
