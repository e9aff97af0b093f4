#include "core/base/child_process.hpp"
#include "tests/predictions/predicted.hpp"
#include "tests/predictions/random_case.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

// What is predicted is what the checker's own player accepts and what the simulator takes, where no other job uses the
// links.
namespace isobar::predictions {
namespace {

constexpr double tolerance = 1e-6;  // relative

/// What is wrong with the case of a seed; empty if nothing is.
std::string fault_of_case(Kind kind, std::uint64_t seed)
{
  RandomCase made = random_case(kind, seed);
  const Cluster& cluster = made.on.cluster;
  predict(made.plan, made.workload, cluster);
  const double predicted = made.plan.predicted.value().step_time.value;
  const double simulated = simulated_step(made.plan, made.workload, cluster, made.on.platform).value;
  std::string text;
  if (!(std::abs(predicted - simulated) <= tolerance * simulated)) {
    text = fmt::format("predicted {:.12g} s, simulated {:.12g} s\n", predicted, simulated);
  }
  return text + fmt::format("{}", fmt::join(faults_of_claims(made.plan, made.workload, cluster), "\n"));
}

/// Checks so many seeds of each kind, each in a process of its own.
void expect_no_faults(std::uint64_t first_seed, std::uint64_t seeds)
{
  std::vector<std::string> names;
  std::vector<std::function<std::string()>> work;
  for (const Kind kind : every_kind) {
    for (std::uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
      names.push_back(fmt::format("{}, seed {}", name_of(kind), seed));
      work.emplace_back([=] { return fault_of_case(kind, seed); });
    }
  }
  const auto results = run_in_children(work, 2, Seconds(60));
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(results[i].failure ? results[i].failure->text : results[i].output, "") << names[i];
  }
}

TEST(Predictions, AreAcceptedByTheCheckerAndAreTheSimulatedStepsOfRandomPlans)
{
  expect_no_faults(1, 50);
}

TEST(Predictions, DISABLED_AreTheSimulatedStepsOfThousandsOfRandomPlans)
{
  expect_no_faults(1'000, 400);
}

}  // namespace
}  // namespace isobar::predictions
