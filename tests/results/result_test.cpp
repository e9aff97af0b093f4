#include "results/result.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isobar::results::result_test {
namespace {

Plan plan_of(const std::vector<std::string>& devices)
{
  Plan plan;
  for (std::size_t i = 0; i < devices.size(); ++i) plan.stages.push_back(stage_on(devices[i], i, i));
  return plan;
}

TraceEvent event(std::uint32_t stage, Opcode opcode, double begin, double end, double memory = 0)
{
  TraceEvent result;
  result.rank = stage % 2;
  result.instruction.stage = stage;
  result.instruction.opcode = opcode;
  result.begin = Seconds(begin);
  result.end = Seconds(end);
  result.memory = Bytes(memory);
  return result;
}

TEST(StageMeter, AddsComputeAndSendsAndKeepsThePeak)
{
  StageMeter meter(2);
  meter.record(event(0, Opcode::Forward, 0, 2, 10));
  meter.record(event(0, Opcode::Send, 2, 3, 30));
  meter.record(event(1, Opcode::Recv, 2, 3, 5));
  meter.record(event(0, Opcode::Backward, 3, 7, 20));
  const auto stages = meter.stages(plan_of({"a", "b"}), 2, Seconds(5));
  EXPECT_EQ(stages[0].device, "a");
  EXPECT_DOUBLE_EQ(stages[0].compute.value, 3);
  EXPECT_DOUBLE_EQ(stages[0].send.value, 0.5);
  EXPECT_DOUBLE_EQ(stages[0].idle.value, 2);
  EXPECT_DOUBLE_EQ(stages[0].peak_memory.value, 30);
  EXPECT_DOUBLE_EQ(stages[1].compute.value, 0);
  EXPECT_DOUBLE_EQ(stages[1].idle.value, 5);
}

TEST(StageMeter, TellsTheStagesOfADeviceApart)
{
  StageMeter meter(3);
  meter.record(event(0, Opcode::Forward, 0, 2, 10));
  meter.record(event(0, Opcode::Send, 2, 3, 30));
  meter.record(event(2, Opcode::Forward, 3, 4, 20));
  meter.record(event(1, Opcode::Forward, 4, 8, 5));
  TraceEvent input = event(0, Opcode::Send, 0, 100);
  input.rank = 2;  // the data server, which sends what stage 0 needs
  meter.record(input);
  const auto stages = meter.stages(plan_of({"a", "b", "a"}), 1, Seconds(10));
  ASSERT_EQ(stages.size(), 3U);
  EXPECT_DOUBLE_EQ(stages[0].compute.value, 2);
  EXPECT_DOUBLE_EQ(stages[0].send.value, 1);
  EXPECT_DOUBLE_EQ(stages[2].compute.value, 1);
  EXPECT_DOUBLE_EQ(stages[2].send.value, 0);
  for (const std::size_t i : {0U, 2U}) {
    EXPECT_EQ(stages[i].device, "a");
    EXPECT_DOUBLE_EQ(stages[i].idle.value, 7);
    EXPECT_DOUBLE_EQ(stages[i].peak_memory.value, 30);
  }
  EXPECT_DOUBLE_EQ(stages[1].idle.value, 6);
}

TEST(StageMeter, CountsSplitBackwardsAsComputeAndCollectivesAsSends)
{
  StageMeter meter(1);
  meter.record(event(0, Opcode::BackwardInput, 0, 2));
  meter.record(event(0, Opcode::BackwardWeight, 2, 3));
  meter.record(event(0, Opcode::AllReduce, 3, 7));
  meter.record(event(0, Opcode::Update, 7, 8));
  const auto stages = meter.stages(plan_of({"a"}), 1, Seconds(8));
  EXPECT_DOUBLE_EQ(stages[0].compute.value, 4);
  EXPECT_DOUBLE_EQ(stages[0].send.value, 4);
  EXPECT_DOUBLE_EQ(stages[0].idle.value, 4);
}

}  // namespace
}  // namespace isobar::results::result_test
