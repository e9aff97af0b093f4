#include "results/trace/recorded_program.hpp"

#include "tests/results/trace/trace_checks.hpp"
#include "tests/results/trace/trace_text.hpp"
#include "tests/results/trace/two_stages.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isobar::results::recorded_program_test {
namespace {

const std::string deadlock = "deadlock, each waits for the next and the last for the first: ";

using Tracks = std::vector<std::vector<std::string>>;

TEST(RecordedProgram, EqualsTheProgramOfTheTrace)
{
  const TwoStages program;
  const WrittenTrace file;
  file.write_steps(program, 2, 0.5);
  expect_same_program(*recorded_program(read_trace(file.name())), program);
}

void expect_fault(const Tracks& tracks, const std::vector<std::string>& events, const std::string& fault)
{
  const WrittenTrace file;
  file.write(trace_2(tracks, events));
  EXPECT_EQ(fault_of_recorded_program(file), fault.empty() ? "none" : file.name().string() + ": " + fault);
}

TEST(RecordedProgram, RefusesPositionsThatAreMissingOrTaken)
{
  expect_fault({{"compute"}}, {event_text("0", 0, "Forward", work_2(0)), event_text("0", 0, "Forward", work_2(0))},
               "rank 0, compute: two instructions at position 0 of step 0");
  expect_fault({{"compute"}}, {event_text("0", 0, "Forward", work_2(0)), event_text("0", 0, "Forward", work_2(2))},
               "rank 0, compute: no instruction at position 1 of step 0");
}

TEST(RecordedProgram, RefusesInstructionsThatCanNeverRun)
{
  expect_fault({{"compute", "copy"}}, {event_text("0", 0, "Forward", work_2(0) + waits_2(1, 1))},
               "Forward 0 of rank 0 waits for 1 instructions of copy; there are 0");
  expect_fault({{"compute"}}, {event_text("0", 0, "Forward", work_2(0) + waits_2(0, 1))},
               deadlock + "rank 0, lane compute, position 0");
  // The instruction of the step before has run.
  expect_fault({{"compute"}}, {event_text("0", 0, "Forward", work_2(0) + waits_2(0, 1, 1))}, "");
  expect_fault({{"compute"}}, {event_text("0", 0, "Forward", work_2(0) + waits_2(0, 2, 1))},
               "Forward 0 of rank 0 waits for 2 instructions of compute; there are 1");
}

TEST(RecordedProgram, RefusesTransfersThatWaitForEachOther)
{
  expect_fault(
      {{"compute", "send", "receive"}, {"compute", "send", "receive"}},
      {event_text("0", 1, "Send", transfer_2(0, 0, 1) + waits_2(2, 1)), event_text("1", 2, "Recv", transfer_2(0, 0, 0)),
       event_text("1", 1, "Send", transfer_2(0, 1, 0) + waits_2(2, 1)),
       event_text("0", 2, "Recv", transfer_2(0, 1, 1))},
      deadlock +
          "rank 0, lane send, position 0; rank 0, lane receive, position 0; rank 1, lane send, position 0; "
          "rank 1, lane receive, position 0");
}

TEST(RecordedProgram, RefusesACollectiveThatWaitsForWhatFollowsItElsewhere)
{
  expect_fault({{"compute", "sync", "receive"}, {"compute", "sync", "send"}},
               {event_text("0", 1, "AllReduce", collective_2(0, 0) + waits_2(2, 1)),
                event_text("0", 2, "Recv", transfer_2(0, 1, 1)), event_text("1", 1, "AllReduce", collective_2(0, 0)),
                event_text("1", 2, "Send", transfer_2(0, 1, 0) + waits_2(1, 1))},
               deadlock +
                   "rank 0, lane sync, position 0; rank 0, lane receive, position 0; rank 1, lane send, position 0; "
                   "rank 1, lane sync, position 0");
}

TEST(RecordedProgram, RefusesEndsOfAChannelThatDiffer)
{
  const auto send = [](int position) { return event_text("0", 1, "Send", transfer_2(position, 0, 1)); };
  expect_fault({{"compute", "send"}, {"compute", "receive"}},
               {send(0), send(1), event_text("1", 1, "Recv", transfer_2(0, 0, 0))},
               "rank 1, receive: 1 instructions in step 0; 2 at the other end, rank 0, send");
  expect_fault(
      {{"compute", "sync"}, {"compute", "sync"}},
      {event_text("0", 1, "AllReduce", collective_2(0, 0)), event_text("1", 1, "AllGather", collective_2(0, 0))},
      "rank 1, sync: AllGather at position 0; AllReduce at the other end, rank 0, sync");
}

}  // namespace
}  // namespace isobar::results::recorded_program_test
