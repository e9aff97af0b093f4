#include "core/spmd/reform_time.hpp"

#include "core/program/player.hpp"
#include "tests/support/editable_program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

namespace isobar::spmd::reform_time_test {
namespace {

using ::testing::ElementsAre;
using testing_support::EditableProgram;

/// Links whose latency and bandwidth depend on the sender.
DeviceGroup uneven_group()
{
  DeviceGroup group;
  group.transfer = [](std::size_t from, std::size_t to, Bytes size) {
    const auto place = static_cast<double>(from);
    return TransferTimes{Seconds(0.25 + place), size / BytesPerSecond(100 + 10 * place + static_cast<double>(to))};
  };
  return group;
}

/// The time of a collective as a program plays it.
Seconds played(Opcode opcode, const std::vector<Bytes>& sizes, const DeviceGroup& group)
{
  EditableProgram program(sizes.size());
  std::vector<std::pair<std::size_t, std::string>> lanes;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) lanes.emplace_back(rank, "reform");
  const auto channel = program.connect(lanes, group.algorithm);
  for (const End& end : program.channels()[channel].ends) {
    Instruction instruction;
    instruction.opcode = opcode;
    instruction.payload = Payload::Activation;
    instruction.size = sizes[end.rank];
    program.add(end.rank, end.lane, instruction);
  }
  PlayerRates rates;
  rates.transfer = group.transfer;
  return play_program(program, rates).periods[0].end;
}

TEST(CollectiveTime, IsThatOfAPlayedProgramWithEqualAndUnequalSlices)
{
  const std::vector<Bytes> equal = {Bytes(300), Bytes(300), Bytes(300)};
  const std::vector<Bytes> unequal = {Bytes(500), Bytes(0), Bytes(400)};
  const DeviceGroup group = uneven_group();
  for (const auto opcode : {Opcode::AllGather, Opcode::AllReduce, Opcode::ReduceScatter, Opcode::AllToAll}) {
    EXPECT_NEAR(collective_time(opcode, equal, group).value, played(opcode, equal, group).value, 1e-9);
  }
  for (const auto opcode : {Opcode::AllGather, Opcode::AllToAll}) {
    EXPECT_NEAR(collective_time(opcode, unequal, group).value, played(opcode, unequal, group).value, 1e-9);
  }
}

TEST(CollectiveTime, IsTheClosedFormOverEqualLinks)
{
  constexpr double latency = 0.5;
  constexpr double rate = 100;
  DeviceGroup group;
  group.transfer = [](std::size_t, std::size_t, Bytes size) {
    return TransferTimes{Seconds(latency), size / BytesPerSecond(rate)};
  };
  for (const std::size_t devices : {2U, 3U, 4U, 8U}) {
    const auto p = static_cast<double>(devices);
    const double whole = 2400;
    const auto time_of = [&](Opcode opcode, double size) {
      return collective_time(opcode, std::vector<Bytes>(devices, Bytes(size)), group).value;
    };
    const double ring = (p - 1) * (latency + whole / p / rate);
    EXPECT_NEAR(time_of(Opcode::AllGather, whole / p), ring, 1e-9);
    EXPECT_NEAR(time_of(Opcode::ReduceScatter, whole), ring, 1e-9);
    EXPECT_NEAR(time_of(Opcode::AllReduce, whole), 2 * ring, 1e-9);
    // A device sends to one other at a time.
    EXPECT_NEAR(time_of(Opcode::AllToAll, whole / p), (p - 1) * (latency + std::ceil(whole / p / p) / rate), 1e-9);
  }
}

TEST(CollectiveTime, IsNothingForOneDevice)
{
  EXPECT_EQ(collective_time(Opcode::AllReduce, {Bytes(100)}, uneven_group()), Seconds(0));
}

TEST(Reforms, BringSlicesToBeJoinedAndExchangedAndWholeTensorsToBeAddedUp)
{
  OperatorGraph graph;
  graph.tensors.push_back({"x", {8, 4}, 0, Bytes(8 * 4 * 4)});
  graph.operators.emplace_back();
  graph.operators[0].kind = OperatorKind::Data;
  graph.operators[0].outputs = {0};
  const Pieces pieces(graph, {0.75, 0.25});
  EXPECT_THAT(sizes_of_ends(Opcode::AllGather, pieces, 0, gather(0)), ElementsAre(Bytes(96), Bytes(32)));
  EXPECT_THAT(sizes_of_ends(Opcode::AllToAll, pieces, 0, gather(1)), ElementsAre(Bytes(96), Bytes(32)));
  EXPECT_THAT(sizes_of_ends(Opcode::ReduceScatter, pieces, 0, reduce), ElementsAre(Bytes(128), Bytes(128)));
  EXPECT_THAT(sizes_of_ends(Opcode::AllReduce, pieces, 0, gather(0)), ElementsAre(Bytes(128), Bytes(128)));
  EXPECT_EQ(opcode_of(ReformKind::AllToAll), Opcode::AllToAll);
  for (const auto kind : {ReformKind::Replicate, ReformKind::Slice, ReformKind::Select, ReformKind::Pad}) {
    EXPECT_FALSE(opcode_of(kind));
  }
}

}  // namespace
}  // namespace isobar::spmd::reform_time_test
