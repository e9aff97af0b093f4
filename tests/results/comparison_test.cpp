#include "results/comparison.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace isobar::results::comparison_test {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ComparisonToCsv, SortsRowsAndLeavesUnknownCellsEmpty)
{
  ComparisonRow bad;
  bad.platform = "p.xml";
  bad.workload = "w.yaml";
  bad.allocator = "z";
  bad.outcome = "infeasible";
  bad.reason = "too large";
  ComparisonRow good = bad;
  good.allocator = "a";
  good.outcome = "feasible";
  good.objective = Seconds(4);
  good.objective_bound = Seconds(3);
  good.step_time = Seconds(0.1);
  good.step_bound = Seconds(0.05);
  good.peak_memory = Bytes(1024);
  EXPECT_EQ(baseline_to_csv({bad, good}),
            "platform,workload,allocator,objective,communication,schedule,microbatches,seed,outcome,objective_s,"
            "objective_bound_s,gap_fraction,step_time_s,step_bound_s,peak_memory_bytes\n"
            "p.xml,w.yaml,a,step,played,1f1b,8,1,feasible,4,3,0.25,0.1,0.05,1024\n"
            "p.xml,w.yaml,z,step,played,1f1b,8,1,infeasible,,,,,,\n");
}

/// A row whose step is known as well as one of a fitted pair.
ComparisonRow known_row(const std::string& allocator, double step)
{
  ComparisonRow row;
  row.allocator = allocator;
  row.outcome = "feasible";
  row.step_time = Seconds(step);
  row.basis = compute::StepBasis{};
  row.interval = compute::interval_of(*row.basis, Seconds(step));
  return row;
}

TEST(RankOf, IsATieWithinWhatRankingsAreKnownTo)
{
  const double width = std::expm1(compute::ranking_width_of({}, {}));
  std::vector<ComparisonRow> rows = {known_row("near", 1 + 0.9 * width), known_row("far", 1 + 1.1 * width),
                                     known_row("fastest", 1), known_row("unknown", 1.01)};
  rows[3].basis.reset();
  EXPECT_EQ(rank_of(rows[2], rows), std::nullopt);
  EXPECT_EQ(rank_of(rows[3], rows), std::nullopt);
  const auto near = rank_of(rows[0], rows);
  ASSERT_TRUE(near);
  EXPECT_EQ(near->fastest, &rows[2]);
  EXPECT_NEAR(near->slower, 0.9 * width, 1e-12);
  EXPECT_NEAR(near->known_to, width, 1e-12);
  EXPECT_TRUE(near->is_tie());
  EXPECT_FALSE(rank_of(rows[1], rows)->is_tie());
  rows[2].goal.microbatches = 9;  // another question
  EXPECT_EQ(rank_of(rows[0], rows), std::nullopt);
}

TEST(ComparisonTable, SaysWhichRowsAreWithinTheBar)
{
  const double width = std::expm1(compute::ranking_width_of({}, {}));
  const std::vector<ComparisonRow> rows = {known_row("near", 1 + 0.5 * width), known_row("far", 2),
                                           known_row("fastest", 1)};
  const std::string text = comparison_table(rows);
  EXPECT_THAT(text, HasSubstr("\nfastest: step 1.0000 s (80 %: "));
  EXPECT_THAT(text, HasSubstr(fmt::format("within the bar: near and fastest differ by {:.1f} %, less than the {:.1f} % "
                                          "that rankings are known to\n",
                                          50 * width, 100 * width)));
  EXPECT_THAT(text, Not(HasSubstr("far and fastest")));
  const std::string json = comparison_to_json(rows);
  for (const auto* key : {"step_interval_s", "interval_because", "slower_fraction", "ranking_fraction"}) {
    EXPECT_THAT(json, HasSubstr(key));
  }
}

