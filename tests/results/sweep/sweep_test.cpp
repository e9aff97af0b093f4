#include "results/sweep/sweep.hpp"

#include "core/errors.hpp"
#include "core/order/schedule_choice.hpp"
#include "results/sweep/planned_rows.hpp"
#include "results/sweep/statistics.hpp"
#include "results/sweep/sweep_store.hpp"
#include "results/sweep/sweep_table.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numbers>

namespace isobar::results::sweep_test {
namespace {

Sweep sweep_of(const std::string& text)
{
  const SweepVocabulary vocabulary = {{"sky"},
                                      [](const std::string&) {
                                        return std::vector<std::string>{"nodes", "seed"};
                                      },
                                      [](const std::string&) {},
                                      [](const std::string& schedule) { schedule_from_text(schedule); }};
  return Sweep::from_text(text, "x.yaml", vocabulary);
}

ComparisonRow plan_of(const std::string& outcome)
{
  ComparisonRow row;
  row.outcome = outcome;
  row.step_time = Seconds(0.1);
  row.stages = 3;
  row.reason = "a \"reason\"";
  return row;
}

SweepRow row_of(const std::string& definition, const std::string& outcome)
{
  return stored_row(definition, plan_of(outcome));
}

TEST(StudentsT, HasTheValuesOfItsClosedForms)
{
  for (const double probability : {0.5, 0.9, 0.95, 0.999}) {
    EXPECT_NEAR(student_t(probability, 1) / std::tan(probability * std::numbers::pi / 2), 1, 1e-12);
    EXPECT_NEAR(student_t(probability, 2) / (probability * std::sqrt(2 / (1 - probability * probability))), 1, 1e-12);
  }
}

TEST(StudentsT, HasTheValuesOfTheTables)
{
  // Abramowitz, Stegun, table 26.10.
  EXPECT_NEAR(student_t(0.95, 3), 3.182, 5e-4);
  EXPECT_NEAR(student_t(0.95, 4), 2.776, 5e-4);
  EXPECT_NEAR(student_t(0.95, 9), 2.262, 5e-4);
  EXPECT_NEAR(student_t(0.95, 30), 2.042, 5e-4);
  EXPECT_NEAR(student_t(0.95, 120), 1.980, 5e-4);
}

TEST(MeanInterval, HasWidthZeroForEqualNumbersAndNoneForOneNumber)
{
  EXPECT_EQ(mean_interval({0.1, 0.1, 0.1}).mean, 0.1);
  EXPECT_EQ(mean_interval({0.1, 0.1, 0.1}).half_width, 0);
  EXPECT_EQ(mean_interval({7}).half_width, std::nullopt);
  EXPECT_NEAR(*mean_interval({1, 3}).half_width, student_t(0.95, 1), 1e-12);
}

TEST(Sweep, VariesTheSeedFastestAndTheFirstParameterSlowest)
{
  const Sweep sweep = sweep_of("platform: [a, b]\nworkload: w\nallocator: [x, y]\nrepetitions: 2\nseed: 5\n");
  std::string runs;
  for (std::size_t run = 0; run < sweep.runs(); ++run) {
    runs += sweep.text(run, "platform") + sweep.text(run, "allocator") + std::to_string(sweep.seed(run)) + " ";
  }
  EXPECT_EQ(runs, "ax5 ax6 ay5 ay6 bx5 bx6 by5 by6 ");
}

TEST(Sweep, ZipsParametersInAnyOrder)
{
  const Sweep sweep =
      sweep_of("platform: [a, b]\nworkload: w\nallocator: [x, y]\nseed: [1, 2]\nzip: [[seed, platform]]\n");
  std::string runs;
  for (std::size_t run = 0; run < sweep.runs(); ++run) {
    runs += sweep.text(run, "platform") + sweep.text(run, "allocator") + std::to_string(sweep.seed(run)) + " ";
  }
  EXPECT_EQ(runs, "ax1 ay1 bx2 by2 ");
}

TEST(Sweep, TakesSchedulesWithNumbersAndNamesThoseThatAreRefused)
{
  const Sweep sweep = sweep_of("platform: a\nworkload: w\nallocator: x\nschedule: [1f1b, interleaved(chunks=2)]\n");
  EXPECT_EQ(sweep.text(1, "schedule"), "interleaved(chunks=2)");
  EXPECT_THAT([] { sweep_of("platform: a\nworkload: w\nallocator: x\nschedule: interleaved(2)\n"); },
              testing::ThrowsMessage<InputError>("x.yaml:4: schedule: \"2\" in \"interleaved(2)\" is not KEY=NUMBERS; "
                                                 "write it as in interleaved(chunks=2)"));
}

TEST(SweepStore, ReturnsStoredRowsAndReplacesOnlyFailedOnes)
{
  const testing_support::TemporaryFolder folder;
  const std::string file = (folder.path() / "x.db").string();
  {
    SweepStore store(file, planned_runs());
    EXPECT_FALSE(store.row("a"));
    store.put(row_of("a", "failed"));
    store.put(row_of("a", "feasible"));
    store.put(row_of("a", "infeasible"));
    store.put(row_of("b", "failed"));
  }
  const SweepStore store(file, planned_runs());
  ComparisonRow row;
  fill_from(*store.row("a"), row);
  EXPECT_EQ(row.outcome, "feasible");
  EXPECT_EQ(row.step_time, Seconds(0.1));
  EXPECT_EQ(row.objective, std::nullopt);
  EXPECT_EQ(row.stages, 3U);
  EXPECT_EQ(row.reason, "a \"reason\"");
  EXPECT_EQ(store.row("b")->outcome, "failed");
}

TEST(SweepStore, KeepsPlansAndSchedulesOfOneDatabaseApart)
{
  const testing_support::TemporaryFolder folder;
  const std::string file = (folder.path() / "x.db").string();
  SweepStore plans(file, planned_runs());
  plans.put(row_of("a", "feasible"));
  EXPECT_FALSE(SweepStore(file, scheduled_runs(), SweepStore::Access::Read).row("a"));
  SweepStore schedules(file, scheduled_runs());
  SweepRow row = failed_row("a", "why", scheduled_runs());
  schedules.put(row);
  row.outcome = scheduled_outcome;
  for (std::size_t i = 0; i < row.numbers.size(); ++i) row.numbers[i] = static_cast<double>(i);
  schedules.put(row);
  EXPECT_EQ(schedules.row("a")->outcome, scheduled_outcome);
  EXPECT_EQ(schedules.row("a")->numbers, row.numbers);
  EXPECT_EQ(plans.row("a")->outcome, "feasible");
}

TEST(SweepStore, MayBeOpenTwiceAtOnce)
{
  const testing_support::TemporaryFolder folder;
  const std::string file = (folder.path() / "x.db").string();
  SweepStore one(file, planned_runs());
  SweepStore other(file, planned_runs());
  one.put(row_of("a", "feasible"));
  other.put(row_of("b", "feasible"));
  EXPECT_TRUE(one.row("b"));
  EXPECT_TRUE(other.row("a"));
}

TEST(SweepStore, ReadsRowsWhileAnotherStoreWrites)
{
  const testing_support::TemporaryFolder folder;
  const std::string file = (folder.path() / "of 100 %?.db").string();
  SweepStore writer(file, planned_runs());
  writer.put(row_of("a", "feasible"));
  EXPECT_TRUE(SweepStore(file, planned_runs(), SweepStore::Access::Read).row("a"));
}

TEST(SweepStore, RefusesToReadAnEmptyFile)
{
  const testing_support::TemporaryFolder folder;
  const std::string file = (folder.path() / "x.db").string();
  std::ofstream(file).close();
  EXPECT_THAT([&] { SweepStore(file, planned_runs(), SweepStore::Access::Read); },
              testing::ThrowsMessage<InputError>(file + ": is a database, but not of a sweep; name another file"));
}

TEST(SweepStore, ReportsAFolderThatItCannotWrite)
{
  try {
    const SweepStore store("/nowhere/x.db", planned_runs());
    FAIL();
  } catch (const EnvironmentError& fault) {
    EXPECT_STREQ(fault.what(), "/nowhere/x.db: cannot write there: No such file or directory");
  }
}

TEST(SweepRow, IsTheSameAfterJson)
{
  const SweepRow row = row_of("{\"a\": 1}", "feasible");
  const std::string json = sweep_row_to_json(row, planned_runs());
  EXPECT_THAT(json, testing::Not(testing::HasSubstr("\n")));
  EXPECT_EQ(sweep_row_to_json(sweep_row_from_json(json, "x", planned_runs()), planned_runs()), json);
}

TEST(SweepRow, IsRefusedWithAnUnknownOutcome)
{
  try {
    sweep_row_from_json(R"({"definition": "a", "outcome": "good", "stages": 1, "reason": ""})", "row.json",
                        planned_runs());
    FAIL();
  } catch (const InputError& fault) {
    EXPECT_STREQ(fault.what(),
                 "row.json:1: outcome: \"good\" is not one of optimal, feasible, infeasible, timed_out, failed");
  }
}

TEST(SweepTable, GivesEachOfTheFirstReasonsOfFailedRunsOnce)
{
  const Sweep sweep = sweep_of("platform: p\nworkload: w\nallocator: [a, b, c, d, e, f, g]\n");
  std::vector<PlannedRun> runs;
  for (std::size_t run = 0; run < sweep.runs(); ++run) {
    runs.push_back({run, plan_of(std::string(failed_outcome))});
    runs.back().row.reason = run < 2 ? "the same" : "reason " + sweep.text(run, "allocator");
  }
  auto results = results_of(sweep, runs);
  const std::string text = sweep_summary_table(sweep, results);
  EXPECT_THAT(text, testing::EndsWith("7 of 7 runs, 7 failed\n\n"
                                      "allocator a failed: the same\n"
                                      "allocator c failed: reason c\n"
                                      "allocator d failed: reason d\n"
                                      "allocator e failed: reason e\n"
                                      "allocator f failed: reason f\n"
                                      "2 more rows failed; --csv has their reasons\n"));
  results.resize(2);
  EXPECT_THAT(sweep_summary_table(sweep, results),
              testing::EndsWith("allocator a failed: the same\n1 more row failed; --csv has their reasons\n"));
}

TEST(SweepTable, SaysWhatRunsWerePlannedWithWhereTheirDefaultsDiffer)
{
  const Sweep sweep = sweep_of("platform: p\nworkload: w\nallocator: [even, window]\n");
  ComparisonRow row = plan_of("feasible");
  row.reason.clear();
  ComparisonRow passing = row;
  passing.goal.schedule = choice_of(ChainSchedule::GPipe);
  passing.goal.microbatches = 1;
  passing.recompute = "inner";
  EXPECT_EQ(sweep_summary_table(sweep, results_of(sweep, {{0, row}, {1, passing}}), TableWidth::Any),
            "allocator  schedule  microbatches  recompute  runs  simulated  step s  objective s\n"
            "---------  --------  ------------  ---------  ----  ---------  ------  -----------\n"
            "even       1f1b      8             none          1          1  0.1000            –\n"
            "window     gpipe     1             inner         1          1  0.1000            –\n"
            "\n2 of 2 runs, 2 feasible\n");
  EXPECT_THAT(sweep_to_csv(sweep, results_of(sweep, {{0, row}, {1, passing}})),
              testing::HasSubstr("microbatches,seed,recompute,outcome"));
  EXPECT_THAT(sweep_to_csv(sweep, results_of(sweep, {{0, row}, {1, passing}})),
              testing::HasSubstr("gpipe,1,1,inner,feasible"));
  EXPECT_THAT(sweep_to_csv(sweep, results_of(sweep, {{0, row}})), testing::HasSubstr("microbatches,seed,outcome"));
  const Sweep all = sweep_of("platform: p\nworkload: w\nallocator: [even, window]\nrecompute: inner\n");
  EXPECT_THAT(sweep_to_csv(all, results_of(all, {{1, passing}})),
              testing::HasSubstr("microbatches,seed,recompute,outcome"));
}

TEST(SweepTable, HasAColumnForEachParameterAndQuotesWhatNeedsIt)
{
  const Sweep sweep =
      sweep_of("platform: {generate: sky, nodes: [4, 8]}\nworkload: {file: w, dtype: bf16}\nallocator: a\n");
  ComparisonRow row = plan_of("infeasible");
  row.platform = "sky";
  row.workload = "w";
  row.allocator = "a";
  EXPECT_EQ(sweep_to_csv(sweep, results_of(sweep, {{1, row}})),
            "platform,workload,allocator,objective,communication,schedule,microbatches,seed,platform_nodes,"
            "workload_dtype,outcome,objective_s,objective_bound_s,gap_fraction,step_time_s,step_bound_s,"
            "peak_memory_bytes,bottleneck_s,stages,reason\n"
            "sky,w,a,step,played,1f1b,8,1,8,bf16,infeasible,,,,0.1,,,,3,\"a \"\"reason\"\"\"\n");
}

}  // namespace
}  // namespace isobar::results::sweep_test
