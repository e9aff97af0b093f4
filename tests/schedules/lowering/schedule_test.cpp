#include "schedules/lowering/schedule.hpp"

#include "core/model/layer_graph.hpp"
#include "core/plan/cost_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace isobar::schedules {
namespace {

/// Layers that all differ, so that a wrong layer, cut or direction shows in the numbers.
Workload unequal_chain(std::size_t layers)
{
  Workload workload;
  workload.optimizer = Optimizer::Adam;
  workload.input = Bytes(7000);
  for (std::size_t i = 0; i < layers; ++i) {
    const double step = static_cast<double>(i);
    Layer layer;
    layer.forward = Flops(1e9 + 1e6 * step);
    layer.backward = Flops(2e9 + 3e6 * step);
    layer.parameters = 1000 + 10 * i;
    layer.activations = Bytes(5000 + 4 * step);
    layer.output = Bytes(800 + 2 * step);
    layer.gradient = Bytes(300 + 5 * step);
    layer.sky_memory = Bytes(9000 + step);
    if (i > 0) layer.inputs = {i - 1};
    workload.layers.push_back(layer);
  }
  return workload;
}

Cluster equal_devices(std::size_t devices, bool has_data_server)
{
  Cluster cluster;
  for (std::size_t i = 0; i < devices; ++i) {
    Device device;
    device.name = "d" + std::to_string(i);
    device.speed = FlopsPerSecond(1e12);
    cluster.devices.push_back(device);
  }
  if (has_data_server) cluster.data_server = "data";
  cluster.network = MatrixNetwork::uniform(devices + 1, {Seconds(1e-3), BytesPerSecond(1e9)});
  return cluster;
}

/// Two layers per stage.
Plan plan_of(Schedule schedule, std::size_t stages, std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.schedule = schedule;
  plan.goal.microbatches = microbatches;
  for (std::size_t i = 0; i < stages; ++i) plan.stages.push_back({{{"d" + std::to_string(i), 1.0}}, 2 * i, 2 * i + 1});
  return plan;
}

bool is_receive(Lane lane)
{
  return lane == Lane::ReceiveActivation || lane == Lane::ReceiveGradient;
}

/// Plays a program in which nothing takes time, and records the state at each moment.
class ZeroTimeInterpreter {
 public:
  explicit ZeroTimeInterpreter(const Program& program) : program_(&program), completed_(program.ranks())
  {
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
      memory_.push_back(program.resident_memory(rank));
      peak_.push_back(memory_.back());
      in_flight_.push_back(0);
      most_in_flight_.push_back(0);
    }
  }

  /// True if every lane finishes.
  bool run()
  {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < program_->ranks(); ++rank) {
        for (const Lane lane : all_lanes) {
          while (step(rank, lane)) moved = true;
        }
      }
    }
    for (std::size_t rank = 0; rank < program_->ranks(); ++rank) {
      for (const Lane lane : all_lanes) {
        if (done(rank, lane) != program_->length(rank, lane)) return false;
      }
    }
    return true;
  }

  Bytes peak(std::size_t rank) const { return peak_[rank]; }
  Bytes memory_at_end(std::size_t rank) const { return memory_[rank]; }
  std::uint64_t most_in_flight(std::size_t rank) const { return most_in_flight_[rank]; }

 private:
  std::uint64_t& done(std::size_t rank, Lane lane) { return completed_[rank][static_cast<std::size_t>(lane)]; }

  bool may_start(std::size_t rank, Lane lane, std::uint64_t position)
  {
    if (done(rank, lane) != position || position >= program_->length(rank, lane)) return false;
    const Wait wait = program_->at(rank, lane, position).wait;
    return done(rank, wait.lane) >= wait.count;
  }

  bool step(std::size_t rank, Lane lane)
  {
    const std::uint64_t position = done(rank, lane);
    if (is_receive(lane) || !may_start(rank, lane, position)) return false;
    const Instruction instruction = program_->at(rank, lane, position);
    if (instruction.opcode == Opcode::Send) {
      if (!may_start(instruction.peer, other_end(lane), instruction.peer_position)) return false;
      ++done(instruction.peer, other_end(lane));
    }
    ++done(rank, lane);
    memory_[rank] += instruction.acquires;
    peak_[rank] = std::max(peak_[rank], memory_[rank]);
    memory_[rank] -= instruction.releases;
    if (instruction.opcode == Opcode::Forward) ++in_flight_[rank];
    most_in_flight_[rank] = std::max(most_in_flight_[rank], in_flight_[rank]);
    if (instruction.opcode == Opcode::Backward) --in_flight_[rank];
    return true;
  }

  const Program* program_;
  std::vector<std::array<std::uint64_t, lane_count>> completed_;
  std::vector<Bytes> memory_;
  std::vector<Bytes> peak_;
  std::vector<std::uint64_t> in_flight_;
  std::vector<std::uint64_t> most_in_flight_;
};

