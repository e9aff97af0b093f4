#include "core/check/program_checker.hpp"
#include "core/costs/cost_model.hpp"
#include "schedules/orders/schedule.hpp"
#include "tests/schedules/lowering/sample_programs.hpp"
#include "tests/schedules/orders/order_play.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

// What holds for the programs of all schedules (schedules/lowering/schedule.hpp).
namespace isobar::schedules::every_program_test {
namespace {

using testing::IsEmpty;

/// The numbers of stages of each device that a folding allows, of those that we try.
std::vector<std::size_t> chunks_of(Folding folding)
{
  if (folding == Folding::RoundRobin) return {2, 3};
  return {folding == Folding::V ? 2U : 1U};
}

/// Programs of all registered schedules that need no orders.
void for_every_sample(const std::function<void(const Sample&)>& check)
{
  std::size_t samples = 0;
  for (const Schedule& schedule : schedules()) {
    if (schedule.takes_orders || schedule.folding == Folding::DividedEnds) continue;
    for (const std::size_t ranks : std::initializer_list<std::size_t>{1, 2, 3, 5}) {
      for (const std::size_t chunks : chunks_of(schedule.folding)) {
        for (const std::uint64_t microbatches : std::initializer_list<std::uint64_t>{1, 2, 3, 8, 23}) {
          for (const bool has_data_server : {false, true}) {
            const PipelineShape shape = folded(schedule.folding, ranks, chunks, microbatches);
            Plan plan = plan_on(shape.rank_of_stage, {std::string(schedule.name)}, microbatches);
            if (has_data_server) plan.data_server = "data";
            SCOPED_TRACE(std::string(schedule.name) + ", " + std::to_string(ranks) + " devices of " +
                         std::to_string(chunks) + " stages, M = " + std::to_string(microbatches) +
                         (has_data_server ? ", with a data server" : ""));
            check(Sample(std::move(plan)));
            ++samples;
            if (testing::Test::HasFatalFailure()) return;
          }
        }
      }
    }
  }
  EXPECT_GE(samples, 7U * 40);
}

TEST(EveryProgram, PassesTheChecker)
{
  for_every_sample([](const Sample& sample) { EXPECT_THAT(faults_of(*sample.program), IsEmpty()); });
}

TEST(EveryProgram, AgreesAtTheEndsOfItsChannels)
{
  for_every_sample([](const Sample& sample) {
    const Program& program = *sample.program;
    std::size_t ends = 0;
    for (std::size_t index = 0; index < program.channels().size(); ++index) {
      const Channel& channel = program.channels()[index];
      ASSERT_EQ(channel.ends.size(), 2U);
      const auto [from, to] = std::pair(channel.ends[0], channel.ends[1]);
      EXPECT_NE(from.rank, to.rank);
      EXPECT_EQ(program.lanes(from.rank)[from.lane].channel, index);
      EXPECT_EQ(program.lanes(to.rank)[to.lane].channel, index);
      ASSERT_EQ(program.length(from.rank, from.lane), sample.plan.goal.microbatches);
      ASSERT_EQ(program.length(to.rank, to.lane), sample.plan.goal.microbatches);
      for (std::uint64_t position = 0; position < sample.plan.goal.microbatches; ++position) {
        const Instruction sent = program.at(from.rank, from.lane, position);
        const Instruction received = program.at(to.rank, to.lane, position);
        EXPECT_EQ(sent.opcode, Opcode::Send);
        EXPECT_EQ(received.opcode, Opcode::Recv);
        EXPECT_EQ(sent.lane, from.lane);
        EXPECT_EQ(received.lane, to.lane);
        EXPECT_EQ(sent.payload, received.payload);
        EXPECT_EQ(sent.microbatch, received.microbatch);
        EXPECT_EQ(sent.size, received.size);
        const bool is_input = from.rank == sample.shape.ranks();
        const bool is_activation = sent.payload == Payload::Activation;
        EXPECT_EQ(received.stage, is_input ? 0 : is_activation ? sent.stage + 1 : sent.stage - 1);
        EXPECT_EQ(received.first_layer, 2 * received.stage);
      }
      ends += 2;
    }
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
      for (const auto& lane : program.lanes(rank)) ends -= lane.channel ? 1 : 0;
    }
    EXPECT_EQ(ends, 0U) << "each lane with a channel is an end of it";
  });
}

TEST(EveryProgram, ExchangesNothingBetweenStagesOfOneDevice)
{
  for_every_sample([](const Sample& sample) {
    std::size_t cuts = 0;
    const auto& rank_of_stage = sample.shape.rank_of_stage;
    for (std::size_t i = 1; i < rank_of_stage.size(); ++i) cuts += rank_of_stage[i] == rank_of_stage[i - 1] ? 0 : 1;
    EXPECT_EQ(sample.program->channels().size(), 2 * cuts + (sample.plan.data_server ? 1 : 0));
  });
}

TEST(EveryProgram, HasTheTasksOfItsOrdersAndAnUpdateOfEachStage)
{
  for_every_sample([](const Sample& sample) {
    const auto orders =
        require_schedule(sample.plan.goal.schedule.name).orders(sample.shape, sample.plan.goal.schedule);
    const auto stages = stages_by_rank(sample.shape);
    for (std::size_t rank = 0; rank < sample.shape.ranks(); ++rank) {
      const std::uint64_t tasks = orders[rank].length();
      ASSERT_EQ(sample.program->length(rank, compute_lane), tasks + stages[rank].size());
      for (std::uint64_t position = 0; position < tasks; ++position) {
        const Task task = orders[rank].at(position);
        const Instruction instruction = sample.program->at(rank, compute_lane, position);
        EXPECT_EQ(instruction.opcode, task.opcode);
        EXPECT_EQ(instruction.stage, stages[rank][task.part]);
        EXPECT_EQ(instruction.microbatch, task.microbatch);
      }
      for (std::size_t part = 0; part < stages[rank].size(); ++part) {
        const Instruction update = sample.program->at(rank, compute_lane, tasks + part);
        EXPECT_EQ(update.opcode, Opcode::Update);
        EXPECT_EQ(update.stage, stages[rank][part]);
        EXPECT_TRUE(update.waits.empty());
      }
    }
  });
}

TEST(EveryProgram, DoesTheWorkOfItsLayersForEachMicroBatch)
{
  for_every_sample([](const Sample& sample) {
    std::map<std::pair<Opcode, std::uint32_t>, double> work;  // of all micro-batches, by stage
    for (std::size_t rank = 0; rank < sample.shape.ranks(); ++rank) {
      for (std::uint64_t i = 0; i < sample.program->length(rank, compute_lane); ++i) {
        const Instruction instruction = sample.program->at(rank, compute_lane, i);
        work[{instruction.opcode, instruction.stage}] += instruction.time.value;
      }
    }
    const auto microbatches = static_cast<double>(sample.plan.goal.microbatches);
    for (std::uint32_t stage = 0; stage < sample.plan.stages.size(); ++stage) {
      const Layer& first = sample.workload.layers[2 * stage];
      const Layer& second = sample.workload.layers[2 * stage + 1];
      const double backward = microbatches * (first.backward + second.backward).value;
      EXPECT_NEAR((work[{Opcode::Forward, stage}]), microbatches * (first.forward + second.forward).value, 1);
      if (work.contains({Opcode::BackwardWeight, stage})) {
        const double weight = microbatches * (first.backward_weight + second.backward_weight).value;
        EXPECT_NEAR((work[{Opcode::BackwardWeight, stage}]), weight, 1);
        EXPECT_NEAR((work[{Opcode::BackwardInput, stage}]), backward - weight, 1);
        EXPECT_FALSE(work.contains({Opcode::Backward, stage}));
      } else {
        EXPECT_NEAR((work[{Opcode::Backward, stage}]), backward, 1);
      }
      EXPECT_EQ((work[{Opcode::Update, stage}]), 12.0 * static_cast<double>(first.parameters + second.parameters));
    }
  });
}

/// Expects that an instruction comes after what brings its input or, of a backward, its gradient: the task of the
/// neighbour on the same device, or the Recv that it waits for.
void expect_data_before(const Sample& sample, std::size_t rank, std::uint64_t position)
{
  const Program& program = *sample.program;
  const Instruction instruction = program.at(rank, compute_lane, position);
  const bool is_forward = instruction.opcode == Opcode::Forward;
  const auto& rank_of_stage = sample.shape.rank_of_stage;
  if (is_forward ? instruction.stage == 0 && !sample.plan.data_server : instruction.stage + 1 == rank_of_stage.size()) {
    EXPECT_TRUE(instruction.waits.empty());
    return;
  }
  const std::uint32_t neighbour = is_forward ? instruction.stage - 1 : instruction.stage + 1;
  if ((!is_forward || instruction.stage > 0) && rank_of_stage[neighbour] == rank) {
    EXPECT_TRUE(instruction.waits.empty());
    bool is_done = false;
    for (std::uint64_t i = 0; i < position; ++i) {
      const Instruction before = program.at(rank, compute_lane, i);
      const bool is_right = is_forward ? before.opcode == Opcode::Forward
                                       : before.opcode == Opcode::Backward || before.opcode == Opcode::BackwardInput;
      is_done |= is_right && before.stage == neighbour && before.microbatch == instruction.microbatch;
    }
    EXPECT_TRUE(is_done);
    return;
  }
  const Instruction before = waited_for(program, rank, instruction);
  EXPECT_EQ(before.opcode, Opcode::Recv);
  EXPECT_EQ(before.payload, is_forward ? Payload::Activation : Payload::Gradient);
  EXPECT_EQ(before.stage, instruction.stage);
  EXPECT_EQ(before.microbatch, instruction.microbatch);
}

TEST(EveryProgram, WaitsForWhatItReadsAndSends)
{
  for_every_sample([](const Sample& sample) {
    const Program& program = *sample.program;
    for (std::size_t rank = 0; rank < sample.shape.ranks(); ++rank) {
      for (std::uint64_t i = 0; i < program.length(rank, compute_lane); ++i) {
        const Opcode opcode = program.at(rank, compute_lane, i).opcode;
        if (opcode == Opcode::BackwardWeight || opcode == Opcode::Update) {
          EXPECT_TRUE(program.at(rank, compute_lane, i).waits.empty());
        } else {
          expect_data_before(sample, rank, i);
        }
      }
      for (LaneId lane = 1; lane < program.lanes(rank).size(); ++lane) {
        for (std::uint64_t i = 0; i < program.length(rank, lane); ++i) {
          const Instruction instruction = program.at(rank, lane, i);
          if (instruction.opcode != Opcode::Send) continue;
          const Instruction made = waited_for(program, rank, instruction);
          if (instruction.payload == Payload::Activation) {
            EXPECT_EQ(made.opcode, Opcode::Forward);
          } else {
            EXPECT_TRUE(made.opcode == Opcode::Backward || made.opcode == Opcode::BackwardInput);
          }
          EXPECT_EQ(made.stage, instruction.stage);
          EXPECT_EQ(made.microbatch, instruction.microbatch);
        }
      }
    }
  });
}

TEST(EveryProgram, EndsAndReturnsItsMemoryPeriodAfterPeriod)
{
  for_every_sample([](const Sample& sample) {
    UntimedPlay play(*sample.program);
    ASSERT_TRUE(play.run(3));
    const auto orders =
        require_schedule(sample.plan.goal.schedule.name).orders(sample.shape, sample.plan.goal.schedule);
    const auto stages = stages_by_rank(sample.shape);
    const CostModel costs(sample.workload, equal_devices(1));
    for (std::size_t rank = 0; rank < sample.shape.ranks(); ++rank) {
      EXPECT_DOUBLE_EQ(play.memory_at_end(rank).value, sample.program->resident(rank, Tier::Device).value);
      Bytes resident;
      for (const std::size_t stage : stages[rank]) {
        resident += costs.memory(2 * stage, 2 * stage + 1, 0);
        const bool is_fed_here = stage > 0 && sample.shape.rank_of_stage[stage - 1] == rank;
        if (is_fed_here) resident -= 2 * costs.buffers(2 * stage);
      }
      EXPECT_EQ(sample.program->resident(rank, Tier::Device), resident);
      const Bytes peak = orders[rank].peak([&](const Task& task) {
        const std::size_t stage = stages[rank][task.part];
        const Bytes held =
            sample.workload.layers[2 * stage].activations + sample.workload.layers[2 * stage + 1].activations;
        if (task.opcode == Opcode::Forward) return held;
        return task.opcode == Opcode::BackwardInput ? Bytes(0) : -1 * held;
      });
      EXPECT_DOUBLE_EQ(play.peak(rank).value, (resident + peak).value);
    }
  });
}

TEST(TheInput, IsDoubleBufferedOverAllSteps)
{
  for_every_sample([](const Sample& sample) {
    if (!sample.plan.data_server) return;
    const Program& program = *sample.program;
    const std::uint64_t microbatches = sample.plan.goal.microbatches;
    std::vector<std::uint64_t> forwards;  // positions of those of stage 0
    std::vector<std::uint64_t> order;     // their micro-batches
    for (std::uint64_t i = 0; i < program.length(0, compute_lane); ++i) {
      const Instruction instruction = program.at(0, compute_lane, i);
      if (instruction.opcode != Opcode::Forward || instruction.stage != 0) continue;
      forwards.push_back(i);
      order.push_back(instruction.microbatch);
    }
    ASSERT_EQ(forwards.size(), microbatches);
    const std::size_t server = sample.shape.ranks();
    const End receiver = other_end(program.channels()[0], server, 1);
    for (std::uint64_t n = 0; n < microbatches; ++n) {
      EXPECT_TRUE(program.at(server, 1, n).waits.empty());
      const Instruction instruction = program.at(receiver.rank, receiver.lane, n);
      EXPECT_EQ(instruction.microbatch, order[n]);
      ASSERT_EQ(instruction.waits.size(), 1U);
      const Wait& wait = *instruction.waits.begin();
      EXPECT_EQ(wait.lane, compute_lane);
      // Input n of period p is number p M + n; it waits for the forward that is two before.
      const std::uint64_t wanted = 10 * microbatches + n - 2;
      EXPECT_EQ(wait.periods_back, 10 - wanted / microbatches);
      EXPECT_EQ(wait.count, forwards[wanted % microbatches] + 1);
    }
  });
}

TEST(TheInput, OfOneMicroBatchWaitsForTheStepBeforeTheLast)
{
  const Pipeline one(ChainSchedule::Sequential, 2, 1, true);
  EXPECT_EQ(*first_of(*one.program, 0, "receive activation").waits.begin(), (Wait{compute_lane, 2, 1}));
  const Pipeline two(ChainSchedule::GPipe, 2, 2, true);
  EXPECT_EQ(*first_of(*two.program, 0, "receive activation").waits.begin(), (Wait{compute_lane, 1, 1}));
  EXPECT_EQ(*two.program->at(0, *lane_named(*two.program, 0, "receive activation"), 1).waits.begin(),
            (Wait{compute_lane, 1, 2}));
}

TEST(EveryProgram, CountsBillionsOfMicroBatches)
{
  const std::uint64_t microbatches = 5'000'000'000;
  const std::vector<std::pair<std::string, std::vector<std::size_t>>> plans = {{"dualpipe-v", {0, 1, 1, 0}},
                                                                               {"gpipe", {0, 1, 2}},
                                                                               {"interleaved", {0, 1, 0, 1, 0, 1}},
                                                                               {"interleaved(group=100)", {0, 1, 0, 1}},
                                                                               {"v-half", {0, 1, 1, 0}},
                                                                               {"v-min", {0, 1, 1, 0}},
                                                                               {"zero-bubble-h1", {0, 1, 2}},
                                                                               {"zero-bubble-h2", {0, 1, 2}},
                                                                               {"zero-bubble-v", {0, 1, 1, 0}}};
  for (const auto& [schedule, device_of_stage] : plans) {
    SCOPED_TRACE(schedule);
    Plan plan = plan_on(device_of_stage, schedule_from_text(schedule), microbatches);
    plan.data_server = "data";
    const Sample sample(plan);
    const Program& program = *sample.program;
    for (const Channel& channel : program.channels()) {
      const auto [from, to] = std::pair(channel.ends[0], channel.ends[1]);
      for (const std::uint64_t position : {std::uint64_t{0}, std::uint64_t{1}, microbatches / 3, microbatches / 2 + 1,
                                           microbatches - 2, microbatches - 1}) {
        const Instruction sent = program.at(from.rank, from.lane, position);
        EXPECT_EQ(sent.microbatch, program.at(to.rank, to.lane, position).microbatch);
        if (from.rank == sample.shape.ranks()) continue;
        const Instruction made = waited_for(program, from.rank, sent);
        EXPECT_EQ(made.microbatch, sent.microbatch);
        EXPECT_EQ(made.stage, sent.stage);
      }
    }
    for (std::size_t rank = 0; rank < sample.shape.ranks(); ++rank) {
      const std::uint64_t length = program.length(rank, compute_lane);
      for (const std::uint64_t position : {std::uint64_t{0}, length / 7, length / 2, length - length / 5, length - 4}) {
        const Instruction instruction = program.at(rank, compute_lane, position);
        for (const Wait& wait : instruction.waits) {
          EXPECT_EQ(program.at(rank, wait.lane, wait.count - 1).microbatch, instruction.microbatch);
        }
      }
    }
  }
}

}  // namespace
}  // namespace isobar::schedules::every_program_test
