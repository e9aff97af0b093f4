#include "allocators/registry.hpp"
#include "allocators/search_clock.hpp"
#include "allocators/tiers/window.hpp"
#include "allocators/tiers/window_costs.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/check/plan_checker.hpp"
#include "core/check/played_checker.hpp"
#include "core/check/program_checker.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/plan/placed_shards.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/machines.hpp"
#include "tests/support/thrown_message.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace isobar::allocators::offload_test {
namespace {

using testing_support::cluster_with_machines;
using testing_support::MachineNumbers;
using testing_support::PassingLayer;
using testing_support::workload_of_layers;

Goal gpipe(std::uint64_t microbatches)
{
  Goal goal;
  goal.schedule = choice_of(ChainSchedule::GPipe);
  goal.microbatches = microbatches;
  return goal;
}

SearchLimits offloading()
{
  SearchLimits limits;
  limits.offload = true;
  return limits;
}

/// A device that holds `layers` layers of 1,600 bytes. At speed 1 a forward takes 1 s and an update 0.12 s; on the
/// machine it takes 1.2 s.
MachineNumbers holding(double layers, double speed = 1)
{
  return {.device_speed = 10'000 * speed,
          .device_memory = 1'600 * layers,
          .in = 500,
          .out = 500,
          .update_speed = 1'000,
          .busy_update_speed = 1'000};
}

Workload recomputed(std::size_t layers)
{
  return workload_of_layers(std::vector<PassingLayer>(layers, {.forward = 10'000, .backward = 20'000}));
}

std::vector<std::string> all_faults(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  auto faults = faults_of(plan, workload, cluster);
  if (!faults.empty()) return faults;
  const auto program = schedules::make_program(plan, workload, cluster);
  faults = faults_of(*program);
  if (faults.empty()) faults = faults_of_played(plan, workload, cluster, *program);
  if (faults.empty()) faults = faults_of_certificate(plan, workload, cluster);
  return faults;
}

TEST(Offload, PlacesPipelinesOfStagesThatTheirDevicesDoNotHold)
{
  const Workload workload = recomputed(16);
  const Cluster cluster = cluster_with_machines({holding(4), holding(4, 2)}, {Seconds(0), BytesPerSecond(1e9)});
  for (const char* allocator : {"exact", "hybrid"}) {
    SCOPED_TRACE(allocator);
    EXPECT_TRUE(allocate(allocator, workload, cluster, gpipe(4), {}).stages.empty());
    const Plan plan = allocate(allocator, workload, cluster, gpipe(4), offloading());
    ASSERT_FALSE(plan.stages.empty()) << plan.reason;
    EXPECT_TRUE(uses_machines(plan));
    EXPECT_EQ(devices_of(plan).size(), 2U);
    EXPECT_EQ(all_faults(plan, workload, cluster), std::vector<std::string>{});
    EXPECT_EQ(plan.certificate.kind, CertificateKind::Window);
    // A third of the work is on the slow device, and steps of 4 micro-batches leave it idle at their ends.
    EXPECT_LT(plan.objective->value, 4 * 48 / 1.5);
    EXPECT_GE(plan.objective->value, 4 * 48 / 3.0);
  }
}

TEST(Offload, GivesReplicasOfAStageTheSamePlaces)
{
  const Workload workload = recomputed(8);
  const MachineNumbers small = holding(4);
  const MachineNumbers large = holding(5);
  // A pipeline would wait for its link.
  const Cluster cluster = cluster_with_machines({small, large}, {Seconds(0), BytesPerSecond(1e9)});
  SearchLimits limits = offloading();
  limits.candidates = 8;
  bool has_replicas_that_pass = false;
  for (const Plan& plan : allocate_candidates("hybrid", workload, cluster, gpipe(8), limits)) {
    EXPECT_EQ(all_faults(plan, workload, cluster), std::vector<std::string>{});
    has_replicas_that_pass = has_replicas_that_pass || (has_replicas(plan) && uses_machines(plan));
  }
  EXPECT_TRUE(has_replicas_that_pass);
}

TEST(Offload, LeavesPlansAloneThatAreFasterWithout)
{
  const Workload workload = recomputed(8);
  const Cluster cluster = cluster_with_machines({holding(10), holding(10)}, {Seconds(0), BytesPerSecond(1e9)});
  const Plan without = allocate("exact", workload, cluster, gpipe(4), {});
  const Plan with = allocate("exact", workload, cluster, gpipe(4), offloading());
  EXPECT_EQ(with.objective, without.objective);
  EXPECT_FALSE(uses_machines(with));
}

/// The least step of two stages with any cut, in either order, each with the best window of its own.
std::optional<Seconds> least_of_all_cuts(const Workload& workload, const Cluster& cluster, const Goal& goal)
{
  std::optional<Seconds> least;
  SearchLimits limits = offloading();
  for (const std::size_t first : {0U, 1U}) {
    for (std::size_t cut = 3; cut + 3 <= workload.layers.size(); ++cut) {
      Plan plan;
      plan.goal = goal;
      plan.recompute = workload.recompute;
      for (const auto& [device, begin, end] :
           {std::tuple(first, std::size_t{0}, cut), std::tuple(1 - first, cut, workload.layers.size())}) {
        Workload part = workload;
        part.layers.assign(workload.layers.begin() + static_cast<std::ptrdiff_t>(begin),
                           workload.layers.begin() + static_cast<std::ptrdiff_t>(end));
        part.recompute.clear();
        for (std::size_t i = 0; i < part.layers.size(); ++i) {
          part.layers[i].inputs.clear();
          if (i > 0) part.layers[i].inputs = {i - 1};
        }
        const WindowCosts costs(part, cluster, device, goal.microbatches, "");
        SearchClock clock(limits);
        const auto shape = best_window(costs, clock);
        if (!shape) break;
        for (auto& stage : costs.stages_of(*shape)) {
          stage.first_layer += begin;
          stage.last_layer += begin;
          plan.stages.push_back(stage);
        }
      }
      if (plan.stages.empty() || plan.stages.back().last_layer + 1 != workload.layers.size()) continue;
      const auto program = schedules::make_program(plan, workload, cluster);
      const auto counted = counted_step(plan);
      const auto played = play_program(*program, nominal_rates(plan, cluster), counted.played());
      const Seconds step = played.periods[counted.before].step_time;
      if (!least || step < *least) least = step;
    }
  }
  return least;
}

TEST(Offload, IsCloseToTheBestCutOfTwoStages)
{
  const Workload workload = recomputed(12);
  for (const double speed : {1.0, 1.7, 4.0}) {
    for (const double held : {3.0, 5.0}) {
      SCOPED_TRACE(testing::Message() << speed << " " << held);
      const Cluster cluster =
          cluster_with_machines({holding(held), holding(4, speed)}, {Seconds(0), BytesPerSecond(1e9)});
      const auto least = least_of_all_cuts(workload, cluster, gpipe(4));
      const Plan plan = allocate("exact", workload, cluster, gpipe(4), offloading());
      ASSERT_TRUE(least);
      ASSERT_FALSE(plan.stages.empty()) << plan.reason;
      EXPECT_LE(plan.objective->value, least->value * 1.02);
    }
  }
}

TEST(Offload, NamesWhatItNeeds)
{
  const Workload workload = recomputed(8);
  Cluster cluster = cluster_with_machines({holding(3), holding(3)});
  cluster.devices[0].machine.reset();
  cluster.devices[1].machine.reset();
  const Plan plan = allocate("exact", workload, cluster, gpipe(1), offloading());
  EXPECT_EQ(plan.outcome, Outcome::Infeasible);
  EXPECT_EQ(plan.reason, "no device of platform machines has a machine; give devices the prop host");
  cluster = cluster_with_machines({holding(3)});
  Goal goal = gpipe(4);
  goal.schedule = choice_of(ChainSchedule::OneForwardOneBackward);
  EXPECT_EQ(message_of([&] { allocate("exact", workload, cluster, goal, offloading()); }),
            "InputError schedule: 1f1b passes layers once for each of 4 micro-batches; use gpipe, which lets --offload "
            "auto pass them once a step");
  goal.schedule.name = "zero-bubble-h1";
  goal.microbatches = 1;
  for (const char* allocator : {"exact", "hybrid"}) {
    EXPECT_EQ(
        message_of([&] { allocate(allocator, workload, cluster, goal, offloading()); }),
        "InputError schedule: zero-bubble-h1 passes layers once for each half of a backward pass; use gpipe, which "
        "lets --offload auto pass them once a step");
  }
  EXPECT_EQ(message_of([&] { allocate("zero-offload", workload, cluster, goal, {}); }),
            "InputError schedule: zero-bubble-h1 passes layers once for each half of a backward pass; use gpipe, which "
            "lets zero-offload pass them once a step");
  EXPECT_EQ(message_of([&] {
              allocate("exact", workload, cluster, Goal::with_defaults(Objective::Bottleneck), offloading());
            }),
            "InputError --offload: auto is for objective step, not for bottleneck, which counts no copies and updates");
}

}  // namespace
}  // namespace isobar::allocators::offload_test
