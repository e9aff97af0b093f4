#include "core/check/played_checker.hpp"

#include "core/check/plan_checker.hpp"
#include "core/costs/cost_model.hpp"
#include "core/costs/nominal_rates.hpp"
#include "tests/support/editable_program.hpp"
#include "tests/support/instances.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace isobar::played_checker_test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::chain;
using testing_support::cluster;
using testing_support::EditableProgram;

/// Two stages of two layers on a device each, two micro-batches, and the order of 1f1b with its warm-up as numbers:
/// what the recurrence claims of 1f1b holds for it, played.
struct Played {
  Workload workload = chain({1, 1, 1, 1}, 1, 10, 2);
  Cluster devices = cluster({1, 2}, {Seconds(0.5), BytesPerSecond(4)}, 200);
  CostModel cost{workload, devices};
  Plan plan = testing_support::plan_of({{1, 0, 1}, {0, 2, 3}}, cost, Goal{.microbatches = 2});
  EditableProgram program{2};

  Played()
  {
    plan.goal.schedule = {"1f1b", {{"warm_up", {1, 0}}}};
    plan.predicted->step_time_by = StepTimeBy::Played;
    program.connect({{0, "send activation"}, {1, "receive activation"}});
    program.connect({{1, "send gradient"}, {0, "receive gradient"}});
    constexpr LaneId activations = 1;
    constexpr LaneId gradients = 2;
    add(0, Opcode::Forward, 0, {});
    add(0, Opcode::Forward, 1, {});
    add(0, Opcode::Backward, 0, Wait{gradients, 0, 1});
    add(0, Opcode::Backward, 1, Wait{gradients, 0, 2});
    for (const std::uint64_t microbatch : {0U, 1U}) {
      add(1, Opcode::Forward, microbatch, Wait{activations, 0, microbatch + 1});
      add(1, Opcode::Backward, microbatch, {});
    }
    for (const std::size_t rank : {0U, 1U}) {
      const auto& stage = plan.stages[rank];
      const double update = 2 * update_flops_per_parameter(workload.optimizer);
      program.compute(rank, Opcode::Update, 0, update / speed_of(rank));
      program.listing[rank].resident[0] = cost.memory(stage.first_layer, stage.last_layer, 0);
    }
    for (const std::uint64_t microbatch : {0U, 1U}) {
      program.transfer(0, Payload::Activation, microbatch, 2, Wait{compute_lane, 0, microbatch + 1});
      program.transfer(1, Payload::Gradient, microbatch, 2, Wait{compute_lane, 0, 2 * microbatch + 2});
    }
  }

  void add(std::size_t rank, Opcode opcode, std::uint64_t microbatch, Waits waits)
  {
    const double time = (opcode == Opcode::Forward ? 2 : 4) / speed_of(rank);
    auto& instruction = program.compute(rank, opcode, microbatch, time, waits);
    (opcode == Opcode::Forward ? instruction.acquires : instruction.releases).size = Bytes(20);
  }
  double speed_of(std::size_t rank) const
  {
    return devices.devices[devices.device_index(plan.stages[rank].device()).value()].speed.value;
  }
  std::vector<std::string> faults() const { return faults_of_played(plan, workload, devices, program); }
};

TEST(FaultsOfPlayed, FindsNoneInASoundPlanWhoseOrderIsThatOfTheRecurrence)
{
  const Played played;
  EXPECT_THAT(faults_of(played.plan, played.workload, played.devices), IsEmpty());
  EXPECT_THAT(played.faults(), IsEmpty());
}

TEST(FaultsOfPlayed, LeavesChainsAndPlansWithoutStagesToTheOtherChecker)
{
  Played played;
  played.plan.predicted->step_time = Seconds(1);
  played.plan.goal.schedule = {"1f1b"};
  EXPECT_THAT(played.faults(), IsEmpty());
  played.plan.goal.schedule = {"interleaved"};
  played.plan.stages.clear();
  EXPECT_THAT(played.faults(), IsEmpty());
}

