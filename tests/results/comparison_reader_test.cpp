#include "core/errors.hpp"
#include "results/comparison.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace isobar::results::comparison_reader_test {
namespace {

const std::string header = std::string(baseline_header) + "\n";
const std::string good = "p.xml,w.yaml,even,pipeline,overlapped,1f1b,8,1,feasible,2,1,0.5,2.5,2.25,1e9\n";

std::string fault_of(const std::string& text)
{
  try {
    baseline_from_csv(text, "rows.csv");
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "";
}

std::string with(const std::string& old_entry, const std::string& entry)
{
  std::string line = good;
  line.replace(line.find(old_entry), old_entry.size(), entry);
  return header + line;
}

TEST(BaselineFromCsv, ReadsWhatWasWrittenToTheLastDigit)
{
  ComparisonRow row;
  row.platform = "a, \"b\".xml";
  row.workload = "w.yaml";
  row.allocator = "exec:./mine";
  row.goal = {Objective::Sequential, Communication::Serial, choice_of(ChainSchedule::GPipe), 3};
  row.seed = 7;
  row.outcome = "feasible";
  row.objective = Seconds(0.1 + 0.2);
  row.objective_bound = Seconds(0.7 / 3);
  row.step_time = Seconds(1e-300);
  row.peak_memory = Bytes(1e15 + 1);
  ComparisonRow infeasible = row;
  infeasible.seed = 8;
  infeasible.outcome = "infeasible";
  infeasible.objective = infeasible.objective_bound = infeasible.step_time = std::nullopt;
  infeasible.peak_memory = std::nullopt;
  const std::string text = baseline_to_csv({row, infeasible});
  const auto rows = baseline_from_csv(text, "rows.csv");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(key_of(rows[0]), key_of(row));
  EXPECT_EQ(rows[0].objective, row.objective);
  EXPECT_EQ(rows[1].objective, std::nullopt);
  EXPECT_EQ(rows[1].outcome, "infeasible");
  EXPECT_EQ(baseline_to_csv(rows), text);
}

TEST(BaselineFromCsv, ReadsSchedulesWithNumbers)
{
  const std::string text = header +
                           "p.xml,w.yaml,even,step,played,interleaved(chunks=2),8,1,feasible,2,1,0.5,2.5,2,1e9\n" +
                           "p.xml,w.yaml,even,step,played,interleaved(chunks=3),8,1,feasible,2,1,0.5,2.5,2,1e9\n";
  const auto rows = baseline_from_csv(text, "rows.csv");
  ASSERT_EQ(rows.size(), 2U);
  const ScheduleChoice expected{"interleaved", {{"chunks", {2}}}};
  EXPECT_EQ(rows[0].goal.schedule, expected);
  EXPECT_NE(key_of(rows[0]), key_of(rows[1]));
}

TEST(BaselineFromCsv, AcceptsCarriageReturns)
{
  std::string text = header + good;
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2) text.insert(at, "\r");
  EXPECT_EQ(baseline_from_csv(text, "rows.csv").size(), 1U);
  EXPECT_EQ(baseline_from_csv(header, "rows.csv").size(), 0U);
}

TEST(BaselineFromCsv, RefusesOtherColumns)
{
  const std::string wanted = "; they must be " + std::string(baseline_header);
  EXPECT_EQ(fault_of("a,b\n1,2\n"), "rows.csv:1: the columns are \"a,b\"" + wanted);
  EXPECT_EQ(fault_of(""), "rows.csv:1: the columns are \"\"" + wanted);
}

TEST(BaselineFromCsv, RefusesRowsOfAnotherShape)
{
  EXPECT_EQ(fault_of(header + "a,b\n"), "rows.csv:2: row: has 2 cells; the header has 15");
  EXPECT_EQ(fault_of(header + "\n" + good), "rows.csv:2: row: has 1 cell; the header has 15");
  const std::string quotes =
      "rows.csv:2: row: a quote is not closed, or text follows a closing quote; write a,\"b, c\",d";
  EXPECT_EQ(fault_of(with("p.xml", "\"p.xml")), quotes);
  EXPECT_EQ(fault_of(with("p.xml", "\"p\".xml")), quotes);
}

TEST(BaselineFromCsv, NamesTheInvalidColumn)
{
  EXPECT_EQ(fault_of(with("p.xml", "")), "rows.csv:2: platform: is empty; every row needs one");
  EXPECT_EQ(fault_of(with("pipeline", "pipelin")),
            "rows.csv:2: objective: \"pipelin\" is not one of step, dtfm, sequential, bottleneck, pipeline");
  EXPECT_EQ(fault_of(with("1f1b", "1f1b(warm_up=x)")),
            "rows.csv:2: schedule: warm_up: \"x\" is neither auto nor numbers; write them as in 3/2/1/0");
  EXPECT_EQ(fault_of(with("feasible", "good")),
            "rows.csv:2: outcome: \"good\" is not one of optimal, feasible, infeasible, timed_out, failed");
  EXPECT_EQ(fault_of(with(",8,", ",0,")), "rows.csv:2: microbatches: \"0\" is not a whole number of at least 1");
  EXPECT_EQ(fault_of(with(",8,", ",8.5,")), "rows.csv:2: microbatches: \"8.5\" is not a whole number of at least 1");
  for (const std::string number : {"nan", "inf", "-1", "1 s", "0x1", "1e999"}) {
    EXPECT_EQ(fault_of(with("2.5", number)),
              "rows.csv:2: step_time_s: \"" + number +
                  "\" is not a number of at least 0; leave the cell empty where there is none");
  }
}

TEST(BaselineFromCsv, ReportsAllFaultsAtOnce)
{
  EXPECT_EQ(fault_of(with("2.5", "x") + "a\n"),
            "rows.csv:2: step_time_s: \"x\" is not a number of at least 0; leave the cell empty where there is none\n"
            "rows.csv:3: row: has 1 cell; the header has 15");
}

TEST(BaselineFromCsv, RefusesARepeatedRow)
{
  EXPECT_EQ(fault_of(header + good + good), "rows.csv:3: row: repeats line 2; remove one of them");
}

}  // namespace
}  // namespace isobar::results::comparison_reader_test
