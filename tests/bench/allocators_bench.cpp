// Search times of the allocators. Compare ratios, not seconds: BM_Evaluate is one plain evaluation of a plan, BM_Even
// the cheapest allocator.

#include "allocators/allocator.hpp"
#include "allocators/bounds/bounds.hpp"
#include "allocators/bounds/load_bound.hpp"
#include "allocators/chain/chain_dp.hpp"
#include "allocators/exact/exact.hpp"
#include "allocators/registry.hpp"
#include "allocators/sky/even.hpp"
#include "tests/allocators/exact/brute_force.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/sky.hpp"

#include <benchmark/benchmark.h>

#include <memory>
#include <random>
#include <string>

namespace isobar::allocators {

namespace {

using namespace testing_support;  // NOLINT: a benchmark

class SamePath : public Network {
 public:
  Path path(std::size_t, std::size_t) const override { return {Seconds(0.001), BytesPerSecond(1e9)}; }
  std::vector<std::string> links(std::size_t, std::size_t) const override { return {}; }
};

Cluster many_equal_devices(std::size_t count)
{
  Cluster result;
  result.name = "many";
  for (std::size_t i = 0; i < count; ++i) result.devices.push_back(device("d" + std::to_string(i), 1e9, 1e12));
  result.network = std::make_shared<SamePath>();
  return result;
}

/// One evaluation of the even plan: the unit for everything else.
void BM_Evaluate(benchmark::State& state)
{
  const auto devices = static_cast<std::size_t>(state.range(0));
  const Workload workload = sky_bert(static_cast<std::size_t>(state.range(1)));
  const Cluster cluster = sky_cluster(devices);
  const CostModel cost(workload, cluster);
  const auto stages = stages_of_counts(even_counts(cost.layers(), cost.devices()));
  for (auto _ : state) benchmark::DoNotOptimize(cost.evaluate(stages, Goal{}));
}
BENCHMARK(BM_Evaluate)->ArgNames({"devices", "encoders"})->Args({64, 160})->Args({128, 320})->Args({256, 640});

/// allocate() as a user calls it: the cut of the graph, the allocator, the claims, the bound and the checker.
void BM_Even(benchmark::State& state)
{
  const Workload workload = chain(std::vector<double>(static_cast<std::size_t>(state.range(1)), 1));
  const Cluster cluster = many_equal_devices(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(allocate("even", workload, cluster, Goal{}, {}));
}
BENCHMARK(BM_Even)
    ->ArgNames({"devices", "layers"})
    ->Args({64, 483})
    ->Args({4096, 100'000})
    ->Unit(benchmark::kMillisecond);

void BM_ChainDp(benchmark::State& state)
{
  const Workload workload = sky_bert(static_cast<std::size_t>(state.range(1)));
  const Cluster cluster = sky_cluster(static_cast<std::size_t>(state.range(0)));
  const CostModel cost(workload, cluster);
  Goal goal = Goal::with_defaults(static_cast<Objective>(state.range(2)));
  goal.communication = static_cast<Communication>(state.range(3));
  double objective = 0;
  for (auto _ : state) {
    const Placement placement = place_by_chain_dp({cost, goal, {}});
    objective = cost.evaluate(placement.stages, goal).objective.value;
  }
  state.SetLabel(std::string(name_of(goal.objective)) + " " + std::string(name_of(goal.communication)));
  state.counters["objective_s"] = objective;
  state.counters["gap_fraction"] = 1 - objective_bound(cost, goal).value.value / objective;
}
BENCHMARK(BM_ChainDp)
    ->ArgNames({"devices", "encoders", "objective", "communication"})
    ->ArgsProduct({{64}, {160}, {0, 1, 2}, {0, 1, 2}})
    ->ArgsProduct({{128}, {320}, {0, 1}, {0, 1, 2}})
    ->ArgsProduct({{256}, {640}, {0, 1}, {0, 1, 2}})
    ->Unit(benchmark::kMillisecond);

void BM_Bound(benchmark::State& state)
{
  const Workload workload = sky_bert(160);
  const Cluster cluster = sky_cluster(64);
  const CostModel cost(workload, cluster);
  for (auto _ : state) benchmark::DoNotOptimize(objective_bound(cost, Goal{}));
}
BENCHMARK(BM_Bound);

/// The bound of plans with replicas on so many devices of four kinds, in whose memory a part of the layers fits.
void BM_LoadBound(benchmark::State& state)
{
  const Workload workload = chain(std::vector<double>(96, 1), 1000, 4000, 1000);
  std::mt19937_64 random(1);
  Cluster cluster = random_types(random, 4, static_cast<std::size_t>(state.range(0)), 400'000);
  cluster.network = std::make_shared<SamePath>();
  const CostModel cost(workload, cluster);
  Goal goal;
  goal.microbatches = 256;
  const Seconds known = played_bound(cost, goal, true).value;
  double bound = 0;
  for (auto _ : state) bound = load_bound(cost, goal, {true, true}, known, 1.5 * known).value().value.value;
  state.counters["bound / fractional"] = bound / known.value;
}
BENCHMARK(BM_LoadBound)->ArgName("devices")->Arg(64)->Arg(256)->Arg(1024)->Unit(benchmark::kMillisecond);

/// Pipelines, replicas and shares on devices of four types, with cheap transfers and 8 micro-batches for each device.
/// In the memory of a device a part of the layers fits.
void BM_Hybrid(benchmark::State& state)
{
  const auto devices = static_cast<std::size_t>(state.range(0));
  const std::vector<double> work(static_cast<std::size_t>(state.range(1)), 1e6);
  const Workload workload = chain(work, 1000, 4000, 1000);
  std::mt19937_64 random(1);
  Cluster cluster = random_types(random, 4, devices, 400'000);
  cluster.network = std::make_shared<SamePath>();
  const Goal goal = goal_under("1f1b", 8 * devices);
  Plan plan;
  for (auto _ : state) plan = allocate("hybrid", workload, cluster, goal, {});
  state.counters["gap_fraction"] = plan.gap_fraction().value();
}
BENCHMARK(BM_Hybrid)
    ->ArgNames({"devices", "layers"})
    ->ArgsProduct({{64, 256, 1024}, {32, 96}})
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond);

/// exact for the step on 7 devices and 14 layers. Checks that it is the least of all placements, some 17 million, which
/// are played outside the measured time. Schedules alternate.
void BM_ExactStep(benchmark::State& state)
{
  std::mt19937_64 random(static_cast<std::uint64_t>(state.range(0)));
  const Workload workload = random_chain(random, 14);
  const Cluster cluster = random_cluster(random, 7, 1e9);
  const CostModel cost(workload, cluster);
  const Goal goal{Objective::Step, Communication::Played, choice_of(static_cast<ChainSchedule>(state.range(0) % 3)), 4};
  Placement placement;
  for (auto _ : state) placement = place_exactly({cost, goal, {}});
  const double found = cost.evaluate(placement.stages, goal).objective.value;
  if (placement.objective_bound.value_or(Seconds(0)).value < found * (1 - 1e-9)) state.SkipWithError("not proven");
  if (found > least_objectives(cost, {goal}, true).front() * (1 + 1e-9)) state.SkipWithError("not the least");
  state.SetLabel(text_of(goal.schedule) + " " + std::string(name_of(placement.certificate.kind)));
}
BENCHMARK(BM_ExactStep)->ArgName("seed")->DenseRange(0, 19)->Iterations(1)->Unit(benchmark::kMillisecond);

}  // namespace

}  // namespace isobar::allocators

BENCHMARK_MAIN();
