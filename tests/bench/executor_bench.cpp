// Overhead of the executor: a training step of one stage against the same step in a plain LibTorch loop, a 1F1B step of
// two ranks against the best that their own computations allow, and split backward passes against whole ones.
//
// Counters: `over_plain` is the executor's step time / the plain loop's (1.00: no overhead), the median of rounds that
// alternate the two; `of_ideal` is ((M - 1) max t + sum t) / the measured step time, with t the measured compute time
// of a stage for a micro-batch; `over_whole` is the compute time of two ranks with split backward passes / with whole
// ones. All need an idle machine with two cores.

#include "core/model/models.hpp"
#include "exec/run/run.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/exec/model/plain_loop.hpp"
#include "tests/support/unit_devices.hpp"

#include <benchmark/benchmark.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

namespace {

using namespace isobar;

constexpr std::uint64_t seed = 1;
constexpr std::uint64_t microbatches = 8;
constexpr std::uint64_t steps = 6;  // per round; the executor's first one does not count

Workload gpt(std::uint64_t hidden)
{
  Workload workload;
  workload.name = "gpt";
  workload.micro_batch = 4;
  workload.sequence = 64;
  workload.optimizer = Optimizer::Adam;
  const GptSizes sizes{
      .layers = 6, .hidden = hidden, .heads = 4, .intermediate = 4 * hidden, .vocabulary = 1000, .positions = 64};
  workload.model = sizes;
  build_gpt(sizes, workload);
  return workload;
}

Plan plan_of(const Workload& workload, const std::vector<std::size_t>& last_layers)
{
  Plan plan;
  plan.goal.microbatches = microbatches;
  std::size_t first = 0;
  for (const std::size_t last : last_layers) {
    const std::string device = "device-" + std::to_string(plan.stages.size());
    plan.stages.push_back(stage_on(device, std::exchange(first, last + 1), last));
  }
  if (first != workload.layers.size()) throw std::logic_error("every layer has a stage");
  return plan;
}

double median_of(std::vector<double> values)
{
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

exec::MeasuredRun run(const Workload& workload, const Plan& plan, const Program& program)
{
  exec::RunOptions options;
  options.steps = steps;
  options.seed = seed;
  options.limits = exec::time_limits(Seconds(0), Seconds(60));
  return exec::run_in_process(workload, plan, program, options, [](const exec::StepReport&) {});
}

/// The median time of the steps after the first.
double step_time(const exec::MeasuredRun& measured)
{
  std::vector<double> times;
  for (const Seconds time : measured.step_times()) times.push_back(time.value);
  times.erase(times.begin());
  return median_of(times);
}

void BM_OneStageOverThePlainLoop(benchmark::State& state)
{
  at::set_num_threads(1);
  const Workload workload = gpt(static_cast<std::uint64_t>(state.range(0)));
  const Plan plan = plan_of(workload, {workload.layers.size() - 1});
  const auto program = testing_support::unit_program(plan, workload);
  exec::PlainLoop loop(workload, seed, microbatches);
  loop.step();
  std::vector<double> ratios;
  for ([[maybe_unused]] const auto _ : state) {
    std::vector<double> plain;
    for (std::uint64_t i = 1; i < steps; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      benchmark::DoNotOptimize(loop.step());
      plain.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    ratios.push_back(step_time(run(workload, plan, *program)) / median_of(plain));
  }
  state.counters["over_plain"] = median_of(ratios);
}
BENCHMARK(BM_OneStageOverThePlainLoop)->Arg(64)->Arg(256)->Iterations(5)->Unit(benchmark::kMillisecond);

void BM_TwoRanksOfTheIdeal(benchmark::State& state)
{
  const Workload workload = gpt(static_cast<std::uint64_t>(state.range(0)));
  const Plan plan = plan_of(workload, {3, workload.layers.size() - 1});
  const auto program = testing_support::unit_program(plan, workload);
  std::vector<double> ratios;
  for ([[maybe_unused]] const auto _ : state) {
    const auto measured = run(workload, plan, *program);
    double sum = 0;
    double most = 0;
    double slowest_update = 0;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      const auto& times = measured.ranks()[rank].lanes.at(compute_lane).times;
      const std::uint64_t length = program->length(rank, compute_lane);
      double computes = 0;
      double update = 0;
      for (std::size_t i = length; i < times.size(); ++i) {  // without the first step
        const bool updates = program->at(rank, compute_lane, i % length).opcode == Opcode::Update;
        (updates ? update : computes) += (times[i].end - times[i].begin).value;
      }
      const double of_microbatch = computes / static_cast<double>((steps - 1) * microbatches);
      sum += of_microbatch;
      most = std::max(most, of_microbatch);
      slowest_update = std::max(slowest_update, update / static_cast<double>(steps - 1));
    }
    ratios.push_back((static_cast<double>(microbatches - 1) * most + sum + slowest_update) / step_time(measured));
  }
  state.counters["of_ideal"] = median_of(ratios);
}
BENCHMARK(BM_TwoRanksOfTheIdeal)->Arg(64)->Arg(256)->Iterations(5)->Unit(benchmark::kMillisecond);

/// The compute time of both stages in the steps after the first.
double compute_time(const exec::MeasuredRun& measured)
{
  double sum = 0;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const auto times = measured.compute_times(rank, rank);
    for (std::size_t step = 1; step < times.size(); ++step) sum += times[step].value;
  }
  return sum;
}

void BM_SplitBackwardOverWhole(benchmark::State& state)
{
  const Workload workload = gpt(static_cast<std::uint64_t>(state.range(0)));
  Plan plan = plan_of(workload, {3, workload.layers.size() - 1});
  const auto whole = testing_support::unit_program(plan, workload);
  plan.goal.schedule = {"zero-bubble-h1"};
  const auto split = testing_support::unit_program(plan, workload);
  std::vector<double> ratios;
  for ([[maybe_unused]] const auto _ : state) {
    const double of_whole = compute_time(run(workload, plan, *whole));
    ratios.push_back(compute_time(run(workload, plan, *split)) / of_whole);
  }
  state.counters["over_whole"] = median_of(ratios);
}
BENCHMARK(BM_SplitBackwardOverWhole)->Arg(64)->Arg(256)->Iterations(5)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
