#include "schedules/lowering/schedule.hpp"

#include "core/check/program_checker.hpp"
#include "tests/schedules/lowering/sample_programs.hpp"
#include "tests/support/thrown_message.hpp"
#include "tests/support/unit_devices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace isobar::schedules::lowering_schedule_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::string text_of(const Program& program, std::size_t rank)
{
  std::string text;
  for (std::uint64_t position = 0; position < program.length(rank, compute_lane); ++position) {
    const Instruction instruction = program.at(rank, compute_lane, position);
    text += name_of(instruction.opcode).front();
    if (instruction.opcode != Opcode::Update) text += std::to_string(instruction.microbatch);
  }
  return text;
}

std::string compute_text(ChainSchedule schedule, std::size_t stages, std::uint64_t microbatches, std::size_t rank)
{
  return text_of(*testing_support::unit_program(plan_of(schedule, stages, microbatches), unequal_chain(2 * stages)),
                 rank);
}

TEST(MakeProgram, GivesEachScheduleItsOrder)
{
  EXPECT_EQ(compute_text(ChainSchedule::Sequential, 3, 3, 1), "F0B0F1B1F2B2U");
  EXPECT_EQ(compute_text(ChainSchedule::GPipe, 3, 3, 1), "F0F1F2B2B1B0U");
  EXPECT_EQ(compute_text(ChainSchedule::OneForwardOneBackward, 3, 4, 0), "F0F1F2B0F3B1B2B3U");
  EXPECT_EQ(compute_text(ChainSchedule::OneForwardOneBackward, 3, 4, 1), "F0F1B0F2B1F3B2B3U");
  EXPECT_EQ(compute_text(ChainSchedule::OneForwardOneBackward, 3, 4, 2), "F0B0F1B1F2B2F3B3U");
  EXPECT_EQ(compute_text(ChainSchedule::OneForwardOneBackward, 3, 1, 0), "F0B0U");
}

TEST(MakeProgram, NamesLanesByStageWhereARankHasSeveralOfAKind)
{
  Plan plan = plan_on({0, 1, 0, 1}, {"interleaved"}, 4);
  plan.data_server = "data";
  const Sample sample(plan);
  EXPECT_THAT(lane_names(*sample.program, 0),
              ElementsAre("compute", "send activation 1", "send activation 3", "send gradient", "receive activation 0",
                          "receive activation 2", "receive gradient 1", "receive gradient 3"));
  EXPECT_THAT(lane_names(*sample.program, 1),
              ElementsAre("compute", "send activation", "send gradient 1", "send gradient 3", "receive activation 1",
                          "receive activation 3", "receive gradient"));
  EXPECT_THAT(lane_names(*sample.program, 2), ElementsAre("compute", "send activation"));
  EXPECT_EQ(first_of(*sample.program, 0, "send activation 3").stage, 2U);
  EXPECT_EQ(first_of(*sample.program, 1, "receive activation 3").stage, 3U);
  EXPECT_EQ(first_of(*sample.program, 1, "send gradient 3").stage, 3U);
  EXPECT_EQ(first_of(*sample.program, 0, "receive gradient 3").stage, 2U);
  EXPECT_THAT(lane_names(*Sample(plan_on({0, 1, 1, 0}, {"zero-bubble-v"}, 4)).program, 1),
              ElementsAre("compute", "send activation", "send gradient", "receive activation", "receive gradient"));
}

TEST(MakeProgram, NumbersRanksByTheFirstStageOfTheirDevice)
{
  const Sample sample(plan_on({7, 3, 7, 3}, {"interleaved"}, 2));
  EXPECT_EQ(sample.program->ranks(), 2U);
  EXPECT_EQ(sample.program->at(0, compute_lane, 0).stage, 0U);
  EXPECT_EQ(sample.program->at(1, compute_lane, 0).stage, 1U);
}

