#include "results/gate/baseline.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace isobar::results::baseline_test {
namespace {

using testing::HasSubstr;

ComparisonRow row_of(const std::string& allocator, double step_time)
{
  ComparisonRow row;
  row.platform = "p.xml";
  row.workload = "w.yaml";
  row.allocator = allocator;
  row.outcome = "feasible";
  row.objective = Seconds(2);
  row.objective_bound = Seconds(1);
  row.step_time = Seconds(step_time);
  row.step_bound = Seconds(1);
  row.peak_memory = Bytes(1e9);
  return row;
}

ComparisonRow without_plan(const std::string& allocator, const std::string& outcome)
{
  ComparisonRow row = row_of(allocator, 1);
  row.outcome = outcome;
  row.objective = row.objective_bound = row.step_time = row.step_bound = std::nullopt;
  row.peak_memory = std::nullopt;
  return row;
}

/// "worse: step time …" for the change between two rows with the same key; "" for none.
std::string change_between(const ComparisonRow& before, const ComparisonRow& now)
{
  const auto check = check_baseline({before}, {now}, {});
  if (check.changes.empty()) return "";
  return std::string(name_of(check.changes.front().kind)) + ": " + check.changes.front().what;
}

/// The change that `change` makes to a row of `even` at 1 s.
template <typename Change>
std::string change_by(Change change)
{
  ComparisonRow now = row_of("even", 1);
  change(now);
  return change_between(row_of("even", 1), now);
}

TEST(CheckBaseline, FindsAPlanThatIsAHundredthOfAPercentWorse)
{
  EXPECT_EQ(change_between(row_of("even", 1), row_of("even", 1.0001)), "worse: step time 1 s -> 1.0001 s (+0.01 %)");
}

TEST(CheckBaseline, FindsAPlanThatIsBetter)
{
  EXPECT_EQ(change_between(row_of("even", 2), row_of("even", 1)), "better: step time 2 s -> 1 s (-50 %)");
}

TEST(CheckBaseline, IgnoresDifferencesInTheLastDigits)
{
  EXPECT_EQ(change_between(row_of("even", 1), row_of("even", 1 + 9e-7)), "");
  EXPECT_EQ(change_between(row_of("even", 1), row_of("even", 1 + 2e-6)),
            "worse: step time 1 s -> 1.000002 s (+0.0002 %)");
}

TEST(CheckBaseline, JudgesByTheFirstColumnThatDiffersAndNamesTheOthers)
{
  EXPECT_EQ(change_by([](auto& row) {
              row.step_time = Seconds(0.5);
              row.objective = Seconds(4);
              row.peak_memory = Bytes(2e9);
            }),
            "better: step time 1 s -> 0.5 s (-50 %); also objective, peak memory");
  EXPECT_EQ(change_by([](auto& row) { row.objective = Seconds(1); }), "better: objective 2 s -> 1 s (-50 %)");
  EXPECT_EQ(change_by([](auto& row) { row.outcome = "optimal"; }), "better: outcome feasible -> optimal");
  EXPECT_EQ(change_by([](auto& row) { row.outcome = "timed_out"; }), "worse: outcome feasible -> timed_out");
  EXPECT_EQ(change_by([](auto& row) { row.objective_bound = Seconds(1.5); }),
            "better: objective bound 1 s -> 1.5 s (+50 %)");
  EXPECT_EQ(change_by([](auto& row) { row.step_bound = Seconds(0.5); }), "worse: step bound 1 s -> 0.5 s (-50 %)");
  EXPECT_EQ(change_by([](auto& row) { row.peak_memory = Bytes(2e9); }),
            "worse: peak memory 1e+09 B -> 2e+09 B (+100 %)");
}

TEST(CheckBaseline, FindsAPlanThatIsLostOrFirstFound)
{
  EXPECT_EQ(change_between(row_of("even", 1), without_plan("even", "infeasible")),
            "worse: step time 1 s -> none; also objective, outcome, objective bound, step bound, peak memory");
  EXPECT_THAT(change_between(without_plan("even", "infeasible"), row_of("even", 1)),
              testing::StartsWith("better: step time none -> 1 s"));
  EXPECT_EQ(change_between(without_plan("even", "infeasible"), without_plan("even", "infeasible")), "");
}

TEST(CheckBaseline, FindsRowsThatAreNewOrMissing)
{
  const auto check = check_baseline({row_of("a", 1), row_of("b", 1)}, {row_of("c", 1), row_of("b", 1)}, {});
  ASSERT_EQ(check.changes.size(), 2U);
  EXPECT_EQ(check.changes[0].kind, ChangeKind::Missing);
  EXPECT_EQ(check.changes[0].row.key.at(2).value.scalar, "a");
  EXPECT_EQ(check.changes[1].kind, ChangeKind::New);
  EXPECT_EQ(check.changes[1].what, "step time 1 s; nothing to compare with");
  EXPECT_FALSE(check.holds());
}

TEST(CheckBaseline, ReportsEveryFailure)
{
  ComparisonRow failed = without_plan("even", std::string(failed_outcome));
  failed.reason = "exited with code 7\nreally";
  EXPECT_EQ(change_between(failed, failed), R"(failed: exited with code 7\x0areally)");
  EXPECT_EQ(change_between(row_of("even", 1), failed), R"(failed: exited with code 7\x0areally)");
}

TEST(CheckBaseline, TakesTheGeometricMeanOverRowsThatBothHave)
{
  const auto check = check_baseline({row_of("a", 1), row_of("b", 1), row_of("c", 1), without_plan("d", "infeasible")},
                                    {row_of("a", 4), row_of("b", 0.25), row_of("e", 9), row_of("d", 9)}, {});
  EXPECT_EQ(check.times.rows, 2U);
  EXPECT_DOUBLE_EQ(check.times.geometric_mean.value(), 1);
  EXPECT_DOUBLE_EQ(check.times_by_maker.at("a").geometric_mean.value(), 4);
  EXPECT_FALSE(check_baseline({}, {row_of("a", 1)}, {}).times.geometric_mean);
}

/// Rows of `even` and of another allocator with these planning times, in seconds.
std::vector<ComparisonRow> timed(double even, double mine)
{
  std::vector<ComparisonRow> rows = {row_of("even", 1), row_of("mine", 1)};
  rows[0].plan_time = Seconds(even);
  rows[1].plan_time = Seconds(mine);
  return rows;
}

TEST(CheckBaseline, ComparesPlanTimesWithThoseOfEven)
{
  const auto rows = timed(0.5, 2);
  const auto check = check_baseline(rows, rows, {{"mine", 3.5}});
  ASSERT_EQ(check.plan_times.size(), 1U);
  EXPECT_DOUBLE_EQ(check.plan_times[0].ratio_to_even, 4);
  EXPECT_TRUE(check.plan_times[0].is_over());
  EXPECT_FALSE(check.holds());
  EXPECT_EQ(check_to_text(check, "rows.csv"),
            "slower  mine: planning takes 4 times as long as even; the limit is 3.5\n"
            "2 rows, unchanged from rows.csv\ngeometric mean of step times, new / old: 1.000000 (2 rows)\n");
  EXPECT_TRUE(check_baseline(rows, rows, {{"mine", 4.5}}).holds());
  EXPECT_TRUE(check_baseline(rows, rows, {}).holds());
}

TEST(CheckBaseline, DividesByNoTimeThatIsNoise)
{
  const auto rows = timed(0.001, 0.04);
  EXPECT_LT(check_baseline(rows, rows, {}).plan_times.at(0).ratio_to_even, 1);
}

TEST(CheckBaseline, ReportsNoPlanTimesWithoutEven)
{
  auto rows = timed(0.5, 2);
  rows.erase(rows.begin());
  EXPECT_TRUE(check_baseline(rows, rows, {{"mine", 1}}).plan_times.empty());
}

BaselineCheck changed()
{
  return check_baseline({row_of("a<b", 1), row_of("gone|", 1)}, {row_of("a<b", 2), row_of("same", 1)}, {});
}

TEST(CheckToText, GivesEachChangeALineAndASummary)
{
  EXPECT_EQ(check_to_text(changed(), "rows.csv"),
            "worse   p.xml × w.yaml, a<b, step (played, 1f1b, M = 8, seed 1): step time 1 s -> 2 s (+100 %)\n"
            "missing p.xml × w.yaml, gone|, step (played, 1f1b, M = 8, seed 1): no longer planned\n"
            "new     p.xml × w.yaml, same, step (played, 1f1b, M = 8, seed 1): step time 1 s; nothing to "
            "compare with\n"
            "2 rows, changed from rows.csv: 1 worse, 1 new, 1 missing\n"
            "geometric mean of step times, new / old: 2.000000 (1 row)\n");
}

TEST(CheckToJson, HoldsChangesAndSummary)
{
  const auto json = nlohmann::json::parse(check_to_json(changed(), "rows.csv"));
  EXPECT_EQ(json["schema"], "isobar-check/1");
  EXPECT_EQ(json["holds"], false);
  EXPECT_EQ(json["rows"], 2);
  EXPECT_EQ(json["changes"].size(), 3U);
  EXPECT_EQ(json["changes"][0]["change"], "worse");
  EXPECT_EQ(json["changes"][0]["allocator"], "a<b");
  EXPECT_EQ(json["step_times"]["geometric_mean"], 2);
}

TEST(CheckToMarkdown, EscapesNamesInTables)
{
  const std::string text = check_to_markdown(changed(), "rows.csv");
  EXPECT_THAT(text, HasSubstr("### Quality of plans: changed\n"));
  EXPECT_THAT(text, HasSubstr("| worse | p.xml × w.yaml, a&lt;b, step (played, 1f1b, M = 8, seed 1) | step time "
                              "1 s -&gt; 2 s (+100 %) |\n"));
  EXPECT_THAT(text, HasSubstr("gone\\|,"));
  EXPECT_THAT(text, HasSubstr("| a&lt;b | 2.000000 | – | – |\n"));
}

TEST(CheckToMarkdown, FitsIntoAComment)
{
  std::vector<ComparisonRow> rows;
  for (int i = 0; i < 1000; ++i) rows.push_back(row_of("allocator" + std::to_string(i), 1));
  const std::string text = check_to_markdown(check_baseline({}, rows, {}), "rows.csv");
  EXPECT_THAT(text, HasSubstr("And 900 more.\n"));
  EXPECT_LT(text.size(), 65'536U);
}

TEST(CheckToJunit, HasACaseForEachRowAndEscapesNames)
{
  EXPECT_EQ(check_to_junit(changed(), "rows.csv"),
            R"xml(<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="isobar check rows.csv" tests="3" failures="3">
  <testcase classname="p.xml × w.yaml" name="a&lt;b, step (played, 1f1b, M = 8, seed 1)">
    <failure message="worse: step time 1 s -&gt; 2 s (+100 %)"/>
  </testcase>
  <testcase classname="p.xml × w.yaml" name="same, step (played, 1f1b, M = 8, seed 1)">
    <failure message="new: step time 1 s; nothing to compare with"/>
  </testcase>
  <testcase classname="p.xml × w.yaml" name="gone|, step (played, 1f1b, M = 8, seed 1)">
    <failure message="missing: no longer planned"/>
  </testcase>
</testsuite>
)xml");
}

}  // namespace
}  // namespace isobar::results::baseline_test
