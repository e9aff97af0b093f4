#include "results/trace/timeline.hpp"

#include "results/trace/step_recorder.hpp"
#include "results/trace/trace_stats.hpp"
#include "tests/results/trace/trace_checks.hpp"
#include "tests/results/trace/trace_text.hpp"
#include "tests/results/trace/two_stages.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace isobar::results::timeline_test {
namespace {

using testing::ElementsAre;

double length_of(const Timeline::Span& span)
{
  return (span.end - span.begin).value;
}

std::string fault_of(const WrittenTrace& file, const Program& program)
{
  return fault_in(file, [&program](const TraceFile& trace) { Timeline::of(trace, program); });
}

/// "Send 0", the kinds of a critical path and their ranks, largest first.
std::vector<std::string> kinds_of(const std::vector<PathShare>& path)
{
  std::vector<std::string> kinds;
  for (const auto& share : path) kinds.push_back(fmt::format("{} {}", name_of(share.opcode), share.rank));
  return kinds;
}

double total_of(const std::vector<PathShare>& path)
{
  Seconds total;
  for (const auto& share : path) total += share.time;
  return total.value;
}

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
  EXPECT_NEAR(timeline.end_of(1).value, 2 * 11.75, 1e-9);
  EXPECT_NEAR(length_of(timeline.work(1, compute_lane, 2, 0)), 3, 1e-9);
  // A transfer begins when both ends have reached it, an AllReduce when all ranks have.
  EXPECT_NEAR(length_of(timeline.work(0, TwoStages::send, 1, 0)), 0.5, 1e-9);
  EXPECT_NEAR(length_of(timeline.work(1, TwoStages::receive, 1, 0)), 0.5, 1e-9);
  EXPECT_NEAR(length_of(timeline.work(1, TwoStages::sync, 1, 0)), 0.25, 1e-9);
}

TEST(Timeline, FindsInstructionsByTheirPositionsInAnyOrder)
{
  const TwoStages program;
  const WrittenTrace file;
  auto events = events_of_steps(program, 2, 0.5);
  std::reverse(events.begin(), events.end());
  file.write(program, events, {"a", "b"});
  const auto timeline = file.timeline(program);
  EXPECT_NEAR(timeline.at(1, compute_lane, 0, 1).begin.value, 4.5, 1e-9);
  EXPECT_NEAR(timeline.at(1, compute_lane, 1, 1).begin.value, 11.75 + 4.5, 1e-9);
}

TEST(CriticalPath, LeadsFromTheStepsEndToItsBeginAndAddsUpToItsTime)
{
  const TwoStages program;
  const WrittenTrace file;
  file.write_steps(program, 2, 0.5);
  const auto timeline = file.timeline(program);
  for (const std::uint64_t step : {0U, 1U}) {
    const auto path = critical_path(timeline, step);
    EXPECT_NEAR(total_of(path), 11.75, 1e-9);
    EXPECT_THAT(kinds_of(path), ElementsAre("Backward 1", "Forward 1", "Backward 0", "Forward 0", "Update 0", "Send 0",
                                            "Send 1", "AllReduce 0"));
  }
}

/// Rank 0 computes and sends twice; rank 1 computes on each message.
class TwoMessages : public ListedProgram {
 public:
  static constexpr LaneId transfers = 1;

  TwoMessages() : ListedProgram(2)
  {
    add_lane(0, "send activation");
    add_lane(1, "receive activation");
    connect({{0, transfers}, {1, transfers}});
    for (const std::uint64_t count : {1U, 2U}) {
      add(0, compute_lane, Opcode::Forward);
      add(0, transfers, Opcode::Send, {{compute_lane, 0, count}});
      add(1, transfers, Opcode::Recv);
      add(1, compute_lane, Opcode::Forward, {{transfers, 0, count}});
    }
  }
};

/// Writes events of a program whose devices are a, b, …
class Recording {
 public:
  explicit Recording(const Program& program) : program_(program) {}