TEST(MakeProgram, SyncsGradientsOverAllRanksBeforeTheirUpdates)
{
  Workload workload = unequal_chain(8);
  workload.training.clip_norm = 1.0;
  Plan plan = plan_on({0, 1, 0, 1}, {"interleaved"}, 4);
  plan.data_server = "data";
  const auto program = testing_support::unit_program(plan, workload);
  EXPECT_THAT(faults_of(*program), IsEmpty());
  const Channel& channel = program->channels().back();
  EXPECT_EQ(channel.algorithm, Algorithm::Ring);
  ASSERT_EQ(channel.ends.size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const LaneId lane = lane_named(*program, rank, "sync").value();
    EXPECT_EQ(lane, program->lanes(rank).size() - 1) << "the last lane";
    EXPECT_EQ(program->lanes(rank)[lane].engine, Engine::Network);
    EXPECT_EQ(program->lanes(rank)[lane].channel, program->channels().size() - 1);
    EXPECT_EQ(channel.ends[rank], (End{rank, lane}));
    ASSERT_EQ(program->length(rank, lane), 1U);
    const Instruction sync = program->at(rank, lane, 0);
    EXPECT_EQ(sync.opcode, Opcode::AllReduce);
    EXPECT_EQ(sync.payload, Payload::GradientFacts);
    EXPECT_EQ(sync.size, gradient_sync_size);
    EXPECT_EQ(std::vector<Wait>(sync.waits.begin(), sync.waits.end()), (std::vector<Wait>{{compute_lane, 0, 16}}));
    ASSERT_EQ(program->length(rank, compute_lane), 16U + 2);
    for (const std::uint64_t position : {16U, 17U}) {
      const Instruction update = program->at(rank, compute_lane, position);
      EXPECT_EQ(update.opcode, Opcode::Update);
      EXPECT_EQ(std::vector<Wait>(update.waits.begin(), update.waits.end()), (std::vector<Wait>{{lane, 0, 1}}));
    }
  }
  EXPECT_TRUE(UntimedPlay(*program).run(3));
}

TEST(MakeProgram, HasNoGradientSyncOnOneDevice)
{
  Workload workload = unequal_chain(4);
  workload.dtype = DType::Float16;
  for (const auto& device_of_stage : std::vector<std::vector<std::size_t>>{{0}, {0, 0}}) {
    ScheduleChoice schedule{device_of_stage.size() == 1 ? "1f1b" : "interleaved"};
    const auto program = testing_support::unit_program(plan_on(device_of_stage, schedule, 3), workload);
    EXPECT_THAT(lane_names(*program, 0), ElementsAre("compute"));
    EXPECT_THAT(program->channels(), IsEmpty());
  }
}

TEST(MakeProgram, AddsRecomputationToTheGradientOfTheInput)
{
  const Plan plan = plan_of({"zero-bubble-h1"}, 2, 3);
  const Workload plain = unequal_chain(4);
  const auto before = testing_support::unit_program(plan, plain);
  const auto program = testing_support::unit_program(plan, with_recomputation(plain, {0, 1}));
  for (std::uint64_t position = 0; position < program->length(0, compute_lane); ++position) {
    const Instruction instruction = program->at(0, compute_lane, position);
    const Seconds more = instruction.time - before->at(0, compute_lane, position).time;
    const bool is_input = instruction.opcode == Opcode::BackwardInput;
    EXPECT_NEAR(more.value, is_input ? (plain.layers[0].forward + plain.layers[1].forward).value : 0, 1);
  }
}

Slot slot(Opcode opcode, std::uint64_t microbatch, std::int64_t stride = 1, std::uint32_t part = 0)
{
  return {{opcode, part, microbatch}, stride};
}

TEST(MakeProgram, FollowsTheOrderOfTheSenderInEachChannel)
{
  // Device 0 goes through the micro-batches upwards, device 1 downwards.
  const Order up({{3, {slot(Opcode::Forward, 0)}}, {3, {slot(Opcode::Backward, 0)}}});
  const Order down({{3, {slot(Opcode::Forward, 2, -1)}}, {3, {slot(Opcode::Backward, 2, -1)}}});
  const Sample sample(plan_of({"listed"}, 2, 3), {up, down});
  const Program& program = *sample.program;
  EXPECT_EQ(text_of(program, 0), "F0F1F2B0B1B2U");
  EXPECT_EQ(text_of(program, 1), "F2F1F0B2B1B0U");
  EXPECT_THAT(faults_of(program), IsEmpty());
  const LaneId activations = *lane_named(program, 1, "receive activation");
  const LaneId gradients = *lane_named(program, 0, "receive gradient");
  for (std::uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(program.at(1, activations, i).microbatch, i);
    EXPECT_EQ(program.at(0, gradients, i).microbatch, 2 - i);
    EXPECT_EQ(*program.at(1, compute_lane, i).waits.begin(), (Wait{activations, 0, 3 - i}));
    EXPECT_EQ(*program.at(0, compute_lane, 3 + i).waits.begin(), (Wait{gradients, 0, 3 - i}));
  }
}

