#include "allocators/bounds/load_bound.hpp"

#include "allocators/bounds/bounds.hpp"
#include "allocators/plan_stages.hpp"
#include "allocators/played_plan.hpp"
#include "allocators/registry.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "schedules/lowering/schedule.hpp"
#include "schedules/orders/schedule.hpp"
#include "tests/allocators/hybrid/brute_force.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/shard_grids.hpp"
#include "tests/support/shards.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace isobar::allocators::load_bound_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double infinity = std::numeric_limits<double>::infinity();

LoadScope scope_of(const Plan& plan)
{
  return {has_shared_stages(plan), takes_whole_runs(plan)};
}

/// The plan with the bound by loads, of which no other bound or step limits the search; none if there is none.
std::optional<Plan> with_load_bound(Plan plan, const Workload& workload, const Cluster& cluster)
{
  const auto bound =
      load_bound(CostModel(workload, cluster), plan.goal, scope_of(plan), Seconds(0), 1.7 * *plan.objective);
  if (!bound) return std::nullopt;
  plan.objective_bound = bound->value;
  plan.certificate = bound->certificate;
  return plan;
}

/// The least step of all plans on a cluster whose stages have any numbers of replicas, of one or, where layers can be
/// divided, two shards each, with any counts and whatever replicas divide, by playing each.
class RoutedBruteForce {
 public:
  RoutedBruteForce(const Workload& workload, const Cluster& cluster, const Goal& goal)
      : workload_(workload), cluster_(cluster), cost_(workload, cluster)
  {
    plan_.goal = goal;
    plan_.data_server = cluster.data_server;
  }

  Plan best()
  {
    const std::size_t layers = workload_.layers.size();
    for (std::size_t cuts = 0; cuts < std::size_t{1} << (layers - 1); ++cuts) {
      plan_.stages.clear();
      std::size_t first = 0;
      for (std::size_t last = 0; last < layers; ++last) {
        if (last + 1 < layers && (cuts >> last & 1U) == 0) continue;
        plan_.stages.push_back({first, last, {}});
        first = last + 1;
      }
      place(0);
    }
    return best_;
  }

 private:
  /// Gives the devices from this one on to stages, or to none.
  void place(std::size_t device)
  {
    if (device == cluster_.devices.size()) {
      const auto has_replica = [](const Stage& stage) { return !stage.replicas.empty(); };
      if (std::all_of(plan_.stages.begin(), plan_.stages.end(), has_replica)) share(0, 0, plan_.goal.microbatches);
      return;
    }
    const Shard whole = shard_on(cost_, device);
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
      plan_.stages[i].replicas.push_back({0, {whole}});
      place(device + 1);
      plan_.stages[i].replicas.pop_back();
      if (!workload_.layers.front().split) continue;
      for (std::size_t k = 0; k < plan_.stages[i].replicas.size(); ++k) {
        if (plan_.stages[i].replicas[k].shards.size() == 2) continue;
        const Replica single = plan_.stages[i].replicas[k];
        Replica& both = plan_.stages[i].replicas[k];
        both.shards.push_back(whole);
        for (auto& shard : both.shards) shard.share = 0.5;
        place(device + 1);
        plan_.stages[i].replicas[k] = single;
      }
    }
    place(device + 1);
  }

  /// Divides the micro-batches of a stage that are left among its replicas from this one on.
  void share(std::size_t stage, std::size_t replica, std::uint64_t left)
  {
    if (stage == plan_.stages.size()) return play();
    auto& replicas = plan_.stages[stage].replicas;
    if (replica + 1 == replicas.size()) {
      replicas[replica].microbatches = replicas.size() == 1 ? 0 : left;
      return share(stage + 1, 0, plan_.goal.microbatches);
    }
    for (std::uint64_t count = 1; count + (replicas.size() - 1 - replica) <= left; ++count) {
      replicas[replica].microbatches = count;
      share(stage, replica + 1, left - count);
    }
  }

  void play()
  {
    for (const auto sharded : {Sharding::None, Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters}) {
      Plan plan = plan_;
      plan.sync.sharded = sharded;
      const bool can_divide = std::all_of(plan.stages.begin(), plan.stages.end(),
                                          [&](const Stage& stage) { return !why_not_divided(plan.sync, stage, {}); });
      if (!can_divide || (sharded != Sharding::None && !has_replicas(plan)) || is_chain(plan)) continue;
      if (has_shards(plan)) plan.stages = by_layers(plan.stages);
      try {
        price_by_playing(plan, workload_, cluster_);
      } catch (const InputError&) {
        continue;  // replicas that would wait for each other
      }
      if (excess_of_devices(plan, cluster_)) continue;
      if (!best_.objective || *plan.objective < *best_.objective) best_ = plan;
    }
  }

  const Workload& workload_;
  const Cluster& cluster_;
  CostModel cost_;
  Plan plan_;
  Plan best_;
};

