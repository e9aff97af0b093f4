#include "core/costs/cost_model.hpp"
#include "core/model/layer_graph.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/schedules/lowering/sample_programs.hpp"
#include "tests/support/unit_devices.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <set>
#include <string>

// The programs of chains under sequential, gpipe and 1f1b (schedules/lowering/schedule.hpp).
namespace isobar::schedules::chain_schedules_test {
namespace {

using testing::ElementsAre;

constexpr ChainSchedule chain_schedules[] = {ChainSchedule::Sequential, ChainSchedule::GPipe,
                                             ChainSchedule::OneForwardOneBackward};

std::uint64_t length_of(const Program& program, std::size_t rank, const std::string& lane)
{
  const auto id = lane_named(program, rank, lane);
  return id ? program.length(rank, *id) : 0;
}

void for_every_pipeline(const std::function<void(const Pipeline&)>& check)
{
  for (const ChainSchedule schedule : chain_schedules) {
    for (const std::size_t stages : std::initializer_list<std::size_t>{1, 2, 3, 7, 64}) {
      for (const std::uint64_t microbatches : std::initializer_list<std::uint64_t>{1, 2, 3, 8, 100}) {
        for (const bool has_data_server : {false, true}) {
          SCOPED_TRACE(std::string(name_of(schedule)) + ", S = " + std::to_string(stages) +
                       ", M = " + std::to_string(microbatches) + (has_data_server ? ", with a data server" : ""));
          check(Pipeline(schedule, stages, microbatches, has_data_server));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(ChainSchedules, RunEachMicroBatchForwardAndBackwardOncePerStage)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    ASSERT_EQ(pipeline.program->ranks(), pipeline.stages + (pipeline.has_data_server ? 1 : 0));
    for (std::size_t rank = 0; rank < pipeline.stages; ++rank) {
      std::set<std::uint64_t> forwarded;
      std::set<std::uint64_t> taken_back;
      ASSERT_EQ(pipeline.program->length(rank, compute_lane), 2 * pipeline.microbatches + 1);
      for (std::uint64_t position = 0; position < 2 * pipeline.microbatches; ++position) {
        const Instruction instruction = pipeline.program->at(rank, compute_lane, position);
        if (instruction.opcode == Opcode::Forward) {
          EXPECT_EQ(instruction.microbatch, forwarded.size());
          EXPECT_TRUE(forwarded.insert(instruction.microbatch).second);
        } else {
          ASSERT_EQ(instruction.opcode, Opcode::Backward);
          EXPECT_TRUE(forwarded.contains(instruction.microbatch));
          EXPECT_TRUE(taken_back.insert(instruction.microbatch).second);
        }
        EXPECT_LT(instruction.microbatch, pipeline.microbatches);
      }
      EXPECT_EQ(taken_back.size(), pipeline.microbatches);
      EXPECT_EQ(pipeline.program->at(rank, compute_lane, 2 * pipeline.microbatches).opcode, Opcode::Update);
    }
  });
}

TEST(ChainSchedules, CarryTheWorkOfTheirLayers)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    const CostModel costs(pipeline.workload, pipeline.cluster);
    for (std::size_t rank = 0; rank < pipeline.stages; ++rank) {
      for (std::uint64_t position = 0; position <= 2 * pipeline.microbatches; ++position) {
        const Instruction instruction = pipeline.program->at(rank, compute_lane, position);
        EXPECT_EQ(instruction.stage, rank);
        EXPECT_EQ(instruction.first_layer, 2 * rank);
        EXPECT_EQ(instruction.last_layer, 2 * rank + 1);
        double work = costs.forward_work(2 * rank, 2 * rank + 1).value;
        if (instruction.opcode == Opcode::Backward) work = costs.backward_work(2 * rank, 2 * rank + 1).value;
        if (instruction.opcode == Opcode::Update) work = 12.0 * static_cast<double>(2000 + 40 * rank + 10);
        EXPECT_NEAR(instruction.time.value, work, 1e-12 * work);
      }
    }
  });
}

TEST(ChainSchedules, CarryTheRecomputationOfTheirLayers)
{
  for (const ChainSchedule schedule : chain_schedules) {
    const Workload plain = unequal_chain(6);
    const Workload workload = with_recomputation(plain, {2, 3, 4});
    const Cluster cluster = equal_devices(3);
    const Plan plan = plan_of(schedule, 3, 4);
    const auto program = testing_support::unit_program(plan, workload);
    const auto program_before = testing_support::unit_program(plan, plain);
    UntimedPlay play(*program);
    ASSERT_TRUE(play.run());
    for (std::size_t rank = 0; rank < 3; ++rank) {
      double recomputed = 0;
      if (rank == 1) recomputed = (plain.layers[2].forward + plain.layers[3].forward).value;
      if (rank == 2) recomputed = plain.layers[4].forward.value;
      for (std::uint64_t position = 0; position < 8; ++position) {
        const Instruction instruction = program->at(rank, compute_lane, position);
        const Instruction before = program_before->at(rank, compute_lane, position);
        const bool is_backward = instruction.opcode == Opcode::Backward;
        EXPECT_NEAR(instruction.time.value, before.time.value + (is_backward ? recomputed : 0), 1);
      }
      const auto in_flight = microbatches_in_flight(schedule, 2 - rank, 4);
      EXPECT_EQ(play.peak(rank), CostModel(workload, cluster).memory(2 * rank, 2 * rank + 1, in_flight));
      EXPECT_EQ(program->resident(rank, Tier::Device) - program_before->resident(rank, Tier::Device),
                workload.workspace);
    }
  }
}

TEST(ChainSchedules, HaveALaneForEachKindOfTransfer)
{
  const Pipeline pipeline(ChainSchedule::GPipe, 3, 2, true);
  EXPECT_THAT(lane_names(*pipeline.program, 0),
              ElementsAre("compute", "send activation", "receive activation", "receive gradient"));
  EXPECT_THAT(lane_names(*pipeline.program, 1),
              ElementsAre("compute", "send activation", "send gradient", "receive activation", "receive gradient"));
  EXPECT_THAT(lane_names(*pipeline.program, 2), ElementsAre("compute", "send gradient", "receive activation"));
  EXPECT_THAT(lane_names(*pipeline.program, 3), ElementsAre("compute", "send activation"));
  EXPECT_EQ(pipeline.program->length(3, compute_lane), 0U);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    for (const auto& lane : pipeline.program->lanes(rank)) {
      EXPECT_EQ(lane.engine, lane.name == "compute" ? Engine::Device : Engine::Network) << lane.name;
      EXPECT_EQ(lane.channel.has_value(), lane.name != "compute") << lane.name;
    }
  }
  EXPECT_THAT(lane_names(*Pipeline(ChainSchedule::GPipe, 1, 2, false).program, 0), ElementsAre("compute"));
}