/// A schedule over stages of two layers each.
struct Pipeline {
  Pipeline(Schedule with_schedule, std::size_t with_stages, std::uint64_t with_microbatches, bool with_data_server)
      : schedule(with_schedule),
        stages(with_stages),
        microbatches(with_microbatches),
        has_data_server(with_data_server),
        workload(unequal_chain(2 * stages)),
        cluster(equal_devices(stages, has_data_server)),
        plan(plan_of(schedule, stages, microbatches))
  {
    if (has_data_server) plan.data_server = cluster.data_server;
    program = make_program(plan, workload);
  }

  Schedule schedule;
  std::size_t stages;
  std::uint64_t microbatches;
  bool has_data_server;
  Workload workload;
  Cluster cluster;
  Plan plan;
  std::unique_ptr<Program> program;
};

void for_every_pipeline(const std::function<void(const Pipeline&)>& check)
{
  for (const Schedule schedule : {Schedule::Sequential, Schedule::GPipe, Schedule::OneForwardOneBackward}) {
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

TEST(EverySchedule, RunsEachMicroBatchForwardAndBackwardOncePerStage)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    ASSERT_EQ(pipeline.program->ranks(), pipeline.stages + (pipeline.has_data_server ? 1 : 0));
    for (std::size_t rank = 0; rank < pipeline.stages; ++rank) {
      std::set<std::uint64_t> forwarded;
      std::set<std::uint64_t> taken_back;
      ASSERT_EQ(pipeline.program->length(rank, Lane::Compute), 2 * pipeline.microbatches + 1);
      for (std::uint64_t position = 0; position < 2 * pipeline.microbatches; ++position) {
        const Instruction instruction = pipeline.program->at(rank, Lane::Compute, position);
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
      EXPECT_EQ(pipeline.program->at(rank, Lane::Compute, 2 * pipeline.microbatches).opcode, Opcode::Update);
    }
  });
}

TEST(EverySchedule, CarriesTheWorkOfItsLayers)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    const CostModel costs(pipeline.workload, pipeline.cluster);
    for (std::size_t rank = 0; rank < pipeline.stages; ++rank) {
      for (std::uint64_t position = 0; position <= 2 * pipeline.microbatches; ++position) {
        const Instruction instruction = pipeline.program->at(rank, Lane::Compute, position);
        EXPECT_EQ(instruction.stage, rank);
        EXPECT_EQ(instruction.first_layer, 2 * rank);
        EXPECT_EQ(instruction.last_layer, 2 * rank + 1);
        double work = costs.forward_work(2 * rank, 2 * rank + 1).value;
        if (instruction.opcode == Opcode::Backward) work = costs.backward_work(2 * rank, 2 * rank + 1).value;
        if (instruction.opcode == Opcode::Update) work = 12.0 * static_cast<double>(2000 + 40 * rank + 10);
        EXPECT_NEAR(instruction.work.value, work, 1e-12 * work);
      }
    }
  });
}

TEST(EverySchedule, CarriesTheRecomputationOfItsLayers)
{
  for (const Schedule schedule : {Schedule::Sequential, Schedule::GPipe, Schedule::OneForwardOneBackward}) {
    const Workload plain = unequal_chain(6);
    const Workload workload = with_recomputation(plain, {2, 3, 4});
    const Cluster cluster = equal_devices(3, true);
    const Plan plan = plan_of(schedule, 3, 4);
    const auto program = make_program(plan, workload);
    const auto program_before = make_program(plan, plain);
    ZeroTimeInterpreter interpreter(*program);
    ASSERT_TRUE(interpreter.run());
    for (std::size_t rank = 0; rank < 3; ++rank) {
      double recomputed = 0;
      if (rank == 1) recomputed = (plain.layers[2].forward + plain.layers[3].forward).value;
      if (rank == 2) recomputed = plain.layers[4].forward.value;
      for (std::uint64_t position = 0; position < 8; ++position) {
        const Instruction instruction = program->at(rank, Lane::Compute, position);
        const Instruction before = program_before->at(rank, Lane::Compute, position);
        const bool is_backward = instruction.opcode == Opcode::Backward;
        EXPECT_NEAR(instruction.work.value, before.work.value + (is_backward ? recomputed : 0), 1);
      }
      const auto in_flight = microbatches_in_flight(schedule, 2 - rank, 4);
      EXPECT_EQ(interpreter.peak(rank), CostModel(workload, cluster).memory(2 * rank, 2 * rank + 1, in_flight));
      EXPECT_EQ(program->resident_memory(rank) - program_before->resident_memory(rank), workload.recompute_buffer);
    }
  }
}

