#include "allocators/spmd/proposals.hpp"

#include "allocators/registry.hpp"
#include "allocators/spmd/spmd_plan.hpp"
#include "core/check/operator_checker.hpp"
#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/support/divisions.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

namespace isobar::allocators::proposals_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using spmd::find_spmd_plan;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
  std::size_t with_buckets = 0;
  std::size_t without = 0;
  for (const auto& workload : moes_by_operators()) {
    for (const double bandwidth : {1e6, 1e8, 1e10}) {
      for (const std::uint64_t microbatches : {1, 2}) {
        const Cluster devices = equal_devices(4, bandwidth);
        const Plan searched = allocate("spmd", workload, devices, duplex(microbatches), {});
        ASSERT_EQ(searched.outcome, Outcome::Feasible);
        EXPECT_TRUE(divides_operators(searched));
        // The search adds up parts one after another; in a step some overlap.
        const Plan each = allocate("dp-ev", workload, devices, duplex(microbatches), {});
        EXPECT_LE(searched.objective->value, each.objective->value * 1.01);
        EXPECT_LE(*searched.objective, *allocate("ddp", workload, devices, duplex(microbatches), {}).objective);
        EXPECT_LE(*searched.step_bound, *searched.objective);
        ++(searched.sync.bucket_ends.empty() ? without : with_buckets);
      }
    }
  }
  EXPECT_GT(with_buckets, 0U);
  EXPECT_GT(without, 0U);
}

TEST(Divisions, OfUnequalDevicesAreNoWorseThanThoseByShares)
{
  for (const auto& workload : moes_by_operators()) {
    for (const double bandwidth : {1e7, 1e9}) {
      const Cluster devices = cluster({4e9, 4e9, 1e9, 1e9}, {Seconds(1e-5), BytesPerSecond(bandwidth)});
      const double searched = allocate("spmd", workload, devices, duplex(1), {}).objective->value;
      for (const char* name : {"dp-ev", "dp-cp"}) {
        EXPECT_LE(searched, allocate(name, workload, devices, duplex(1), {}).objective->value * 1.01) << name;
      }
      for (const ShareRule rule : {ShareRule::Even, ShareRule::Speed}) {
        SearchLimits limits;
        limits.shares = rule;
        EXPECT_LE(searched, allocate("spmd", workload, devices, duplex(1), limits).objective->value) << name_of(rule);
      }
    }
  }
}

/// Rates of type "gpu" with launches, efficiencies and traffic that matter to small operators.
Workload at_rates(Workload workload)
{
  workload.operator_rates["gpu"] = {
      FlopsPerSecond(2e9), BytesPerSecond(4e8), Seconds(1e-6), {{Flops(1e3), 0.25}, {Flops(1e5), 0.75}}};
  return workload;
}

Cluster of_type_gpu(Cluster devices)
{
  for (auto& device : devices.devices) device.type = "gpu";
  return devices;
}