/// A plan over all devices of a cluster, in which some stages have replicas with other counts than their neighbours, or
/// shards.
Plan random_routed(std::mt19937_64& random, const Cluster& cluster, std::size_t layers, const std::string& schedule,
                   std::size_t most_shards)
{
  Plan plan;
  plan.goal = goal_under(schedule, 6 * (1 + random() % 2));
  plan.data_server = cluster.data_server;
  const std::uint64_t all = plan.goal.microbatches;
  const std::vector<std::vector<std::uint64_t>> counts = {
      {0}, {all / 2, all / 2}, {all / 6, all - all / 6}, {all / 3, all / 3, all / 3}, {all / 3, all / 6, all / 2}};
  std::vector<std::string> devices;
  for (const auto& device : cluster.devices) devices.push_back(device.name);
  std::shuffle(devices.begin(), devices.end(), random);
  while (!devices.empty() && plan.stages.size() < layers) {
    const auto& chosen = counts[random() % counts.size()];
    const std::size_t shards = 1 + random() % most_shards;
    if (chosen.size() * shards > devices.size()) continue;
    plan.stages.push_back(random_stage(random, chosen, shards, devices));
  }
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    plan.stages[i].first_layer = layers * i / plan.stages.size();
    plan.stages[i].last_layer = layers * (i + 1) / plan.stages.size() - 1;
  }
  // A stage in two parts.
  const std::size_t in_parts = random() % plan.stages.size();
  if (most_shards == 1 && plan.stages[in_parts].first_layer < plan.stages[in_parts].last_layer && random() % 2 == 0) {
    Stage part = plan.stages[in_parts];
    part.last_layer = part.first_layer;
    plan.stages[in_parts].first_layer = part.first_layer + 1;
    plan.stages.insert(plan.stages.begin() + static_cast<std::ptrdiff_t>(in_parts), part);
  }
  if (most_shards > 1) plan.stages = by_layers(plan.stages);
  const auto sharded = static_cast<Sharding>(random() % 4);
  const bool can_divide = std::all_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
    return !why_not_divided({.sharded = sharded}, stage, {});
  });
  if (can_divide) plan.sync.sharded = sharded;
  return plan;
}

/// Prices a plan and leaves each device little more memory than the plan needs. False for a plan whose replicas would
/// wait for each other.
bool price_in_tight_memory(std::mt19937_64& random, Plan& plan, const Workload& workload, Cluster& cluster)
{
  try {
    price_by_playing(plan, workload, cluster);
  } catch (const InputError&) {
    return false;
  }
  for (auto& device : cluster.devices) {
    const double slack = random() % 2 == 0 ? 1 : 1 + 0.1 * static_cast<double>(random() % 5);
    const auto peak = plan.predicted->peak_memory.find(device.name);
    if (peak != plan.predicted->peak_memory.end()) device.memory = slack * peak->second;
  }
  price_by_playing(plan, workload, cluster);
  return !excess_of_devices(plan, cluster);
}

