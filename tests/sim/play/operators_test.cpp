#include "core/costs/nominal_rates.hpp"
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

namespace isobar::sim::operators_test {
namespace {

using namespace testing_support;  // NOLINT: a test file

/// Rates of operators of each kind, for devices of a few GFLOP/s and operators of a few MFLOP.
spmd::DeviceRates random_rates(std::mt19937_64& random)
{
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  return {FlopsPerSecond(uniform(1e9, 4e9)),
          BytesPerSecond(uniform(1e7, 1e9)),
          Seconds(uniform(0, 1e-4)),
          {{Flops(1e3), uniform(0.1, 0.5)}, {Flops(1e6), uniform(0.5, 1)}}};
}

/// The largest difference between simulated and played times of three steps, relative.
double difference_of(const Plan& plan, const Workload& workload, const Platform& platform, const Cluster& cluster)
{
  const auto program = schedules::make_program(plan, workload, cluster);
  constexpr std::uint64_t steps = 3;
  const auto played = play_program(*program, nominal_rates(plan, cluster), steps);
  const auto report = simulate(platform, *program, rank_hosts(plan, cluster), steps, nullptr);
  double difference = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    const double expected = played.periods[i].step_time.value;
    difference = std::max(difference, std::abs(report.step_times[i].value - expected) / expected);
  }
  return difference;
}

/// The same of a random plan of one group.
double largest_difference(std::uint64_t seed, bool has_rates_and_interference, std::size_t replicas = 1)
{
  std::mt19937_64 random(seed);
  const std::vector<std::vector<double>> all_shares = {
      equal_shares(2), equal_shares(4), {0.25, 0.75}, {0.5, 0, 0.5}, {1.0 / 6, 1.0 / 3, 0.5}};
  const auto workloads = moes_by_operators(seed % 2 == 0 ? "" : "clip_norm: 1\n");
  Workload workload = workloads[random() % workloads.size()];
  const auto& shares = all_shares[random() % all_shares.size()];
  PlatformFile file;
  full_mesh(file, random, replicas * shares.size(), false);
  const Platform platform = file.load();
  const auto graph = *operator_graph_of(workload);
  const auto division = random_division(graph, spmd::Rules::Corrected, random);
  Plan plan = plan_of(graph, division, shares, "duplex", 1 + random() % 4, replicas);
  Cluster cluster = platform.cluster();
  if (has_rates_and_interference) {
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const std::string type = i % 2 == 0 ? "even" : "odd";
      workload.operator_rates.try_emplace(type, random_rates(random));
      cluster.devices[i].interference = 1 + static_cast<double>(random() % 3) / 4;
      cluster.devices[i].collective_start = Seconds(static_cast<double>(random() % 3) / 100);
      for (auto& stage : plan.stages) stage.replicas.front().shards[i].type = type;
    }
  }
  if (seed % 3 > 0) add_random_buckets(plan, workload, random);
  return difference_of(plan, workload, platform, cluster);
}

/// The same of a random plan of two or three groups.
double largest_difference_of_groups(std::uint64_t seed)
{
  std::mt19937_64 random(seed);
  const std::vector<std::vector<double>> all_shares = {{1}, equal_shares(2), {0.25, 0.75}, {1.0 / 6, 1.0 / 3, 0.5}};
  const auto workloads = moes_by_operators(seed % 2 == 0 ? "" : "clip_norm: 1\n");
  const Workload workload = workloads[random() % workloads.size()];
  const std::size_t replicas = 1 + seed % 2;
  std::vector<std::vector<double>> shares(2 + random() % 2);
  std::size_t devices = 0;
  for (auto& each : shares) {
    each = all_shares[random() % all_shares.size()];
    devices += replicas * each.size();
  }
  PlatformFile file;
  full_mesh(file, random, devices, false);
  const Platform platform = file.load();
  const auto graph = *operator_graph_of(workload);
  const auto division = random_division(graph, spmd::Rules::Corrected, random, shares.size());
  const Plan plan =
      plan_of_groups(graph, division, shares, seed % 3 == 0 ? "1f1b" : "duplex", 1 + random() % 5, replicas);
  return difference_of(plan, workload, platform, platform.cluster());
}

void compare_simulated_with_played(bool has_rates_and_interference, std::size_t replicas = 1)
{
  std::vector<std::function<std::string()>> work;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    work.emplace_back(
        [=] { return fmt::format("{:.17g}", largest_difference(seed, has_rates_and_interference, replicas)); });
  }
  for (const auto& result : run_in_children(work, 2, Seconds(120))) {
    ASSERT_FALSE(result.failure) << result.failure->text;
    EXPECT_LT(std::stod(result.output), 1e-9);
  }
}

TEST(DividedOperators, TakeAsLongInTheSimulatorAsInThePlayerWhereNoLinkIsShared)
{
  compare_simulated_with_played(false);
}

TEST(DividedOperators, WithRatesAndInterferenceTakeAsLongInTheSimulatorAsInThePlayer)
{
  compare_simulated_with_played(true);
}

TEST(DividedOperators, OfReplicasTakeAsLongInTheSimulatorAsInThePlayer)
{
  compare_simulated_with_played(false, 2);
  compare_simulated_with_played(false, 3);
}

/// The same of two replicas of two devices each, whose messages to each other all pass one link in each direction.
double largest_difference_of_nodes(std::uint64_t seed)
{
  std::mt19937_64 random(seed);
  const Workload workload = moes_by_operators().front();
  PlatformFile file;
  for (std::size_t i = 0; i < 4; ++i) file.device(fmt::format("d{}", i), "1Gf");
  file.link("there", "10MBps", "1ms");
  file.link("back", "10MBps", "1ms");
  for (std::size_t from = 0; from < 4; ++from) {
    for (std::size_t to = 0; to < 4; ++to) {
      if (from == to) continue;
      std::string link = from < to ? "there" : "back";
      if (from / 2 == to / 2) {
        link = fmt::format("{}-{}", from, to);
        file.link(link, "1GBps", "10us");
      }
      file.route(fmt::format("d{}", from), fmt::format("d{}", to), {link});
    }
  }
  const Platform platform = file.load();
  const auto graph = *operator_graph_of(workload);
  const auto division = random_division(graph, spmd::Rules::Corrected, random);
  const Plan plan = plan_of(graph, division, equal_shares(2), "duplex", 1 + random() % 3, 2);
  return difference_of(plan, workload, platform, platform.cluster());
}

TEST(DividedOperators, OfReplicasWhoseDevicesShareALinkTakeNearlyAsLongInTheSimulatorAsInThePlayer)
{
  std::vector<std::function<std::string()>> work;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    work.emplace_back([=] { return fmt::format("{:.17g}", largest_difference_of_nodes(seed)); });
  }
  for (const auto& result : run_in_children(work, 2, Seconds(120))) {
    ASSERT_FALSE(result.failure) << result.failure->text;
    EXPECT_LT(std::stod(result.output), 0.02);  // twice as long as each alone, but for their latencies
  }
}

TEST(DividedOperators, OfGroupsTakeAsLongInTheSimulatorAsInThePlayer)
{
  std::vector<std::function<std::string()>> work;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    work.emplace_back([=] { return fmt::format("{:.17g}", largest_difference_of_groups(seed)); });
  }
  for (const auto& result : run_in_children(work, 2, Seconds(120))) {
    ASSERT_FALSE(result.failure) << result.failure->text;
    EXPECT_LT(std::stod(result.output), 1e-9);
  }
}

}  // namespace
}  // namespace isobar::sim::operators_test
