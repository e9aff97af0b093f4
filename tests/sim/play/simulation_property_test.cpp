#include "sim/play/simulation.hpp"

#include "core/base/child_process.hpp"
#include "core/costs/cost_model.hpp"
#include "core/order/schedule_choice.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

// Properties of all simulations: no step is under its bound, and memory does not grow with the micro-batches.
namespace isobar::sim::simulation_property_test {
namespace {

/// A random platform, workload and plan; returns step time / step bound of the simulation.
double time_over_bound(unsigned seed)
{
  std::mt19937 random(seed);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<>(low, high)(random); };
  const auto below = [&](std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random);
  };
  const std::size_t stages = 1 + below(6);
  const bool has_data_server = below(2) == 0;
  const std::size_t links = 1 + below(8);
  PlatformFile file;
  for (std::size_t i = 0; i < stages; ++i) file.device(fmt::format("d{}", i), fmt::format("{}Gf", uniform(0.5, 20)));
  std::vector<std::string> endpoints = names(stages);
  if (has_data_server) {
    file.data_server("data");
    endpoints.push_back("data");
  }
  for (std::size_t i = 0; i < links; ++i) {
    file.link(fmt::format("l{}", i), fmt::format("{}MBps", uniform(1, 1000)), fmt::format("{}ms", uniform(0.01, 50)),
              below(4) == 0 ? "sharing_policy=\"FATPIPE\"" : "",
              below(4) == 0 ? "<prop id=\"flows\" value=\"2\"/><prop id=\"window\" value=\"1 MB\"/>" : "");
  }
  for (const auto& from : endpoints) {
    for (const auto& to : endpoints) {
      if (from == to) continue;
      std::vector<std::string> route = {fmt::format("l{}", below(links))};
      if (below(2) == 0) route.push_back(fmt::format("l{}", below(links)));
      file.route(from, to, route);
    }
  }
  const Platform platform = file.load();
  Workload workload = equal_layers(stages, Bytes(0), Bytes(0));
  workload.input = Bytes(uniform(0, 1e8));
  for (auto& layer : workload.layers) {
    layer.forward = Flops(uniform(0, 5e9));
    layer.backward = Flops(uniform(0, 9e9));
    layer.output = Bytes(uniform(0, 1e8));
    layer.gradient = Bytes(uniform(0, 1e8));
    layer.parameters = below(1000000000);
  }
  const ChainSchedule schedule =
      std::array{ChainSchedule::Sequential, ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}.at(below(3));
  const Plan plan = one_layer_per_device(names(stages), schedule, 1 + below(12));
  const Seconds simulated = step_time(simulate_plan(platform, workload, plan));
  std::vector<StagePlacement> placement;
  for (std::size_t i = 0; i < stages; ++i) {
    placement.push_back({platform.cluster().device_index(plan.stages[i].device()).value(), i, i});
  }
  return simulated / CostModel(workload, platform.cluster()).evaluate(placement, plan.goal).step_bound;
}

TEST(Simulate, IsNeverUnderTheStepBound)
{
  std::vector<std::function<std::string()>> cases;
  for (unsigned seed = 1; seed <= 120; ++seed) {
    cases.emplace_back([seed] { return fmt::format("{:.17g}", time_over_bound(seed)); });
  }
  const auto results = run_in_children(cases, 2, Seconds(60));
  for (std::size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(fmt::format("seed {}", i + 1));
    EXPECT_GE(std::stod(results[i].output_or_throw()), 1 - 1e-9);
  }
}

/// Peak memory of a process that simulates 64 stages.
double peak_memory_bytes(std::uint64_t microbatches)
{
  return number_from_child([&] {
    PlatformFile file;
    chain_of_devices(file, 64, "100MBps", "10ms");
    const Platform platform = file.load();
    simulate_plan(platform, equal_layers(64, Bytes(5e6), Bytes(3e6)),
                  one_layer_per_device(names(64), ChainSchedule::OneForwardOneBackward, microbatches));
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_maxrss) * 1024;
  });
}

TEST(Simulate, TakesNoMoreMemoryForMoreMicroBatches)
{
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps freed memory, so peak memory is meaningless";
#endif
  const double few = peak_memory_bytes(64);
  const double many = peak_memory_bytes(2048);
  EXPECT_LT(many, 1.03 * few);
}

}  // namespace
}  // namespace isobar::sim::simulation_property_test