TEST(FaultsOfPlayed, NamesEachClaimThatIsChanged)
{
  const Played sound;
  const auto faults_after = [&](const std::function<void(Plan&)>& change) {
    Played changed;
    change(changed.plan);
    return changed.faults();
  };
  const double step = sound.plan.objective->value;
  const std::string here = " on this platform and workload";
  EXPECT_THAT(faults_after([](Plan& plan) { plan.objective.reset(); }),
              ElementsAre(fmt::format("objective_s: missing; it is {:.9g}{}", step, here)));
  EXPECT_THAT(faults_after([](Plan& plan) { plan.predicted->step_time = Seconds(1); }),
              ElementsAre(fmt::format("predicted.step_time_s: claims 1; it is {}{}", step, here)));
  EXPECT_THAT(faults_after([](Plan& plan) { plan.step_bound = Seconds(1); }),
              ElementsAre(fmt::format("step_bound_s: claims 1; it is {}{}", sound.plan.step_bound->value, here)));
  EXPECT_THAT(faults_after([](Plan& plan) { plan.predicted->step_time_by = StepTimeBy::Recurrence; }),
              ElementsAre("predicted.step_time_by: recurrence; a step under schedule 1f1b(warm_up=1/0) is played"));
  EXPECT_THAT(faults_after([](Plan& plan) { plan.predicted->bottleneck = Seconds(1); }),
              ElementsAre(fmt::format("predicted.bottleneck_s: claims 1; it is {}{}",
                                      sound.plan.predicted->bottleneck.value, here)));
  EXPECT_THAT(faults_after([](Plan& plan) { plan.predicted->sequential = Seconds(1); }),
              ElementsAre(fmt::format("predicted.sequential_s: claims 1; it is {}{}",
                                      sound.plan.predicted->sequential.value, here)));
  EXPECT_THAT(faults_after([](Plan& plan) { plan.predicted->pipeline = Seconds(1); }),
              ElementsAre(fmt::format("predicted.pipeline_s: claims 1; it is {}{}",
                                      sound.plan.predicted->pipeline->value, here)));
  const double memory = sound.plan.predicted->peak_memory.at("d0").value;
  EXPECT_THAT(faults_after([](Plan& plan) { plan.predicted->peak_memory["d0"] = Bytes(1); }),
              ElementsAre(fmt::format("predicted.peak_memory_bytes.d0: claims 1; it is {}", memory)));
  EXPECT_THAT(faults_after([](Plan& plan) { plan.predicted->peak_memory["d2"] = Bytes(1); }),
              ElementsAre("predicted.peak_memory_bytes: 3 names; the plan uses 2"));
  EXPECT_THAT(faults_after([&](Plan& plan) { plan.objective_bound = Seconds(step + 1); }),
              ElementsAre(fmt::format("objective_bound_s: {} is above objective_s {}; a lower bound cannot be",
                                      step + 1, step)));
  EXPECT_THAT(faults_after([](Plan& plan) { plan.outcome = Outcome::Optimal; }),
              ElementsAre(fmt::format("outcome: optimal, but the bound 0 leaves a gap to the objective {}; write "
                                      "feasible",
                                      step)));
  EXPECT_THAT(faults_after([](Plan& plan) { plan.predicted.reset(); }),
              ElementsAre("predicted: missing; a plan that is not infeasible predicts its times and memory"));
}

