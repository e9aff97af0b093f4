#include "schedules/lowering/tiers.hpp"

#include "core/check/plan_checker.hpp"
#include "core/check/program_checker.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/program/player.hpp"
#include "core/program/walk.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/editable_program.hpp"
#include "tests/support/machines.hpp"
#include "tests/support/thrown_message.hpp"
#include "tests/support/unit_devices.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::schedules::tiers_test {
namespace {

using testing_support::cluster_with_machine;
using testing_support::EditableProgram;
using testing_support::MachineNumbers;
using testing_support::PassingLayer;
using testing_support::workload_of_layers;

/// Where everything of a part but its passes is.
Residence on_host(std::size_t parameter_slots, std::size_t gradient_slots)
{
  Residence residence;
  residence.parameters = residence.gradients = residence.optimizer = Tier::Host;
  residence.parameter_slots = parameter_slots;
  residence.gradient_slots = gradient_slots;
  return residence;
}

/// A plan on one device with a stage for each layer, of which the first, the last and so many after the first stay.
Plan window_plan(const Workload& workload, std::size_t resident, const Residence& residence, std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.schedule = choice_of(ChainSchedule::GPipe);
  plan.goal.microbatches = microbatches;
  plan.recompute = workload.recompute;
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    plan.stages.push_back(stage_on("gpu0", i, i));
    if (i > resident && i + 1 < workload.layers.size()) plan.stages.back().residence = residence;
  }
  return plan;
}

/// The instructions of a lane, such as "Load 3 Forward", in its order.
std::vector<std::string> lane_of(const Program& program, const std::string& name)
{
  std::vector<std::string> texts;
  const auto& lanes = program.lanes(0);
  for (LaneId lane = 0; lane < lanes.size(); ++lane) {
    if (lanes[lane].name != name) continue;
    for (std::uint64_t k = 0; k < program.length(0, lane); ++k) {
      const Instruction instruction = program.at(0, lane, k);
      std::string text = std::string(name_of(instruction.opcode)) + " " + std::to_string(instruction.stage);
      if (is_copy(instruction.opcode)) text += " " + std::string(name_of(instruction.pass));
      texts.push_back(text);
    }
  }
  return texts;
}

TEST(TierLanes, LoadInTheOrderOfNeedAndKeepTheLastForTheirBackwards)
{
  const Workload workload = workload_of_layers(std::vector<PassingLayer>(7));
  const auto program = testing_support::unit_program(window_plan(workload, 1, on_host(2, 1), 1), workload);
  EXPECT_EQ(lane_of(*program, "copy in"),
            (std::vector<std::string>{"Load 2 Forward", "Load 3 Forward", "Load 4 Forward", "Load 5 Forward",
                                      "Load 3 Backward", "Load 2 Backward"}));
  EXPECT_EQ(lane_of(*program, "copy out"),
            (std::vector<std::string>{"Store 5 Backward", "Store 4 Backward", "Store 3 Backward", "Store 2 Backward"}));
  EXPECT_EQ(lane_of(*program, "host update"),
            (std::vector<std::string>{"Update 5", "Update 4", "Update 3", "Update 2"}));
  EXPECT_EQ(lane_of(*program, "disk read"), std::vector<std::string>{});
}

TEST(TierLanes, PassEachPartOnceAStepUnderGPipe)
{
  const Workload workload = workload_of_layers(std::vector<PassingLayer>(6));
  const auto program = testing_support::unit_program(window_plan(workload, 0, on_host(1, 1), 3), workload);
  EXPECT_EQ(lane_of(*program, "copy in").size(), 2U * 4 - 1);
  std::vector<std::uint32_t> stages;
  for (std::uint64_t k = 0; k < 18; ++k) stages.push_back(program->at(0, compute_lane, k).stage);
  EXPECT_TRUE(std::is_sorted(stages.begin(), stages.end()));
}

TEST(TierLanes, PassEachPartOnceAStepUnderGPipeWhereAnotherStageHasReplicas)
{
  const Workload workload = workload_of_layers(std::vector<PassingLayer>(6));
  Plan plan = window_plan(workload, 0, on_host(1, 1), 4);
  plan.stages[4].residence = {};
  plan.stages.back().replicas = {{2, {Shard{"gpu1"}}}, {2, {Shard{"gpu2"}}}};
  const auto program = testing_support::unit_program(plan, workload);
  EXPECT_EQ(lane_of(*program, "copy in"),
            (std::vector<std::string>{"Load 1 Forward", "Load 2 Forward", "Load 3 Forward", "Load 2 Backward",
                                      "Load 1 Backward"}));
  EXPECT_EQ(lane_of(*program, "copy out"),
            (std::vector<std::string>{"Store 3 Backward", "Store 2 Backward", "Store 1 Backward"}));
  EXPECT_EQ(faults_of(*program), std::vector<std::string>{});
}

