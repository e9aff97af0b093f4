#include "allocators/registry.hpp"
#include "allocators/allocator.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/check/plan_checker.hpp"
#include "core/cluster/scaled_cluster.hpp"
#include "core/errors.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/sky.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>

namespace isobar::allocators::registry_test {

namespace {

using namespace testing_support;  // NOLINT: a test file

std::string message_of(const std::string& name)
{
  try {
    require_allocator(name);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST(Allocators, AreSortedByNameAndDescribed)
{
  const auto& all = allocators();
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; }));
  for (const auto& allocator : all) {
    EXPECT_FALSE(allocator.problem.empty() || allocator.guarantee.empty() || allocator.cost.empty() ||
                 allocator.source.empty());
  }
}

TEST(Allocators, AreInTheDocumentsTable)
{
  std::ifstream file(std::string(ISOBAR_SOURCE_DIR) + "/docs/allocators.md");
  std::stringstream text;
  text << file.rdbuf();
  for (const auto& allocator : allocators()) {
    for (const auto words :
         {allocator.name, allocator.problem, allocator.guarantee, allocator.cost, allocator.source}) {
      EXPECT_NE(text.str().find(words), std::string::npos) << "docs/allocators.md lacks: " << words;
    }
  }
}

/// The same path between all pairs; counts the lookups.
class CountingNetwork : public Network {
 public:
  Path path(std::size_t /*from*/, std::size_t /*to*/) const override
  {
    ++lookups;
    return {Seconds(1e-3), BytesPerSecond(1e9)};
  }
  std::vector<std::string> links(std::size_t /*from*/, std::size_t /*to*/) const override { return {}; }

  mutable std::size_t lookups = 0;
};

struct ManyDevices {
  explicit ManyDevices(std::size_t count) : network(std::make_shared<CountingNetwork>())
  {
    for (std::size_t i = 0; i < count; ++i) {
      Device device;
      device.name = "d" + std::to_string(i);
      device.speed = FlopsPerSecond(1 + static_cast<double>(i % 7));
      device.memory = Bytes(0x1p40);
      cluster.devices.push_back(std::move(device));
    }
    cluster.network = network;
  }

