#include "schedules/lowering/schedule.hpp"

#include "core/check/program_checker.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/cost_model.hpp"
#include "core/program/walk.hpp"
#include "schedules/orders/schedule.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace isobar::schedules {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr ChainSchedule chain_schedules[] = {ChainSchedule::Sequential, ChainSchedule::GPipe,
                                             ChainSchedule::OneForwardOneBackward};

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
    layer.backward_weight = Flops(8e8 + 2e6 * step);
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

Cluster equal_devices(std::size_t devices)
{
  Cluster cluster;
  for (std::size_t i = 0; i < devices; ++i) {
    Device device;
    device.name = "d" + std::to_string(i);
    device.speed = FlopsPerSecond(1e12);
    cluster.devices.push_back(device);
  }
  cluster.network = MatrixNetwork::uniform(devices + 1, {Seconds(1e-3), BytesPerSecond(1e9)});
  return cluster;
}

/// Two layers per stage; stage s is on device `device_of_stage[s]`.
Plan plan_on(const std::vector<std::size_t>& device_of_stage, ScheduleChoice schedule, std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.schedule = std::move(schedule);
  plan.goal.microbatches = microbatches;
  for (std::size_t i = 0; i < device_of_stage.size(); ++i) {
    plan.stages.push_back({{{"d" + std::to_string(device_of_stage[i]), 1.0}}, 2 * i, 2 * i + 1});
  }
  return plan;
}

/// A stage on each device.
Plan plan_of(ScheduleChoice schedule, std::size_t stages, std::uint64_t microbatches)
{
  std::vector<std::size_t> device_of_stage;
  for (std::size_t i = 0; i < stages; ++i) device_of_stage.push_back(i);
  return plan_on(device_of_stage, std::move(schedule), microbatches);
}

Plan plan_of(ChainSchedule schedule, std::size_t stages, std::uint64_t microbatches)
{
  return plan_of(choice_of(schedule), stages, microbatches);
}

/// The lane of a rank with that name; none if there is no such lane.
std::optional<LaneId> lane_named(const Program& program, std::size_t rank, const std::string& name)
{
  const auto& lanes = program.lanes(rank);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (lanes[i].name == name) return static_cast<LaneId>(i);
  }
  return std::nullopt;
}

std::vector<std::string> lane_names(const Program& program, std::size_t rank)
{
  std::vector<std::string> names;
  for (const auto& lane : program.lanes(rank)) names.push_back(lane.name);
  return names;
}

std::uint64_t length_of(const Program& program, std::size_t rank, const std::string& lane)
{
  const auto id = lane_named(program, rank, lane);
  return id ? program.length(rank, *id) : 0;
}

Instruction first_of(const Program& program, std::size_t rank, const std::string& lane)
{
  return program.at(rank, lane_named(program, rank, lane).value(), 0);
}

/// The instruction that an instruction waits for, of its own period.
Instruction waited_for(const Program& program, std::size_t rank, const Instruction& instruction)
{
  EXPECT_EQ(instruction.waits.size(), 1U);
  if (instruction.waits.empty()) return {};
  const Wait& wait = *instruction.waits.begin();
  EXPECT_EQ(wait.periods_back, 0);
  EXPECT_NE(wait.lane, instruction.lane);
  return program.at(rank, wait.lane, wait.count - 1);
}

/// Plays a program in which nothing takes time.
class UntimedPlay : public WalkVisitor {
 public:
  explicit UntimedPlay(const Program& program)
      : program_(program), peak_(program.ranks()), in_flight_(program.ranks(), 0), most_in_flight_(program.ranks(), 0)
  {
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
      memory_.push_back(program.resident(rank, Tier::Device));
      peak_[rank] = memory_.back();
    }
  }

  /// True if all lanes end.
  bool run(std::uint64_t periods = 1) { return !ProgramWalk(program_).run(periods, *this); }

  void execute(const Turn& turn) override { apply(turn); }
  void meet(std::size_t, std::span<const Turn* const> turns) override
  {
    for (const auto* turn : turns) apply(*turn);
  }

  Bytes peak(std::size_t rank) const { return peak_[rank]; }
  Bytes memory_at_end(std::size_t rank) const { return memory_[rank]; }
  std::uint64_t most_in_flight(std::size_t rank) const { return most_in_flight_[rank]; }

 private:
  void apply(const Turn& turn)
  {
    const std::size_t rank = turn.at.rank;
    const Opcode opcode = turn.instruction.opcode;
    memory_[rank] += turn.instruction.acquires.size;
    peak_[rank] = std::max(peak_[rank], memory_[rank]);
    memory_[rank] -= turn.instruction.releases.size;
    if (opcode == Opcode::Forward) ++in_flight_[rank];
    most_in_flight_[rank] = std::max(most_in_flight_[rank], in_flight_[rank]);
    if (opcode == Opcode::Backward || opcode == Opcode::BackwardWeight) --in_flight_[rank];
  }

  const Program& program_;
  std::vector<Bytes> memory_;
  std::vector<Bytes> peak_;
  std::vector<std::uint64_t> in_flight_;
  std::vector<std::uint64_t> most_in_flight_;
};