TEST(ComparisonTable, SaysNothingOfABarThatIsNotKnown)
{
  ComparisonRow row = known_row("even", 1);
  row.basis.reset();
  row.interval.reset();
  EXPECT_THAT(comparison_table({row}), Not(HasSubstr("80 %")));
  EXPECT_THAT(comparison_to_json({row}), Not(HasSubstr("step_interval_s")));
}

TEST(ShareBounds, SharesTheBestBoundOnlyAmongRowsOfOneGoal)
{
  ComparisonRow first;
  first.allocator = "even";
  first.outcome = "feasible";
  first.objective = Seconds(5);
  first.objective_bound = Seconds(1);
  ComparisonRow second = first;
  second.allocator = "exact";
  second.objective = Seconds(4);
  second.objective_bound = Seconds(3);
  ComparisonRow met = first;  // the bound is a little above what this one takes
  met.allocator = "chain-dp";
  met.objective = Seconds(3 * (1 - 1e-12));
  ComparisonRow other = first;
  other.goal.microbatches = 9;
  ComparisonRow samples = first;
  samples.micro_batch = 2;
  ComparisonRow none = first;
  none.outcome = "infeasible";
  none.objective.reset();
  none.objective_bound.reset();
  std::vector<ComparisonRow> rows = {first, second, met, other, samples, none};
  share_bounds(rows);
  EXPECT_EQ(rows[0].objective_bound, Seconds(3));
  EXPECT_EQ(rows[0].outcome, "feasible");
  EXPECT_EQ(rows[1].objective_bound, Seconds(3));
  EXPECT_EQ(rows[2].objective_bound, rows[2].objective);
  EXPECT_EQ(rows[2].outcome, "optimal");
  EXPECT_EQ(rows[3].objective_bound, Seconds(1));
  EXPECT_EQ(rows[4].objective_bound, Seconds(1));
  EXPECT_EQ(rows[5].objective_bound, std::nullopt);
}

TEST(ComparisonTable, HasOneGroupForEachGoalWithin80Columns)
{
  ComparisonRow row;
  row.allocator = "sky-dynamic-fixed";
  row.goal = Goal::with_defaults(Objective::Pipeline);
  row.outcome = "infeasible";
  ComparisonRow other = row;
  other.goal = Goal::with_defaults(Objective::Step);
  other.outcome = "feasible";
  other.stages = 1000;
  other.step_time = other.step_bound = other.bottleneck = other.objective = other.objective_bound = Seconds(999.5);
  other.peak_memory = Bytes(100 * 0x1p30);
  other.utilization = {123456, 0.5, 0.25};
  EXPECT_EQ(comparison_table({row, row, other}),
            "pipeline, 1f1b, M = 8\n\n"
            "allocator              stages  step s  gap  MFU  GiB\n"
            "-----------------  ----------  ------  ---  ---  ---\n"
            "sky-dynamic-fixed  infeasible       –    –    –    –\n"
            "sky-dynamic-fixed  infeasible       –    –    –    –\n\n"
            "step, 1f1b, M = 8: no chain below 999.5000 s\n\n"
            "allocator          stages    step s    gap     MFU     GiB\n"
            "-----------------  ------  --------  -----  ------  ------\n"
            "sky-dynamic-fixed    1000  999.5000  0.0 %  50.0 %  100.00\n");
  EXPECT_EQ(comparison_table({other}, TableWidth::Any),
            "step, 1f1b, M = 8: no chain below 999.5000 s\n\n"
            "allocator          outcome   stages    step s  step bound s  objective s   bound s    gap  bottleneck s  "
            "tokens/s     MFU  bubble     GiB\n"
            "-----------------  --------  ------  --------  ------------  -----------  --------  -----  ------------  "
            "--------  ------  ------  ------\n"
            "sky-dynamic-fixed  feasible    1000  999.5000      999.5000     999.5000  999.5000  0.0 %      999.5000  "
            "  123456  50.0 %  25.0 %  100.00\n");
}

