// Search times of allocators/spmd: of the published graphs by the published formulas, at most 0.1 s for 24 layers, and
// of our graphs with our costs.

#include "allocators/spmd/divided_graph.hpp"
#include "allocators/spmd/strategy_search.hpp"

#include <benchmark/benchmark.h>

#include <cstdint>

namespace isobar::allocators::spmd {

namespace {

MoeSizes sizes_of(Trunk trunk, std::uint64_t layers, std::uint64_t experts)
{
  MoeSizes sizes;
  sizes.trunk = trunk;
  sizes.layers = layers;
  sizes.hidden = 768;
  sizes.heads = 12;
  sizes.intermediate = 3072;
  sizes.sequence = 128;
  sizes.experts = experts;
  sizes.top_k = 2;
  sizes.capacity_factor = 1.25;
  sizes.rounds_up = true;
  sizes.vocabulary = experts * (33278 / experts + 1);
  sizes.parity = true;
  return sizes;
}

void search(benchmark::State& state, Trunk trunk, CostFormula formula)
{
  const auto layers = static_cast<std::uint64_t>(state.range(0));
  const auto devices = static_cast<std::uint64_t>(state.range(1));
  const ParityProfile profile{devices,
                              FlopsPerSecond(4139214925014),
                              BytesPerSecond(1224592728),
                              BytesPerSecond(611692856),
                              BytesPerSecond(1130230706),
                              BytesPerSecond(10701240728)};
  const auto graph = make_operator_graph(sizes_of(trunk, layers, devices), 32 * devices, 4);
  const auto problem = make_problem(graph, Rules::Published, profile);
  for (auto _ : state) {
    const auto strategy = find_strategy(problem, formula);
    state.counters["labels"] = static_cast<double>(strategy->counts.labels);
  }
}

void search_with_our_costs(benchmark::State& state, std::uint64_t microbatches)
{
  const auto layers = static_cast<std::uint64_t>(state.range(0));
  const auto count = static_cast<std::uint64_t>(state.range(1));
  MoeSizes sizes = sizes_of(Trunk::Bert, layers, count);
  sizes.parity = false;
  const auto graph = make_operator_graph(sizes, 32 * count, 4);
  Workload workload;
  workload.optimizer = Optimizer::Adam;
  SpmdDevices devices;
  devices.rates.assign(count, {FlopsPerSecond(12e12)});
  devices.memory.assign(count, Bytes(1e15));
  devices.group.transfer = [](std::size_t, std::size_t, Bytes size) {
    return TransferTimes{Seconds(15e-6), size / BytesPerSecond(12e9)};
  };
  const DividedGraph divided(graph, Rules::Corrected, workload, devices, even_shares(devices), microbatches);
  StrategyProblem problem = divided.problem();
  problem.memory.clear();
  for (auto _ : state) {
    const auto strategy = find_strategy(problem, CostFormula::Duplex);
    state.counters["labels"] = static_cast<double>(strategy->counts.labels);
  }
}

/// HiDup's study of search times: 1 to 24 layers on 4 devices, and 6 layers on 2 to 64 of them.
void arguments(benchmark::internal::Benchmark* bench)
{
  bench->ArgNames({"layers", "devices"})->Unit(benchmark::kMillisecond);
  for (const int layers : {1, 2, 4, 6, 8, 12, 16, 20, 24}) bench->Args({layers, 4});
  for (const int devices : {2, 8, 16, 32, 64}) bench->Args({6, devices});
}

BENCHMARK_CAPTURE(search, t_moe_code, Trunk::Plain, CostFormula::Code)->Apply(arguments);
BENCHMARK_CAPTURE(search, bert_code, Trunk::Bert, CostFormula::Code)->Apply(arguments);
BENCHMARK_CAPTURE(search, bert_symmetric, Trunk::Bert, CostFormula::Symmetric)->Apply(arguments);

BENCHMARK_CAPTURE(search_with_our_costs, bert_whole, 1)->Apply(arguments);
BENCHMARK_CAPTURE(search_with_our_costs, bert_halves, 2)->Apply(arguments);

}  // namespace

}  // namespace isobar::allocators::spmd

BENCHMARK_MAIN();
