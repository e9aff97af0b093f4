#include "results/validation.hpp"

#include "core/chrome_trace.hpp"
#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace isobar::results {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Two stages and one micro-batch: a forward, b forward and backward, a backward, updates.
class TwoStages : public Program {
 public:
  TwoStages()
  {
    add(0, Opcode::Forward, Lane::Compute);
    add(0, Opcode::Backward, Lane::Compute, 0, {Lane::ReceiveGradient, 1});
    add(0, Opcode::AllReduce, Lane::Compute, 1);
    add(0, Opcode::Update, Lane::Compute);
    add(0, Opcode::Send, Lane::SendActivation, 1, {Lane::Compute, 1});
    add(0, Opcode::Recv, Lane::ReceiveGradient, 1);
    add(1, Opcode::Recv, Lane::ReceiveActivation, 0);
    add(1, Opcode::Forward, Lane::Compute, 0, {Lane::ReceiveActivation, 1});
    add(1, Opcode::Backward, Lane::Compute);
    add(1, Opcode::AllReduce, Lane::Compute, 0);
    add(1, Opcode::Update, Lane::Compute);
    add(1, Opcode::Send, Lane::SendGradient, 0, {Lane::Compute, 2});
  }

  std::size_t ranks() const override { return 2; }
  Bytes resident_memory(std::size_t) const override { return Bytes(0); }
  std::uint64_t length(std::size_t rank, Lane lane) const override { return lanes(rank, lane).size(); }
  Instruction at(std::size_t rank, Lane lane, std::uint64_t position) const override
  {
    return lanes(rank, lane)[position];
  }

 private:
  const std::vector<Instruction>& lanes(std::size_t rank, Lane lane) const
  {
    return lanes_[rank][static_cast<std::size_t>(lane)];
  }
  void add(std::size_t rank, Opcode opcode, Lane lane, std::size_t peer = 0, const Wait& wait = {})
  {
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.lane = lane;
    instruction.stage = static_cast<std::uint32_t>(rank);
    instruction.peer = peer;
    instruction.wait = wait;
    lanes_[rank][static_cast<std::size_t>(lane)].push_back(instruction);
  }

  std::array<std::array<std::vector<Instruction>, lane_count>, 2> lanes_;
};

/// Writes traces of the program into a file of its own.
class TraceFile {
 public:
  std::filesystem::path name() const { return folder_.path() / "trace.json"; }
  void write(const std::string& content) const { folder_.write("trace.json", content); }

  /// `steps` steps one after another, with transfers of `transfer`: a takes 1 + 2 s, b 3 + 4 s, updates half a second.
  /// Receives are posted when a step begins.
  void write_steps(const Program& program, std::uint64_t steps, double transfer) const
  {
    std::ofstream out(name());
    ChromeTraceWriter writer(out, {"a", "b"});
    double start = 0;
    for (std::uint64_t step = 0; step < steps; ++step) {
      const auto event = [&](std::size_t rank, Lane lane, std::uint64_t position, double begin, double end) {
        writer.record(
            {step, rank, program.at(rank, lane, position), Seconds(start + begin), Seconds(start + end), Bytes(0)});
      };
      const double t = transfer;
      event(0, Lane::Compute, 0, 0, 1);
      event(0, Lane::SendActivation, 0, 1, 1 + t);
      event(1, Lane::ReceiveActivation, 0, 0, 1 + t);
      event(1, Lane::Compute, 0, 1 + t, 4 + t);
      event(1, Lane::Compute, 1, 4 + t, 8 + t);
      event(1, Lane::SendGradient, 0, 8 + t, 8 + 2 * t);
      event(0, Lane::ReceiveGradient, 0, 0, 8 + 2 * t);
      event(0, Lane::Compute, 1, 8 + 2 * t, 10 + 2 * t);
      event(1, Lane::Compute, 2, 8 + t, 10.25 + 2 * t);
      event(0, Lane::Compute, 2, 10 + 2 * t, 10.25 + 2 * t);
      event(1, Lane::Compute, 3, 10.25 + 2 * t, 10.5 + 2 * t);
      event(0, Lane::Compute, 3, 10.25 + 2 * t, 10.75 + 2 * t);
      start += 10.75 + 2 * t;
    }
    writer.finish();
  }

 private:
  testing_support::TemporaryFolder folder_;
};

std::string fault_of(const TraceFile& file, const Program& program)
{
  try {
    Timeline::read(file.name(), program);
    return "none";
  } catch (const InputError& error) {
    return error.what();
  }
}

TEST(Timeline, HasEveryStepsTimeAndEveryInstructionsOwn)
{
  const TwoStages program;
  const TraceFile file;
  file.write_steps(program, 3, 0.5);
  const auto timeline = Timeline::read(file.name(), program);
  EXPECT_EQ(timeline.steps(), 3U);
  const auto times = timeline.step_times();
  ASSERT_EQ(times.size(), 3U);
  for (const Seconds time : times) EXPECT_NEAR(time.value, 11.75, 1e-9);
  EXPECT_NEAR(timeline.duration(1, Lane::Compute, 2, 0).value, 3, 1e-9);
  // A transfer counts from when both ends are there, and an AllReduce from when all ranks are.
  EXPECT_NEAR(timeline.duration(0, Lane::SendActivation, 1, 0).value, 0.5, 1e-9);
  EXPECT_NEAR(timeline.duration(1, Lane::ReceiveActivation, 1, 0).value, 0.5, 1e-9);
  EXPECT_NEAR(timeline.duration(1, Lane::Compute, 1, 2).value, 0.25, 1e-9);
}