TEST(ComparisonTable, HasAColumnForTheSchedulesOfOneGoal)
{
  ComparisonRow row;
  row.allocator = "even";
  row.outcome = "feasible";
  row.stages = 4;
  row.step_time = row.objective = Seconds(2);
  row.objective_bound = Seconds(1.5);
  ComparisonRow other = row;
  other.goal.schedule = {"interleaved", {{"chunks", {2}}}};
  other.objective_bound = Seconds(1);
  ComparisonRow failed = other;
  failed.outcome = "failed";
  failed.stages = 0;
  failed.reason = "too slow";
  failed.step_time = failed.objective = failed.objective_bound = std::nullopt;
  EXPECT_EQ(comparison_table({row, other, failed}),
            "step, M = 8: no chain below 1.0000 s; gaps are to the bound of each schedule\n\n"
            "allocator  schedule               stages  step s     gap  MFU  GiB\n"
            "---------  ---------------------  ------  ------  ------  ---  ---\n"
            "even       1f1b                        4  2.0000  25.0 %    –    –\n"
            "even       interleaved(chunks=2)       4  2.0000  50.0 %    –    –\n"
            "even       interleaved(chunks=2)  failed       –       –    –    –\n\n"
            "even, interleaved(chunks=2) (failed): too slow\n");
}

TEST(ShareBounds, KeepsTheBoundsOfSchedulesApart)
{
  ComparisonRow row;
  row.outcome = "feasible";
  row.objective = Seconds(4);
  row.objective_bound = Seconds(3);
  ComparisonRow other = row;
  other.goal.schedule = {"zero-bubble-h1"};
  other.objective_bound = Seconds(1);
  std::vector<ComparisonRow> rows = {row, other};
  share_bounds(rows);
  EXPECT_EQ(rows[1].objective_bound, Seconds(1));
}

TEST(ShareBounds, KeepsTheBoundsOfChainsFromPlansWithReplicas)
{
  ComparisonRow chain;
  chain.outcome = "feasible";
  chain.objective = Seconds(4);
  chain.objective_bound = Seconds(3);
  ComparisonRow replicas = chain;
  replicas.replicas = 8;
  replicas.objective = Seconds(2);
  replicas.objective_bound = Seconds(1);
  std::vector<ComparisonRow> rows = {chain, replicas};
  share_bounds(rows);
  EXPECT_EQ(rows[0].objective_bound, Seconds(3));
  EXPECT_EQ(rows[1].objective_bound, Seconds(1));
  EXPECT_EQ(rows[1].outcome, "feasible");
  constexpr auto of_both = "no placement below 1.0000 s; the gap of a chain is to the bound of chains\n";
  EXPECT_THAT(comparison_table(rows), testing::HasSubstr(of_both));
  EXPECT_THAT(comparison_table({replicas, replicas}), testing::Not(testing::HasSubstr("the gap of a chain")));
}

TEST(ComparisonTable, SaysWhichPlacementsItsBoundHoldsFor)
{
  ComparisonRow chain;
  chain.outcome = "feasible";
  chain.objective = Seconds(4);
  chain.objective_bound = Seconds(3);
  ComparisonRow replicas = chain;
  replicas.goal.schedule = choice_of(ChainSchedule::GPipe);
  replicas.replicas = 8;
  replicas.objective_bound = Seconds(1);
  EXPECT_EQ(scope_of_bound(chain), "chain");
  EXPECT_EQ(scope_of_bound(replicas), "placement");
  const auto table_of_both = comparison_table({chain, replicas});  // under 1f1b, replicas may be below both bounds
  EXPECT_THAT(table_of_both, testing::HasSubstr("no chain below 1.0000 s"));
  EXPECT_THAT(comparison_table({replicas}), testing::HasSubstr("no placement below 1.0000 s"));

  replicas.goal = Goal::with_defaults(Objective::DtFm);
  EXPECT_EQ(scope_of_bound(replicas), "placement with as many stages and replicas");
  EXPECT_THAT(comparison_table({replicas}),
              testing::HasSubstr("no placement with as many stages and replicas below 1.0000 s"));
}

