#include "core/check/program_checker.hpp"
#include "core/plan/plan.hpp"
#include "core/program/player.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/schedules/lowering/sample_programs.hpp"
#include "tests/support/editable_program.hpp"
#include "tests/support/shards.hpp"
#include "tests/support/thrown_message.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

// Rules of transfers, and of what replicas that divide parameters send.
namespace isobar::schedules::transfer_rules_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

/// A stage of a layer on replicas with the next devices; `microbatches` of each.
Stage stage_of(std::size_t layer, std::size_t replicas, std::size_t shards, std::size_t first_device,
               std::uint64_t microbatches = 4)
{
  Stage stage{layer, layer, {}};
  for (std::size_t r = 0; r < replicas; ++r) {
    Replica& replica = stage.replicas.emplace_back();
    if (replicas > 1) replica.microbatches = microbatches;
    for (std::size_t k = 0; k < shards; ++k) {
      replica.shards.push_back({fmt::format("d{}", first_device++), 1.0 / static_cast<double>(shards)});
    }
  }
  return stage;
}

Plan plan_with(std::vector<Stage> stages, std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.microbatches = microbatches;
  plan.goal.objective = Objective::Step;
  plan.stages = std::move(stages);
  return plan;
}

/// One step on devices of 1 FLOP/s between which a byte takes a second.
double step_of(const Plan& plan, const Workload& workload)
{
  const auto program = testing_support::unit_program(plan, workload);
  EXPECT_THAT(faults_of(*program), IsEmpty());
  PlayerRates rates;
  rates.transfer = [](std::size_t, std::size_t, Bytes size) { return TransferTimes{Seconds(0), Seconds(size.value)}; };
  return play_program(*program, rates).periods.front().end.value;
}

TEST(TransferRules, OfBlockingKeepADeviceFromComputingWhileItSends)
{
  Plan plan = plan_with({stage_of(0, 1, 1, 0), stage_of(1, 1, 1, 1)}, 3);
  plan.goal.schedule = {"gpipe"};
  Workload workload = testing_support::chain({10, 10}, 0, 0, 4);
  // Three forwards of 10 s each, the last one sent in 4 s; then the second stage, and back.
  EXPECT_DOUBLE_EQ(step_of(plan, workload), 10 + 4 + 3 * 10 + 3 * 20 + 4 + 20);
  plan.transfers.blocking = true;
  EXPECT_FALSE(is_chain(plan));
  // The second stage sends back after each of its backwards, and waits 4 s for it; then the first one ends.
  EXPECT_DOUBLE_EQ(step_of(plan, workload), 10 + 4 + 2 * (10 + 4) + 10 + 3 * 20 + 3 * 4 + 20);
}

TEST(TransferRules, OfBlockingLetEachComputationWaitForTheSendsOfTheOneBefore)
{
  Plan plan = plan_with({stage_of(0, 2, 1, 0), stage_of(1, 2, 1, 2)}, 8);
  plan.transfers.blocking = true;
  const auto program = testing_support::unit_program(plan, unequal_chain(2));
  const std::size_t rank = 0;
  const LaneId send = lane_named(*program, rank, "send activation").value();
  std::uint64_t sent = 0;
  for (std::uint64_t k = 0; k < program->length(rank, compute_lane); ++k) {
    const Instruction instruction = program->at(rank, compute_lane, k);
    const bool follows_forward = k > 0 && program->at(rank, compute_lane, k - 1).opcode == Opcode::Forward;
    const bool waits = std::any_of(instruction.waits.begin(), instruction.waits.end(),
                                   [&](const Wait& wait) { return wait.lane == send && wait.count == sent; });
    EXPECT_EQ(waits, follows_forward) << k;
    if (instruction.opcode == Opcode::Forward) ++sent;
  }
  EXPECT_EQ(sent, 4U);
}

TEST(TransferRules, OfBlockingAreRefusedWhereWaitsHaveNoRoom)
{
  const auto fault = [](std::vector<Stage> stages) {
    Plan plan = plan_with(std::move(stages), 8);
    plan.transfers.blocking = true;
    return message_of([&] { testing_support::unit_program(plan, testing_support::divisible(2)); });
  };
  EXPECT_EQ(fault({stage_of(0, 2, 1, 0), stage_of(1, 1, 1, 2)}),
            "InputError transfers: blocking needs neighbouring stages that divide the micro-batches alike, and "
            "stages[1] has other replicas than stages[0]");
  EXPECT_EQ(fault({stage_of(0, 1, 1, 0), stage_of(1, 1, 4, 1)}),
            "InputError transfers: blocking needs shards that send to 2 others at most, and between stages[0] and "
            "stages[1] 1 meet 4");
  Stage grid = stage_of(0, 1, 4, 0);
  grid.grid = {ShardGrid::Form::TwoD, 2};
  EXPECT_EQ(fault({grid}),
            "InputError transfers: blocking needs shards in no grid, and those of stages[0] are in a 2d grid [2, 2]");
  EXPECT_EQ(fault({stage_of(0, 1, 1, 0), stage_of(1, 1, 2, 1)}), "no error");
}