/// A random chain of layers that need memory for their parameters and activations.
Workload heavy_chain(std::mt19937_64& random, std::size_t layers)
{
  Workload workload = random_chain(random, layers);
  workload.memory_model = random() % 8 == 0 ? MemoryModel::Sky : MemoryModel::Training;
  workload.optimizer = random() % 2 == 0 ? Optimizer::Adam : Optimizer::Sgd;
  for (auto& layer : workload.layers) {
    layer.backward_weight = 0.4 * layer.backward;
    layer.update = Flops(0.01);
  }
  return workload;
}

struct Tally {
  std::size_t plans = 0;
  std::size_t raised = 0;  // above the fractional bound
};

/// Checks that the bound of a priced plan is at most its step, and that the checker proves it.
void expect_bound_of(const Plan& plan, const Workload& workload, const Cluster& cluster, Tally& tally)
{
  ++tally.plans;
  const auto bounded = with_load_bound(plan, workload, cluster);
  if (!bounded) return;
  const double bound = bounded->objective_bound->value;
  ASSERT_LE(bound, plan.objective->value * (1 + 1e-9));
  const auto check = check_certificate(*bounded, workload, cluster);
  ASSERT_THAT(check.faults, IsEmpty());
  ASSERT_NEAR(check.proven.value, bound, 1e-9 * bound);
  if (bound > plan.objective_bound->value * (1 + 1e-6)) ++tally.raised;
}

