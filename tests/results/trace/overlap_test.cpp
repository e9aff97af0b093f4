#include "results/trace/overlap.hpp"

#include <gtest/gtest.h>

namespace isobar::results::overlap_test {
namespace {

TraceEvent event(std::size_t rank, Opcode opcode, double begin, double end)
{
  TraceEvent event;
  event.rank = rank;
  event.instruction.opcode = opcode;
  event.instruction.lane = opcode == Opcode::Forward || opcode == Opcode::Update ? compute_lane : LaneId{1};
  event.begin = Seconds(begin);
  event.end = Seconds(end);
  return event;
}

TEST(OverlapMeter, CountsCommunicationBesideComputationAsHidden)
{
  OverlapMeter meter(2);
  meter.record(event(0, Opcode::Forward, 0, 4));
  meter.record(event(0, Opcode::AllReduce, 3, 6));
  meter.record(event(0, Opcode::AllGather, 5, 9));  // in another lane, beside the AllReduce
  meter.record(event(0, Opcode::Update, 8, 10));
  meter.record(event(1, Opcode::Send, 1, 3));
  meter.record(event(1, Opcode::Forward, 5, 5));
  const auto overlaps = meter.overlaps({"a", "b"}, 2);
  ASSERT_EQ(overlaps.size(), 2U);
  EXPECT_EQ(overlaps[0].device, "a");
  EXPECT_EQ(overlaps[0].compute, Seconds(6.0 / 2));
  EXPECT_EQ(overlaps[0].communication, Seconds(6.0 / 2));
  EXPECT_EQ(overlaps[0].hidden, Seconds(2.0 / 2));
  EXPECT_EQ(overlaps[0].exposed(), Seconds(4.0 / 2));
  EXPECT_EQ(overlaps[1].compute, Seconds(0));
  EXPECT_EQ(overlaps[1].communication, Seconds(1));
  EXPECT_EQ(overlaps[1].exposed(), Seconds(1));
}

}  // namespace
}  // namespace isobar::results::overlap_test
