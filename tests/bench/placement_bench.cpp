// What a search pays to value a placement: from scratch, and after a move from a known placement. `evaluate_ratio` is
// the time of CostModel::evaluate over the measured time, in the same process.

#include "allocators/chain/placement_costs.hpp"
#include "allocators/chain/placement_moves.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/sky.hpp"

#include <benchmark/benchmark.h>

#include <chrono>
#include <vector>

namespace isobar::allocators {

namespace {

using namespace testing_support;  // NOLINT: a benchmark
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin)
{
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Sky's BERT evenly on a star with one device per stage and some spare devices.
struct Instance {
  explicit Instance(std::size_t count)
      : workload(sky_bert(count * 5 / 2)), platform(sky_cluster(count + count / 8)), stages(even(cost.layers(), count))
  {
  }

  static std::vector<StagePlacement> even(std::size_t layers, std::size_t count)
  {
    std::vector<StagePlacement> result;
    for (std::size_t i = 0; i < count; ++i) {
      result.push_back({i, layers * i / count, layers * (i + 1) / count - 1});
    }
    return result;
  }

  Workload workload;
  Cluster platform;
  CostModel cost{workload, platform};
  std::vector<StagePlacement> stages;
};

/// Times `work` and sets the ratio of CostModel::evaluate to it.
template <typename Work>
void time_beside_evaluate(benchmark::State& state, const Instance& instance, Work work)
{
  const auto begin = Clock::now();
  for ([[maybe_unused]] auto _ : state) work();
  const double ours = seconds_since(begin) / static_cast<double>(state.iterations());
  constexpr int repetitions = 2000;
  const auto evaluate_begin = Clock::now();
  for (int i = 0; i < repetitions; ++i) benchmark::DoNotOptimize(instance.cost.evaluate(instance.stages, Goal{}));
  state.counters["evaluate_ratio"] = seconds_since(evaluate_begin) / repetitions / ours;
}

void BM_FromScratch(benchmark::State& state)
{
  const Instance instance(static_cast<std::size_t>(state.range(0)));
  PlacementCosts costs(instance.cost, Goal{});
  time_beside_evaluate(state, instance, [&] {
    costs.assign(instance.stages);
    benchmark::DoNotOptimize(costs.value());
  });
}

template <typename Propose>
void time_moves(benchmark::State& state, Propose propose)
{
  const Instance instance(static_cast<std::size_t>(state.range(0)));
  PlacementCosts costs(instance.cost, Goal{});
  costs.assign(instance.stages);
  FastRandom random(1);
  std::size_t moves = 0;
  time_beside_evaluate(state, instance, [&] {
    if (!propose(costs, random)) return;
    ++moves;
    benchmark::DoNotOptimize(costs.value_after());
    benchmark::DoNotOptimize(costs.fits_after());
  });
  state.counters["moves_fraction"] = static_cast<double>(moves) / static_cast<double>(state.iterations());
}

void BM_BoundaryShift(benchmark::State& state)
{
  time_moves(state, [](PlacementCosts& costs, FastRandom& random) {
    return costs.shift_boundary(1 + random.below(costs.size() - 1), random.below(2) == 0 ? 1 : -1);
  });
}

void BM_DeviceSwap(benchmark::State& state)
{
  time_moves(state, [](PlacementCosts& costs, FastRandom& random) {
    return costs.swap_devices(random.below(costs.size()), random.below(costs.size()));
  });
}

void BM_RandomMove(benchmark::State& state)
{
  time_moves(state, [](PlacementCosts& costs, FastRandom& random) {
    return propose_random_move(costs, random, random.below(costs.size()));
  });
}

/// A shift forth and back, each valued and applied.
void BM_ApplyShift(benchmark::State& state)
{
  const Instance instance(static_cast<std::size_t>(state.range(0)));
  PlacementCosts costs(instance.cost, Goal{});
  costs.assign(instance.stages);
  std::ptrdiff_t layers = 1;
  time_beside_evaluate(state, instance, [&] {
    costs.shift_boundary(costs.size() / 2, layers);
    benchmark::DoNotOptimize(costs.value_after());
    costs.fits_after();
    costs.apply();
    layers = -layers;
  });
}

/// The step of a random move by its recurrence, whatever its bound: `evaluate_ratio` compares with the recurrence from
/// scratch, including its allocations (step_time_by_recurrence within evaluate).
void BM_StepOfRandomMove(benchmark::State& state)
{
  const Instance instance(static_cast<std::size_t>(state.range(0)));
  PlacementCosts costs(instance.cost, Goal{});
  costs.assign(instance.stages);
  FastRandom random(1);
  time_beside_evaluate(state, instance, [&] {
    while (!propose_random_move(costs, random, random.below(costs.size()))) {
    }
    benchmark::DoNotOptimize(costs.step_time_after());
  });
}

BENCHMARK(BM_StepOfRandomMove)->ArgName("stages")->Arg(64)->Arg(1024);
BENCHMARK(BM_FromScratch)->ArgName("stages")->Arg(64)->Arg(1024);
BENCHMARK(BM_BoundaryShift)->ArgName("stages")->Arg(64)->Arg(1024);
BENCHMARK(BM_DeviceSwap)->ArgName("stages")->Arg(64)->Arg(1024);
BENCHMARK(BM_RandomMove)->ArgName("stages")->Arg(64)->Arg(1024);
BENCHMARK(BM_ApplyShift)->ArgName("stages")->Arg(64)->Arg(1024);

}  // namespace

}  // namespace isobar::allocators

BENCHMARK_MAIN();