TEST(EverySchedule, PairsEachSendWithItsReceiveBothWays)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    for (std::size_t rank = 0; rank < pipeline.program->ranks(); ++rank) {
      for (const Lane lane : all_lanes) {
        if (lane == Lane::Compute) continue;
        for (std::uint64_t position = 0; position < pipeline.program->length(rank, lane); ++position) {
          const Instruction here = pipeline.program->at(rank, lane, position);
          EXPECT_EQ(here.opcode, is_receive(lane) ? Opcode::Recv : Opcode::Send);
          ASSERT_NE(here.peer, rank);
          const Instruction there = pipeline.program->at(here.peer, other_end(lane), here.peer_position);
          EXPECT_EQ(there.opcode, is_receive(lane) ? Opcode::Send : Opcode::Recv);
          EXPECT_EQ(there.peer, rank);
          EXPECT_EQ(there.peer_position, position);
          EXPECT_EQ(there.microbatch, here.microbatch);
          EXPECT_EQ(there.size, here.size);
        }
      }
    }
  });
}

TEST(EverySchedule, SendsWhatCrossesTheCut)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    const Boundaries boundaries = boundaries_of(pipeline.workload);
    for (std::size_t rank = 0; rank < pipeline.stages; ++rank) {
      if (rank > 0 || pipeline.has_data_server) {
        EXPECT_EQ(pipeline.program->at(rank, Lane::ReceiveActivation, 0).size, boundaries.output[2 * rank]);
      }
      if (rank > 0) {
        EXPECT_EQ(pipeline.program->at(rank, Lane::SendGradient, 0).size, boundaries.gradient[2 * rank]);
      }
    }
    EXPECT_EQ(pipeline.program->length(0, Lane::SendGradient), 0U);
    EXPECT_EQ(pipeline.program->length(0, Lane::ReceiveActivation),
              pipeline.has_data_server ? pipeline.microbatches : 0);
    EXPECT_EQ(pipeline.program->length(pipeline.stages - 1, Lane::SendActivation), 0U);
    EXPECT_EQ(pipeline.program->length(pipeline.stages - 1, Lane::ReceiveGradient), 0U);
  });
}

TEST(EverySchedule, WaitsForWhatItReadsAndNeverForItself)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    const auto microbatch_of = [&](std::size_t rank, const Wait& wait) {
      return pipeline.program->at(rank, wait.lane, wait.count - 1).microbatch;
    };
    for (std::size_t rank = 0; rank < pipeline.stages; ++rank) {
      for (const Lane lane : all_lanes) {
        for (std::uint64_t position = 0; position < pipeline.program->length(rank, lane); ++position) {
          const Instruction instruction = pipeline.program->at(rank, lane, position);
          const auto& wait = instruction.wait;
          EXPECT_TRUE(wait.count == 0 || wait.lane != lane);
          if (instruction.opcode == Opcode::Forward && (rank > 0 || pipeline.has_data_server)) {
            EXPECT_EQ(wait.lane, Lane::ReceiveActivation);
            EXPECT_EQ(microbatch_of(rank, wait), instruction.microbatch);
          } else if (instruction.opcode == Opcode::Backward && rank + 1 < pipeline.stages) {
            EXPECT_EQ(wait.lane, Lane::ReceiveGradient);
            EXPECT_EQ(microbatch_of(rank, wait), instruction.microbatch);
          } else if (instruction.opcode == Opcode::Send) {
            EXPECT_EQ(wait.lane, Lane::Compute);
            EXPECT_EQ(microbatch_of(rank, wait), instruction.microbatch);
            EXPECT_EQ(pipeline.program->at(rank, wait.lane, wait.count - 1).opcode,
                      lane == Lane::SendActivation ? Opcode::Forward : Opcode::Backward);
          } else if (lane == Lane::ReceiveActivation && rank == 0 && instruction.microbatch >= 2) {
            EXPECT_EQ(wait.lane, Lane::Compute);
            EXPECT_EQ(microbatch_of(rank, wait), instruction.microbatch - 2);
            EXPECT_EQ(pipeline.program->at(rank, wait.lane, wait.count - 1).opcode, Opcode::Forward);
          } else {
            EXPECT_EQ(wait.count, 0U);
          }
        }
      }
    }
    EXPECT_TRUE(ZeroTimeInterpreter(*pipeline.program).run());
  });
}