TEST(CriticalPath, LeadsFromTheStepsEndToItsBeginAndAddsUpToItsTime)
{
  const TwoStages program;
  const TraceFile file;
  file.write_steps(program, 2, 0.5);
  const auto timeline = Timeline::read(file.name(), program);
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

TEST(Validation, OfATimelineWithItselfHasNoErrors)
{
  const TwoStages program;
  const TraceFile file;
  file.write_steps(program, 2, 0.5);
  const auto timeline = Timeline::read(file.name(), program);
  const auto validation =
      validate(timeline, timeline, "even", {"a", "b"}, {{Bytes(1), Bytes(1)}, {Bytes(2), Bytes(2)}});
  EXPECT_EQ(validation.step_time.error_fraction(), 0);
  for (const auto& stage : validation.stages) {
    EXPECT_EQ(stage.compute.error_fraction(), 0);
    EXPECT_EQ(stage.peak_memory.error_fraction(), 0);
  }
  EXPECT_EQ(validation.instructions.size(), 10U);
  for (const auto& kind : validation.instructions) EXPECT_EQ(kind.duration.error_fraction(), 0);
}

TEST(Validation, SaysWhichInstructionsTookLonger)
{
  const TwoStages program;
  const TraceFile file;
  file.write_steps(program, 2, 0.5);
  const auto predicted = Timeline::read(file.name(), program);
  file.write_steps(program, 4, 1);
  const auto measured = Timeline::read(file.name(), program);
  const auto validation =
      validate(predicted, measured, "even", {"a", "b"}, {{Bytes(3), Bytes(2)}, {Bytes(1), Bytes(0)}});
  EXPECT_NEAR(validation.step_time.error_fraction(), 11.75 / 12.75 - 1, 1e-9);
  EXPECT_NEAR(validation.stages[0].compute.measured.value, 3.5, 1e-9);
  EXPECT_NEAR(validation.stages[0].peak_memory.error_fraction(), 0.5, 1e-12);
  for (const auto& kind : validation.instructions) {
    EXPECT_NEAR(kind.duration.error_fraction(), kind.opcode == Opcode::Send ? -0.5 : 0, 1e-9) << kind.device;
  }
  EXPECT_EQ(validation.measured_path[0].what, "Backward on b");
  EXPECT_EQ(validation.measured_path[4].what, "Send from a to b");

  const auto json = nlohmann::json::parse(validation_to_json(validation, 0.05));
  EXPECT_FALSE(json["within_tolerance"]);
  EXPECT_TRUE(nlohmann::json::parse(validation_to_json(validation, 0.1))["within_tolerance"]);
  // Nothing was measured where something was foretold: no number says how wrong that is.
  EXPECT_TRUE(json["stages"][1]["peak_memory_error_fraction"].is_null());
  EXPECT_THAT(text_of(validation), HasSubstr("step 11.75 s predicted, 12.75 s measured: -7.8 %"));
}

TEST(Timeline, RefusesWhatIsNoTraceOfTheProgram)
{
  const TwoStages program;
  const TraceFile file;
  const std::string name = file.name().string();
  file.write("{");
  EXPECT_THAT(fault_of(file, program), HasSubstr(name + ": "));
  file.write("{\"otherData\": {\"schema\": \"isobar-trace/2\"}}");
  EXPECT_EQ(fault_of(file, program), name + ": schema: not isobar-trace/1");
  file.write("{\"otherData\": {\"schema\": \"isobar-trace/1\"}, \"traceEvents\": []}");
  EXPECT_EQ(fault_of(file, program), name + ": traceEvents: holds no instruction");
  const std::string event = "{\"ph\": \"X\", \"pid\": %, \"tid\": 0, \"ts\": 1, \"dur\": 1, \"args\": {\"step\": 0}}";
  const auto with_event_of = [&](const std::string& rank) {
    std::string text = event;
    text.replace(text.find('%'), 1, rank);
    return "{\"otherData\": {\"schema\": \"isobar-trace/1\"}, \"traceEvents\": [" + text + "]}";
  };
  file.write(with_event_of("2"));
  EXPECT_EQ(fault_of(file, program), name + ": an event of rank 2, track 0; the plan has 2 ranks");
  file.write(with_event_of("0"));
  EXPECT_EQ(fault_of(file, program),
            name + ": rank 0, compute: 1 instructions in 1 steps; the plan has 4: a trace of another plan");
  file.write(with_event_of("\"a\""));
  EXPECT_THAT(fault_of(file, program), HasSubstr("type must be number"));
}

}  // namespace
}  // namespace isobar::results