TEST(LoadBound, IsNotAboveTheStepOfRoutedPlansThatFillTheirMemory)
{
  std::mt19937_64 random(31);
  Tally tally;
  for (int round = 0; round < 250; ++round) {
    const std::size_t layers = 4 + random() % 5;
    for (const std::string schedule : {"sequential", "gpipe", "1f1b", "zero-bubble-h1", "zero-bubble-h2"}) {
      Workload workload = heavy_chain(random, layers);
      if (random() % 3 == 0) workload = with_random_recomputation(random, workload);
      Cluster cluster = random_cluster(random, 2 + random() % 6, 1e9);
      if (round % 3 == 0) workload = with_own_work(random, std::move(workload), cluster);
      Plan plan = random_routed(random, cluster, layers, schedule, 1);
      if (random() % 4 == 0) plan.goal.communication = Communication::None;
      if (is_chain(plan) || !price_in_tight_memory(random, plan, workload, cluster)) continue;
      SCOPED_TRACE(fmt::format("round {}, {}", round, schedule));
      expect_bound_of(plan, workload, cluster, tally);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(tally.plans, 900U);
  EXPECT_GT(tally.raised, tally.plans / 2);
}

TEST(LoadBound, IsNotAboveTheStepOfPlansWithShards)
{
  std::mt19937_64 random(32);
  Tally tally;
  for (int round = 0; round < 100; ++round) {
    const std::size_t layers = 4 + random() % 5;
    for (const std::string schedule : {"sequential", "gpipe", "1f1b", "zero-bubble-h1"}) {
      Workload workload = heavy_chain(random, layers);
      workload.memory_model = MemoryModel::Training;
      add_splits(random, workload);
      Cluster cluster = random_cluster(random, 2 + random() % 7, 1e9);
      if (round % 3 == 0) workload = with_own_work(random, std::move(workload), cluster);
      Plan plan = random_routed(random, cluster, layers, schedule, 3);
      if (is_chain(plan) || !price_in_tight_memory(random, plan, workload, cluster)) continue;
      SCOPED_TRACE(fmt::format("round {}, {}", round, schedule));
      expect_bound_of(plan, workload, cluster, tally);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(tally.plans, 250U);
  EXPECT_GT(tally.raised, tally.plans / 20);
}

TEST(LoadBound, IsNotAboveTheStepOfGridsOfShards)
{
  std::mt19937_64 random(39);
  const Workload workload = gpt_for_grids();
  Tally tally;
  for (const ShardGrid& grid : small_rows_and_grids()) {
    for (int round = 0; round < 6; ++round) {
      Plan plan;
      plan.goal = goal_under(round % 2 == 0 ? "1f1b" : "gpipe", 4);
      plan.outcome = Outcome::Feasible;
      const std::vector<std::uint64_t> replicas =
          random() % 2 == 0 ? std::vector<std::uint64_t>{0} : std::vector<std::uint64_t>{1, 3};
      const std::size_t stages = 1 + random() % 2;
      Cluster cluster = random_cluster(random, stages * replicas.size() * grid.blocks(), 1e9);
      plan.data_server = cluster.data_server;
      if (round >= 4) plan.goal.communication = Communication::None;
      std::vector<std::string> devices;
      for (const auto& device : cluster.devices) devices.push_back(device.name);
      for (std::size_t i = 0; i < stages; ++i) {
        plan.stages.push_back(stage_of_grids(6 * i / stages, 6 * (i + 1) / stages - 1, grid, replicas, devices));
      }
      plan.stages = by_layers(plan.stages);
      SCOPED_TRACE(text_of(grid));
      ASSERT_TRUE(price_in_tight_memory(random, plan, workload, cluster));
      expect_bound_of(plan, workload, cluster, tally);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(tally.plans, 6 * small_rows_and_grids().size());
}

TEST(LoadBound, IsNotAboveTheStepOfPipelinesWithSeveralStagesOnADevice)
{
  std::mt19937_64 random(40);
  Tally tally;
  for (int round = 0; round < 200; ++round) {
    for (const std::string schedule : {"interleaved(chunks=2)", "zero-bubble-v", "dualpipe-v", "v-half"}) {
      const std::size_t ranks = 1 + random() % 3;
      const std::size_t layers = 2 * ranks + random() % 3;
      const Workload workload = heavy_chain(random, layers);
      Cluster cluster = random_cluster(random, 2 * ranks, 1e9);
      Plan plan;
      plan.goal = goal_under(schedule, 8);
      plan.data_server = cluster.data_server;
      for (std::size_t i = 0; i < 2 * ranks; ++i) {
        const std::size_t rank = schedule.front() == 'i' ? i % ranks : std::min(i, 2 * ranks - 1 - i);
        const std::uint64_t taken = 2 + 2 * static_cast<std::uint64_t>(round % 3);
        plan.stages.push_back(
            {layers * i / (2 * ranks),
             layers * (i + 1) / (2 * ranks) - 1,
             {{taken, {{cluster.devices[rank].name}}}, {8 - taken, {{cluster.devices[ranks + rank].name}}}}});
      }
      if (!price_in_tight_memory(random, plan, workload, cluster)) continue;
      ASSERT_FALSE(takes_whole_runs(plan));
      SCOPED_TRACE(fmt::format("round {}, {}", round, schedule));
      expect_bound_of(plan, workload, cluster, tally);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(tally.plans, 300U);
  EXPECT_GT(tally.raised, 0U);
}

TEST(LoadBound, IsNotAboveTheStepOfPlansWithOneDeviceForAStage)
{
  std::mt19937_64 random(33);
  Tally tally;
  for (int round = 0; round < 200; ++round) {
    for (const std::string schedule :
         {"1f1b(warm_up=3/3/2/1)", "zero-bubble-h1", "zero-bubble-h2", "interleaved(chunks=2)",
          "interleaved(chunks=2;group=8)", "zero-bubble-v", "dualpipe-v", "v-min"}) {
      const std::size_t layers = 8;
      Workload workload = heavy_chain(random, layers);
      Cluster cluster = random_cluster(random, 4 + random() % 2, 1e9);
      Plan plan;
      plan.goal = goal_under(schedule, 8);
      plan.data_server = cluster.data_server;
      const bool is_v =
          schedules::require_schedule(goal_under(schedule, 8).schedule.name).folding == schedules::Folding::V;
      const bool folds = schedule.front() == 'i' || is_v;
      const std::size_t stages = folds ? 8 : 4;
      for (std::size_t i = 0; i < stages; ++i) {
        const std::size_t device = i < 4 ? i : is_v ? 7 - i : i - 4;
        plan.stages.push_back(
            stage_on(cluster.devices[device].name, layers * i / stages, layers * (i + 1) / stages - 1));
      }
      if (!price_in_tight_memory(random, plan, workload, cluster)) continue;
      SCOPED_TRACE(fmt::format("round {}, {}", round, schedule));
      expect_bound_of(plan, workload, cluster, tally);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(tally.plans, 1600U);
  EXPECT_GT(tally.raised, tally.plans / 3);
}

TEST(LoadBound, IsNotAboveTheLeastStepOfAllSetsOfPipelines)
{
  std::mt19937_64 random(34);
  std::size_t compared = 0;
  double of_loads = 0;  // sums of bound / least step
  double of_fractions = 0;
  for (int round = 0; round < 500; ++round) {
    const std::size_t layers = 2 + random() % 3;
    const Workload workload = heavy_chain(random, layers);
    const std::size_t devices = round % 25 == 0 ? 4 : 2 + random() % 2;
    const Cluster cluster = random_cluster(random, devices, 12.0 * static_cast<double>(layers));
    const char* schedules[] = {"1f1b", "gpipe", "sequential", "zero-bubble-h1"};
    Goal goal = goal_under(schedules[round % 4], 2 + random() % (devices == 4 ? 2 : 4));
    if (random() % 3 == 0) goal.communication = Communication::None;
    const Plan best = BruteForce(workload, cluster, goal).best();
    if (!best.objective) continue;
    const CostModel cost(workload, cluster);
    const double least = best.objective->value;
    const auto bound = load_bound(cost, goal, {true, true}, Seconds(0), Seconds(1.5 * least));
    ++compared;
    of_fractions += std::min(1.0, played_bound(cost, goal, true).value.value / least);
    if (!bound) continue;
    ASSERT_LE(bound->value.value, least * (1 + 1e-9)) << round;
    of_loads += bound->value.value / least;
  }
  EXPECT_GT(compared, 200U);
  EXPECT_GT(of_loads, 1.3 * of_fractions);
  RecordProperty("loads", fmt::to_string(of_loads / static_cast<double>(compared)));
}

TEST(LoadBound, IsNotAboveTheLeastStepOfAllRoutedPlans)
{
  std::mt19937_64 random(37);
  std::size_t compared = 0;
  double of_loads = 0;
  for (int round = 0; round < 200; ++round) {
    const std::size_t layers = 1 + random() % 3;
    Workload workload = heavy_chain(random, layers);
    workload.memory_model = MemoryModel::Training;
    if (random() % 6 == 0) add_splits(random, workload);
    const Cluster cluster = random_cluster(random, 3, 20.0 * static_cast<double>(1 + random() % 5));
    const char* schedules[] = {"1f1b", "gpipe", "sequential", "zero-bubble-h1"};
    Goal goal = goal_under(schedules[round % 4], 2 + random() % 3);
    if (random() % 3 > 0) goal.communication = Communication::None;
    const Plan best = RoutedBruteForce(workload, cluster, goal).best();
    if (!best.objective) continue;
    const double least = best.objective->value;
    const auto bound = load_bound(CostModel(workload, cluster), goal, {true, true}, Seconds(0), Seconds(1.5 * least));
    ++compared;
    if (!bound) continue;
    ASSERT_LE(bound->value.value, least * (1 + 1e-9)) << round;
    of_loads += bound->value.value / least;
  }
  EXPECT_GT(compared, 80U);
  EXPECT_GT(of_loads, 0.5 * static_cast<double>(compared));
  RecordProperty("loads", fmt::to_string(of_loads / static_cast<double>(compared)));
}

TEST(LoadBound, ProvesTheOptimumWhereADeviceHasRoomForOneMicrobatch)
{
  // One activation of one layer on each device: a micro-batch takes 6 s there and back, one at a time.
  const Workload workload = chain({1, 1}, 0, 2, 0);
  const Cluster two = cluster({1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 3);
  const CostModel cost(workload, two);
  const Goal goal = goal_under("1f1b", 4);
  const auto bound = load_bound(cost, goal, {true, true}, Seconds(0), Seconds(24));
  ASSERT_TRUE(bound);
  EXPECT_NEAR(bound->value.value, 24, 1e-8);

  const Cluster four = cluster({1, 1, 1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 3);
  const auto half = load_bound(CostModel(workload, four), goal, {true, true}, Seconds(0), Seconds(12));
  ASSERT_TRUE(half);
  EXPECT_NEAR(half->value.value, 12, 1e-8);
}

TEST(LoadBound, CountsTheWayToTheOnlyDeviceThatHoldsALayer)
{
  // Three layers of a second forward and two back; each device holds one of them, and all four micro-batches. The last
  // one begins after 2 s and two transfers of 3 s; gradients take 2 + 2 s and two transfers back.
  const Workload workload = chain({1, 1, 1}, 4, 2, 2);
  const Cluster cluster = testing_support::cluster({1, 1, 1}, {Seconds(1), BytesPerSecond(1)}, 48);
  const Goal goal = goal_under("zero-bubble-h1", 4);
  Workload split = workload;
  for (auto& layer : split.layers) layer.backward_weight = Flops(0);
  const auto bound = load_bound(CostModel(split, cluster), goal, {false, true}, Seconds(0), Seconds(100));
  ASSERT_TRUE(bound);
  // The last device: 2 + 6 s, and 4 x 3 s. The first: beyond it is a trip of 2 x (3 + 6) s, less the three forwards
  // that it has memory for meanwhile: 18 + 12 - 3.
  EXPECT_NEAR(bound->value.value, 27, 27 * 4e-3);
  EXPECT_LE(bound->value.value, 27);
}

/// A priced plan of replicas on four devices, with its bound by loads.
struct Example {
  Workload workload = chain({1, 2, 1, 2}, 1, 2, 1);
  Cluster devices = cluster({2, 1, 1, 1}, {Seconds(0.1), BytesPerSecond(10)}, 60);
  Plan plan;

  Example()
  {
    plan.goal = goal_under("1f1b", 4);
    plan.stages = {stage_on("d0", 0, 1), {2, 3, {{2, {{"d1"}}}, {2, {{"d2"}}}}}};
    plan.outcome = Outcome::Feasible;
    price_by_playing(plan, workload, devices);
    plan = *with_load_bound(plan, workload, devices);
  }
  std::vector<std::string> faults() const { return faults_of_certificate(plan, workload, devices); }
};

TEST(LoadCertificate, HoldsOnlyAsItIs)
{
  EXPECT_THAT(Example().faults(), IsEmpty());
  const auto faults = [](const auto& change) {
    Example example;
    change(example.plan);
    return example.faults();
  };
  EXPECT_THAT(faults([](Plan& plan) { plan.objective_bound = 1.01 * *plan.objective_bound; }),
              ElementsAre(HasSubstr("by the certificate load")));
  EXPECT_THAT(faults([](Plan& plan) {
                auto& limit = plan.certificate.rungs.front().limit;
                limit = 1.01 * *limit;
              }),
              ElementsAre(HasSubstr("by the multipliers a step may be within it")));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.rungs.front().multipliers.back() *= 3; }),
              ElementsAre(HasSubstr("by the multipliers a step may be within it")));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.rungs.front().limit.reset(); }),
              ElementsAre("certificate.rungs[0].limit_s: claims none; it is a number, which no step is within"));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.rungs.front().multipliers.pop_back(); }),
              ElementsAre("certificate.rungs[0].multipliers: claims 1; it is 2, one for each group"));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.rungs.front().multipliers.front() = -1; }),
              ElementsAre("certificate.rungs[0].multipliers[0]: claims -1; it is a number, 0 or more"));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.rungs.clear(); }),
              ElementsAre("certificate.rungs: claims 0; it is at least 1"));
  EXPECT_THAT(faults([](Plan& plan) {
                plan.certificate.rungs.push_back(plan.certificate.rungs.front());
                plan.certificate.rungs.back().limit = Seconds(1e9);
              }),
              ElementsAre("certificate.rungs: claims 2; load has 1"));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.rungs.front().slots = 1; }),
              ElementsAre("certificate.rungs[0].slots: claims 1; only a path counts them"));
  EXPECT_THAT(faults([](Plan& plan) {
                plan.certificate.groups = {0, 1, 1, 7};
              }),
              ElementsAre(HasSubstr("certificate.groups[3]: claims 7")));
  EXPECT_THAT(faults([](Plan& plan) { plan.goal.objective = Objective::Bottleneck; }),
              ElementsAre("certificate.kind: claims load, which is for objective step, not bottleneck"));
}

