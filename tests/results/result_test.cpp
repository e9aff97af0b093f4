#include "results/result.hpp"

#include <gtest/gtest.h>

namespace isobar::results {
namespace {

TraceEvent event(std::size_t rank, Lane lane, Opcode opcode, double begin, double end, double memory = 0)
{
  TraceEvent result;
  result.rank = rank;
  result.instruction.lane = lane;
  result.instruction.opcode = opcode;
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

}  // namespace
}  // namespace isobar::results