  void event(std::uint64_t step, std::size_t rank, LaneId lane, std::uint64_t position, double begin, double end)
  {
    events_.push_back(
        {step, rank, position, program_.at(rank, lane, position), Seconds(begin), Seconds(end), Bytes(0)});
  }
  Timeline timeline() const
  {
    const WrittenTrace file;
    std::vector<std::string> devices;
    for (std::size_t rank = 0; rank < program_.ranks(); ++rank) {
      devices.emplace_back(1, static_cast<char>('a' + rank));
    }
    file.write(program_, events_, devices);
    return file.timeline(program_);
  }

 private:
  const Program& program_;
  std::vector<TraceEvent> events_;
};

/// As the simulator plays it: work, then one second for the bytes of each message, which arrive five seconds later.
Timeline messages_of_long_latency(const Program& program)
{
  Recording recording(program);
  recording.event(0, 0, compute_lane, 0, 0, 1);
  recording.event(0, 0, compute_lane, 1, 1, 1.5);
  recording.event(0, 0, TwoMessages::transfers, 0, 1, 2);
  recording.event(0, 1, TwoMessages::transfers, 0, 6, 7);
  recording.event(0, 0, TwoMessages::transfers, 1, 2, 3);
  recording.event(0, 1, TwoMessages::transfers, 1, 7, 8);
  recording.event(0, 1, compute_lane, 0, 7, 7.5);
  recording.event(0, 1, compute_lane, 1, 8, 9);
  return recording.timeline();
}

TEST(Timeline, CountsATransferFromItsFirstByteSentToItsLastByteReceived)
{
  const TwoMessages program;
  const auto timeline = messages_of_long_latency(program);
  EXPECT_NEAR(timeline.work(0, TwoMessages::transfers, 0, 0).begin.value, 1, 1e-9);
  EXPECT_NEAR(timeline.work(0, TwoMessages::transfers, 0, 0).end.value, 7, 1e-9);
  EXPECT_NEAR(timeline.work(1, TwoMessages::transfers, 0, 0).begin.value, 1, 1e-9);
  // The second one begins when the receiver has the first.
  EXPECT_NEAR(timeline.work(1, TwoMessages::transfers, 0, 1).begin.value, 7, 1e-9);
  EXPECT_NEAR(timeline.work(1, TwoMessages::transfers, 0, 1).end.value, 8, 1e-9);
}

TEST(CriticalPath, CountsTheLatencyOfAStreamOnce)
{
  const TwoMessages program;
  const auto shares = critical_path(messages_of_long_latency(program), 0);
  ASSERT_EQ(shares.size(), 3U);
  EXPECT_EQ(shares[0].opcode, Opcode::Send);
  EXPECT_NEAR(shares[0].time.value, 1 + 5 + 1, 1e-9);
  EXPECT_NEAR(shares[1].time.value, 1, 1e-9);  // the last forward
  EXPECT_NEAR(shares[2].time.value, 1, 1e-9);  // and the first
}

/// Three ranks compute twice, and sum something up after each time.
class TwoSums : public ListedProgram {
 public:
  static constexpr LaneId sync = 1;

  TwoSums() : ListedProgram(3)
  {
    for (std::size_t rank = 0; rank < 3; ++rank) {
      add_lane(rank, "sync");
      add(rank, compute_lane, Opcode::Forward);
      add(rank, compute_lane, Opcode::Backward);
      add(rank, compute_lane, Opcode::Update, {{sync, 0, 2}});
      add(rank, sync, Opcode::AllReduce, {{compute_lane, 0, 1}}, Payload::ParameterGradient);
      add(rank, sync, Opcode::AllReduce, {{compute_lane, 0, 2}}, Payload::ParameterGradient);
    }
    connect({{0, sync}, {1, sync}, {2, sync}});
  }
};