/// A schedule over a chain of stages of two layers each, on a device each.
struct Pipeline {
  Pipeline(ChainSchedule with_schedule, std::size_t with_stages, std::uint64_t with_microbatches, bool with_data_server)
      : schedule(with_schedule),
        stages(with_stages),
        microbatches(with_microbatches),
        has_data_server(with_data_server),
        workload(unequal_chain(2 * stages)),
        cluster(equal_devices(stages)),
        plan(plan_of(schedule, stages, microbatches))
  {
    if (has_data_server) plan.data_server = "data";
    program = make_program(plan, workload);
  }

  ChainSchedule schedule;
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
        EXPECT_NEAR(instruction.work.value, work, 1e-12 * work);
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
    const auto program = make_program(plan, workload);
    const auto program_before = make_program(plan, plain);
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
        EXPECT_NEAR(instruction.work.value, before.work.value + (is_backward ? recomputed : 0), 1);
      }
      const auto in_flight = microbatches_in_flight(schedule, 2 - rank, 4);
      EXPECT_EQ(play.peak(rank), CostModel(workload, cluster).memory(2 * rank, 2 * rank + 1, in_flight));
      EXPECT_EQ(program->resident(rank, Tier::Device) - program_before->resident(rank, Tier::Device),
                workload.recompute_buffer);
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
    const auto sky = make_program(pipeline.plan, workload);
    UntimedPlay play(*sky);
    ASSERT_TRUE(play.run());
    for (std::size_t rank = 0; rank < pipeline.stages; ++rank) {
      EXPECT_DOUBLE_EQ(play.peak(rank).value, 18000 + 4.0 * static_cast<double>(rank) + 1);
    }
  });
}

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
  return text_of(*make_program(plan_of(schedule, stages, microbatches), unequal_chain(2 * stages)), rank);
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

/// A plan of any schedule, and its program.
struct Sample {
  Plan plan;
  Workload workload;
  PipelineShape shape;
  std::unique_ptr<Program> program;

