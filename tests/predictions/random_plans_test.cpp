#include "core/base/child_process.hpp"
#include "tests/predictions/predicted.hpp"
#include "tests/predictions/random_case.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

// What is predicted is what the checker's own player accepts and what the simulator takes, where no other job uses the
// links.
namespace isobar::predictions::random_plans_test {
namespace {

constexpr double tolerance = 1e-6;  // relative
#ifdef __SANITIZE_ADDRESS__
constexpr std::uint64_t seeds_of_kind = 50;  // a plan takes five times as long
#else
constexpr std::uint64_t seeds_of_kind = 250;
#endif

/// How much the prediction of a case is off its simulation, relative, and on further lines what the checker finds
/// wrong.
std::string comparison_of(Kind kind, std::uint64_t seed)
{
  RandomCase made = random_case(kind, seed);
  const Cluster& cluster = made.on.cluster;
  predict(made.plan, made.workload, cluster);
  const Seconds simulated = simulated_step(made.plan, made.workload, cluster, made.on.platform);
  const double difference = std::abs(made.plan.predicted.value().step_time / simulated - 1);
  return fmt::format("{:.17g}\n{}", difference, fmt::join(faults_of_claims(made.plan, made.workload, cluster), "\n"));
}

/// Compares so many seeds of each kind, each in a process of its own.
void expect_simulated_steps(std::uint64_t first_seed, std::uint64_t seeds)
{
  std::vector<std::string> names;
  std::vector<std::function<std::string()>> work;
  for (const Kind kind : every_kind) {
    for (std::uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
      names.push_back(fmt::format("{}, seed {}", name_of(kind), seed));
      work.emplace_back([=] { return comparison_of(kind, seed); });
    }
  }
  const auto results = run_in_children(work, 2, Seconds(60));
  for (std::size_t i = 0; i < names.size(); ++i) {
    SCOPED_TRACE(names[i]);
    if (results[i].failure) {
      ADD_FAILURE() << results[i].failure->text;
      continue;
    }
    const std::string& output = results[i].output;
    const std::size_t end = output.find('\n');
    const double difference = std::stod(output.substr(0, end));
    EXPECT_EQ(output.substr(end + 1), "");
    EXPECT_LE(difference, tolerance);
  }
}

TEST(Predictions, AreAcceptedByTheCheckerAndAreTheSimulatedStepsOfRandomPlans)
{
  expect_simulated_steps(1, seeds_of_kind);
}

TEST(Predictions, DISABLED_AreTheSimulatedStepsOfThousandsOfRandomPlans)
{
  expect_simulated_steps(1'000, 400);
}

}  // namespace
}  // namespace isobar::predictions::random_plans_test
