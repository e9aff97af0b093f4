#include "core/program/chrome_trace.hpp"
#include "results/comparison.hpp"
#include "results/result.hpp"
#include "results/table.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>
#include <string>
#include <vector>

namespace isobar::results {
namespace {

TraceEvent event(std::size_t rank, Lane lane, Opcode opcode, double begin, double end, double memory = 0)
{
  TraceEvent result;
  result.rank = rank;
  result.instruction.lane = lane;
  result.instruction.opcode = opcode;
  result.instruction.microbatch = 3;
  result.begin = Seconds(begin);
  result.end = Seconds(end);
  result.memory = Bytes(memory);
  return result;
}

TEST(StageMeter, AddsComputeAndSendsAndKeepsThePeak)
{
  StageMeter meter(2);
  meter.record(event(0, Lane::Compute, Opcode::Forward, 0, 2, 10));
  meter.record(event(0, Lane::SendActivation, Opcode::Send, 2, 3, 30));
  meter.record(event(1, Lane::ReceiveActivation, Opcode::Recv, 2, 3, 5));
  meter.record(event(0, Lane::Compute, Opcode::Backward, 3, 7, 20));
  const auto stages = meter.stages({"a", "b"}, 2, Seconds(5));
  EXPECT_EQ(stages[0].device, "a");
  EXPECT_DOUBLE_EQ(stages[0].compute.value, 3);
  EXPECT_DOUBLE_EQ(stages[0].send.value, 0.5);
  EXPECT_DOUBLE_EQ(stages[0].idle.value, 2);
  EXPECT_DOUBLE_EQ(stages[0].peak_memory.value, 30);
  EXPECT_DOUBLE_EQ(stages[1].compute.value, 0);
  EXPECT_DOUBLE_EQ(stages[1].idle.value, 5);
}

TEST(ChromeTraceWriter, NamesProcessesTracksAndInstructions)
{
  std::ostringstream out;
  ChromeTraceWriter writer(out, {"gpu \"0\""});
  writer.record(event(0, Lane::SendGradient, Opcode::Send, 1e-6, 3e-6));
  writer.finish();
  const auto text = out.str();
  EXPECT_NE(text.find(R"("args":{"name":"gpu \"0\""})"), std::string::npos);
  EXPECT_NE(text.find(R"("tid":2,"args":{"name":"send gradient"})"), std::string::npos);
  EXPECT_NE(text.find(R"({"ph":"X","name":"Send gradient 3","cat":"Send","pid":0,"tid":2,"ts":1.0000,"dur":2.0000,)"),
            std::string::npos);
  EXPECT_TRUE(text.ends_with("\n]}\n"));
}

TEST(ChromeTraceWriter, DrawsAnArrowFromEachSendToItsReceive)
{
  std::ostringstream out;
  ChromeTraceWriter writer(out, {"a", "b"});
  for (std::uint64_t step = 0; step < 2; ++step) {
    // Two transfers under way at once: each end finds its own.
    for (const bool sends : {true, false}) {
      for (std::uint64_t position = 0; position < 2; ++position) {
        const double begin = static_cast<double>(10 * step + position) * 1e-6;
        auto end = sends ? event(0, Lane::SendActivation, Opcode::Send, begin, begin + 1e-6)
                         : event(1, Lane::ReceiveActivation, Opcode::Recv, begin, begin + 2e-6);
        end.step = step;
        end.instruction.peer = sends ? 1 : 0;
        end.instruction.peer_position = position;
        end.instruction.microbatch = position;
        writer.record(end);
      }
    }
  }
  writer.finish();
  std::vector<std::string> starts;
  std::vector<std::string> ends;
  const auto trace = nlohmann::json::parse(out.str());
  for (const auto& item : trace["traceEvents"]) {
    const auto phase = item["ph"].get<std::string>();
    if (phase != "s" && phase != "f") continue;
    EXPECT_EQ(item.value("bp", ""), phase == "f" ? "e" : "");
    EXPECT_EQ(item["cat"], "transfer");
    (phase == "s" ? starts : ends)
        .push_back(fmt::format("{} {} {} {} {}", item["id"].get<int>(), item["name"].get<std::string>(),
                               item["pid"].get<int>(), item["tid"].get<int>(), item["ts"].get<double>()));
  }
  EXPECT_EQ(starts, (std::vector<std::string>{"1 activation 0 0 1 0", "2 activation 1 0 1 1", "3 activation 0 0 1 10",
                                              "4 activation 1 0 1 11"}));
  EXPECT_EQ(ends, (std::vector<std::string>{"1 activation 0 1 3 2", "2 activation 1 1 3 3", "3 activation 0 1 3 12",
                                            "4 activation 1 1 3 13"}));
}

TEST(TableOf, AlignsByCharactersNotBytes)
{
  EXPECT_EQ(table_of({"name", "x"}, {{"ä", "10"}, {"bc", "–"}}),
            "name   x\n"
            "----  --\n"
            "ä     10\n"
            "bc     –\n");
}

TEST(CsvLine, QuotesWhatNeedsIt)
{
  EXPECT_EQ(csv_line({"", "a,b", "say \"x\"", "z"}), ",\"a,b\",\"say \"\"x\"\"\",z\n");
}

TEST(ComparisonToCsv, SortsRowsAndLeavesOutWhatIsNotKnown)
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

TEST(ShareBounds, GivesRowsOfOneGoalTheBestBoundAndNoOthers)
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
            "allocator          outcome     stages  step s  tokens/s  MFU  bubble  GiB\n"
            "-----------------  ----------  ------  ------  --------  ---  ------  ---\n"
            "sky-dynamic-fixed  infeasible       –       –         –    –       –    –\n"
            "sky-dynamic-fixed  infeasible       –       –         –    –       –    –\n\n"
            "allocator          objective s  bound s  gap  bottleneck s  step bound s\n"
            "-----------------  -----------  -------  ---  ------------  ------------\n"
            "sky-dynamic-fixed            –        –    –             –             –\n"
            "sky-dynamic-fixed            –        –    –             –             –\n\n"
            "step, 1f1b, M = 8\n\n"
            "allocator          outcome   stages    step s  tokens/s     MFU  bubble     GiB\n"
            "-----------------  --------  ------  --------  --------  ------  ------  ------\n"
            "sky-dynamic-fixed  feasible    1000  999.5000    123456  50.0 %  25.0 %  100.00\n\n"
            "allocator          objective s   bound s    gap  bottleneck s  step bound s\n"
            "-----------------  -----------  --------  -----  ------------  ------------\n"
            "sky-dynamic-fixed     999.5000  999.5000  0.0 %      999.5000      999.5000\n");
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
}  // namespace isobar::results
