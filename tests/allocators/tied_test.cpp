#include "allocators/registry.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/model/models.hpp"
#include "core/plan/tied_copies.hpp"
#include "schedules/orders/schedule.hpp"
#include "tests/support/instances.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>

/// Allocators on a workload whose head uses the embedding's matrix.
namespace isobar::allocators::tied_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::HasSubstr;
using testing::IsEmpty;

Workload tied_gpt(Unit unit = Unit::Block)
{
  Workload workload;
  workload.name = "gpt4";
  workload.sequence = 8;
  const GptSizes sizes{.layers = 4,
                       .hidden = 16,
                       .heads = 2,
                       .intermediate = 32,
                       .vocabulary = 40,
                       .positions = 8,
                       .unit = unit,
                       .tied = true};
  workload.model = sizes;
  build_gpt(sizes, workload);
  return workload;
}

/// Memory that holds the tied gpt with any number of its 8 micro-batches, and memory that does not hold its parameters.
constexpr double enough = 1e9;
constexpr double too_little = 1e3;

Cluster devices_of_memory(const std::vector<double>& speeds, const std::vector<double>& memory)
{
  Cluster devices = cluster(speeds, {Seconds(1e-3), BytesPerSecond(1e9)});
  for (std::size_t i = 0; i < memory.size(); ++i) devices.devices[i].memory = Bytes(memory[i]);
  return devices;
}

TEST(TiedWorkload, HasPlansOfEveryAllocatorThatTheCheckerAccepts)
{
  std::set<std::string_view> apart;  // allocators that place head and embedding on other devices
  for (const Unit unit : {Unit::Block, Unit::Operator}) {
    const Workload workload = tied_gpt(unit);
    const Cluster devices = devices_of_memory({2e9, 3e9, 1e9, 2e9}, {enough, enough, enough, enough});
    for (const auto& allocator : allocators()) {
      if (allocator.uses_machines || allocator.divides_operators) continue;
      for (const auto objective : {Objective::Step, Objective::Bottleneck}) {
        if (objective != Objective::Step && allocator.propose != nullptr) continue;
        const Plan plan = allocate(allocator, workload, devices, Goal::with_defaults(objective), {});
        SCOPED_TRACE(allocator.name);
        EXPECT_EQ(plan.stages.empty(), !plan.reason.empty());
        EXPECT_THAT(faults_of_certificate(plan, workload, devices), IsEmpty());
        if (needs_tied_copies(workload, plan)) apart.insert(allocator.name);
      }
    }
  }
  for (const auto* name : {"chain-dp", "even", "exact", "local-search", "sky-dynamic"}) {
    EXPECT_TRUE(apart.contains(name)) << name;
  }
}

TEST(TiedWorkload, IsPlayedWithTheSumThatTheObjectiveOfAChainLacks)
{
  Workload workload = tied_gpt();
  const Cluster devices = devices_of_memory({2e9, 2e9}, {enough, enough});
  const Plan plan = allocate("even", workload, devices, Goal::with_defaults(Objective::Step), {});
  ASSERT_EQ(plan.stages.size(), 2U);
  EXPECT_TRUE(is_chain(plan));
  EXPECT_EQ(plan.predicted->step_time_by, StepTimeBy::Played);
  EXPECT_GT(plan.predicted->step_time, *plan.objective);
  // As long as a ring of both takes: two messages of half of the matrix.
  const double sum = 2 * (1e-3 + 40 * 16 * 4 / 2 / 1e9);
  workload.layers.back().tied_to.reset();
  workload.layers.back().parameters += 40 * 16;
  const Plan untied = allocate("even", workload, devices, Goal::with_defaults(Objective::Step), {});
  EXPECT_NEAR(plan.predicted->step_time.value, untied.predicted->step_time.value + sum, 1e-9);
}

TEST(TiedWorkload, IsOnTheBestDeviceByExact)
{
  const Workload workload = tied_gpt();
  const Plan plan = allocate("exact", workload, devices_of_memory({2e9, 3e9, 4e9}, {enough, enough, too_little}),
                             Goal::with_defaults(Objective::Step), {});
  EXPECT_EQ(plan.outcome, Outcome::Optimal);
  EXPECT_EQ(plan.stages.front().device(), "d1") << "d2 is faster and lacks the memory";
}

