#include "results/fidelity/limits.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace isobar::results::limits_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing_support::TemporaryFolder;

FidelityLimits limits_of(const std::string& text, const std::string& name = "l.yaml")
{
  const TemporaryFolder folder;
  std::filesystem::current_path(folder.path());
  folder.write(name, text);
  auto limits = read_fidelity_limits(name, {"a", "b"});
  std::filesystem::current_path("/");
  return limits;
}

std::string fault_of(const std::string& text)
{
  return message_of([&] { limits_of(text); });
}

/// A set with 10 rows, all predicted 5 % too high, memory 2 %.
FidelityFigures figures_of_a()
{
  SetFigures set;
  set.set = "a";
  set.figures.rows = 10;
  set.figures.predicted = 10;
  set.figures.times.errors = error_figures({{1.05, 1}});
  set.figures.times.ranks.spearman = 0.9;
  set.figures.times.ranks.ordered_pairs = 0.8;
  set.figures.times.ranks.mean_regret = 0.03;
  set.figures.memory = error_figures({{1.02, 1}});
  return {{set}, {}};
}

TEST(FidelityLimits, AreReadFromYamlAndJson)
{
  const auto yaml = limits_of("tolerance_fraction: 0.002\nsets:\n  a:\n    mean_error_fraction: 0.05\n    rows: 10\n");
  EXPECT_EQ(yaml.tolerance, 0.002);
  ASSERT_EQ(yaml.sets.size(), 1U);
  EXPECT_EQ(yaml.sets[0].set, "a");
  EXPECT_EQ(yaml.sets[0].mean_error, 0.05);
  EXPECT_EQ(yaml.sets[0].rows, 10U);
  EXPECT_EQ(yaml.sets[0].spearman, std::nullopt);
  const auto json = limits_of("{\"sets\": {\"b\": {\"spearman\": -0.5}}}", "l.json");
  EXPECT_EQ(json.tolerance, 0);
  EXPECT_EQ(json.sets[0].spearman, -0.5);
}

TEST(FidelityLimits, EveryFaultHasItsLineAndKey)
{
  EXPECT_EQ(fault_of("sets: {c: {rows: 1}}\n"), "InputError l.yaml:1: c: no row is of this set; the files have a, b");
  EXPECT_EQ(fault_of("sets:\n  a:\n    mean_eror_fraction: 1\n"),
            "InputError l.yaml:3: a.mean_eror_fraction: unknown key; did you mean mean_error_fraction?");
  EXPECT_EQ(fault_of("sets: 5\n"),
            "InputError l.yaml:1: sets: has no names of sets; write set: {mean_error_fraction: 0.05}");
  EXPECT_THAT(fault_of("tolerance_fraction: 0.1\n"), testing::StartsWith("InputError l.yaml:1: sets: missing"));
  EXPECT_THAT(fault_of("sets: {a: {rows: -1}}\n"), testing::StartsWith("InputError l.yaml:1: a.rows: "));
}

TEST(FidelityLimits, AFigureBeyondItsLimitIsALine)
{
  const auto figures = figures_of_a();
  EXPECT_THAT(beyond_limits(limits_of("sets: {a: {mean_error_fraction: 0.04, memory_mean_error_fraction: 0.01, "
                                      "spearman: 0.95, ordered_pairs_fraction: 0.9, regret_fraction: 0.02, "
                                      "coverage_fraction: 1, rows: 11}}\n"),
                            figures),
              ElementsAre("l.yaml:1: a: mean_error_fraction is 0.05; the limit is 0.04",
                          "l.yaml:1: a: memory_mean_error_fraction is 0.02; the limit is 0.01",
                          "l.yaml:1: a: spearman is 0.9; the limit is 0.95",
                          "l.yaml:1: a: ordered_pairs_fraction is 0.8; the limit is 0.9",
                          "l.yaml:1: a: regret_fraction is 0.03; the limit is 0.02",
                          "l.yaml:1: a: rows is 10; the limit is 11"));
  EXPECT_THAT(beyond_limits(limits_of("sets: {a: {mean_error_fraction: 0.05, memory_mean_error_fraction: 0.02, "
                                      "spearman: 0.9, ordered_pairs_fraction: 0.8, regret_fraction: 0.03, "
                                      "coverage_fraction: 1, rows: 10}}\n"),
                            figures),
              IsEmpty());
}

TEST(FidelityLimits, TheToleranceIsForMeanErrorsAlone)
{
  const auto figures = figures_of_a();
  EXPECT_THAT(beyond_limits(limits_of("tolerance_fraction: 0.002\nsets: {a: {mean_error_fraction: 0.048, "
                                      "memory_mean_error_fraction: 0.018, regret_fraction: 0.029}}\n"),
                            figures),
              ElementsAre("l.yaml:2: a: regret_fraction is 0.03; the limit is 0.029"));
  EXPECT_THAT(beyond_limits(limits_of("tolerance_fraction: 0.002\nsets: {a: {mean_error_fraction: 0.047}}\n"), figures),
              ElementsAre("l.yaml:2: a: mean_error_fraction is 0.05; the limit is 0.047 + 0.002"));
}

TEST(FidelityLimits, TooFewAndTooManyRowsInsideTheirIntervalsAreBeyond)
{
  auto figures = figures_of_a();
  figures.sets[0].figures.intervals = 10;
  const auto limits = limits_of("sets: {a: {inside_interval_fraction: 0.75, most_inside_interval_fraction: 0.9}}\n");
  for (const std::size_t inside : {8U, 9U}) {
    figures.sets[0].figures.inside = inside;
    EXPECT_THAT(beyond_limits(limits, figures), IsEmpty());
  }
  figures.sets[0].figures.inside = 7;
  EXPECT_THAT(beyond_limits(limits, figures),
              ElementsAre("l.yaml:1: a: inside_interval_fraction is 0.7; the limit is 0.75"));
  figures.sets[0].figures.inside = 10;
  EXPECT_THAT(beyond_limits(limits, figures),
              ElementsAre("l.yaml:1: a: most_inside_interval_fraction is 1; the limit is 0.9"));
}

TEST(FidelityLimits, AFigureThatASetLacksIsBeyondAnyLimit)
{
  auto figures = figures_of_a();
  figures.sets[0].figures.times.ranks.spearman.reset();
  EXPECT_THAT(beyond_limits(limits_of("sets: {a: {spearman: 0}}\n"), figures),
              ElementsAre("l.yaml:1: a: spearman has no value; the limit is 0"));
}

}  // namespace
}  // namespace isobar::results::limits_test
