#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/outer/outer.hpp"
#include "schedules/rounds/played_round.hpp"
#include "tests/support/instances.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

/// Plans of rounds on small clusters.
namespace isobar::schedules::testing_support {

using namespace isobar::testing_support;  // NOLINT(google-build-using-namespace): of tests

/// A plan of stages on devices, one after the other, each with as many layers as `cuts` says.
inline Plan pipeline_on(const std::vector<std::string>& devices, const std::vector<std::size_t>& cuts,
                        const std::string& schedule, std::uint64_t microbatches)
{
  Plan plan;
  plan.goal = goal_under(schedule, microbatches);
  std::size_t first = 0;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    plan.stages.push_back(stage_on(devices[i], first, cuts[i]));
    first = cuts[i] + 1;
  }
  return plan;
}

/// A cluster and a plan of rounds on it.
struct SampleRounds {
  Workload workload;
  Cluster cluster;
  OuterPlan plan;

  std::vector<Workload> of_workers() const { return std::vector<Workload>(plan.workers.size(), workload); }
};

/// Devices of 1 FLOP/s in bfloat16, whose outer updates take no time.
inline Cluster cluster_of_steps(std::size_t devices, Path path)
{
  Cluster result = cluster(std::vector<double>(devices, 1e30), path);
  for (auto& device : result.devices) device.speed_in[DType::BFloat16] = FlopsPerSecond(1);
  return result;
}

/// Workers of one device each, whose step takes `step_time`, and which hold `parameters`.
inline SampleRounds one_device_each(std::size_t workers, double step_time, std::uint64_t parameters, Path path)
{
  SampleRounds sample;
  sample.workload = chain({step_time / 3}, parameters);
  sample.workload.layers.front().update = Flops(0);
  sample.workload.dtype = DType::BFloat16;
  sample.cluster = cluster_of_steps(workers, path);
  for (std::size_t k = 0; k < workers; ++k) {
    const std::string device = "d" + std::to_string(k);
    sample.plan.workers.push_back({"site" + std::to_string(k), 1, pipeline_on({device}, {0}, "1f1b", 1)});
  }
  return sample;
}

inline void set_steps(OuterPlan& plan, std::uint64_t steps)
{
  plan.outer.steps = steps;
  for (auto& worker : plan.workers) worker.steps = steps;
}

inline PlayedRound play(const SampleRounds& sample, std::uint64_t most_whole = most_played_whole)
{
  const auto workloads = sample.of_workers();
  return play_round({sample.plan, sample.workload, workloads, sample.cluster}, most_whole);
}

/// With runs of steps as one computation.
inline PlayedRound play_in_one(const SampleRounds& sample)
{
  return play(sample, 0);
}

/// Random pipelines at random sites, some with unlike numbers of stages.
inline SampleRounds random_rounds(std::mt19937_64& random)
{
  SampleRounds sample;
  const std::size_t sites = 2 + random() % 3;
  const std::size_t devices = 1 + random() % 3;
  sample.workload = random_chain(random, 3 + random() % 5);
  for (auto& layer : sample.workload.layers) layer.parameters = 1 + random() % 3000;
  sample.cluster = random_sites(random, sites, devices, 1e9);
  sample.cluster.data_server.reset();
  const std::size_t layers = sample.workload.layers.size();
  const char* schedules[] = {"1f1b", "gpipe", "zero-bubble-h1"};
  Outer& outer = sample.plan.outer;
  outer.steps = 8 + random() % 20;
  outer.fragments = 1 + random() % 3;
  outer.delay = random() % 5;
  const Algorithm algorithms[] = {Algorithm::Ring, Algorithm::Direct, Algorithm::Server};
  outer.algorithm = algorithms[random() % 3];
  const char* codecs[] = {"fp32", "int8", "int4", "top-k 0.1"};
  outer.codec = codec_from_text(codecs[random() % 4]);
  for (std::size_t site = 0; site < sites; ++site) {
    const std::size_t stages = std::min(layers, 1 + random() % devices);
    std::vector<std::string> names;
    std::vector<std::size_t> cuts;
    for (std::size_t i = 0; i < stages; ++i) {
      names.push_back("d" + std::to_string(site * devices + i));
      cuts.push_back(i + 1 == stages ? layers - 1 : (i + 1) * layers / stages - 1);
    }
    OuterWorker worker;
    worker.name = "site" + std::to_string(site);
    worker.steps = outer.steps - random() % 3;
    worker.plan = pipeline_on(names, cuts, schedules[random() % 3], 1 + random() % 6);
    sample.plan.workers.push_back(std::move(worker));
  }
  return sample;
}

}  // namespace isobar::schedules::testing_support
