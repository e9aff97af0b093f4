#include "core/program/program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace isobar::program_test {
namespace {

using testing::ElementsAre;

constexpr Opcode all_opcodes[] = {Opcode::Forward,        Opcode::Backward,  Opcode::BackwardInput,
                                  Opcode::BackwardWeight, Opcode::Update,    Opcode::Send,
                                  Opcode::Recv,           Opcode::AllReduce, Opcode::ReduceScatter,
                                  Opcode::AllGather,      Opcode::AllToAll,  Opcode::Broadcast};

TEST(OtherEnd, IsTheOneThatTheLaneMeets)
{
  const Channel channel{{{3, 1}, {4, 2}}, Algorithm::Ring};
  EXPECT_EQ(other_end(channel, 3, 1), (End{4, 2}));
  EXPECT_EQ(other_end(channel, 4, 2), (End{3, 1}));
}

TEST(OtherEnd, DistinguishesLanesOfOneRank)
{
  const Channel channel{{{3, 1}, {3, 2}}, Algorithm::Ring};
  EXPECT_EQ(other_end(channel, 3, 1), (End{3, 2}));
  EXPECT_EQ(other_end(channel, 3, 2), (End{3, 1}));
}

TEST(OtherEnd, DoesNotExistForOtherLanesAndCollectives)
{
  const Channel transfer{{{3, 1}, {4, 2}}, Algorithm::Ring};
  EXPECT_THROW(other_end(transfer, 3, 2), std::logic_error);
  EXPECT_THROW(other_end(transfer, 5, 1), std::logic_error);
  const Channel collective{{{0, 1}, {1, 1}, {2, 1}}, Algorithm::Ring};
  EXPECT_THROW(other_end(collective, 0, 1), std::logic_error);
}

TEST(Waits, KeepTheirOrderAndDropThoseForNothing)
{
  Waits waits;
  EXPECT_TRUE(waits.empty());
  waits.add({1, 0, 5});
  waits.add({2, 0, 0});
  waits.add({3, 1, 7});
  EXPECT_EQ(std::vector<Wait>(waits.begin(), waits.end()), (std::vector<Wait>{{1, 0, 5}, {3, 1, 7}}));
  EXPECT_EQ(waits.size(), 2U);
  EXPECT_TRUE(Waits(Wait{}).empty());
}

TEST(Waits, AreAtMostFour)
{
  Waits waits;
  for (LaneId lane = 0; lane < 4; ++lane) waits.add({lane, 0, 1});
  waits.add({4, 0, 0});
  EXPECT_EQ(waits.size(), 4U);
  EXPECT_THROW(waits.add({4, 0, 1}), std::logic_error);
}

TEST(Opcodes, AreComputationsTransfersOrCollectives)
{
  std::vector<Opcode> computations;
  std::vector<Opcode> transfers;
  for (const Opcode opcode : all_opcodes) {
    if (is_computation(opcode)) computations.push_back(opcode);
    if (is_transfer(opcode)) transfers.push_back(opcode);
    EXPECT_EQ(is_computation(opcode) + is_transfer(opcode) + is_collective(opcode), 1) << name_of(opcode);
  }
  EXPECT_THAT(computations, ElementsAre(Opcode::Forward, Opcode::Backward, Opcode::BackwardInput,
                                        Opcode::BackwardWeight, Opcode::Update));
  EXPECT_THAT(transfers, ElementsAre(Opcode::Send, Opcode::Recv));
}

TEST(Opcodes, AreFoundByTheirNames)
{
  for (const Opcode opcode : all_opcodes) EXPECT_EQ(opcode_from_name(name_of(opcode)), opcode);
  EXPECT_EQ(opcode_from_name("BackwardWeight"), Opcode::BackwardWeight);
  EXPECT_EQ(opcode_from_name("backward"), std::nullopt);
  EXPECT_EQ(name_of(Payload::ParameterGradient), "parameter gradient");
  EXPECT_EQ(name_of(Tier::Host), "host");
  EXPECT_EQ(name_of(Algorithm::Hierarchical), "hierarchical");
}

}  // namespace
}  // namespace isobar::program_test