TEST(MakeProgram, RefusesOrdersThatDoNotFitThePlan)
{
  const Order whole({{3, {slot(Opcode::Forward, 0)}}, {3, {slot(Opcode::Backward, 0)}}});
  const auto refusal = [&](const Order& second) {
    return message_of([&] { Sample(plan_of({"listed"}, 2, 3), {whole, second}); });
  };
  EXPECT_EQ(refusal(whole), "no error");
  EXPECT_EQ(refusal(Order({{2, {slot(Opcode::Forward, 0)}}, {3, {slot(Opcode::Backward, 0)}}})),
            "bug an order without a forward of every micro-batch");
  EXPECT_EQ(refusal(Order({{3, {slot(Opcode::Forward, 0)}}, {2, {slot(Opcode::Backward, 0)}}})),
            "bug an order without a backward of every micro-batch");
  const std::string halves = "bug an order with half of a backward, or with whole and split ones of a stage";
  EXPECT_EQ(refusal(Order({{3, {slot(Opcode::Forward, 0), slot(Opcode::BackwardInput, 0)}}})), halves);
  EXPECT_EQ(refusal(Order({{3, {slot(Opcode::Forward, 0), slot(Opcode::BackwardWeight, 0)}}})), halves);
  EXPECT_EQ(refusal(Order({{3, {slot(Opcode::Forward, 0), slot(Opcode::Backward, 0)}},
                           {3, {slot(Opcode::BackwardInput, 0), slot(Opcode::BackwardWeight, 0)}}})),
            halves);
  EXPECT_EQ(refusal(Order({{3, {slot(Opcode::Forward, 0)}}})), "bug orders with backwards of some stages only");
  EXPECT_EQ(
      refusal(Order({{3, {slot(Opcode::Forward, 0), slot(Opcode::Backward, 0), slot(Opcode::Forward, 0, 1, 1)}}})),
      "bug an order with tasks of stages that its device does not have");
  EXPECT_EQ(message_of([&] { Sample(plan_of({"listed"}, 2, 3), {whole}); }),
            "bug a program needs an order for each device of its plan");
}

TEST(MakeProgram, RefusesATaskBeforeItsInputOnTheSameDevice)
{
  // Both stages are on device 0, and the second goes first.
  const Order order({{1,
                      {slot(Opcode::Forward, 0, 1, 1), slot(Opcode::Forward, 0), slot(Opcode::Backward, 0, 1, 1),
                       slot(Opcode::Backward, 0)}}});
  const Sample sample(plan_on({0, 0}, {"listed"}, 1), {order});
  EXPECT_EQ(message_of([&] { sample.program->at(0, compute_lane, 0); }),
            "bug an order in which a task comes before its input");
  EXPECT_EQ(message_of([&] { sample.program->at(0, compute_lane, 3); }), "no error");
}

TEST(MakeProgram, RefusesPositionsLanesAndRanksBeyondItsOwn)
{
  const auto program = testing_support::unit_program(plan_of(ChainSchedule::GPipe, 2, 3), unequal_chain(4));
  EXPECT_EQ(message_of([&] { program->at(0, compute_lane, 7); }), "bug a position beyond the end of its lane");
  EXPECT_EQ(message_of([&] { program->at(0, 1, 3); }), "bug a position beyond the end of its lane");
  EXPECT_EQ(message_of([&] { program->at(0, 3, 0); }), "bug a lane beyond the rank's");
  EXPECT_EQ(message_of([&] { program->at(2, 1, 0); }), "bug a rank beyond the program's");
  EXPECT_EQ(message_of([&] { program->length(2, 0); }), "bug a rank beyond the program's");
  EXPECT_EQ(message_of([&] { program->lanes(2); }), "bug a rank beyond the program's");
  EXPECT_EQ(message_of([&] { program->resident(2, Tier::Device); }), "bug a rank beyond the program's");
}

TEST(MakeProgram, RefusesPlansWithoutStages)
{
  EXPECT_EQ(message_of([] { testing_support::unit_program(Plan{}, unequal_chain(4)); }),
            "bug a program needs a feasible plan");
  EXPECT_EQ(message_of([] { testing_support::unit_program(Plan{}, unequal_chain(4), std::vector<Order>()); }),
            "bug a program needs a feasible plan");
}

TEST(MakeProgram, CountsBillionsOfMicroBatchesWithoutMemoryForThem)
{
  const std::uint64_t microbatches = 5'000'000'000;
  const auto program =
      testing_support::unit_program(plan_of(ChainSchedule::OneForwardOneBackward, 3, microbatches), unequal_chain(6));
  EXPECT_EQ(program->length(0, compute_lane), 2 * microbatches + 1);
  EXPECT_EQ(program->at(0, compute_lane, 2 * microbatches - 1).microbatch, microbatches - 1);
  EXPECT_EQ(program->at(2, compute_lane, microbatches).microbatch, microbatches / 2);
}

}  // namespace
}  // namespace isobar::schedules::lowering_schedule_test
