#include "allocators/registry.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/model/models.hpp"
#include "core/plan/placed_shards.hpp"
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

constexpr auto why_one_layer =
    "; layer numbers are those of the chain of 1 that the graph can be cut into, since head uses the matrix of "
    "embedding";

TEST(TiedWorkload, HasAllItsLayersInOneStageOrNoPlanByEveryAllocator)
{
  std::set<std::string_view> planned;
  for (const Unit unit : {Unit::Block, Unit::Operator}) {
    const Workload workload = tied_gpt(unit);
    const Cluster devices = devices_of_memory({2e9, 3e9, 1e9}, {enough, enough, enough});
    for (const auto& allocator : allocators()) {
      if (allocator.uses_machines || allocator.divides_operators) continue;
      for (const auto objective : {Objective::Step, Objective::Bottleneck}) {
        if (objective != Objective::Step && allocator.propose != nullptr) continue;
        const Plan plan = allocate(allocator, workload, devices, Goal::with_defaults(objective), {});
        SCOPED_TRACE(allocator.name);
        EXPECT_THAT(faults_of_certificate(plan, workload, devices), IsEmpty());
        if (plan.stages.empty()) {
          EXPECT_THAT(plan.reason, HasSubstr(why_one_layer));
          continue;
        }
        planned.insert(allocator.name);
        EXPECT_EQ(plan.stages.size(), 1U);
        EXPECT_EQ(plan.stages.front().last_layer + 1, workload.layers.size());
        EXPECT_FALSE(has_shards(plan));
      }
    }
  }
  // The others use every device, or replicas that divide the micro-batches evenly.
  for (const auto* name : {"chain-dp", "even", "exact", "grid", "hybrid", "local-search"}) {
    EXPECT_TRUE(planned.contains(name)) << name;
  }
}

TEST(TiedWorkload, IsOnTheBestDeviceByExact)
{
  const Workload workload = tied_gpt();
  const Plan plan = allocate("exact", workload, devices_of_memory({2e9, 3e9, 4e9}, {enough, enough, too_little}),
                             Goal::with_defaults(Objective::Step), {});
  EXPECT_EQ(plan.outcome, Outcome::Optimal);
  EXPECT_EQ(plan.stages.front().device(), "d1") << "d2 is faster and lacks the memory";
}

TEST(TiedWorkload, IsInfeasibleWhereNoDeviceHoldsAll)
{
  const Workload workload = tied_gpt();
  const Cluster devices = devices_of_memory({2e9, 3e9}, {too_little, too_little});
  for (const auto& allocator : allocators()) {
    if (allocator.uses_machines || allocator.divides_operators) continue;
    const Plan plan = allocate(allocator, workload, devices, Goal::with_defaults(Objective::Step), {});
    EXPECT_EQ(plan.outcome, Outcome::Infeasible) << allocator.name;
    EXPECT_THAT(plan.reason, HasSubstr(why_one_layer)) << allocator.name;
  }
}

TEST(TiedWorkload, HasOneStageOrNoneUnderEverySchedule)
{
  const Workload workload = tied_gpt();
  const Cluster devices = devices_of_memory({2e9, 3e9}, {enough, enough});
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
    EXPECT_LE(plan.stages.size(), 1U) << schedule.name;
    EXPECT_EQ(plan.stages.empty(), !plan.reason.empty()) << schedule.name;
  }
}

}  // namespace
}  // namespace isobar::allocators::tied_test
