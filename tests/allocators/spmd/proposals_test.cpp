#include "allocators/spmd/proposals.hpp"

#include "allocators/registry.hpp"
#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"
#include "tests/support/divisions.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace isobar::allocators {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::HasSubstr;

Goal duplex(std::uint64_t microbatches)
{
  Goal goal = Goal::with_defaults(Objective::Step);
  goal.schedule = {.name = "duplex"};
  goal.microbatches = microbatches;
  return goal;
}

Cluster equal_devices(std::size_t count, double bandwidth)
{
  return cluster(std::vector<double>(count, 1e9), {Seconds(1e-5), BytesPerSecond(bandwidth)});
}

std::vector<double> shares_in(const Plan& plan)
{
  std::vector<double> shares;
  for (const auto& shard : plan.stages.front().replicas.front().shards) shares.push_back(shard.share);
  return shares;
}

TEST(Divisions, OfTheSearchTakeNoLongerThanDataParallelism)
{
  for (const auto& workload : small_moes()) {
    for (const double bandwidth : {1e6, 1e8, 1e10}) {
      for (const std::uint64_t microbatches : {1, 2}) {
        const Cluster devices = equal_devices(4, bandwidth);
        const Plan searched = allocate("spmd", workload, devices, duplex(microbatches), {});
        const Plan replicated = allocate("ddp", workload, devices, duplex(microbatches), {});
        ASSERT_EQ(searched.outcome, Outcome::Feasible);
        EXPECT_TRUE(divides_operators(searched));
        // The search adds up parts one after another; in a step some overlap.
        EXPECT_LE(searched.objective->value, replicated.objective->value * 1.01);
        EXPECT_LE(*searched.step_bound, *searched.objective);
      }
    }
  }
}

TEST(Divisions, OfUnequalDevicesAreNoWorseThanThoseByShares)
{
  for (const auto& workload : small_moes()) {
    for (const double bandwidth : {1e7, 1e9}) {
      const Cluster devices = cluster({4e9, 4e9, 1e9, 1e9}, {Seconds(1e-5), BytesPerSecond(bandwidth)});
      const double searched = allocate("spmd", workload, devices, duplex(1), {}).objective->value;
      for (const char* name : {"dp-ev", "dp-cp"}) {
        EXPECT_LE(searched, allocate(name, workload, devices, duplex(1), {}).objective->value * 1.01) << name;
      }
    }
  }
}

TEST(DataParallelism, DividesSamplesEvenlyOrBySpeed)
{
  const Workload workload = small_moes().front();
  const Cluster devices = cluster({3e9, 1e9}, {Seconds(1e-5), BytesPerSecond(1e9)});
  EXPECT_EQ(shares_in(allocate("dp-ev", workload, devices, duplex(1), {})), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(shares_in(allocate("ddp", workload, devices, duplex(1), {})), (std::vector<double>{0.5, 0.5}));
  EXPECT_EQ(shares_in(allocate("dp-cp", workload, devices, duplex(1), {})), (std::vector<double>{0.75, 0.25}));
  const Plan plan = allocate("ddp", workload, devices, duplex(1), {});
  const auto divided = operator_plan_of(plan, workload);
  for (const auto& reform : divided.reforms) {
    const bool is_replica = reform.from == isobar::spmd::replicate && reform.to == isobar::spmd::full;
    EXPECT_TRUE(is_replica) << divided.graph.tensors[reform.tensor].name;
  }
}

TEST(Divisions, NeedOperatorsAndDevicesWithTheirData)
{
  const Cluster devices = equal_devices(2, 1e9);
  const Workload blocks = small_moe("trunk: plain\nsequence: 12\ntop_k: 1\n");
  const Workload operators = small_moes().front();
  EXPECT_EQ(message_of([&] { allocate("spmd", blocks, devices, duplex(1), {}); }),
            "InputError unit: spmd divides operators; write unit: operator in a workload of model moe, or --set "
            "unit=operator");
  EXPECT_EQ(message_of([&] { allocate("chain-dp", operators, devices, Goal{}, {}); }),
            "InputError unit: operator, whose layers only ddp, dp-cp, dp-ev, spmd divide; leave it out for chain-dp");
  EXPECT_THAT(
      message_of([&] { allocate("chain-dp", blocks, devices, duplex(2), {}); }),
      HasSubstr("schedule: duplex is for devices that divide operators; use allocator ddp, dp-cp, dp-ev, spmd"));
}

}  // namespace
}  // namespace isobar::allocators