TEST(LoadCertificate, IsReadAsItIsWritten)
{
  const Example example;
  const Plan read = plan_from_json(plan_to_json(example.plan), "plan.json");
  EXPECT_EQ(read.certificate, example.plan.certificate);
}

TEST(LoadCertificate, HoldsOnAnyClusterThatIsWorse)
{
  std::mt19937_64 random(35);
  std::size_t checked = 0;
  for (int round = 0; round < 200; ++round) {
    const std::size_t layers = 4 + random() % 4;
    const Workload workload = heavy_chain(random, layers);
    Cluster cluster = random_types(random, 2, 4 + random() % 3, 1e9);
    Plan plan = random_routed(random, cluster, layers, "1f1b", 1);
    if (is_chain(plan) || !price_in_tight_memory(random, plan, workload, cluster)) continue;
    auto bounded = with_load_bound(plan, workload, cluster);
    if (!bounded) continue;
    bounded->goal.microbatches = plan.goal.microbatches;
    ++checked;
    for (auto& device : cluster.devices) {
      if (random() % 2 == 0) device.speed = 0.8 * device.speed;
      if (random() % 2 == 0) device.memory = 0.9 * device.memory;
    }
    EXPECT_THAT(faults_of_certificate(*bounded, workload, cluster), IsEmpty()) << round;
    // Without a device that is not the only one of its kind.
    const auto& groups = bounded->certificate.groups;
    const auto last = groups.back();
    if (std::count(groups.begin(), groups.end(), last) < 2) continue;
    bounded->certificate.groups.pop_back();
    const Cluster fewer = without_devices(cluster, {cluster.devices.back().name}, "test");
    EXPECT_THAT(faults_of_certificate(*bounded, workload, fewer), IsEmpty()) << round;
  }
  EXPECT_GT(checked, 100U);
}

