#include "core/compute/prediction_interval.hpp"

#include "core/base/files.hpp"
#include "core/text/separated.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

/// The width is the root of the sum of squares of the causes in results/fidelity/interval.csv:
/// run² + ((1 - exposed) · device)² + ((1 - measured) · system)² + (exposed · network)².
namespace isobar::compute::prediction_interval_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double tolerance = 1e-12;

/// The width of a cause in the file.
double of_file(const std::string& cause)
{
  const std::string text = read_file(std::filesystem::path(ISOBAR_SOURCE_DIR) / "results/fidelity/interval.csv");
  for (const auto line : texts_between(text, '\n')) {
    if (!line.starts_with(cause + ",")) continue;
    return std::stod(std::string(line.substr(cause.size() + 1)));
  }
  ADD_FAILURE() << cause << " is not in the file";
  return 0;
}

StepBasis fitted_run()
{
  StepBasis basis;
  basis.types = {"A100-SXM4-80GB"};
  basis.least_known_type = "A100-SXM4-80GB";
  basis.system = "megatron-lm-2021";
  return basis;
}

TEST(StepInterval, OfAFittedPairIsThatOfAnyRun)
{
  EXPECT_NEAR(half_width_of(fitted_run()), of_file("run"), tolerance);
}

TEST(StepInterval, AddsTheSquaresOfItsCauses)
{
  StepBasis basis = fitted_run();
  basis.device = DeviceSource::Tables;
  basis.pair = PairSource::Other;
  basis.exposed_fraction = 0.25;
  basis.spans_nodes = true;
  const auto width = [&] {
    return std::hypot(std::hypot(of_file("run"), 0.75 * of_file("tables")),
                      std::hypot(of_file("system"), 0.25 * of_file("between")));
  };
  EXPECT_NEAR(half_width_of(basis), width(), tolerance);
  basis.spans_nodes = false;
  EXPECT_NEAR(
      half_width_of(basis),
      std::sqrt(std::pow(width(), 2) - std::pow(0.25 * of_file("between"), 2) + std::pow(0.25 * of_file("inside"), 2)),
      tolerance);
  basis.device = DeviceSource::Operators;
  basis.measured_fraction = 0.5;
  EXPECT_NEAR(half_width_of(basis),
              std::hypot(std::hypot(of_file("run"), 0.75 * of_file("operators")),
                         std::hypot(0.5 * of_file("system"), 0.25 * of_file("inside"))),
              tolerance);
}

TEST(StepInterval, LiesAroundTheStepInItsLogarithm)
{
  const StepInterval interval = interval_of(fitted_run(), Seconds(10));
  EXPECT_NEAR(interval.low.value * interval.high.value, 100, 1e-9);
  EXPECT_NEAR(std::log(interval.high.value / 10), of_file("run"), tolerance);
}

TEST(StepInterval, IsNoWiderWhereMoreIsKnown)
{
  const auto width = [](DeviceSource device, PairSource pair, double measured) {
    StepBasis basis = fitted_run();
    basis.device = device;
    basis.pair = pair;
    basis.measured_fraction = measured;
    basis.exposed_fraction = 0.2;
    return half_width_of(basis);
  };
  constexpr DeviceSource devices[] = {DeviceSource::Runs,      DeviceSource::Layers, DeviceSource::SameChip,
                                      DeviceSource::Operators, DeviceSource::Tables, DeviceSource::StandIn};
  constexpr PairSource pairs[] = {PairSource::Fitted, PairSource::Compared, PairSource::Other};
  for (std::size_t i = 0; i < std::size(devices); ++i) {
    for (std::size_t j = 0; j < std::size(pairs); ++j) {
      const double own = width(devices[i], pairs[j], 0);
      EXPECT_LE(width(devices[i], pairs[j], 0.5), own);
      if (i > 0) {
        EXPECT_LE(width(devices[i - 1], pairs[j], 0), own);
      }
      if (j > 0) {
        EXPECT_LE(width(devices[i], pairs[j - 1], 0), own);
      }
    }
  }
}

TEST(StepInterval, NamesItsCauses)
{
  StepBasis basis = fitted_run();
  EXPECT_THAT(interval_of(basis, Seconds(1)).because, ElementsAre(HasSubstr("any run: ±")));
  basis.least_known_type = "L4";
  basis.system = "aceso-2024";
  basis.device = DeviceSource::Tables;
  basis.pair = PairSource::Other;
  basis.exposed_fraction = 0.5;
  EXPECT_THAT(interval_of(basis, Seconds(1)).because,
              ElementsAre(HasSubstr("any run"), HasSubstr("L4: constants of kernels measured outside of training: ±"),
                          HasSubstr("L4 under aceso-2024: no known run of this pair: ±"),
                          HasSubstr("communication inside a node, 50 % of the step: ±")));
}

TEST(RankingWidth, LeavesOutWhatIsWrongOfBothSteps)
{
  StepBasis a = fitted_run();
  a.device = DeviceSource::StandIn;
  a.pair = PairSource::Other;
  StepBasis b = a;
  EXPECT_NEAR(ranking_width_of(a, b), of_file("ranking"), tolerance);
  b.exposed_fraction = 0.3;
  EXPECT_NEAR(ranking_width_of(a, b), std::hypot(of_file("ranking"), 0.3 * of_file("inside")), tolerance);
  EXPECT_EQ(ranking_width_of(a, b), ranking_width_of(b, a));
}

TEST(RankingWidth, OfOtherDevicesHasTheErrorsOfBoth)
{
  StepBasis a = fitted_run();
  StepBasis b = fitted_run();
  b.types = {"L4"};
  b.device = DeviceSource::Tables;
  EXPECT_NEAR(ranking_width_of(a, b), std::hypot(std::sqrt(2) * of_file("run"), of_file("tables")), tolerance);
}

}  // namespace
}  // namespace isobar::compute::prediction_interval_test