TEST(CriticalPath, LeadsFromACollectiveToTheRankThatReachedItLast)
{
  const TwoSums program;
  Recording recording(program);
  // Rank 1 ends its forward last, rank 2 its backward.
  const double forwards[] = {1, 4, 2};
  const double backwards[] = {6, 7, 9};
  for (std::size_t rank = 0; rank < 3; ++rank) {
    recording.event(0, rank, compute_lane, 0, 0, forwards[rank]);
    recording.event(0, rank, TwoSums::sync, 0, forwards[rank], 5);
    recording.event(0, rank, compute_lane, 1, forwards[rank], backwards[rank]);
    recording.event(0, rank, TwoSums::sync, 1, backwards[rank], 10);
    recording.event(0, rank, compute_lane, 2, 10, rank == 0 ? 13 : 11);
  }
  const auto timeline = recording.timeline();
  EXPECT_NEAR(length_of(timeline.work(0, TwoSums::sync, 0, 0)), 1, 1e-9);
  EXPECT_NEAR(length_of(timeline.work(0, TwoSums::sync, 0, 1)), 1, 1e-9);
  const auto path = critical_path(timeline, 0);
  EXPECT_THAT(kinds_of(path), ElementsAre("Backward 2", "Update 0", "Forward 2", "AllReduce 0"));
  EXPECT_NEAR(path[0].time.value, 7, 1e-9);
  EXPECT_NEAR(total_of(path), 13, 1e-9);
}

/// Rank 1 sends the input of each step, which rank 0 takes while it computes the step before.
class Prefetch : public ListedProgram {
 public:
  static constexpr LaneId transfers = 1;

  /// `slots`: how many inputs rank 0 holds; it takes the next when it has computed that many steps before.
  explicit Prefetch(std::uint16_t slots) : ListedProgram(2)
  {
    add_lane(0, "receive activation");
    add_lane(1, "send activation");
    connect({{1, transfers}, {0, transfers}});
    add(0, compute_lane, Opcode::Forward, {{transfers, 0, 1}});
    add(0, transfers, Opcode::Recv, {{compute_lane, slots, 1}});
    add(1, transfers, Opcode::Send);
  }
};

TEST(CriticalPath, FollowsAWaitToAnEarlierStep)
{
  const Prefetch program(1);
  Recording recording(program);
  for (const std::uint64_t step : {0U, 1U}) {
    const double start = step == 0 ? 0 : 3;
    recording.event(step, 1, Prefetch::transfers, 0, step == 0 ? 0 : 1, start + 1);
    recording.event(step, 0, Prefetch::transfers, 0, start, start + 1);
    recording.event(step, 0, compute_lane, 0, start + 1, start + 3);
  }
  const auto timeline = recording.timeline();
  const auto path = critical_path(timeline, 1);
  // The sender waited for two seconds, in which rank 0 computed the step before.
  EXPECT_THAT(kinds_of(path), ElementsAre("Forward 0", "Send 1"));
  EXPECT_NEAR(path[1].time.value, 1, 1e-9);
  EXPECT_NEAR(timeline.work(1, Prefetch::transfers, 1, 0).begin.value, 3, 1e-9);
}

