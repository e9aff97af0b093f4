#include "core/jobs/turn_order.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace isobar::turn_order_test {
namespace {

using testing::ElementsAre;

using Devices = std::vector<std::vector<std::size_t>>;

/// A turn order with memory of its own. All jobs have joined.
struct Order {
  Order(Mix mix, Devices places, std::size_t devices)
      : memory(TurnOrder::words(places.size(), devices)), turns(mix, std::move(places), devices, memory)
  {
    for (std::size_t job = 0; job < mix.jobs.size(); ++job) turns.join(job);
  }

  /// The jobs that a device grants, one after the other, while all of them ask for it again at once.
  std::vector<std::size_t> grants(std::size_t device, const std::vector<std::size_t>& jobs, std::size_t count)
  {
    std::vector<std::size_t> granted;
    for (const std::size_t job : jobs) turns.ask(job, device);
    while (granted.size() < count) {
      const auto job = turns.grant(device);
      if (!job) break;
      granted.push_back(*job);
      turns.give_back(*job, device, true);
      turns.ask(*job, device);
    }
    return granted;
  }

  std::vector<std::uint64_t> memory;
  TurnOrder turns;
};

Mix mix_of(std::size_t jobs, std::vector<MixTurn> turns = {})
{
  Mix mix;
  mix.jobs.resize(jobs);
  if (turns.empty()) {
    for (std::size_t job = 0; job < jobs; ++job) turns.push_back({job, 1});
  }
  mix.turns = std::move(turns);
  return mix;
}

TEST(TurnOrder, ATurnGetsItsNumberWhenItIsAskedFor)
{
  Mix mix = mix_of(2);
  mix.discipline = Discipline::Conserving;
  Order order(mix, {{0}, {0}}, 1);
  EXPECT_EQ(order.turns.number_of(1, 0), std::nullopt);
  EXPECT_EQ(order.turns.number(1, 0), 0);
  EXPECT_EQ(order.turns.number(1, 0), 0);
  order.turns.ask(0, 0);
  EXPECT_EQ(order.turns.turn_number(0, 0), 1);
  EXPECT_EQ(order.turns.grant(0), std::nullopt);  // the first turn is job 1's, which has not asked
  order.turns.ask(1, 0);
  EXPECT_EQ(order.turns.grant(0), 1);
  EXPECT_EQ(order.turns.turn_number(1, 0), 0);
  EXPECT_EQ(order.turns.number(1, 3), 4);
  EXPECT_EQ(order.turns.number_of(1, 1), 2);
}

TEST(TurnOrder, StrictTurnsFollowTheRotationWithItsStepsPerTurn)
{
  Order order(mix_of(3, {{1, 2}, {0, 1}, {2, 1}}), {{0}, {0}, {0}}, 1);
  EXPECT_THAT(order.grants(0, {0, 1, 2}, 8), ElementsAre(1, 1, 0, 2, 1, 1, 0, 2));
}

TEST(TurnOrder, AStrictDeviceWaitsForTheJobWhoseTurnItIs)
{
  Order order(mix_of(2), {{0}, {0}}, 1);
  order.turns.ask(1, 0);
  EXPECT_EQ(order.turns.grant(0), std::nullopt);
  order.turns.ask(0, 0);
  EXPECT_EQ(order.turns.grant(0), 0U);
  EXPECT_EQ(order.turns.grant(0), std::nullopt) << "it is held";
  order.turns.give_back(0, 0, true);
  EXPECT_EQ(order.turns.grant(0), 1U);
}

TEST(TurnOrder, ADeviceTakesPartInTheTurnsOfItsOwnJobsAlone)
{
  Order order(mix_of(3), {{0, 1}, {1, 2}, {0, 2}}, 3);
  EXPECT_THAT(order.grants(1, {0, 1}, 4), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(order.grants(2, {1, 2}, 3), ElementsAre(1, 2, 1));
}

TEST(TurnOrder, AConservingDeviceGrantsTheFirstThatAsks)
{
  Mix mix = mix_of(2);
  mix.discipline = Discipline::Conserving;
  Order order(mix, {{0}, {0}}, 1);
  EXPECT_THAT(order.grants(0, {1, 0}, 4), ElementsAre(1, 0, 1, 0));
}

TEST(TurnOrder, ConservingTurnsHaveOneOrderOnAllDevices)
{
  Mix mix = mix_of(2);
  mix.discipline = Discipline::Conserving;
  Order order(mix, {{0, 1}, {0, 1}}, 2);
  order.turns.ask(1, 0);
  order.turns.ask(0, 1);  // second, though it is the first on device 1
  EXPECT_EQ(order.turns.grant(0), 1U);
  EXPECT_EQ(order.turns.grant(1), std::nullopt);
  order.turns.ask(1, 1);
  EXPECT_EQ(order.turns.grant(1), 1U);
  EXPECT_EQ(order.turns.turn_number(1, 0), order.turns.turn_number(1, 1));
  const std::uint64_t number = order.turns.turn_number(1, 1);
  order.turns.give_back(1, 1, true);
  EXPECT_EQ(order.turns.grant(1), 0U);
  EXPECT_GT(order.turns.turn_number(0, 1), number);
}

TEST(TurnOrder, AJobThatLeavesFreesWhatItHoldsAndIsPassedOver)
{
  Order order(mix_of(3), {{0}, {0}, {0}}, 1);
  for (const std::size_t job : {0, 1, 2}) order.turns.ask(job, 0);
  EXPECT_EQ(order.turns.grant(0), 0U);
  order.turns.leave(0);
  order.turns.leave(1);
  EXPECT_FALSE(order.turns.takes_part(1, 0));
  EXPECT_EQ(order.turns.grant(0), 2U);
  order.turns.give_back(2, 0, true);
  order.turns.ask(2, 0);
  EXPECT_EQ(order.turns.grant(0), 2U);
}

TEST(TurnOrder, AJobJoinsInARoundThatNoDeviceHasBegun)
{
  Order order(mix_of(2), {{0, 1}, {0, 1}}, 2);
  order.turns.leave(0);
  EXPECT_THAT(order.grants(0, {1}, 3), ElementsAre(1, 1, 1));  // rounds 0 to 2
  EXPECT_THAT(order.grants(1, {1}, 1), ElementsAre(1));
  order.turns.join(0);
  EXPECT_THAT(order.grants(1, {0}, 4), ElementsAre(1, 1, 0, 1)) << "on the other device it begins in round 3 too";
  EXPECT_THAT(order.grants(0, {0}, 3), ElementsAre(0, 1, 0));
}

TEST(TurnOrder, StrictInstructionsAlternateAndPassOverWhoHasEndedItsSteps)
{
  Mix mix = mix_of(2);
  mix.hand_over = HandOver::Instruction;
  Order order(mix, {{0}, {0}}, 1);
  std::vector<std::size_t> granted;
  std::vector<std::size_t> left = {3, 1};  // computations of a step
  const std::vector<std::size_t> all = left;
  for (const std::size_t job : {1, 0}) order.turns.ask(job, 0);
  for (int i = 0; i < 8; ++i) {
    const std::size_t job = order.turns.grant(0).value();
    granted.push_back(job);
    const bool ends = --left[job] == 0;
    if (ends) left[job] = all[job];
    order.turns.give_back(job, 0, ends);
    order.turns.ask(job, 0);
  }
  EXPECT_THAT(granted, ElementsAre(0, 1, 0, 0, 1, 0, 0, 0));
}

TEST(TurnOrder, ConservingInstructionsComeInTheOrderInWhichTheyAsk)
{
  Mix mix = mix_of(2);
  mix.hand_over = HandOver::Instruction;
  mix.discipline = Discipline::Conserving;
  Order order(mix, {{0, 1}, {0, 1}}, 2);
  order.turns.ask(1, 0);
  order.turns.ask(0, 0);
  order.turns.ask(0, 1);
  EXPECT_EQ(order.turns.grant(0), 1U);
  EXPECT_EQ(order.turns.grant(1), 0U) << "each device has its own order";
}

TEST(TurnOrder, OrdersOverTheSameMemoryShareTheirState)
{
  const Mix mix = mix_of(2);
  std::vector<std::uint64_t> memory(TurnOrder::words(2, 1));
  TurnOrder one(mix, {{0}, {0}}, 1, memory);
  TurnOrder other(mix, {{0}, {0}}, 1, memory);
  one.join(0);
  other.join(1);
  one.ask(0, 0);
  EXPECT_EQ(other.grant(0), 0U);
  EXPECT_EQ(one.holder(0), 0U);
}

}  // namespace
}  // namespace isobar::turn_order_test