TEST(TierLanes, TakeTheTimesOfAStepByHand)
{
  // Two layers that pass, one at a time: 100 parameters of 4 B at 100 B/s take 4 s, an update of 1200 FLOP 6 s.
  std::vector<PassingLayer> layers(4);
  layers.front().parameters = layers.back().parameters = 0;
  const Workload workload = workload_of_layers(layers);
  const Cluster cluster = cluster_with_machine({.update_speed = 200, .busy_update_speed = 200});
  const auto step_of = [&](UpdateOverlap overlap, std::size_t slots) {
    Residence residence = on_host(slots, 1);
    residence.overlap = overlap;
    const Plan plan = window_plan(workload, 0, residence, 1);
    const auto program = make_program(plan, workload, cluster);
    return play_program(*program, nominal_rates(plan, cluster), counted_step(plan).played())
        .periods[counted_step(plan).before]
        .step_time.value;
  };
  // Load 1 until 4, F1 5, load 2 9, F2 10, F3 11, B3 13, B2 15, its store 19 and load 1 19, B1 21, store 25; updates
  // 25 and 31.
  EXPECT_DOUBLE_EQ(step_of(UpdateOverlap::Step, 1), 31);
  // Both loads at once: F1 5, F2 9, F3 10, B3 12, B2 14, its store 18, B1 20 after that, store 24, updates 24, 30.
  EXPECT_DOUBLE_EQ(step_of(UpdateOverlap::Step, 2), 30);
  // Updates 30 and 36 once both gradients are there.
  EXPECT_DOUBLE_EQ(step_of(UpdateOverlap::None, 2), 36);
}