  explicit Sample(Plan of_plan)
      : plan(std::move(of_plan)),
        workload(unequal_chain(2 * plan.stages.size())),
        shape(shape_of(plan)),
        program(make_program(plan, workload))
  {
  }
  Sample(Plan of_plan, std::vector<Order> orders)
      : plan(std::move(of_plan)),
        workload(unequal_chain(2 * plan.stages.size())),
        shape(shape_of(plan)),
        program(make_program(plan, workload, std::move(orders)))
  {
  }
};

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
    if (schedule.folding == Folding::Any) continue;
    for (const std::size_t ranks : std::initializer_list<std::size_t>{1, 2, 3, 5}) {
      for (const std::size_t chunks : chunks_of(schedule.folding)) {
        for (const std::uint64_t microbatches : std::initializer_list<std::uint64_t>{1, 2, 3, 8, 23}) {
          for (const bool has_data_server : {false, true}) {
            std::vector<std::size_t> device_of_stage;
            for (std::size_t stage = 0; stage < ranks * chunks; ++stage) {
              device_of_stage.push_back(rank_of_stage(schedule.folding, stage, ranks));
            }
            Plan plan = plan_on(device_of_stage, {std::string(schedule.name)}, microbatches);
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
        work[{instruction.opcode, instruction.stage}] += instruction.work.value;
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

/// The instruction in which a stage gets its input or, of a backward, its gradient: the task of the neighbour on the
/// same device, or the Recv that the instruction waits for.
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
      for (const std::size_t stage : stages[rank]) resident += costs.memory(2 * stage, 2 * stage + 1, 0);
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
  const auto program = make_program(plan, workload);
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
    const auto program = make_program(plan_on(device_of_stage, schedule, 3), workload);
    EXPECT_THAT(lane_names(*program, 0), ElementsAre("compute"));
    EXPECT_THAT(program->channels(), IsEmpty());
  }
}

TEST(MakeProgram, AddsRecomputationToTheGradientOfTheInput)
{
  const Plan plan = plan_of({"zero-bubble-h1"}, 2, 3);
  const Workload plain = unequal_chain(4);
  const auto before = make_program(plan, plain);
  const auto program = make_program(plan, with_recomputation(plain, {0, 1}));
  for (std::uint64_t position = 0; position < program->length(0, compute_lane); ++position) {
    const Instruction instruction = program->at(0, compute_lane, position);
    const Flops more = instruction.work - before->at(0, compute_lane, position).work;
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

TEST(MakeProgram, RefusesOrdersThatDoNotFitThePlan)
{
  const Order whole({{3, {slot(Opcode::Forward, 0)}}, {3, {slot(Opcode::Backward, 0)}}});
  const auto refusal = [&](const Order& second) {
    return message_of([&] { Sample(plan_of({"listed"}, 2, 3), {whole, second}); });
  };
  EXPECT_EQ(refusal(whole), "no error");
  EXPECT_EQ(refusal(Order({{2, {slot(Opcode::Forward, 0)}}, {3, {slot(Opcode::Backward, 0)}}})),
            "an order without a forward of every micro-batch");
  EXPECT_EQ(refusal(Order({{3, {slot(Opcode::Forward, 0)}}, {2, {slot(Opcode::Backward, 0)}}})),
            "an order without a backward of every micro-batch");
  const std::string halves = "an order with half of a backward, or with whole and split ones of a stage";
  EXPECT_EQ(refusal(Order({{3, {slot(Opcode::Forward, 0), slot(Opcode::BackwardInput, 0)}}})), halves);
  EXPECT_EQ(refusal(Order({{3, {slot(Opcode::Forward, 0), slot(Opcode::BackwardWeight, 0)}}})), halves);
  EXPECT_EQ(refusal(Order({{3, {slot(Opcode::Forward, 0), slot(Opcode::Backward, 0)}},
                           {3, {slot(Opcode::BackwardInput, 0), slot(Opcode::BackwardWeight, 0)}}})),
            halves);
  EXPECT_EQ(refusal(Order({{3, {slot(Opcode::Forward, 0)}}})), "orders with backwards of some stages only");
  EXPECT_EQ(
      refusal(Order({{3, {slot(Opcode::Forward, 0), slot(Opcode::Backward, 0), slot(Opcode::Forward, 0, 1, 1)}}})),
      "an order with tasks of stages that its device does not have");
  EXPECT_EQ(message_of([&] { Sample(plan_of({"listed"}, 2, 3), {whole}); }),
            "a program needs an order for each device of its plan");
}

TEST(MakeProgram, RefusesATaskBeforeItsInputOnTheSameDevice)
{
  // Both stages are on device 0, and the second goes first.
  const Order order({{1,
                      {slot(Opcode::Forward, 0, 1, 1), slot(Opcode::Forward, 0), slot(Opcode::Backward, 0, 1, 1),
                       slot(Opcode::Backward, 0)}}});
  const Sample sample(plan_on({0, 0}, {"listed"}, 1), {order});
  EXPECT_EQ(message_of([&] { sample.program->at(0, compute_lane, 0); }),
            "an order in which a task comes before its input");
  EXPECT_EQ(message_of([&] { sample.program->at(0, compute_lane, 3); }), "no error");
}

TEST(MakeProgram, RefusesPositionsLanesAndRanksBeyondItsOwn)
{
  const auto program = make_program(plan_of(ChainSchedule::GPipe, 2, 3), unequal_chain(4));
  EXPECT_EQ(message_of([&] { program->at(0, compute_lane, 7); }), "a position beyond the end of its lane");
  EXPECT_EQ(message_of([&] { program->at(0, 1, 3); }), "a position beyond the end of its lane");
  EXPECT_EQ(message_of([&] { program->at(0, 3, 0); }), "a lane beyond the rank's");
  EXPECT_EQ(message_of([&] { program->at(2, 1, 0); }), "a rank beyond the program's");
  EXPECT_EQ(message_of([&] { program->length(2, 0); }), "a rank beyond the program's");
  EXPECT_EQ(message_of([&] { program->lanes(2); }), "a rank beyond the program's");
  EXPECT_EQ(message_of([&] { program->resident(2, Tier::Device); }), "a rank beyond the program's");
}

TEST(MakeProgram, RefusesPlansWithoutStages)
{
  EXPECT_EQ(message_of([] { make_program(Plan{}, unequal_chain(4)); }), "a program needs a feasible plan");
  EXPECT_EQ(message_of([] { make_program(Plan{}, unequal_chain(4), {}); }), "a program needs a feasible plan");
}

TEST(MakeProgram, CountsBillionsOfMicroBatchesWithoutMemoryForThem)
{
  const std::uint64_t microbatches = 5'000'000'000;
  const auto program = make_program(plan_of(ChainSchedule::OneForwardOneBackward, 3, microbatches), unequal_chain(6));
  EXPECT_EQ(program->length(0, compute_lane), 2 * microbatches + 1);
  EXPECT_EQ(program->at(0, compute_lane, 2 * microbatches - 1).microbatch, microbatches - 1);
  EXPECT_EQ(program->at(2, compute_lane, microbatches).microbatch, microbatches / 2);
}

TEST(EveryProgram, CountsBillionsOfMicroBatches)
{
  const std::uint64_t microbatches = 5'000'000'000;
  const std::vector<std::pair<std::string, std::vector<std::size_t>>> plans = {{"gpipe", {0, 1, 2}},
                                                                               {"interleaved", {0, 1, 0, 1, 0, 1}},
                                                                               {"zero-bubble-h1", {0, 1, 2}},
                                                                               {"zero-bubble-h2", {0, 1, 2}},
                                                                               {"zero-bubble-v", {0, 1, 1, 0}}};
  for (const auto& [schedule, device_of_stage] : plans) {
    SCOPED_TRACE(schedule);
    Plan plan = plan_on(device_of_stage, {schedule}, microbatches);
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
}  // namespace isobar::schedules