TEST(TiedWorkload, HasBoundsThatCertificatesProve)
{
  const Workload workload = tied_gpt();
  std::size_t plans = 0;
  for (const double memory : {6e4, 1e5, 1.5e5, 2e5, 3e5, enough}) {
    const Cluster cluster = devices_of_memory({2e9, 3e9, 4e9}, {memory, memory, 0.9 * memory});
    for (const char* allocator : {"exact", "chain-dp", "local-search", "hybrid", "even"}) {
      for (const Objective objective : {Objective::Step, Objective::Bottleneck, Objective::Sequential}) {
        if (std::string(allocator) == "hybrid" && objective != Objective::Step) continue;
        const Plan plan = allocate(allocator, workload, cluster, Goal::with_defaults(objective), {});
        if (plan.stages.empty()) continue;
        ++plans;
        EXPECT_THAT(faults_of_certificate(plan, workload, cluster), IsEmpty())
            << allocator << ", " << name_of(objective) << ", " << memory;
      }
    }
  }
  EXPECT_GT(plans, 10U);
}

TEST(TiedWorkload, IsDividedWhereNoDeviceHoldsAll)
{
  const Workload workload = tied_gpt();
  const Plan whole =
      allocate("exact", workload, devices_of_memory({2e9}, {enough}), Goal::with_defaults(Objective::Step), {});
  const double all = whole.predicted->peak_memory.begin()->second.value;
  const Cluster smaller = devices_of_memory({2e9, 2e9}, {0.8 * all, 0.8 * all});
  for (const auto* name : {"chain-dp", "exact", "local-search", "hybrid", "grid"}) {
    const Plan plan = allocate(name, workload, smaller, Goal::with_defaults(Objective::Step), {});
    EXPECT_GT(plan.stages.size(), 1U) << name << ": " << plan.reason;
  }
  const Cluster tiny = devices_of_memory({2e9, 3e9}, {too_little, too_little});
  for (const auto& allocator : allocators()) {
    if (allocator.uses_machines || allocator.divides_operators) continue;
    const Plan plan = allocate(allocator, workload, tiny, Goal::with_defaults(Objective::Step), {});
    EXPECT_EQ(plan.outcome, Outcome::Infeasible) << allocator.name;
  }
}

TEST(TiedWorkload, HasPlansUnderEverySchedule)
{
  const Workload workload = tied_gpt();
  const Cluster devices = devices_of_memory({2e9, 2e9}, {enough, enough});
  for (const auto& schedule : schedules::schedules()) {
    if (schedule.name == "listed") continue;
    Goal goal = Goal::with_defaults(Objective::Step);
    goal.schedule = {std::string(schedule.name), {}, {}};
    Plan plan;
    try {
      plan = allocate("chain-dp", workload, devices, goal, {});
    } catch (const InputError& fault) {
      EXPECT_THAT(fault.what(), HasSubstr("schedule")) << schedule.name;
      continue;
    }
    EXPECT_EQ(plan.stages.empty(), !plan.reason.empty()) << schedule.name;
  }
}

TEST(TiedWorkload, HasEqualEndsInPlansWithReplicasAndShards)
{
  const Workload workload = tied_gpt(Unit::Operator);
  for (const auto& speeds : {std::vector<double>(8, 1e9), {4e9, 1e9, 1e9, 1e9, 2e9, 2e9}, {3e9, 1e9, 1e9}}) {
    const Cluster devices = devices_of_memory(speeds, std::vector<double>(speeds.size(), 2.5e5));
    for (const auto* name : {"hybrid", "grid", "amp", "metis", "dtfm"}) {
      SearchLimits limits;
      limits.candidates = 6;
      for (const Plan& plan :
           allocate_candidates(name, workload, devices, Goal::with_defaults(Objective::Step), limits)) {
        EXPECT_FALSE(fault_of_ties(workload, plan)) << name;
      }
    }
  }
}

}  // namespace
}  // namespace isobar::allocators::tied_test