TEST(LoadBound, IsOfNoUseToPlansOfAnotherSchedule)
{
  Example example;
  Plan other = example.plan;
  other.goal.schedule = schedule_from_text("gpipe");
  other.objective_bound = Seconds(0.1);
  other.certificate = {.kind = CertificateKind::Fractional};
  adopt_bound(other, example.plan);
  EXPECT_EQ(other.objective_bound, Seconds(0.1));
  other.goal.schedule = example.plan.goal.schedule;
  adopt_bound(other, example.plan);
  EXPECT_EQ(other.objective_bound, example.plan.objective_bound);
}

TEST(LoadCertificate, OfPlansWithReplicasHoldsOfChainsToo)
{
  std::mt19937_64 random(38);
  std::size_t checked = 0;
  for (int round = 0; round < 100; ++round) {
    const std::size_t layers = 3 + random() % 5;
    Workload workload = heavy_chain(random, layers);
    if (random() % 2 == 0) add_splits(random, workload);
    const std::size_t devices = 3 + random() % 3;
    const Cluster cluster = random_cluster(random, devices, 40.0 * static_cast<double>(layers));
    const CostModel cost(workload, cluster);
    const Goal goal = goal_under("1f1b", 4);
    Plan plan = plan_of(random_placement(random, layers, devices), cost, goal);
    const auto bound = load_bound(cost, goal, {true, true}, Seconds(0), 1.5 * *plan.objective);
    if (!bound) continue;
    ++checked;
    plan.objective_bound = bound->value;
    plan.certificate = bound->certificate;
    ASSERT_THAT(faults_of_certificate(plan, workload, cluster), IsEmpty()) << round;
  }
  EXPECT_GT(checked, 80U);
}