TEST(FaultsOfPlayed, RecomputesTheBoundOfAllOrdersBesideTheOtherClaims)
{
  Played played;
  // A way there of 2 s, then 6 s for each of two micro-batches, and a way back of 3 s.
  played.plan.schedule_bound = Seconds(17);
  EXPECT_THAT(played.faults(), IsEmpty());
  played.plan.schedule_bound = Seconds(16);
  played.plan.predicted->bottleneck = Seconds(1);
  EXPECT_THAT(played.faults(), ElementsAre("schedule_bound_s: claims 16; it is 17 on this platform and workload",
                                           testing::StartsWith("predicted.bottleneck_s: claims 1; it is ")));
  played.plan.schedule_bound = Seconds(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(played.faults(), Contains(testing::StartsWith("schedule_bound_s: claims nan")));
}

TEST(FaultsOfPlayed, NamesADeviceWithoutEnoughMemory)
{
  Played played;
  played.devices.devices[1].memory = Bytes(0.5 * played.plan.predicted->peak_memory.at("d1").value);
  const auto faults = played.faults();
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_THAT(faults.front(), testing::StartsWith("device d1: its stages need "));
  EXPECT_THAT(faults.front(), testing::HasSubstr(" GiB under schedule 1f1b(warm_up=1/0), and it has "));
}

TEST(FaultsOfPlayed, NamesAStageWhoseProgramHasOtherWorkThanItsLayers)
{
  Played played;
  for (const std::size_t position : {0U, 2U}) played.program.instruction(1, compute_lane, position).time = Seconds(3);
  EXPECT_THAT(
      played.faults(),
      ElementsAre("stages[1]: its program takes 3 s for the forward pass of a micro-batch; its layers take 2 s"));
}

/// Lets a plan claim the step that its program takes at these rates.
void claim_played_step(Played& played, const PlayerRates& rates)
{
  const Seconds step = play_program(played.program, rates).periods.front().step_time;
  played.plan.objective = played.plan.predicted->step_time = step;
}

TEST(FaultsOfPlayed, FindsAWrongWaitOfAProgramWhoseStepIsClaimed)
{
  Played sound;
  claim_played_step(sound, nominal_rates(sound.plan, sound.devices));
  EXPECT_THAT(sound.faults(), IsEmpty());
  for (const std::uint64_t position : {0U, 2U}) {
    Played wrong;
    wrong.program.instruction(1, compute_lane, position).waits = {};
    claim_played_step(wrong, nominal_rates(wrong.plan, wrong.devices));
    if (wrong.plan.objective == sound.plan.objective) continue;  // it has to wait for the passes before it anyway
    EXPECT_THAT(wrong.faults(), Contains(HasSubstr("predicted.step_time_s: claims "))) << position;
  }
  Played early;
  early.program.instruction(1, compute_lane, 0).waits = {};
  claim_played_step(early, nominal_rates(early.plan, early.devices));
  EXPECT_LT(*early.plan.objective, *sound.plan.objective);
}

TEST(FaultsOfPlayed, FindsAStepOfAPlayerThatIgnoresLatencies)
{
  Played played;
  PlayerRates rates = nominal_rates(played.plan, played.devices);
  rates.transfer = [exact = rates.transfer](std::size_t from, std::size_t to, Bytes size) {
    return TransferTimes{Seconds(0), exact(from, to, size).data};
  };
  claim_played_step(played, rates);
  EXPECT_THAT(played.faults(), Contains(HasSubstr("predicted.step_time_s: claims ")));
}

TEST(FaultsOfPlayed, CountsTheWeightGradientsOfASplitBackwardInItsBound)
{
  // One stage on one device: forward 2 s, gradient of the input 3 s, of the weights 1 s, and nothing to update.
  const Workload workload = chain({1, 1});
  const Cluster devices = cluster({1});
  const CostModel cost(workload, devices);
  Plan plan = testing_support::plan_of({{0, 0, 1}}, cost, Goal{.microbatches = 2});
  plan.goal.schedule = {"zero-bubble-h1"};
  plan.predicted->step_time_by = StepTimeBy::Played;
  EditableProgram program(1);
  for (const std::uint64_t microbatch : {0U, 1U}) {
    program.compute(0, Opcode::Forward, microbatch, 2);
    program.compute(0, Opcode::BackwardInput, microbatch, 3);
    program.compute(0, Opcode::BackwardWeight, microbatch, 1);
  }
  EXPECT_EQ(plan.objective, Seconds(12));
  EXPECT_EQ(plan.step_bound, Seconds(12));
  EXPECT_THAT(faults_of_played(plan, workload, devices, program), IsEmpty());
}

}  // namespace
}  // namespace isobar::played_checker_test