TEST(ComparisonTable, KeepsRowsOfOneGoalTogetherAndNamesTheRecomputation)
{
  ComparisonRow row;
  row.allocator = "even";
  row.outcome = "feasible";
  row.stages = 2;
  row.step_time = row.objective = row.objective_bound = Seconds(2);
  ComparisonRow passing = row;
  passing.allocator = "window";
  passing.goal.schedule = choice_of(ChainSchedule::GPipe);
  passing.goal.microbatches = 1;
  passing.recompute = "inner";
  ComparisonRow last = row;
  last.allocator = "chain-dp";
  EXPECT_EQ(comparison_table({row, passing, last}),
            "step, 1f1b, M = 8: no chain below 2.0000 s\n\n"
            "allocator  stages  step s    gap  MFU  GiB\n"
            "---------  ------  ------  -----  ---  ---\n"
            "even            2  2.0000  0.0 %    –    –\n"
            "chain-dp        2  2.0000  0.0 %    –    –\n\n"
            "step, gpipe, M = 1, recompute inner: no chain below 2.0000 s\n\n"
            "allocator  stages  step s    gap  MFU  GiB\n"
            "---------  ------  ------  -----  ---  ---\n"
            "window          2  2.0000  0.0 %    –    –\n");
}

TEST(ComparisonTable, HasAColumnForTheRecomputationsOfOneGoal)
{
  ComparisonRow row;
  row.allocator = "even";
  row.outcome = "feasible";
  row.stages = 2;
  row.step_time = row.objective = row.objective_bound = Seconds(2);
  ComparisonRow passing = row;
  passing.allocator = "window";
  passing.goal.schedule = choice_of(ChainSchedule::GPipe);
  passing.recompute = "inner";
  passing.outcome = "infeasible";
  passing.stages = 0;
  passing.reason = "too large";
  passing.step_time = passing.objective = passing.objective_bound = std::nullopt;
  EXPECT_EQ(comparison_table({row, passing}),
            "step, M = 8: no chain below 2.0000 s; gaps are to the bound of each schedule and recomputation\n\n"
            "allocator  schedule  recompute      stages  step s    gap  MFU  GiB\n"
            "---------  --------  ---------  ----------  ------  -----  ---  ---\n"
            "even       1f1b      none                2  2.0000  0.0 %    –    –\n"
            "window     gpipe     inner      infeasible       –      –    –    –\n\n"
            "window, gpipe, recompute inner (infeasible): too large\n");
}

TEST(ShareBounds, KeepsApartBoundsOfOtherRecomputationsAndOfPlansOnTheirDevices)
{
  ComparisonRow row;
  row.outcome = "feasible";
  row.objective = Seconds(4);
  row.objective_bound = Seconds(3);
  ComparisonRow recomputing = row;
  recomputing.recompute = "inner";
  recomputing.objective_bound = Seconds(1);
  ComparisonRow passing = row;
  passing.uses_machines = true;
  passing.objective_bound = Seconds(2);
  std::vector<ComparisonRow> rows = {row, recomputing, passing};
  share_bounds(rows);
  EXPECT_EQ(rows[0].objective_bound, Seconds(3));
  EXPECT_EQ(rows[1].objective_bound, Seconds(1));
  EXPECT_EQ(rows[2].objective_bound, Seconds(2));
}

TEST(ComparisonTable, ShowsReasonsBelow)
{
  ComparisonRow row;
  row.allocator = "even";
  row.outcome = "infeasible";
  row.reason = "gpu3 needs more";
  const auto table = comparison_table({row});
  EXPECT_TRUE(table.ends_with("\n\neven (infeasible): gpu3 needs more\n")) << table;
}

}  // namespace
}  // namespace isobar::results::comparison_test