TEST(LoadBound, NeedsARouteBetweenAnyTwoDevices)
{
  class NoRoutes : public Network {
   public:
    Path path(std::size_t, std::size_t) const override { throw InputError("no route"); }
    std::vector<std::string> links(std::size_t, std::size_t) const override { return {}; }
  };
  const Workload workload = chain({1, 1});
  Cluster devices = cluster({1, 1});
  devices.network = std::make_shared<NoRoutes>();
  const CostModel cost(workload, devices);
  Goal goal = goal_under("1f1b", 4);
  EXPECT_FALSE(load_bound(cost, goal, {true, true}, Seconds(0), Seconds(100)));
  goal.communication = Communication::None;
  EXPECT_TRUE(load_bound(cost, goal, {true, true}, Seconds(0), Seconds(100)));
}

/// Why no bound is by whole pipelines, in which a device serves those of one only: routed plans may be better than all
/// of them. A fast device before two slow ones here; each holds one of two layers.
TEST(RoutedPlans, MayBeatAllSetsOfPipelines)
{
  const Workload workload = chain({1, 1}, 1, 1, 0);
  const Cluster cluster = testing_support::cluster({2, 1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 13);
  Plan routed;
  routed.goal = goal_under("1f1b", 4);
  routed.stages = {stage_on("d0", 0, 0), {1, 1, {{2, {{"d1"}}}, {2, {{"d2"}}}}}};
  price_by_playing(routed, workload, cluster);
  EXPECT_FALSE(excess_of_devices(routed, cluster));
  const Plan best = BruteForce(workload, cluster, routed.goal).best();
  EXPECT_NEAR(routed.objective->value, 10, 1e-9);
  EXPECT_NEAR(best.objective->value, 14.5, 1e-9);
  const auto bound = with_load_bound(routed, workload, cluster);
  EXPECT_LE(bound->objective_bound->value, routed.objective->value);
}

/// Mean gaps of bounds to the least step of all sets of pipelines, in tight memory and without transfers.
TEST(LoadBound, IsCloserThanTheFractionalBound)
{
  std::mt19937_64 random(36);
  for (const std::uint64_t microbatches : {4U, 8U}) {
    double fractional_gap = 0;
    double load_gap = 0;
    int instances = 0;
    for (int round = 0; round < 12; ++round) {
      const std::size_t layers = 3 + random() % 2;
      std::vector<double> forward;
      for (std::size_t i = 0; i < layers; ++i) forward.push_back(0.5 + static_cast<double>(random() % 100) / 100);
      const Workload workload = chain(forward, 1, 1, 0);
      Cluster devices = cluster({1, 1, 1}, {Seconds(0), BytesPerSecond(1e30)});
      for (auto& device : devices.devices) {
        device.speed = FlopsPerSecond(1 + static_cast<double>(random() % 3));
        device.memory = Bytes(11.0 + 10.0 * static_cast<double>(random() % 2));
      }
      const Goal goal = goal_under("1f1b", microbatches);
      const Plan best = BruteForce(workload, devices, goal).best();
      if (!best.objective) continue;
      const CostModel cost(workload, devices);
      const double fractional = played_bound(cost, goal, true).value / *best.objective;
      const auto bound = load_bound(cost, goal, {true, true}, Seconds(0), *best.objective);
      const double load = bound ? bound->value / *best.objective : 0;
      ++instances;
      fractional_gap += 1 - fractional;
      load_gap += 1 - std::max(load, fractional);
    }
    EXPECT_GE(instances, 4);
    EXPECT_LT(load_gap, 0.6 * fractional_gap) << "M = " << microbatches;
    RecordProperty(fmt::format("fractional_gap_{}", microbatches), fmt::to_string(fractional_gap / instances));
    RecordProperty(fmt::format("load_gap_{}", microbatches), fmt::to_string(load_gap / instances));
  }
}

}  // namespace
}  // namespace isobar::allocators::load_bound_test