/// The cost by the search's formula of the division of all devices.
double cost_of_search(const Workload& workload, const Cluster& devices, std::uint64_t microbatches)
{
  const auto graph = isobar::spmd::make_operator_graph(std::get<isobar::spmd::MoeSizes>(workload.model),
                                                       microbatches * workload.micro_batch, 4);
  std::vector<std::size_t> all(devices.devices.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return find_spmd_plan(graph, workload, devices, all, {.microbatches = {microbatches}}).value().cost.value;
}

TEST(Divisions, AreSearchedPlayedAndCheckedAtTheRatesOfTheirDevices)
{
  for (const auto& plain : moes_by_operators()) {
    const Workload workload = at_rates(plain);
    for (const std::size_t count : {1, 2, 4}) {
      for (const double interference : {1.0, 1.14}) {
        Cluster devices = of_type_gpu(equal_devices(count, 1e9));
        for (auto& device : devices.devices) {
          device.interference = interference;
          device.collective_start = Seconds(1e-4 * (interference - 1));
        }
        const Plan plan = allocate("spmd", workload, devices, duplex(2), {});
        const auto program = schedules::make_program(plan, workload, devices);
        EXPECT_THAT(faults_of_operators(plan, workload, devices, *program), IsEmpty());
        const double cost = cost_of_search(workload, devices, 2);
        EXPECT_LE(plan.objective->value, cost * (1 + 1e-9));
        if (count == 1) {
          EXPECT_NEAR(plan.objective->value, cost, 1e-9 * cost);
        }
        EXPECT_GT(plan.objective->value, 1.1 * allocate("spmd", plain, devices, duplex(2), {}).objective->value);
        for (const char* name : {"ddp", "dp-cp"}) {
          const Plan baseline = allocate(name, workload, devices, duplex(1), {});
          const auto its = schedules::make_program(baseline, workload, devices);
          EXPECT_THAT(faults_of_operators(baseline, workload, devices, *its), IsEmpty()) << name;
        }
      }
    }
  }
}

TEST(Divisions, TakeTheCostOfTheSearchWhereCollectivesTakeNoTime)
{
  for (const auto& plain : moes_by_operators()) {
    const Workload workload = at_rates(plain);
    for (const std::size_t count : {1, 2}) {
      for (const std::uint64_t microbatches : {1, 2, 4}) {
        const Cluster devices =
            of_type_gpu(cluster(std::vector<double>(count, 1e9), {Seconds(0), BytesPerSecond(1e25)}));
        const double step = allocate("spmd", workload, devices, duplex(microbatches), {}).objective->value;
        EXPECT_NEAR(step, cost_of_search(workload, devices, microbatches), 1e-9 * step);
      }
    }
  }
}

/// Two sites of two devices, with paths of 10 µs and 1 GB/s within them, and of `between` bytes/s and a latency between
/// them, where flows share a link in each direction.
Cluster two_sites(double between, double latency = 1e-5)
{
  class TwoSites : public Network {
   public:
    TwoSites(double between, double latency) : between_(between), latency_(latency) {}

    Path path(std::size_t from, std::size_t to) const override
    {
      const bool is_near = from / 2 == to / 2;
      return {is_near ? Seconds(1e-5) : latency_, is_near ? BytesPerSecond(1e9) : between_};
    }
    std::vector<std::string> links(std::size_t, std::size_t) const override { return {}; }
    std::vector<SharedLink> shared_links(std::size_t from, std::size_t to) const override
    {
      if (from / 2 == to / 2) return {};
      return {{from < to ? "there" : "back", between_}};
    }

   private:
    BytesPerSecond between_;
    Seconds latency_;
  };
  Cluster sites = equal_devices(4, 1e9);
  for (std::size_t i = 0; i < 4; ++i) sites.devices[i].site = i < 2 ? "a" : "b";
  sites.network = std::make_shared<TwoSites>(between, latency);
  return sites;
}

std::size_t replicas_in(const Plan& plan)
{
  return plan.stages.front().replicas.size();
}

TEST(Divisions, LetSitesComputeOtherSamplesWhereTheirLinksAllowIt)
{
  std::size_t with_replicas = 0;
  std::size_t without = 0;
  for (const auto& workload : moes_by_operators()) {
    for (const double between : {1e5, 1e7, 3e7, 1e8}) {
      const Cluster sites = two_sites(between);
      const Plan plan = allocate("spmd", workload, sites, duplex(2), {});
      ++(replicas_in(plan) > 1 ? with_replicas : without);
      EXPECT_LE(*plan.step_bound, *plan.objective);
      EXPECT_LE(*plan.objective_bound, *plan.objective);
      if (replicas_in(plan) == 1) continue;
      Cluster one_site = sites;
      for (auto& device : one_site.devices) device.site = "a";
      EXPECT_LT(*plan.objective, *allocate("spmd", workload, one_site, duplex(2), {}).objective);
    }
  }
  EXPECT_GE(with_replicas, 2U);
  EXPECT_GE(without, 2U);
}

/// The groups of devices in the order of their operators.
std::vector<std::vector<std::string>> groups_in(const Plan& plan)
{
  std::vector<std::vector<std::string>> groups;
  for (const auto& stage : plan.stages) {
    std::vector<std::string> devices;
    for (const auto& shard : stage.replicas.front().shards) devices.push_back(shard.device);
    if (groups.empty() || groups.back() != devices) groups.push_back(std::move(devices));
  }
  return groups;
}

TEST(Divisions, PassManyMicroBatchesThroughGroupsOfSitesIfParametersAreLarge)
{
  const Workload workload = workload_from_text(
      "model: moe\ntrunk: plain\nunit: operator\nlayers: 4\nhidden: 12\nheads: 6\nintermediate: 4800\nexperts: 6\n"
      "top_k: 1\nsequence: 2\nmicro_batch: 12\noptimizer: adam\n",
      "x.yaml");
  const Cluster sites = two_sites(1e7, 1e-3);
  const Plan plan = allocate("spmd", workload, sites, duplex(16), {});
  EXPECT_THAT(groups_in(plan), ElementsAre(ElementsAre("d0", "d1"), ElementsAre("d2", "d3")));
  EXPECT_LE(*plan.step_bound, *plan.objective);
  EXPECT_LE(*plan.objective_bound, *plan.objective);
  Cluster one_site = sites;
  for (auto& device : one_site.devices) device.site = "a";
  EXPECT_LT(*plan.objective, *allocate("spmd", workload, one_site, duplex(16), {}).objective);
  EXPECT_EQ(groups_in(allocate("spmd", workload, sites, duplex(2), {})).size(), 1U) << "one wave";
}

TEST(Divisions, PassMicroBatchesThroughGroupsWhereTheActivationsOfAllDoNotFit)
{
  const Workload workload = moes_by_operators().front();
  Cluster sites = two_sites(1e7);
  for (auto& device : sites.devices) device.memory = Bytes(2e6);
  const Plan tight = allocate("spmd", workload, sites, duplex(256), {});
  EXPECT_EQ(tight.outcome, Outcome::Feasible) << tight.reason;
  EXPECT_EQ(groups_in(tight).size(), 2U);
}

TEST(Divisions, HaveReplicasOnlyWhereTheyDivideTheSamples)
{
  for (const std::uint64_t samples : {12, 11}) {
    const Workload workload = with_micro_batch(moes_by_operators().front(), samples);
    const Plan plan = allocate("spmd", workload, two_sites(1e9), duplex(2), {});
    EXPECT_EQ(replicas_in(plan), samples == 12 ? 2U : 1U);
  }
}

TEST(Divisions, OfADeviceAtHalfTheSpeedOfItsTypeTakeTwiceAsLong)
{
  const Workload workload = at_rates(moes_by_operators().front());
  const auto step_at = [&](double speed) {
    const Cluster devices = of_type_gpu(cluster({speed}, {Seconds(1e-5), BytesPerSecond(1e9)}));
    return allocate("spmd", workload, devices, duplex(2), {}).objective->value;
  };
  EXPECT_NEAR(step_at(1e9), 2 * step_at(2e9), 1e-9 * step_at(1e9));
}

TEST(DataParallelism, DividesSamplesEvenlyOrBySpeed)
{
  const Workload workload = moes_by_operators().front();
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
  const Workload operators = moes_by_operators().front();
  EXPECT_EQ(message_of([&] { allocate("spmd", blocks, devices, duplex(1), {}); }),
            "InputError unit: spmd divides operators; write unit: operator in a workload of model moe, or --set "
            "unit=operator");
  EXPECT_EQ(message_of([&] { allocate("chain-dp", operators, devices, Goal{}, {}); }),
            "InputError unit: operator, whose layers only ddp, deepspeed-moe, dp-cp, dp-ev, fastmoe, "
            "fastmoe-published, horovod, spmd divide; leave it out for chain-dp");
  Cluster served = devices;
  served.data_server = "server";
  EXPECT_EQ(message_of([&] { allocate("ddp", operators, served, duplex(1), {}); }),
            "InputError platform: has a data server, and devices that divide operators have their data; leave it out");
  EXPECT_EQ(message_of([&] { allocate("ddp", with_recomputation(operators, {3}), devices, duplex(1), {}); }),
            "InputError recompute: devices that divide operators keep their activations; leave it out");
  EXPECT_THAT(message_of([&] { allocate("chain-dp", blocks, devices, duplex(2), {}); }),
              HasSubstr("schedule: duplex is for devices that divide operators; use allocator ddp, deepspeed-moe, "
                        "dp-cp, dp-ev, fastmoe, fastmoe-published, horovod, spmd"));
}

}  // namespace
}  // namespace isobar::allocators::proposals_test
