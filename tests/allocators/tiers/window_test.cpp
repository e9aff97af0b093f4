#include "allocators/tiers/window.hpp"

#include "allocators/registry.hpp"
#include "allocators/tiers/window_costs.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/check/plan_checker.hpp"
#include "core/check/played_checker.hpp"
#include "core/check/program_checker.hpp"
#include "core/costs/nominal_rates.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/machines.hpp"
#include "tests/support/thrown_message.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace isobar::allocators::window_test {
namespace {

using testing_support::cluster_with_machine;
using testing_support::MachineNumbers;
using testing_support::PassingLayer;
using testing_support::workload_of_layers;

Goal goal_of(std::uint64_t microbatches)
{
  Goal goal;
  goal.schedule = choice_of(ChainSchedule::GPipe);
  goal.microbatches = microbatches;
  return goal;
}

class RandomCases {
 public:
  explicit RandomCases(unsigned seed) : random_(seed) {}

  double real(double least, double most) { return std::uniform_real_distribution<double>(least, most)(random_); }
  std::size_t count(std::size_t least, std::size_t most)
  {
    return std::uniform_int_distribution<std::size_t>(least, most)(random_);
  }
  bool coin() { return count(0, 1) == 1; }

  Workload workload(std::size_t blocks, bool are_equal)
  {
    std::vector<PassingLayer> layers(blocks + 2);
    const PassingLayer block = layer();
    for (auto& each : layers) each = are_equal ? block : layer();
    layers.front().parameters = layers.back().parameters = count(0, 50);
    Workload workload = workload_of_layers(layers);
    if (coin()) workload.training.clip_norm = 1;
    return workload;
  }