TEST(TierLanes, UpdateAtTwoRates)
{
  // The device computes until 6, and an update of 1200 FLOP begins at 5.
  const Workload workload = workload_of_layers({{.parameters = 0}, {}, {.forward = 0, .backward = 0, .parameters = 0}});
  Cluster cluster = cluster_with_machine({.in = 400, .out = 400, .update_speed = 300, .busy_update_speed = 100});
  const Plan plan = window_plan(workload, 0, on_host(1, 1), 1);
  const auto program = make_program(plan, workload, cluster);
  std::map<std::string, std::pair<double, double>> times;
  play_program(*program, nominal_rates(plan, cluster), 1, [&](const Turn& turn, Seconds begin, Seconds end) {
    times[std::string(name_of(turn.instruction.opcode)) + std::to_string(turn.instruction.stage)] = {begin.value,
                                                                                                     end.value};
  });
  EXPECT_EQ(times.at("Backward1"), std::pair(2.0, 4.0));
  EXPECT_EQ(times.at("Backward0"), std::pair(4.0, 6.0));
  // Stored from 4 to 5; 100 FLOP until 6, and 1100 at the other rate.
  EXPECT_DOUBLE_EQ(times.at("Update1").first, 5);
  EXPECT_NEAR(times.at("Update1").second, 6 + 1'100.0 / 300, 1e-12);
}

TEST(TierLanes, TakeTheUpdatesOfAMachineByParametersWhateverWasMeasuredOfTheDevice)
{
  Workload workload = workload_of_layers(std::vector<PassingLayer>(4));
  for (auto& layer : workload.layers) layer.update = Flops(7);
  const auto program = testing_support::unit_program(window_plan(workload, 1, on_host(1, 1), 1), workload);
  std::map<std::uint32_t, double> on_device;
  std::map<std::uint32_t, double> on_machine;
  const auto& lanes = program->lanes(0);
  for (LaneId lane = 0; lane < lanes.size(); ++lane) {
    auto& works = lanes[lane].engine == Engine::Host ? on_machine : on_device;
    for (std::uint64_t k = 0; k < program->length(0, lane); ++k) {
      const Instruction instruction = program->at(0, lane, k);
      if (instruction.opcode == Opcode::Update) works[instruction.stage] = instruction.time.value;
    }
  }
  EXPECT_EQ(on_device, (std::map<std::uint32_t, double>{{0, 7}, {1, 7}, {3, 7}}));
  EXPECT_EQ(on_machine, (std::map<std::uint32_t, double>{{2, 100 * update_flops_per_parameter(Optimizer::Adam)}}));
}

/// A program with every kind of copy: parameters, gradients, activations and states on the disk.
class EveryCopy : public testing::Test {
 protected:
  EveryCopy() : workload_(workload_of_layers(std::vector<PassingLayer>(7, {.activations = 8})))
  {
    Residence residence = on_host(2, 2);
    residence.optimizer = Tier::Disk;
    residence.activations = Tier::Host;
    plan_ = window_plan(workload_, 0, residence, 2);
  }

  EditableProgram program() const { return EditableProgram(*testing_support::unit_program(plan_, workload_)); }

  /// The faults of the program without the waits for an engine's lane of instructions that are like the given one.
  std::vector<std::string> faults_without(Engine awaited, const std::function<bool(const Instruction&)>& is_meant) const
  {
    EditableProgram edited = program();
    int removed = 0;
    for (auto& lane : edited.listing[0].instructions) {
      for (auto& instruction : lane) {
        if (!is_meant(instruction)) continue;
        Waits kept;
        for (const Wait& wait : instruction.waits) {
          const bool is_removed = edited.listing[0].lanes[wait.lane].engine == awaited;
          removed += is_removed ? 1 : 0;
          if (!is_removed) kept.add(wait);
        }
        instruction.waits = kept;
      }
    }
    EXPECT_GT(removed, 0);
    return faults_of(edited);
  }

  static bool is(const Instruction& instruction, Opcode opcode, Payload payload)
  {
    return instruction.opcode == opcode && instruction.payload == payload;
  }

  Workload workload_;
  Plan plan_;
};

TEST_F(EveryCopy, HasNoFaults)
{
  EXPECT_EQ(faults_of(program()), std::vector<std::string>{});
}

TEST_F(EveryCopy, IsFaultyWithoutAnyEdgeOfItsOrder)
{
  struct Edge {
    const char* name;
    Engine awaited;
    std::function<bool(const Instruction&)> of;
    const char* fault;
  };
  const std::vector<Edge> edges = {
      {"1", Engine::CopyIn, [](const Instruction& each) { return each.opcode == Opcode::Forward; },
       "the load of its parameters"},
      {"2", Engine::Device, [](const Instruction& each) { return is(each, Opcode::Load, Payload::Parameter); },
       "the last pass that reads what is in its place"},
      {"3", Engine::Device, [](const Instruction& each) { return is(each, Opcode::Store, Payload::ParameterGradient); },
       "the last backward"},
      {"4", Engine::CopyOut, [](const Instruction& each) { return each.opcode == Opcode::Backward; },
       "the store of the gradients that were in its place"},
      {"5", Engine::CopyOut, [](const Instruction& each) { return each.opcode == Opcode::Update; },
       "the store of its gradients"},
      {"6", Engine::Host, [](const Instruction& each) { return is(each, Opcode::Load, Payload::Parameter); },
       "the update of its parameters"},
      {"7", Engine::Host, [](const Instruction& each) { return is(each, Opcode::Store, Payload::ParameterGradient); },
       "the update that reads the gradients of the period before"},
      {"8, store", Engine::Device, [](const Instruction& each) { return is(each, Opcode::Store, Payload::Activation); },
       "the forward"},
      {"8, load", Engine::CopyOut, [](const Instruction& each) { return is(each, Opcode::Load, Payload::Activation); },
       "the store of its activations"},
      {"8, backward", Engine::CopyIn, [](const Instruction& each) { return each.opcode == Opcode::Backward; },
       "the load of its activations"},
      {"10, update", Engine::DiskRead, [](const Instruction& each) { return each.opcode == Opcode::Update; },
       "the read of its optimizer's state"},
      {"10, write", Engine::Host, [](const Instruction& each) { return each.opcode == Opcode::Write; }, "the update"},
      {"10, read", Engine::DiskWrite, [](const Instruction& each) { return each.opcode == Opcode::Read; },
       "the write of the period before"},
  };
  for (const auto& edge : edges) {
    SCOPED_TRACE(edge.name);
    const auto faults = faults_without(edge.awaited, edge.of);
    EXPECT_TRUE(std::any_of(faults.begin(), faults.end(), [&](const std::string& fault) {
      return fault.ends_with(std::string("does not follow ") + edge.fault);
    })) << (faults.empty() ? "no faults" : faults.front());
  }
}

TEST_F(EveryCopy, UpdatesAfterAllBackwardsWhereGradientsAreClipped)
{
  workload_.training.clip_norm = 1;
  const auto program = testing_support::unit_program(plan_, workload_);
  const auto& lanes = program->lanes(0);
  for (LaneId lane = 0; lane < lanes.size(); ++lane) {
    if (lanes[lane].engine != Engine::Host) continue;
    const Waits waits = program->at(0, lane, 0).waits;
    EXPECT_TRUE(std::any_of(waits.begin(), waits.end(), [](const Wait& wait) {
      return wait == Wait{compute_lane, 0, 2 * 2 * 7};
    }));
  }
}

TEST(TierLanes, RefuseGradientsThatNeedMorePlacesAtATime)
{
  const Workload workload = workload_of_layers(std::vector<PassingLayer>(5));
  Plan plan = window_plan(workload, 0, on_host(1, 2), 4);
  plan.goal.schedule = choice_of(ChainSchedule::OneForwardOneBackward);
  EXPECT_EQ(
      message_of([&] { testing_support::unit_program(plan, workload); }),
      "InputError stages[1].residence.gradient_slots: 2; the backward passes of more stages of the device overlap, "
      "and each needs a place until its last micro-batch; give as many, or use schedule gpipe");
  for (auto& stage : plan.stages) {
    if (stage.residence.gradient_slots > 0) stage.residence.gradient_slots = 3;
  }
  EXPECT_EQ(faults_of(*testing_support::unit_program(plan, workload)), std::vector<std::string>{});
}

TEST(TierLanes, DelayUpdatesByAStep)
{
  const Workload workload = workload_of_layers(std::vector<PassingLayer>(6));
  Residence residence = on_host(2, 1);
  residence.overlap = UpdateOverlap::Delayed;
  const auto program = testing_support::unit_program(window_plan(workload, 0, residence, 1), workload);
  EXPECT_EQ(faults_of(*program), std::vector<std::string>{});
}

}  // namespace
}  // namespace isobar::schedules::tiers_test
