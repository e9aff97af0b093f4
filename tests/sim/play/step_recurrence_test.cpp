#include "core/costs/step_recurrence.hpp"

#include "core/base/child_process.hpp"
#include "core/order/schedule_choice.hpp"
#include "sim/platform/platform.hpp"
#include "sim/play/simulation.hpp"
#include "tests/support/full_mesh.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

namespace isobar::sim::step_recurrence_test {
namespace {

/// Ratio of the simulated step time to the recurrence's, for a random plan on a random platform.
double simulated_over_recurrence(unsigned seed)
{
  std::mt19937_64 random(seed);
  const std::size_t devices = 1 + random() % 6;
  PlatformFile file;
  full_mesh(file, random, devices, random() % 2 == 0);
  const Platform platform = file.load();
  const Cluster& cluster = platform.cluster();
  const std::size_t layers = devices + random() % 6;
  const Workload workload = random_workload(random, layers);

  Plan plan;
  plan.goal.schedule = choice_of(
      std::array{ChainSchedule::Sequential, ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}[seed % 3]);
  plan.goal.microbatches = 1 + random() % 16;
  std::vector<StagePlacement> placement;
  for (std::size_t i = 0; i < devices; ++i) {
    placement.push_back({(i + seed) % devices, layers * i / devices, layers * (i + 1) / devices - 1});
    const auto& [device, first, last] = placement.back();
    plan.stages.push_back(stage_on(cluster.devices[device].name, first, last));
  }
  const auto report = simulate_plan(platform, workload, plan);
  return report.step_times.at(0) / step_time_by_recurrence(CostModel(workload, cluster), placement, plan.goal);
}

}  // namespace

TEST(StepRecurrence, IsTheSimulatedStepWhereNoTwoTransfersShareALink)
{
  std::vector<std::function<std::string()>> cases;
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    cases.emplace_back([seed] { return fmt::format("{:.17g}", simulated_over_recurrence(seed)); });
  }
  const auto results = run_in_children(cases, 2, Seconds(60));
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_NEAR(std::stod(results[i].output_or_throw()), 1, 1e-6) << "seed " << i + 1;
  }
}

}  // namespace isobar::sim::step_recurrence_test
