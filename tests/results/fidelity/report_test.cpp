#include "results/fidelity/report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isobar::results::fidelity_report_test {
namespace {

using testing::HasSubstr;
using testing::Not;

PredictedRow row_of(const std::string& name, RowRole role)
{
  PredictedRow row;
  row.measured.file = "f.csv";
  row.measured.line = 2;
  row.measured.set = "a_set";
  row.measured.name = name;
  row.measured.role = role;
  row.measured.group = "g";
  row.measured.measured = Seconds(2);
  row.measured.measured_memory = Bytes(4e9);
  row.measured.memory_kind = MemoryKind::Device;
  row.measured.platform = "m.yaml";
  row.measured.platform_overrides = {{"nodes", "2"}};
  row.measured.workload = "w.yaml";
  row.measured.overrides = {{"layers", "4"}};
  row.measured.framework = "f";
  row.measured.pipeline_degree = 2;
  row.measured.tensor_degrees = {4, 2};
  row.measured.sequence_parallel = true;
  row.measured.global_batch = 64;
  row.measured.micro_batch = 8;
  row.measured.schedule = "1f1b";
  row.measured.recompute = Recomputation::Full;
  row.measured.blocks = {1.5, 2.5};
  row.prediction.step = Seconds(2.2);
  row.prediction.memory = Bytes(3e9);
  row.prediction.parts.products = Seconds(1.1);
  row.prediction.parts.bubble = Seconds(1.1);
  row.prediction.notes = {"machine: two nodes", "a remark"};
  return row;
}

PredictedRow unsupported_row(const std::string& name)
{
  auto row = row_of(name, RowRole::Development);
  row.prediction = {};
  row.prediction.unsupported = "schedule x cannot be expressed";
  return row;
}

TEST(FidelityText, HasALineForEachRoleAndNamesRowsWithoutPrediction)
{
  std::vector<PredictedRow> rows = {row_of("a", RowRole::Calibration), row_of("b", RowRole::Development)};
  rows[0].prediction.interval = StepInterval{Seconds(1.9), Seconds(2.5)};
  rows[1].prediction.interval = StepInterval{Seconds(2.1), Seconds(2.3)};
  for (const char* name : {"c", "d", "e", "f"}) rows.push_back(unsupported_row(name));
  rows.push_back(row_of("h", RowRole::Excluded));
  rows.back().measured.note = "corrupt";
  EXPECT_EQ(fidelity_to_text(rows, fidelity_figures(rows), TableWidth::Terminal),
            "set    role         rows    mean     max  inside  Spearman  regret  memory\n"
            "-----  -----------  ----  ------  ------  ------  --------  ------  ------\n"
            "a_set  calibration   1/1  10.0 %  10.0 %     1/1         –       –  25.0 %\n"
            "a_set  development   1/5  10.0 %  10.0 %     0/1         –       –  25.0 %\n"
            "not shown without --wide: p95, most, pairs, bias, reference, median, floor\n"
            "\n"
            "a_set: 4 rows unsupported (c, d, e and 1 more): schedule x cannot be expressed\n"
            "a_set: 1 row excluded (h): corrupt\n");
}

TEST(FidelityText, HasAllColumnsIfItMayBeWide)
{
  const std::vector<PredictedRow> rows = {row_of("a", RowRole::Development)};
  const auto text = fidelity_to_text(rows, fidelity_figures(rows), TableWidth::Any);
  for (const char* column : {"p95", "bias", "Spearman", "pairs", "regret", "reference"}) {
    EXPECT_THAT(text, HasSubstr(column));
  }
}

TEST(FidelityText, CountsRunsThatDied)
{
  const std::vector<PredictedRow> rows = {row_of("a", RowRole::Failed), row_of("b", RowRole::Development)};
  EXPECT_THAT(fidelity_to_text(rows, fidelity_figures(rows), TableWidth::Any),
              HasSubstr("a_set: 1 run died, 1 of them predicted to fit; 0 runs that ended predicted not to fit\n"));
}

TEST(FidelityMarkdown, HasTheRanksOfGroupsAndEscapesNames)
{
  auto slow = row_of("b", RowRole::Development);
  slow.measured.measured = Seconds(3);
  slow.prediction.step = Seconds(1);
  const std::vector<PredictedRow> rows = {row_of("a", RowRole::Calibration), slow};
  const auto text = fidelity_to_markdown(rows, fidelity_figures(rows));
  EXPECT_THAT(text, HasSubstr("| a\\_set | g | 2 | – | 0.0 % | 50.0 % | b | a |\n"));
  EXPECT_THAT(text, Not(HasSubstr("Derived")));
}

TEST(FidelityCsv, HasOneLineForEachRow)
{
  auto row = row_of("a", RowRole::Gate);
  row.prediction.interval = StepInterval{Seconds(2.1), Seconds(2.3)};
  EXPECT_EQ(
      fidelity_to_csv({row, unsupported_row("b")}),
      "set,row,role,group,status,measured_s,predicted_s,error_fraction,floor_s,reference_s,memory_kind,"
      "measured_memory_bytes,predicted_memory_bytes,memory_error_fraction,fits,folded,products_s,attention_s,"
      "memory_bound_s,launch_s,tensor_s,pipeline_s,data_s,bubble_s,update_s,interval_low_s,interval_high_s,reason\n"
      "a_set,a,gate,g,predicted,2,2.2,0.1,,,device,4e+09,3e+09,-0.25,true,false,1.1,0,0,0,0,0,0,1.1,0,2.1,2.3,\n"
      "a_set,b,development,g,unsupported,2,,,,,device,4e+09,,,,,,,,,,,,,,,,schedule x cannot be expressed\n");
}

TEST(FidelityExplanation, HasTheIntervalAndItsCauses)
{
  auto row = row_of("a", RowRole::Gate);
  row.prediction.interval = StepInterval{Seconds(2.1), Seconds(2.3), {"any run: ±5 %"}};
  const auto text = explanation_to_text(row);
  EXPECT_THAT(text, HasSubstr("(+10.0 %)\ninterval 80 %: 2.1 to 2.3 s; measured outside it\ndevice memory"));
  EXPECT_THAT(text, HasSubstr("\nany run       ±5 %\n"));
  row.prediction.interval->low = Seconds(1.9);
  EXPECT_THAT(explanation_to_text(row), HasSubstr("interval 80 %: 1.9 to 2.3 s; measured inside it\n"));
}

TEST(FidelityExplanation, HasThePartsAndNotesOfARow)
{
  EXPECT_EQ(explanation_to_text(row_of("a", RowRole::Gate)),
            "a_set/a, gate (f.csv:2)\n"
            "step: predicted 2.20 s, measured 2.00 s (+10.0 %)\n"
            "device memory: predicted 2.79 GiB, measured 3.73 GiB (-25.0 %)\n"
            "\n"
            "part                  time  of the step\n"
            "------------------  ------  -----------\n"
            "products            1.10 s       50.0 %\n"
            "attention              0 s        0.0 %\n"
            "memory-bound           0 s        0.0 %\n"
            "launches               0 s        0.0 %\n"
            "tensor parallelism     0 s        0.0 %\n"
            "pipeline transfers     0 s        0.0 %\n"
            "data parallelism       0 s        0.0 %\n"
            "bubble              1.10 s       50.0 %\n"
            "update                 0 s        0.0 %\n"
            "step                2.20 s      100.0 %\n"
            "\n"
            "the run    as published\n"
            "---------  -------------------------------------\n"
            "platform   m.yaml nodes=2\n"
            "workload   w.yaml layers=4\n"
            "framework  f\n"
            "degrees    pp 2, tp 4+2, dp 1, sequence parallel\n"
            "batch      64 samples, 8 in a micro-batch\n"
            "schedule   1f1b\n"
            "recompute  full\n"
            "blocks     1.5+2.5\n"
            "\n"
            "the prediction  uses\n"
            "--------------  ---------\n"
            "machine         two nodes\n"
            "                a remark\n");
}

TEST(FidelityExplanation, SaysWhatThePartsDoNotCover)
{
  auto row = row_of("a", RowRole::Gate);
  row.prediction.parts.bubble = Seconds(1);
  EXPECT_THAT(explanation_to_text(row), HasSubstr("other               100 ms        4.5 %\n"));
}

}  // namespace
}  // namespace isobar::results::fidelity_report_test
