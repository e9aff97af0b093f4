// Speed of isobar cluster's scheduling: jobs a second, and the time relative to first come, first served on the same
// trace, measured beside it. Traces of thousands of jobs take seconds. And of matchings of complete graphs: 1,000 jobs
// must take less than 10 s.

#include "allocators/mix/cluster_schedule.hpp"
#include "allocators/mix/job_grouping.hpp"
#include "allocators/mix/matching.hpp"
#include "core/base/clock.hpp"
#include "core/base/pcg64.hpp"
#include "core/jobs/measured_models.hpp"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

namespace isobar::allocators {

namespace {

const std::vector<std::size_t> nodes(8, 8);

/// Jobs of measured models that ask for 1.2 times the devices that there are.
std::vector<Job> overload(std::size_t count)
{
  Pcg64 random(1);
  std::vector<Job> jobs(count);
  Seconds arrival;
  for (Job& job : jobs) {
    job.model = measured_models()[random.below(static_cast<std::uint32_t>(measured_models().size()))];
    job.devices = std::size_t{1} << random.below(6);
    job.step = measured_step(job.model, job.devices);
    job.steps = 1 + random.below(100'000);
    job.start_cost = measured_start_cost(job.model, job.devices).value();
    job.arrival = arrival;
    arrival += job.step.alone * job.steps * (static_cast<double>(job.devices) / 64 / 1.2);
  }
  return jobs;
}

void schedule(benchmark::State& state, Policy policy)
{
  const auto jobs = overload(static_cast<std::size_t>(state.range(0)));
  ScheduleRules rules;
  rules.policy = Policy::Fifo;
  const auto begin_of_fifo = Clock::now();
  benchmark::DoNotOptimize(schedule_jobs(jobs, nodes, rules));
  const Seconds fifo = time_since(begin_of_fifo);
  rules.policy = policy;
  const auto begin = Clock::now();
  for (auto _ : state) benchmark::DoNotOptimize(schedule_jobs(jobs, nodes, rules));
  state.counters["over_fifo"] = time_since(begin) / static_cast<double>(state.iterations()) / fifo;
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void arguments(benchmark::internal::Benchmark* bench)
{
  bench->ArgName("jobs")->Unit(benchmark::kMillisecond)->Arg(1000)->Arg(4000);
}

BENCHMARK_CAPTURE(schedule, srtf, Policy::Srtf)->Apply(arguments);
BENCHMARK_CAPTURE(schedule, tiresias, Policy::Tiresias)->Apply(arguments);
BENCHMARK_CAPTURE(schedule, muri, Policy::Muri)->Apply(arguments);
BENCHMARK_CAPTURE(schedule, crossover, Policy::Crossover)->Apply(arguments);

void match(benchmark::State& state)
{
  Pcg64 random(1);
  const auto jobs = static_cast<std::size_t>(state.range(0));
  std::vector<MatchingEdge> edges;
  for (std::size_t i = 0; i < jobs; ++i) {
    for (std::size_t j = i + 1; j < jobs; ++j) edges.push_back({i, j, 1 + random.below(1'000'000'000)});
  }
  for (auto _ : state) benchmark::DoNotOptimize(maximum_weight_matching(jobs, edges));
}

/// Random jobs in pairs with their certificate and the baselines beside them.
void group(benchmark::State& state, GroupSize size)
{
  Pcg64 random(1);
  std::vector<JobProfile> jobs(static_cast<std::size_t>(state.range(0)));
  for (auto& job : jobs) {
    job.steps = 1 + random.below(100'000);
    job.step.busy = {Seconds(0.1 * random.uniform()), Seconds(random.uniform()), Seconds(random.uniform())};
    for (const Seconds busy : job.step.busy) job.step.alone += busy;
  }
  for (auto _ : state) benchmark::DoNotOptimize(choose_groups(jobs, {size}));
}

BENCHMARK_CAPTURE(group, pairs, GroupSize::Pairs)->ArgName("jobs")->Unit(benchmark::kMillisecond)->Arg(200)->Arg(1000);
BENCHMARK_CAPTURE(group, four, GroupSize::Auto)->ArgName("jobs")->Unit(benchmark::kMillisecond)->Arg(200)->Arg(1000);

BENCHMARK(match)->ArgName("jobs")->Unit(benchmark::kMillisecond)->Arg(200)->Arg(400)->Arg(1000);

}  // namespace

}  // namespace isobar::allocators

BENCHMARK_MAIN();