TEST(ChainSchedules, SendWhatCrossesTheCut)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    const Program& program = *pipeline.program;
    const Boundaries boundaries = boundaries_of(pipeline.workload);
    for (std::size_t rank = 0; rank < pipeline.stages; ++rank) {
      if (rank > 0 || pipeline.has_data_server) {
        EXPECT_EQ(first_of(program, rank, "receive activation").size, boundaries.output[2 * rank]);
      }
      if (rank > 0) {
        EXPECT_EQ(first_of(program, rank, "send gradient").size, boundaries.gradient[2 * rank]);
      }
    }
    EXPECT_EQ(length_of(program, 0, "send gradient"), 0U);
    EXPECT_EQ(length_of(program, 0, "receive activation"), pipeline.has_data_server ? pipeline.microbatches : 0);
    EXPECT_EQ(length_of(program, pipeline.stages - 1, "send activation"), 0U);
    EXPECT_EQ(length_of(program, pipeline.stages - 1, "receive gradient"), 0U);
  });
}

TEST(ChainSchedules, WaitForWhatTheyReadAndNeverForThemselves)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    const Program& program = *pipeline.program;
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
      const bool is_stage = rank < pipeline.stages;
      for (LaneId lane = 0; lane < program.lanes(rank).size(); ++lane) {
        const std::string& name = program.lanes(rank)[lane].name;
        for (std::uint64_t position = 0; position < program.length(rank, lane); ++position) {
          const Instruction instruction = program.at(rank, lane, position);
          const bool is_forward = instruction.opcode == Opcode::Forward;
          Opcode opcode = Opcode::Recv;
          Payload payload = is_forward ? Payload::Activation : Payload::Gradient;
          if (instruction.opcode == Opcode::Send && is_stage) {
            opcode = name == "send activation" ? Opcode::Forward : Opcode::Backward;
            payload = Payload::Activation;
          } else if (name == "receive activation" && rank == 0) {
            continue;  // from the data server: TheInput.IsDoubleBufferedOverAllSteps
          } else if (!(is_forward && (rank > 0 || pipeline.has_data_server)) &&
                     !(instruction.opcode == Opcode::Backward && rank + 1 < pipeline.stages)) {
            EXPECT_TRUE(instruction.waits.empty());
            continue;
          }
          const Instruction before = waited_for(program, rank, instruction);
          EXPECT_EQ(before.opcode, opcode);
          EXPECT_EQ(before.payload, payload);
          EXPECT_EQ(before.microbatch, instruction.microbatch);
          EXPECT_EQ(before.stage, rank);
        }
      }
    }
  });
}

TEST(ChainSchedules, HoldTheMemoryOfTheCostModel)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    const CostModel costs(pipeline.workload, pipeline.cluster);
    UntimedPlay play(*pipeline.program);
    ASSERT_TRUE(play.run());
    for (std::size_t rank = 0; rank < pipeline.stages; ++rank) {
      const std::uint64_t in_flight =
          microbatches_in_flight(pipeline.schedule, pipeline.stages - 1 - rank, pipeline.microbatches);
      EXPECT_EQ(play.most_in_flight(rank), in_flight);
      EXPECT_DOUBLE_EQ(play.peak(rank).value, costs.memory(2 * rank, 2 * rank + 1, in_flight).value);
      EXPECT_DOUBLE_EQ(play.memory_at_end(rank).value, pipeline.program->resident(rank, Tier::Device).value);
    }
    for (const Tier tier : {Tier::Host, Tier::Disk}) EXPECT_EQ(pipeline.program->resident(0, tier), Bytes(0));
    if (pipeline.has_data_server) {
      EXPECT_EQ(pipeline.program->resident(pipeline.stages, Tier::Device), Bytes(0));
    }
  });
}

TEST(ChainSchedules, HoldSkysEstimateWhateverTheMicroBatches)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    Workload workload = pipeline.workload;
    workload.memory_model = MemoryModel::Sky;
    const auto sky = testing_support::unit_program(pipeline.plan, workload);
    UntimedPlay play(*sky);
    ASSERT_TRUE(play.run());
    for (std::size_t rank = 0; rank < pipeline.stages; ++rank) {
      EXPECT_DOUBLE_EQ(play.peak(rank).value, 18000 + 4.0 * static_cast<double>(rank) + 1);
    }
  });
}

}  // namespace
}  // namespace isobar::schedules::chain_schedules_test