TEST(TransferRules, OfSlicesSendAPartForEachShard)
{
  const auto sizes = [](std::size_t before, std::size_t after, ShardGrid::Form form) {
    Plan plan = plan_with({stage_of(0, 1, before, 0), stage_of(1, 1, after, before)}, 2);
    for (auto& stage : plan.stages) {
      if (form == ShardGrid::Form::Sequence) stage.grid = {form, before};
    }
    plan.transfers.sliced = true;
    Workload workload = testing_support::divisible(2);
    workload.sequence = 4;
    workload.layers[0].output = Bytes(800);
    workload.layers[0].gradient = Bytes(400);
    for (auto& layer : workload.layers) ++layer.parameters;  // which all shards have
    const auto program = testing_support::unit_program(plan, workload);
    EXPECT_THAT(faults_of(*program), IsEmpty());
    std::vector<double> found;
    for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
      for (LaneId lane = 1; lane < program->lanes(rank).size(); ++lane) {
        const Instruction first = program->at(rank, lane, 0);
        if (first.opcode == Opcode::Send) found.push_back(first.size.value);
      }
    }
    return found;
  };
  EXPECT_THAT(sizes(2, 2, ShardGrid::Form::OneD), testing::ElementsAre(400, 400, 200, 200));
  EXPECT_THAT(sizes(4, 4, ShardGrid::Form::Sequence), testing::ElementsAre(200, 200, 200, 200, 100, 100, 100, 100))
      << "a divided sequence has its parts already";
  EXPECT_THAT(sizes(1, 2, ShardGrid::Form::OneD), testing::ElementsAre(800, 800, 400)) << "other numbers of shards";
}

Plan fsdp(std::size_t layers, bool each_microbatch)
{
  Plan plan;
  plan.goal.microbatches = 8;
  plan.goal.schedule = {"gpipe"};
  for (std::size_t layer = 0; layer < layers; ++layer) plan.stages.push_back(stage_of(layer, 2, 1, 0));
  plan.sync.sharded = Sharding::Parameters;
  plan.sync.each_microbatch = each_microbatch;
  return plan;
}

TEST(GatheredParameters, TravelInTheirFormat)
{
  Plan plan = fsdp(2, false);
  const Workload workload = unequal_chain(2);
  const auto size = [&] {
    return first_of(*testing_support::unit_program(plan, workload), 0, "gather for forwards 0").size.value;
  };
  EXPECT_EQ(size(), 1000 * 4 / 2);
  plan.sync.gathered = DType::BFloat16;
  EXPECT_EQ(size(), 1000 * 2 / 2);
  EXPECT_EQ(first_of(*testing_support::unit_program(plan, workload), 0, "sync gradients 0").size.value, 1000 * 4);
}

TEST(MicrobatchSyncs, FollowEachBackwardBesideLaterComputations)
{
  const Plan plan = fsdp(2, true);
  const auto program = testing_support::unit_program(plan, unequal_chain(2));
  EXPECT_THAT(faults_of(*program), IsEmpty());
  const std::size_t rank = 1;
  const LaneId lanes[] = {lane_named(*program, rank, "sync gradients 0").value(),
                          lane_named(*program, rank, "sync gradients 1").value()};
  for (const std::uint32_t stage : {0U, 1U}) {
    ASSERT_EQ(program->length(rank, lanes[stage]), 4U);
    for (std::uint64_t k = 0; k < 4; ++k) {
      const Instruction sync = program->at(rank, lanes[stage], k);
      EXPECT_EQ(sync.opcode, Opcode::ReduceScatter);
      EXPECT_EQ(sync.stage, stage);
      bool follows_backward = false;
      bool follows_other_part = stage == 1 && k == 0;  // the first of all
      for (const Wait& wait : sync.waits) {
        if (wait.lane == compute_lane) {
          const Instruction made = program->at(rank, compute_lane, wait.count - 1);
          follows_backward =
              made.opcode == Opcode::Backward && made.stage == stage && made.microbatch == sync.microbatch;
        }
        if (wait.lane == lanes[1 - stage]) follows_other_part = wait.count == (stage == 0 ? k + 1 : k);
      }
      EXPECT_TRUE(follows_backward) << stage << k;
      EXPECT_TRUE(follows_other_part) << stage << k;
    }
  }
  const Instruction update = program->at(rank, compute_lane, program->length(rank, compute_lane) - 2);
  EXPECT_EQ(update.opcode, Opcode::Update);
  EXPECT_TRUE(std::any_of(update.waits.begin(), update.waits.end(), [&](const Wait& wait) {
    return wait == Wait{lanes[0], 0, 4};
  }));
}

TEST(MicrobatchSyncs, AreSoundOnlyAfterTheirOwnBackward)
{
  testing_support::EditableProgram program(*testing_support::unit_program(fsdp(1, true), unequal_chain(1)));
  const LaneId sync = lane_named(program, 1, "sync gradients").value();
  Waits& waits = program.instruction(1, sync, 1).waits;
  ASSERT_EQ(waits.size(), 2U);
  const Wait own = *waits.begin();
  waits = *(waits.begin() + 1);
  EXPECT_THAT(
      faults_of(program),
      testing::ElementsAre(fmt::format(
          "rank 1, lane sync gradients, position 1: ReduceScatter of parameter gradient in stage 0 does not wait "
          "for the backward at rank 1, lane compute, position {}",
          own.count - 1)));
}

TEST(MicrobatchSyncs, HoldUnsummedGradientsFromEachBackwardToItsSum)
{
  const auto program = testing_support::unit_program(fsdp(3, true), unequal_chain(3));
  UntimedPlay each(*program);
  EXPECT_TRUE(each.run(2));
  EXPECT_EQ(each.memory_at_end(0), program->resident(0, Tier::Device));
}

}  // namespace
}  // namespace isobar::schedules::transfer_rules_test