  std::shared_ptr<CountingNetwork> network;
  Cluster cluster;
};

TEST(RequireProperty, NamesTheAllocatorsThatHaveItWhenNoneOfTheGivenOnesHas)
{
  const auto fault_of = [](bool Allocator::*property, const std::vector<std::string>& names) -> std::string {
    try {
      require_property(property, "--option", names);
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(fault_of(&Allocator::improves_plans, {"local-search"}), "no error");
  EXPECT_EQ(fault_of(&Allocator::improves_plans, {"chain-dp"}),
            "--option: works only with allocator local-search, not with chain-dp");
  EXPECT_EQ(fault_of(&Allocator::takes_grid, {"even", "exec:program", "grid"}), "no error");
  EXPECT_EQ(fault_of(&Allocator::takes_offload, {"even", "exec:program"}),
            "--option: works only with allocator exact or hybrid, not with even or exec:program");
  EXPECT_EQ(fault_of(&Allocator::takes_offload, {"evn"}), "allocator: \"evn\" is not known; did you mean even?");
}

TEST(DefaultsOf, AreThoseOfTheObjectiveUnlessLayersMayPassThroughDevices)
{
  const auto text_of_defaults = [](const char* name, Objective objective, bool offload) {
    const Defaults defaults = defaults_of(name, objective, offload);
    return text_of(defaults.goal.schedule) + " " + std::to_string(defaults.goal.microbatches) + " " +
           defaults.recompute;
  };
  EXPECT_EQ(text_of_defaults("even", Objective::Step, false), "1f1b 8 none");
  EXPECT_EQ(text_of_defaults("even", Objective::Step, true), "1f1b 8 none");
  EXPECT_EQ(text_of_defaults("exec:program", Objective::Step, true), "1f1b 8 none");
  EXPECT_EQ(text_of_defaults("even", Objective::Sequential, false), "sequential 1 none");
  EXPECT_EQ(text_of_defaults("exact", Objective::Step, false), "1f1b 8 none");
  EXPECT_EQ(text_of_defaults("exact", Objective::Step, true), "gpipe 8 inner");
  for (const char* name :
       {"l2l", "resident", "stronghold", "stronghold-published", "window", "zero-infinity", "zero-offload"}) {
    EXPECT_EQ(text_of_defaults(name, Objective::Step, false), "gpipe 1 inner") << name;
  }
}

TEST(Allocate, TakesAnAllocatorThatIsNotRegistered)
{
  const Workload workload = chain({1, 1, 1});
  const Cluster devices = cluster({1, 2});
  Allocator on_the_second;
  on_the_second.name = "on-the-second";
  on_the_second.place = [](const Problem&) { return Placement{.stages = {{1, 0, 2}}}; };
  const Plan plan = allocate(on_the_second, workload, devices, Goal{}, {});
  EXPECT_EQ(plan.allocator, "on-the-second");
  EXPECT_EQ(plan.stages.at(0).device(), devices.devices[1].name);
  EXPECT_TRUE(plan.objective_bound && plan.predicted);
  EXPECT_TRUE(faults_of(plan, workload, devices).empty());

  on_the_second.place = [](const Problem&) { return Placement{.stages = {{1, 0, 1}}}; };
  EXPECT_THROW(allocate(on_the_second, workload, devices, Goal{}, {}), std::logic_error);  // layer 2 is missing
  on_the_second.most_devices = 1;
  EXPECT_THROW(allocate(on_the_second, workload, devices, Goal{}, {}), InputError);
}

TEST(Allocate, RefusesMoreDevicesThanASearchTakesAndNamesAllocatorsThatTakeThem)
{
  const ManyDevices many(4'097);
  const Workload workload = chain({1, 1, 1});
  for (const std::string name : {"chain-dp", "exact", "local-search"}) {
    try {
      allocate(name, workload, many.cluster, Goal{}, {});
      FAIL() << name;
    } catch (const InputError& error) {
      EXPECT_EQ(std::string(error.what())
                    .find("allocator: " + name +
                          " takes at most 4096 devices, and the platform has "
                          "4097; use amp, even, grid, hybrid, metis, sky-dynamic, "),
                0U)
          << error.what();
    }
  }
#ifdef ISOBAR_HAS_CBC
  try {
    allocate("sky-optimal", chain(std::vector<double>(123, 1)), many.cluster, Goal{}, {});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "allocator: sky-optimal takes at most 500000 pairs of a layer and a device, and this problem has 503931; use "
        "amp, even, grid, hybrid, metis, sky-dynamic, sky-dynamic-fixed, or leave devices out with --without");
  }
#endif
  EXPECT_EQ(many.network->lookups, 0U);
  EXPECT_EQ(allocate("even", workload, many.cluster, Goal{}, {}).stages.size(), 3U);
}

TEST(Allocate, RespectsItsLimitsWhileItLooksUpPaths)
{
  const ManyDevices many(512);
  const Workload workload = chain(std::vector<double>(600, 1));
  SearchLimits over;
  over.time_limit = Seconds(0);
  for (const auto objective : {Objective::Sequential, Objective::Bottleneck, Objective::Step}) {
    many.network->lookups = 0;
    allocate("chain-dp", workload, many.cluster, Goal::with_defaults(objective), over);
    EXPECT_LT(many.network->lookups, 2 * many.cluster.devices.size());  // of 512 x 512
  }
}

TEST(Allocate, RefusesAnUnknownAllocatorAndNamesTheNearest)
{
  EXPECT_EQ(message_of("evn"), "allocator: \"evn\" is not known; did you mean even?");
  EXPECT_EQ(message_of("exec:"), "exec:: no program; write exec:PROGRAM, such as exec:examples/external_allocator.py");
  EXPECT_EQ(message_of("even"), "no error");
#ifdef ISOBAR_HAS_CBC
  EXPECT_EQ(
      message_of("simulated annealing"),
      "allocator: \"simulated annealing\" is not known; use amp, chain-dp, ddp, deepspeed-moe, dp-cp, dp-ev, dtfm, "
      "dtfm-exact, even, exact, fastmoe, fastmoe-published, grid, horovod, hybrid, l2l, local-search, metis, resident, "
      "sky-dynamic, sky-dynamic-fixed, sky-optimal, spmd, stronghold, stronghold-published, window, zero-infinity, "
      "zero-offload, or exec:PROGRAM");
#else
  EXPECT_EQ(message_of("sky-optimal"),
            "sky-optimal: this build has no CBC; install coinor-libcbc-dev, then configure and build again");
#endif
}

/// Every built-in allocator on random instances: allocate() ends with the plan checker, which shares no code with the
/// cost model.
TEST(Allocate, PassesTheCheckerForEveryAllocatorAndGoal)
{
  std::mt19937_64 random(11);
  std::size_t placed = 0;
  SearchLimits limits;
  limits.budget = 2000;  // enough for every allocator to finish
  for (int instance = 0; instance < 60; ++instance) {
    const Workload workload = random_chain(random, 1 + random() % 8);
    const Cluster platform = random_cluster(random, 1 + random() % 4, instance % 2 == 0 ? 1e9 : 30);
    for (const Goal& goal : all_goals(1 + random() % 4)) {
      for (const auto& allocator : allocators()) {
        if (allocator.name == "sky-optimal") continue;                         // milp_test.cpp
        if (allocator.uses_machines || allocator.divides_operators) continue;  // other tests
        if (allocator.propose != nullptr && goal.objective != Objective::Step) continue;
        const Plan plan = allocate(std::string(allocator.name), workload, platform, goal, limits);
        ASSERT_NE(plan.outcome, Outcome::TimedOut);
        if (plan.outcome == Outcome::Infeasible) {
          EXPECT_FALSE(plan.reason.empty());
          EXPECT_FALSE(plan.objective || plan.objective_bound || plan.predicted);
          continue;
        }
        ++placed;
        EXPECT_LE(*plan.objective_bound, *plan.objective);
        EXPECT_TRUE(faults_of_certificate(plan, workload, platform).empty());
      }
    }
  }
  EXPECT_GT(placed, 1000U);
}

TEST(Allocate, GivesTheSameBytesTwice)
{
  for (const char* allocator : {"chain-dp", "even", "sky-dynamic", "sky-dynamic-fixed"}) {
    auto plans = std::vector<Plan>(2);
    for (auto& plan : plans) {
      plan = allocate(allocator, sky_bert(24), sky_cluster(15), Goal{}, {});
      plan.search_time = Seconds(0);
    }
    EXPECT_EQ(plan_to_json(plans[0]), plan_to_json(plans[1]));
  }
}

TEST(Allocate, ChainDpIsNeverWorseThanAllocatorsOfTheSameOrder)
{
  std::mt19937_64 random(12);
  for (int instance = 0; instance < 50; ++instance) {
    const Workload workload = random_chain(random, 3 + random() % 15);
    const Cluster platform = random_cluster(random, 2 + random() % 5, 1e9);
    for (const Goal& goal : all_goals(4)) {
      if (goal.objective == Objective::Step) continue;  // chain-dp is a heuristic there
      const double best = allocate("chain-dp", workload, platform, goal, {}).objective->value;
      for (const char* other : {"even", "sky-dynamic", "sky-dynamic-fixed"}) {
        const Plan plan = allocate(other, workload, platform, goal, {});
        ASSERT_TRUE(plan.objective.has_value());
        EXPECT_LE(best, plan.objective->value * (1 + 1e-12));
      }
    }
  }
}

TEST(Allocate, CallsAPlanThatMeetsItsBoundOptimal)
{
  const Plan plan =
      allocate("even", chain({1, 1, 1, 1}), cluster({1, 1}),
               {Objective::Bottleneck, Communication::None, choice_of(ChainSchedule::OneForwardOneBackward), 8}, {});
  EXPECT_EQ(plan.outcome, Outcome::Optimal);
  EXPECT_EQ(plan.certificate.kind, CertificateKind::Fractional);
  EXPECT_EQ(plan.gap_fraction(), 0);
}

TEST(Allocate, CutsAGraphOnlyWhereOneTensorCrosses)
{
  // A block with a shortcut over layers 1 and 2: cuts are possible before 1 and before 4 only.
  Workload workload = chain({1, 1, 1, 1, 1});
  workload.layers[3].inputs = {0, 2};
  const Plan plan = allocate("even", workload, cluster({1, 1, 1}), Goal{}, {});
  ASSERT_EQ(plan.stages.size(), 3U);
  EXPECT_EQ(plan.stages[0].last_layer, 0U);
  EXPECT_EQ(plan.stages[1].first_layer, 1U);
  EXPECT_EQ(plan.stages[1].last_layer, 3U);
  EXPECT_EQ(plan.stages[2].first_layer, 4U);
}

TEST(Allocate, SaysThatLayerNumbersOfAReasonAreThoseOfTheChain)
{
  Workload workload = chain({1, 1, 1, 1, 1}, 1 << 27);
  workload.layers[3].inputs = {0, 2};
  const Cluster platform = cluster({1, 1, 1}, {Seconds(0), BytesPerSecond(1e9)}, 2.5 * 0x1p30);
  EXPECT_EQ(allocate("chain-dp", workload, platform, Goal::with_defaults(Objective::Sequential), {}).reason,
            "layer 1 needs 3.00 GiB; the largest device, d0, has 2.50 GiB; 512 MiB more memory there would be "
            "enough; layer numbers are those of the chain of 3 that the graph can be cut into");
}

TEST(AllocateCandidates, BeginsWithThePlanThatAllocateMakes)
{
  std::mt19937_64 random(3);
  const Workload workload = random_chain(random, 12);
  const Cluster platform = random_cluster(random, 4, 1e9);
  for (const char* name : {"even", "chain-dp", "local-search"}) {
    SearchLimits limits;
    limits.budget = 2000;
    limits.candidates = 4;
    auto plans = allocate_candidates(name, workload, platform, Goal{}, limits);
    ASSERT_GE(plans.size(), 1U);
    EXPECT_LE(plans.size(), 4U);
    Plan alone = allocate(name, workload, platform, Goal{}, limits);
    plans.front().search_time = alone.search_time = Seconds(0);
    EXPECT_EQ(plan_to_json(plans.front()), plan_to_json(alone));
    for (const auto& plan : plans) EXPECT_GE(plan.objective, plans.front().objective);
  }
}

TEST(CarryOver, ClaimsThePlacementForAnotherGoal)
{
  std::mt19937_64 random(4);
  for (int round = 0; round < 50; ++round) {
    const Workload workload = random_chain(random, 10);
    const Cluster platform = random_cluster(random, 4, 1e9);
    const Goal goal = Goal::with_defaults(Objective::Step);
    Goal other = Goal::with_defaults(Objective::Bottleneck);
    other.microbatches = 3;
    const Plan plan = allocate("chain-dp", workload, platform, other, {});
    const auto carried = carry_over(plan, workload, platform, goal);
    ASSERT_TRUE(carried);
    EXPECT_EQ(carried->goal.objective, Objective::Step);
    EXPECT_EQ(carried->goal.microbatches, 8U);
    EXPECT_EQ(carried->objective, carried->predicted->step_time);
    ASSERT_EQ(carried->stages.size(), plan.stages.size());
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      EXPECT_EQ(carried->stages[i].device(), plan.stages[i].device());
      EXPECT_EQ(carried->stages[i].last_layer, plan.stages[i].last_layer);
    }
    EXPECT_TRUE(faults_of(*carried, workload, platform).empty());
  }
}

TEST(CarryOver, ReturnsNothingWhenTheGoalNeedsMoreMemoryThanTheDevicesHave)
{
  // Four layers that keep 10 bytes each on one device of 100: 40 for one micro-batch, 320 for the 8 of gpipe.
  const Workload workload = chain({1, 1, 1, 1}, 0, 10);
  const Cluster platform = cluster({1}, {Seconds(0), BytesPerSecond(1)}, 100);
  const Plan plan = allocate("even", workload, platform, Goal::with_defaults(Objective::Sequential), {});
  ASSERT_EQ(plan.stages.size(), 1U);
  EXPECT_TRUE(carry_over(plan, workload, platform, Goal{}));
  EXPECT_FALSE(carry_over(plan, workload, platform,
                          {Objective::Step, Communication::Played, choice_of(ChainSchedule::GPipe), 8}));
  EXPECT_FALSE(carry_over(Plan{}, workload, platform, Goal{}));
}

TEST(PricedFor, HasTheStagesOfOneClusterWithTheClaimsOfAnother)
{
  std::mt19937_64 random(20261127);
  for (int instance = 0; instance < 20; ++instance) {
    const Workload workload = random_chain(random, 6);
    const Cluster cluster = random_cluster(random, 3, 1e9);
    const Cluster believed = scaled(cluster, {.speed = 3, .bandwidth = 0.01, .latency = 2});
    const Goal goal = Goal::with_defaults(Objective::Step);
    for (const auto* name : {"chain-dp", "exact", "hybrid"}) {
      const Plan wrong = allocate(name, workload, believed, goal, {});
      const Plan priced = priced_for(wrong, workload, cluster);
      ASSERT_EQ(priced.stages.size(), wrong.stages.size());
      EXPECT_EQ(devices_of(priced), devices_of(wrong));
      EXPECT_EQ(priced.allocator, name);
      EXPECT_TRUE(faults_of(priced, workload, cluster).empty());
      EXPECT_NE(priced.objective, wrong.objective);
      // The best plan for the truth is not slower.
      const Plan right = allocate("exact", workload, cluster, goal, {});
      if (is_chain(priced)) {
        EXPECT_GE(priced.objective->value, right.objective->value * (1 - 1e-9));
      }
      // And a plan is the same where the belief is true.
      const Plan again = priced_for(right, workload, cluster);
      EXPECT_NEAR(again.objective->value, right.objective->value, 1e-12 * right.objective->value);
      EXPECT_EQ(again.stages.front().shard().slowdown, right.stages.front().shard().slowdown);
    }
  }
}

TEST(PricedFor, SaysWhatDoesNotFit)
{
  std::mt19937_64 random(1);
  const Workload workload = random_chain(random, 4);
  Cluster cluster = random_cluster(random, 2, 1e9);
  const Plan plan = allocate("chain-dp", workload, cluster, Goal::with_defaults(Objective::Step), {});
  ASSERT_FALSE(plan.stages.empty());
  for (auto& device : cluster.devices) device.memory = Bytes(1);
  const Plan priced = priced_for(plan, workload, cluster);
  EXPECT_EQ(priced.outcome, Outcome::Infeasible);
  EXPECT_TRUE(priced.stages.empty());
  EXPECT_NE(priced.reason.find("more memory there"), std::string::npos) << priced.reason;
}

TEST(AdoptBound, TakesTheHigherBoundWithItsCertificateAndNoMoreThanTheObjective)
{
  Plan plan;
  plan.objective = Seconds(4);
  plan.objective_bound = Seconds(1);
  Plan other;
  other.objective_bound = Seconds(3);
  other.certificate.kind = CertificateKind::Path;
  adopt_bound(plan, other);
  EXPECT_EQ(plan.objective_bound, Seconds(3));
  EXPECT_EQ(plan.certificate.kind, CertificateKind::Path);
  EXPECT_EQ(plan.outcome, Outcome::Feasible);
  other.objective_bound = Seconds(2);
  other.certificate.kind = CertificateKind::Search;
  adopt_bound(plan, other);
  EXPECT_EQ(plan.objective_bound, Seconds(3));
  EXPECT_EQ(plan.certificate.kind, CertificateKind::Path);
  other.objective_bound = Seconds(4 * (1 + 1e-12));
  adopt_bound(plan, other);
  EXPECT_EQ(plan.objective_bound, Seconds(4));
  EXPECT_EQ(plan.outcome, Outcome::Optimal);
}

}  // namespace isobar::allocators::registry_test
