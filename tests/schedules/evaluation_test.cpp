#include "schedules/evaluation.hpp"

#include "core/check/program_checker.hpp"
#include "core/program/walk.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/unit_devices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace isobar::schedules::evaluation_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Three layers per stage that all differ.
Workload workload_of(std::size_t stages)
{
  Workload workload;
  workload.input = Bytes(7000);
  workload.training.clip_norm = 1.0;
  for (std::size_t i = 0; i < 3 * stages; ++i) {
    const double step = static_cast<double>(i);
    Layer layer;
    layer.forward = Flops(1e9 + 1e6 * step);
    layer.backward = Flops(2e9 + 3e6 * step);
    layer.parameters = 1000 + i;
    layer.activations = Bytes(5000 + step);
    layer.output = layer.gradient = Bytes(800 + step);
    if (i > 0) layer.inputs = {i - 1};
    workload.layers.push_back(layer);
  }
  return workload;
}

Plan plan_on(const std::vector<std::size_t>& device_of_stage, const std::string& schedule, std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.schedule = {schedule};
  plan.goal.microbatches = microbatches;
  for (std::size_t i = 0; i < device_of_stage.size(); ++i) {
    plan.stages.push_back(stage_on("d" + std::to_string(device_of_stage[i]), 3 * i, 3 * i + 2));
  }
  return plan;
}

std::unique_ptr<Program> evaluation_of(const Plan& plan)
{
  return testing_support::unit_evaluation(plan, workload_of(plan.stages.size()));
}

std::vector<std::string> lane_names(const Program& program, std::size_t rank)
{
  std::vector<std::string> names;
  for (const auto& lane : program.lanes(rank)) names.push_back(lane.name);
  return names;
}

/// "F0.2" is the forward of micro-batch 2 through stage 0.
std::string compute_text(const Program& program, std::size_t rank)
{
  std::string text;
  for (std::uint64_t i = 0; i < program.length(rank, compute_lane); ++i) {
    const Instruction instruction = program.at(rank, compute_lane, i);
    text += (i > 0 ? " " : "") + std::string(name_of(instruction.opcode).substr(0, 1)) +
            std::to_string(instruction.stage) + "." + std::to_string(instruction.microbatch);
  }
  return text;
}

/// Counts what has been sent and not been read yet.
class Backlog : public WalkVisitor {
 public:
  void execute(const Turn& turn) override { waiting_ -= turn.instruction.waits.empty() ? 0 : 1; }
  bool meet(std::size_t, std::span<const Turn* const>) override
  {
    ++waiting_;
    return true;
  }
  std::int64_t waiting() const { return waiting_; }

 private:
  std::int64_t waiting_ = 0;
};

TEST(Evaluation, ForwardsTheMicroBatchesOfAChainInTheirOrder)
{
  for (const char* schedule : {"sequential", "gpipe", "1f1b", "zero-bubble-h1"}) {
    Plan plan = plan_on({0, 1}, schedule, 3);
    plan.data_server = "data";
    const auto program = evaluation_of(plan);
    EXPECT_THAT(lane_names(*program, 0), ElementsAre("compute", "send activation", "receive activation"));
    EXPECT_THAT(lane_names(*program, 1), ElementsAre("compute", "receive activation"));
    EXPECT_THAT(lane_names(*program, 2), ElementsAre("compute", "send activation"));
    EXPECT_EQ(compute_text(*program, 0), "F0.0 F0.1 F0.2");
    EXPECT_EQ(compute_text(*program, 1), "F1.0 F1.1 F1.2");
    EXPECT_EQ(compute_text(*program, 2), "");
  }
}

TEST(Evaluation, TakesGroupsOfMicroBatchesThroughTheStagesOfADevice)
{
  const auto interleaved = evaluation_of(plan_on({0, 1, 0, 1}, "interleaved", 5));
  EXPECT_EQ(compute_text(*interleaved, 0), "F0.0 F0.1 F2.0 F2.1 F0.2 F0.3 F2.2 F2.3 F0.4 F2.4");
  EXPECT_EQ(compute_text(*interleaved, 1), "F1.0 F1.1 F3.0 F3.1 F1.2 F1.3 F3.2 F3.3 F1.4 F3.4");
  const auto there_and_back = evaluation_of(plan_on({0, 1, 1, 0}, "zero-bubble-v", 1));
  EXPECT_EQ(compute_text(*there_and_back, 0), "F0.0 F3.0");
  EXPECT_EQ(compute_text(*there_and_back, 1), "F1.0 F2.0");
}