  MachineNumbers machine()
  {
    MachineNumbers numbers;
    numbers.in = real(50, 1'000);
    numbers.out = real(50, 1'000);
    numbers.latency = coin() ? 0 : real(0, 0.3);
    numbers.update_speed = real(100, 3'000);
    numbers.busy_update_speed = coin() ? numbers.update_speed : numbers.update_speed * real(0.3, 1);
    numbers.disk = Disk{"nvme0", Bytes(1e12), BytesPerSecond(real(100, 2'000)), BytesPerSecond(real(100, 2'000))};
    return numbers;
  }

  WindowShape shape(std::size_t layers)
  {
    WindowShape shape;
    shape.is_resident.assign(layers, true);
    for (std::size_t i = 1; i + 1 < layers; ++i) shape.is_resident[i] = coin();
    shape.is_resident[1 + count(0, layers - 3)] = false;
    shape.parameter_slots = count(1, shape.windowed());
    shape.gradient_slots = count(1, shape.windowed());
    shape.overlap = static_cast<UpdateOverlap>(count(0, 2));
    shape.stores_activations = coin();
    if (coin()) shape.spilled = count(0, shape.windowed());
    return shape;
  }

 private:
  PassingLayer layer()
  {
    return {.forward = real(0.2, 2), .backward = real(0.2, 4), .parameters = count(20, 200), .activations = real(0, 9)};
  }

  std::mt19937 random_;
};

/// The workload as a profile makes it: with updates that took 3 ms a parameter on a device of 1 FLOP/s.
Workload with_measured_updates(Workload workload)
{
  for (auto& layer : workload.layers) layer.update = Flops(3e-3 * static_cast<double>(layer.parameters));
  return workload;
}

Plan plan_with(const WindowCosts& costs, const WindowShape& shape, const Workload& workload, const Goal& goal)
{
  Plan plan;
  plan.goal = goal;
  plan.stages = costs.stages_of(shape);
  plan.recompute = workload.recompute;
  return plan;
}

TEST(WindowCosts, TakeTheStepAndTheMemoryOfTheirProgram)
{
  RandomCases random(1);
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE(i);
    Workload workload = random.workload(random.count(1, 7), random.coin());
    if (i % 2 == 1) workload = with_measured_updates(workload);
    const Cluster cluster = cluster_with_machine(random.machine());
    const Goal goal = goal_of(random.count(1, 4));
    const WindowCosts costs(workload, cluster, 0, goal.microbatches, "");
    const WindowShape shape = random.shape(workload.layers.size());
    const Plan plan = plan_with(costs, shape, workload, goal);
    ASSERT_EQ(faults_of(plan, workload, cluster), std::vector<std::string>{});
    const auto program = schedules::make_program(plan, workload, cluster);
    ASSERT_EQ(faults_of(*program), std::vector<std::string>{});
    const auto played = play_program(*program, nominal_rates(plan, cluster), counted_step(plan).played());
    const double step = played.periods[counted_step(plan).before].step_time.value;
    if (shape.spilled > 0) {  // reads and writes share the disk
      EXPECT_LE(costs.step_of(shape).value, step * (1 + 1e-9));
    } else {
      EXPECT_NEAR(costs.step_of(shape).value, step, 1e-9 * step);
    }
    const WindowMemory memory = costs.memory_of(shape);
    const auto& peak = played.peak_memory.front();
    if (shape.stores_activations) {
      EXPECT_GE(memory.device.value, peak[0].value * (1 - 1e-9));
    } else {
      EXPECT_NEAR(memory.device.value, peak[0].value, 1e-9 * peak[0].value);
    }
    EXPECT_NEAR(memory.host.value, peak[1].value, 1e-9 * peak[1].value);
    EXPECT_NEAR(memory.disk.value, peak[2].value, 1e-9 * peak[2].value);
  }
}

TEST(WindowCosts, MayFitWhereAShapeDoes)
{
  RandomCases random(3);
  std::size_t fitting = 0;
  std::size_t excluded = 0;
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE(i);
    const Workload workload = random.workload(random.count(1, 7), random.coin());
    Cluster cluster = cluster_with_machine(random.machine());
    cluster.devices[0].memory = Bytes(random.real(1'000, 15'000));
    cluster.machines[0].memory = Bytes(random.real(0, 10'000));
    if (random.coin()) cluster.machines[0].disk.reset();
    const WindowCosts costs(workload, cluster, 0, random.count(1, 3), "");
    WindowShape shape = random.shape(workload.layers.size());
    if (!cluster.machines[0].disk) shape.spilled = 0;
    const std::size_t resident = workload.layers.size() - 2 - shape.windowed();
    const WindowMemory memory = costs.memory_of(shape);
    excluded += costs.may_fit(resident) ? 0 : 1;
    if (memory.device > cluster.devices[0].memory) continue;
    EXPECT_TRUE(costs.device_may_hold(resident));
    if (memory.host > cluster.machines[0].memory) continue;
    if (cluster.machines[0].disk && memory.disk > cluster.machines[0].disk->capacity) continue;
    ++fitting;
    EXPECT_TRUE(costs.may_fit(resident));
  }
  EXPECT_GT(fitting, 10U);
  EXPECT_GT(excluded, 10U);
}

TEST(WindowCosts, AreNoLargerWithMorePlacesAtOneRateOfUpdates)
{
  RandomCases random(2);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const Workload workload = random.workload(random.count(2, 8), false);
    MachineNumbers numbers = random.machine();
    numbers.busy_update_speed = numbers.update_speed;
    const Cluster cluster = cluster_with_machine(numbers);
    const WindowCosts costs(workload, cluster, 0, random.count(1, 3), "");
    WindowShape shape = random.shape(workload.layers.size());
    const double step = costs.step_of(shape).value;
    ++(random.coin() ? shape.parameter_slots : shape.gradient_slots);
    EXPECT_LE(costs.step_of(shape).value, step * (1 + 1e-12));
  }
}

/// The least step of any set of resident layers and any places that fit.
double least_step_of_all(const WindowCosts& costs)
{
  const std::size_t blocks = costs.layers() - 2;
  double least = std::numeric_limits<double>::infinity();
  const auto try_shape = [&](const WindowShape& shape) {
    const WindowMemory memory = costs.memory_of(shape);
    if (memory.device > costs.device().memory || memory.host > costs.machine().memory) return;
    least = std::min(least, costs.step_of(shape).value);
  };
  for (std::size_t set = 0; set < std::size_t{2} << blocks; ++set) {
    WindowShape shape;
    shape.stores_activations = (set >> blocks) != 0;
    shape.is_resident.assign(costs.layers(), true);
    for (std::size_t i = 0; i < blocks; ++i) shape.is_resident[1 + i] = ((set >> i) & 1) != 0;
    const std::size_t windowed = shape.windowed();
    if (windowed == 0) {
      try_shape(shape);
      continue;
    }
    for (const auto overlap : {UpdateOverlap::Step, UpdateOverlap::NextForward}) {
      shape.overlap = overlap;
      for (shape.parameter_slots = 1; shape.parameter_slots <= windowed; ++shape.parameter_slots) {
        for (shape.gradient_slots = 1; shape.gradient_slots <= windowed; ++shape.gradient_slots) try_shape(shape);
      }
    }
  }
  return least;
}

/// Checks plans of models of equal layers: their steps are within 1 % of the least of all sets of resident layers, and
/// their bounds are not above it.
void expect_steps_near_the_least(bool are_updates_measured)
{
  RandomCases random(3);
  int found = 0;
  for (int i = 0; i < 60; ++i) {
    SCOPED_TRACE(i);
    const std::size_t blocks = i % 20 == 0 ? 9 : random.count(1, 6);
    Workload workload = random.workload(blocks, true);
    if (are_updates_measured) workload = with_measured_updates(workload);
    MachineNumbers numbers = random.machine();
    const double all = 16.0 * static_cast<double>(workload.layers[1].parameters) * static_cast<double>(blocks);
    numbers.device_memory = all * random.real(0.2, 1.2) + 2'000;
    numbers.host_memory = random.coin() ? 1e12 : all * random.real(0.5, 1.5);
    if (numbers.host_memory < 1e12) numbers.disk.reset();
    const Cluster cluster = cluster_with_machine(numbers);
    const Goal goal = goal_of(random.count(1, 3));
    const Plan plan = allocate("window", workload, cluster, goal, {});
    const double least = least_step_of_all(WindowCosts(workload, cluster, 0, goal.microbatches, ""));
    if (plan.stages.empty()) {
      EXPECT_EQ(least, std::numeric_limits<double>::infinity()) << plan.reason;
      continue;
    }
    ++found;
    EXPECT_LE(plan.objective->value, least * 1.01);
    if (is_chain(plan)) continue;  // everything fits on the device
    EXPECT_LE(plan.objective_bound->value, least * (1 + 1e-9));
    EXPECT_LE(plan.step_bound->value, plan.objective->value * (1 + 1e-9));
    EXPECT_EQ(faults_of_certificate(plan, workload, cluster), std::vector<std::string>{});
    Plan forged = plan;
    forged.objective_bound = *plan.objective_bound * 1.001;
    if (*forged.objective_bound <= *plan.objective) {
      EXPECT_EQ(faults_of_certificate(forged, workload, cluster).size(), 1U);
    }
  }
  EXPECT_GE(found, 30);
}

TEST(Window, IsWithinOnePercentOfAllSetsOfEqualLayersAndNotBelowItsBound)
{
  expect_steps_near_the_least(false);
}

TEST(Window, IsWithinOnePercentOfTheseWhereADeviceUpdatesAsFastAsAProfileSays)
{
  expect_steps_near_the_least(true);
}

TEST(Window, SaysWhichMemoryIsTooSmall)
{
  const Workload workload = workload_of_layers(std::vector<PassingLayer>(6));
  const auto reason = [&](const MachineNumbers& numbers) {
    return allocate("window", workload, cluster_with_machine(numbers), goal_of(1), {}).reason;
  };
  EXPECT_EQ(reason({.device_memory = 3'999}),
            "device gpu0: at least 3.91 KiB is needed and it has 3.91 KiB; 1 B more there would be enough");
  EXPECT_EQ(
      reason({.device_memory = 4'000, .host_memory = 5'000}),
      "host node0: at least 5.86 KiB is needed and it has 4.88 KiB; 1000 B more there would be enough, as would a "
      "disk with a capacity for the optimizer's states");
}

TEST(Window, NeedsOnePassOfEachLayerAndRecomputation)
{
  Workload workload = workload_of_layers(std::vector<PassingLayer>(4));
  const Cluster cluster = cluster_with_machine({});
  Goal goal = goal_of(8);
  goal.schedule = choice_of(ChainSchedule::OneForwardOneBackward);
  EXPECT_EQ(message_of([&] { allocate("window", workload, cluster, goal, {}); }),
            "InputError schedule: 1f1b passes layers once for each of 8 micro-batches; use gpipe, which lets window "
            "pass them once "
            "a step");
  workload.recompute = {1};
  EXPECT_EQ(message_of([&] { allocate("window", workload, cluster, goal_of(1), {}); }),
            "InputError recompute: layer 2 keeps its activations; those that pass through the device with window "
            "recompute them: "
            "use --recompute all");
}

TEST(Window, PlansAThousandLayers)
{
  const PassingLayer layer = {.forward = 20'000, .backward = 40'000};
  const Workload workload = workload_of_layers(std::vector<PassingLayer>(1'002, layer));
  MachineNumbers numbers;
  numbers.device_speed = 20'000;
  numbers.device_memory = 16.0 * 100 * 300;
  numbers.update_speed = 600;
  numbers.in = numbers.out = 500;
  const Plan plan = allocate("window", workload, cluster_with_machine(numbers), goal_of(1), {});
  ASSERT_FALSE(plan.stages.empty());
  EXPECT_GE(plan.objective_bound->value, 0.95 * plan.objective->value);
}

}  // namespace
}  // namespace isobar::allocators::window_test
