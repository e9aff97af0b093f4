#pragma once

#include "core/costs/cost_model.hpp"
#include "core/order/schedule_choice.hpp"
#include "core/program/walk.hpp"
#include "schedules/lowering/schedule.hpp"
#include "schedules/orders/schedule.hpp"
#include "tests/support/unit_devices.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// Plans of small unequal stages, and their programs.
namespace isobar::schedules {

/// Layers that all differ, so that a wrong layer, cut or direction shows in the numbers.
inline Workload unequal_chain(std::size_t layers)
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

inline Cluster equal_devices(std::size_t devices)
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
inline Plan plan_on(const std::vector<std::size_t>& device_of_stage, ScheduleChoice schedule,
                    std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.schedule = std::move(schedule);
  plan.goal.microbatches = microbatches;
  for (std::size_t i = 0; i < device_of_stage.size(); ++i) {
    plan.stages.push_back(stage_on("d" + std::to_string(device_of_stage[i]), 2 * i, 2 * i + 1));
  }
  return plan;
}

/// A stage on each device.
inline Plan plan_of(ScheduleChoice schedule, std::size_t stages, std::uint64_t microbatches)
{
  std::vector<std::size_t> device_of_stage;
  for (std::size_t i = 0; i < stages; ++i) device_of_stage.push_back(i);
  return plan_on(device_of_stage, std::move(schedule), microbatches);
}

inline Plan plan_of(ChainSchedule schedule, std::size_t stages, std::uint64_t microbatches)
{
  return plan_of(choice_of(schedule), stages, microbatches);
}

/// The lane of a rank with that name; none if there is no such lane.
inline std::optional<LaneId> lane_named(const Program& program, std::size_t rank, const std::string& name)
{
  const auto& lanes = program.lanes(rank);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    if (lanes[i].name == name) return static_cast<LaneId>(i);
  }
  return std::nullopt;
}

inline std::vector<std::string> lane_names(const Program& program, std::size_t rank)
{
  std::vector<std::string> names;
  for (const auto& lane : program.lanes(rank)) names.push_back(lane.name);
  return names;
}

inline Instruction first_of(const Program& program, std::size_t rank, const std::string& lane)
{
  return program.at(rank, lane_named(program, rank, lane).value(), 0);
}

/// The instruction that an instruction waits for, of its own period.
inline Instruction waited_for(const Program& program, std::size_t rank, const Instruction& instruction)
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
  bool meet(std::size_t, std::span<const Turn* const> turns) override
  {
    for (const auto* turn : turns) apply(*turn);
    return true;
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
    program = testing_support::unit_program(plan, workload);
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
        program(testing_support::unit_program(plan, workload))
  {
  }
  Sample(Plan of_plan, std::vector<Order> orders)
      : plan(std::move(of_plan)),
        workload(unequal_chain(2 * plan.stages.size())),
        shape(shape_of(plan)),
        program(testing_support::unit_program(plan, workload, std::move(orders)))
  {
  }
};

}  // namespace isobar::schedules