TEST(Evaluation, HasTheForwardsAndActivationsOfTraining)
{
  for (const auto& device_of_stage : std::vector<std::vector<std::size_t>>{{0}, {0, 1, 2}}) {
    for (const bool has_data_server : {false, true}) {
      Plan plan = plan_on(device_of_stage, "gpipe", 4);
      if (has_data_server) plan.data_server = "data";
      const Workload workload = workload_of(device_of_stage.size());
      const auto training = testing_support::unit_program(plan, workload);
      const auto evaluation = testing_support::unit_evaluation(plan, workload);
      ASSERT_EQ(evaluation->ranks(), training->ranks());
      for (std::size_t rank = 0; rank < evaluation->ranks(); ++rank) {
        EXPECT_EQ(evaluation->resident(rank, Tier::Device), training->resident(rank, Tier::Device));
        std::size_t lane_of_training = 0;
        for (LaneId lane = 0; lane < evaluation->lanes(rank).size(); ++lane) {
          const auto& lanes = training->lanes(rank);
          while (lanes.at(lane_of_training).name != evaluation->lanes(rank)[lane].name) ++lane_of_training;
          for (std::uint64_t i = 0; i < evaluation->length(rank, lane); ++i) {
            const Instruction ours = evaluation->at(rank, lane, i);
            const Instruction theirs = training->at(rank, static_cast<LaneId>(lane_of_training), i);
            EXPECT_EQ(ours.opcode, theirs.opcode);
            EXPECT_EQ(ours.microbatch, theirs.microbatch);
            EXPECT_EQ(ours.stage, theirs.stage);
            EXPECT_EQ(ours.first_layer, theirs.first_layer);
            EXPECT_EQ(ours.last_layer, theirs.last_layer);
            EXPECT_EQ(ours.time, theirs.time);
            EXPECT_EQ(ours.size, theirs.size);
            EXPECT_EQ(ours.acquires.size, Bytes(0));
            EXPECT_EQ(ours.releases.size, Bytes(0));
          }
        }
      }
    }
  }
}

TEST(Evaluation, PassesTheCheckerOnEveryPlanAndReadsAllThatItSends)
{
  const std::vector<std::vector<std::size_t>> placements = {{0},          {0, 0},          {0, 1, 2},
                                                            {0, 1, 1, 0}, {0, 1, 0, 1, 0}, {0, 1, 2, 1, 1, 0, 2, 0}};
  for (const auto& device_of_stage : placements) {
    for (const std::uint64_t microbatches : std::initializer_list<std::uint64_t>{1, 2, 3, 7, 12}) {
      for (const bool has_data_server : {false, true}) {
        SCOPED_TRACE(testing::PrintToString(device_of_stage) + ", M = " + std::to_string(microbatches) +
                     (has_data_server ? ", with a data server" : ""));
        Plan plan = plan_on(device_of_stage, "listed", microbatches);
        if (has_data_server) plan.data_server = "data";
        const auto program = evaluation_of(plan);
        EXPECT_THAT(faults_of(*program, ProgramUse::Evaluation), IsEmpty());
        Backlog backlog;
        EXPECT_FALSE(ProgramWalk(*program).run(3, backlog));
        EXPECT_EQ(backlog.waiting(), 0);
      }
    }
  }
}

TEST(Evaluation, CountsBillionsOfMicroBatchesWithoutMemoryForThem)
{
  const std::uint64_t microbatches = 5'000'000'000;
  const auto program = evaluation_of(plan_on({0, 1, 0, 1}, "interleaved", microbatches));
  EXPECT_EQ(program->length(0, compute_lane), 2 * microbatches);
  EXPECT_EQ(program->at(1, compute_lane, 2 * microbatches - 1).microbatch, microbatches - 1);
}

TEST(Evaluation, NeedsAFeasiblePlan)
{
  EXPECT_THROW(testing_support::unit_evaluation(Plan{}, workload_of(1)), std::logic_error);
}

}  // namespace
}  // namespace isobar::schedules::evaluation_test
