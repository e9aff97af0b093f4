#include "core/plan/nominal_rates.hpp"
#include "core/program/player.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/play/simulation.hpp"
#include "tests/support/divisions.hpp"
#include "tests/support/full_mesh.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace isobar::sim {
namespace {

using namespace testing_support;  // NOLINT: a test file

/// The largest difference between simulated and played times of three steps, relative.
double largest_difference(std::uint64_t seed)
{
  std::mt19937_64 random(seed);
  const std::vector<std::vector<double>> all_shares = {
      equal_shares(2), equal_shares(4), {0.25, 0.75}, {0.5, 0, 0.5}, {1.0 / 6, 1.0 / 3, 0.5}};
  const auto workloads = small_moes(seed % 2 == 0 ? "" : "clip_norm: 1\n");
  const Workload& workload = workloads[random() % workloads.size()];
  const auto& shares = all_shares[random() % all_shares.size()];
  PlatformFile file;
  full_mesh(file, random, shares.size(), false);
  const Platform platform = file.load();
  const auto graph = *operator_graph_of(workload);
  const auto division = random_division(graph, spmd::Rules::Corrected, random);
  const Plan plan = plan_of(graph, division, shares, "duplex", 1 + random() % 4);
  const auto program = schedules::make_program(plan, workload);
  constexpr std::uint64_t steps = 3;
  const auto played = play_program(*program, nominal_rates(plan, workload, platform.cluster()), steps);
  const auto report = simulate(platform, *program, rank_hosts(plan, workload, platform.cluster()), steps, nullptr);
  double difference = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    const double expected = played.periods[i].step_time.value;
    difference = std::max(difference, std::abs(report.step_times[i].value - expected) / expected);
  }
  return difference;
}

TEST(DividedOperators, TakeAsLongInTheSimulatorAsInThePlayerWhereNoLinkIsShared)
{
  std::vector<std::function<std::string()>> work;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    work.emplace_back([seed] { return fmt::format("{:.17g}", largest_difference(seed)); });
  }
  for (const auto& result : run_in_children(work, 2, Seconds(120))) {
    ASSERT_FALSE(result.failure) << result.failure->text;
    EXPECT_LT(std::stod(result.output), 1e-9);
  }
}

}  // namespace
}  // namespace isobar::sim