TEST(Timeline, HoldsStepsThatOverlap)
{
  const Prefetch program(2);
  Recording recording(program);
  for (const std::uint64_t step : {0U, 1U, 2U}) {
    const auto before = static_cast<double>(step);
    const double arrives = step < 2 ? before : 3;
    recording.event(step, 1, Prefetch::transfers, 0, arrives, arrives + 1);
    recording.event(step, 0, Prefetch::transfers, 0, arrives, arrives + 1);
    recording.event(step, 0, compute_lane, 0, 1 + 2 * before, 3 + 2 * before);
  }
  const auto timeline = recording.timeline();
  std::vector<double> times;
  for (const Seconds time : timeline.step_times()) times.push_back(time.value);
  EXPECT_THAT(times,
              ElementsAre(testing::DoubleNear(3, 1e-9), testing::DoubleNear(2, 1e-9), testing::DoubleNear(2, 1e-9)));
  EXPECT_NEAR(total_of(critical_path(timeline, 2)), 2, 1e-9);  // the input was there

  StepRecorder recorder(program, 10);
  record_step(timeline, 1, recorder);
  const auto& events = recorder.recorded().events;
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].instruction.opcode, Opcode::Send);
  EXPECT_NEAR(events[0].begin.value, -2, 1e-9);
  EXPECT_NEAR(events[1].begin.value, 0, 1e-9);
  EXPECT_NEAR(events[1].end.value, 2, 1e-9);

  const auto stats = stats_of(timeline, {"a", "b"});
  EXPECT_NEAR(stats.step_time.value, 2, 1e-9);
  EXPECT_NEAR(stats.devices[0].busy.value, 2, 1e-9);
  EXPECT_NEAR(stats.devices[0].communication.value, 0.5, 1e-9);  // of the third step, while the second one computes
  EXPECT_NEAR(stats.devices[0].hidden.value, 0.5, 1e-9);
}

TEST(Timeline, RecordsTheMemoryOfAStepByWhatItsInstructionsHoldAtTheirTimes)
{
  TwoStages program;
  program.listing[0].resident[static_cast<std::size_t>(Tier::Device)] = Bytes(100);
  program.listing[0].instructions[compute_lane][0].acquires = {Tier::Device, Bytes(8)};
  program.listing[0].instructions[compute_lane][1].releases = {Tier::Device, Bytes(8)};
  const WrittenTrace file;
  file.write_steps(program, 3, 0.5);
  StepRecorder recorder(program, 10);
  record_step(file.timeline(program), 1, recorder);
  const RecordedStep step = recorder.recorded();
  const auto& [times, bytes] = step.memory[0][static_cast<std::size_t>(Tier::Device)];
  const std::vector<double> expected_times = {0, 11, 11.75};  // the forward begins at 0, the backward ends at 11
  const std::vector<double> expected_bytes = {108, 100, 100};
  ASSERT_EQ(times.size(), expected_times.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    EXPECT_NEAR(times[i].value, expected_times[i], 1e-9);
    EXPECT_EQ(bytes[i].value, expected_bytes[i]);
  }
}

TEST(Timeline, RefusesATraceOfAnotherProgram)
{
  const TwoStages program;
  const WrittenTrace file;
  const std::string name = file.name().string();
  const std::string another = "; the trace is of another plan";
  file.write(trace_1(3, {event_text("2", 0, "Forward", work_1)}));
  EXPECT_EQ(fault_of(file, program), name + ": an event of rank 2; the plan has 2 ranks");
  file.write(trace_1(2, {event_text("0", 0, "Forward", work_1)}));
  EXPECT_EQ(fault_of(file, program),
            name + ": rank 0, compute: 1 instructions in 1 steps, and 3 in the plan" + another);
  file.write(trace_2({{"compute", "copy"}}, {event_text("0", 1, "Forward", work_2(0))}));
  EXPECT_EQ(fault_of(file, program), name + ": rank 0, copy: 1 instructions in 1 steps, and 0 in the plan" + another);
}

TEST(Timeline, RefusesPositionsThatThePlanDoesNotHave)
{
  const TwoStages program;
  const WrittenTrace file;
  auto events = events_of_steps(program, 1, 0.5);
  const auto fault_with_position = [&](std::uint64_t position) {
    events.back().position = position;  // of the update of a
    file.write(program, events, {"a", "b"});
    return fault_of(file, program);
  };
  const std::string name = file.name().string();
  EXPECT_EQ(fault_with_position(2), "none");
  EXPECT_EQ(fault_with_position(1),
            name + ": rank 0, compute: two instructions at position 1 of step 0; the trace is of another plan");
  EXPECT_EQ(fault_with_position(3), name +
                                        ": rank 0, compute: the plan has 3 instructions, and the trace position 3 of "
                                        "step 0; the trace is of another plan");
}

}  // namespace
}  // namespace isobar::results::timeline_test