TEST(EverySchedule, HoldsTheMemoryOfTheCostModel)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    const CostModel costs(pipeline.workload, pipeline.cluster);
    ZeroTimeInterpreter interpreter(*pipeline.program);
    ASSERT_TRUE(interpreter.run());
    for (std::size_t rank = 0; rank < pipeline.stages; ++rank) {
      const std::uint64_t in_flight =
          microbatches_in_flight(pipeline.schedule, pipeline.stages - 1 - rank, pipeline.microbatches);
      EXPECT_EQ(interpreter.most_in_flight(rank), in_flight);
      EXPECT_DOUBLE_EQ(interpreter.peak(rank).value, costs.memory(2 * rank, 2 * rank + 1, in_flight).value);
      EXPECT_DOUBLE_EQ(interpreter.memory_at_end(rank).value, pipeline.program->resident_memory(rank).value);
    }
    if (pipeline.has_data_server) {
      EXPECT_EQ(pipeline.program->resident_memory(pipeline.stages), Bytes(0));
    }
  });
}

TEST(EverySchedule, HoldsSkysEstimateWhateverTheMicroBatches)
{
  for_every_pipeline([](const Pipeline& pipeline) {
    Workload workload = pipeline.workload;
    workload.memory_model = MemoryModel::Sky;
    const auto sky = make_program(pipeline.plan, workload);
    ZeroTimeInterpreter interpreter(*sky);
    ASSERT_TRUE(interpreter.run());
    for (std::size_t rank = 0; rank < pipeline.stages; ++rank) {
      EXPECT_DOUBLE_EQ(interpreter.peak(rank).value, 18000 + 4.0 * static_cast<double>(rank) + 1);
    }
  });
}

std::string compute_lane(Schedule schedule, std::size_t stages, std::uint64_t microbatches, std::size_t rank)
{
  const auto program = make_program(plan_of(schedule, stages, microbatches), unequal_chain(2 * stages));
  std::string text;
  for (std::uint64_t position = 0; position < program->length(rank, Lane::Compute); ++position) {
    const Instruction instruction = program->at(rank, Lane::Compute, position);
    text += name_of(instruction.opcode).front();
    if (instruction.opcode != Opcode::Update) text += std::to_string(instruction.microbatch);
  }
  return text;
}

TEST(MakeProgram, GivesEachScheduleItsOrder)
{
  EXPECT_EQ(compute_lane(Schedule::Sequential, 3, 3, 1), "F0B0F1B1F2B2U");
  EXPECT_EQ(compute_lane(Schedule::GPipe, 3, 3, 1), "F0F1F2B2B1B0U");
  EXPECT_EQ(compute_lane(Schedule::OneForwardOneBackward, 3, 4, 0), "F0F1F2B0F3B1B2B3U");
  EXPECT_EQ(compute_lane(Schedule::OneForwardOneBackward, 3, 4, 1), "F0F1B0F2B1F3B2B3U");
  EXPECT_EQ(compute_lane(Schedule::OneForwardOneBackward, 3, 4, 2), "F0B0F1B1F2B2F3B3U");
  EXPECT_EQ(compute_lane(Schedule::OneForwardOneBackward, 3, 1, 0), "F0B0U");
}

template <typename Call>
std::string message_of(Call call)
{
  try {
    call();
  } catch (const std::logic_error& error) {
    return error.what();
  }
  return "no error";
}

TEST(MakeProgram, RefusesPositionsAndRanksBeyondItsOwn)
{
  const auto program = make_program(plan_of(Schedule::GPipe, 2, 3), unequal_chain(4));
  EXPECT_EQ(message_of([&] { program->at(0, Lane::Compute, 7); }), "a position beyond the end of its lane");
  EXPECT_EQ(message_of([&] { program->at(0, Lane::SendActivation, 3); }), "a position beyond the end of its lane");
  EXPECT_EQ(message_of([&] { program->at(0, Lane::SendGradient, 0); }), "a position beyond the end of its lane");
  EXPECT_EQ(message_of([&] { program->at(2, Lane::SendActivation, 0); }), "a rank beyond the program's");
  EXPECT_EQ(message_of([&] { program->resident_memory(2); }), "a rank beyond the program's");
}

TEST(MakeProgram, RefusesPlansWithoutStages)
{
  EXPECT_EQ(message_of([] { make_program(Plan{}, unequal_chain(4)); }), "a program needs a feasible plan");
}

TEST(MakeProgram, CountsBillionsOfMicroBatchesWithoutMemoryForThem)
{
  const std::uint64_t microbatches = 5'000'000'000;
  const auto program = make_program(plan_of(Schedule::OneForwardOneBackward, 3, microbatches), unequal_chain(6));
  EXPECT_EQ(program->length(0, Lane::Compute), 2 * microbatches + 1);
  EXPECT_EQ(program->at(0, Lane::Compute, 2 * microbatches - 1).microbatch, microbatches - 1);
  EXPECT_EQ(program->at(2, Lane::Compute, microbatches).microbatch, microbatches / 2);
}

}  // namespace
}  // namespace isobar::schedules
