#include "schedules/lowering/order_picture.hpp"

#include "core/errors.hpp"
#include "core/order/order_text.hpp"
#include "core/text/document.hpp"
#include "schedules/lowering/replicas.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

namespace isobar::schedules::order_picture_test {
namespace {

/// A plan of devices c0, c1, …, whose stages are on the ranks of `rank_of_stage`.
Plan plan_on(const std::vector<std::size_t>& rank_of_stage, std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.microbatches = microbatches;
  for (std::size_t stage = 0; stage < rank_of_stage.size(); ++stage) {
    plan.stages.push_back(stage_on("c" + std::to_string(rank_of_stage[stage]), stage, stage));
  }
  return plan;
}

/// Orders as a plan has them, a text for each device.
std::vector<Order> orders_from(const std::vector<std::string>& texts)
{
  std::vector<Order> orders;
  for (const auto& text : texts) {
    FaultList faults("orders");
    orders.push_back(read_order(parse_json(text, "orders"), "", {10, most_repetitions}, faults));
    faults.throw_if_any();
  }
  return orders;
}

std::vector<Order> one_forward_one_backward(std::uint64_t microbatches)
{
  std::vector<std::string> texts;
  for (std::uint64_t warm_up = 4; warm_up-- > 0;) {
    const std::string fill = warm_up > 0 ? "[" + std::to_string(warm_up) + ", \"F0.0+\"]," : "";
    const std::string drain =
        warm_up > 0 ? ",[" + std::to_string(warm_up) + ", \"B0." + std::to_string(microbatches - warm_up) + "+\"]" : "";
    texts.push_back("[" + fill + "[" + std::to_string(microbatches - warm_up) + ", \"F0." + std::to_string(warm_up) +
                    "+ B0.0+\"]" + drain + "]");
  }
  return orders_from(texts);
}

TEST(PictureOf, ShowsTheStaircaseOf1F1B)
{
  EXPECT_EQ(picture_of(plan_on({0, 1, 2, 3}, 8), one_forward_one_backward(8), 80),
            "c0  F0F1F2F3            B0--F4B1--F5B2--F6B3--F7B4--  B5--  B6--  B7--\n"
            "c1    F0F1F2        B0--F3B1--F4B2--F5B3--F6B4--F7B5--  B6--  B7--\n"
            "c2      F0F1    B0--F2B1--F3B2--F4B3--F5B4--F6B5--F7B6--  B7--\n"
            "c3        F0B0--F1B1--F2B2--F3B3--F4B4--F5B5--F6B6--F7B7--\n"
            "33 units of time; F takes 1, B 2\n");
}

TEST(PictureOf, ShowsTheSecondStageOfADeviceInLowerCase)
{
  const auto orders =
      orders_from({R"([[1, "F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3"]])",
                   R"([[1, "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3"]])"});
  EXPECT_EQ(picture_of(plan_on({0, 1, 0, 1}, 4), orders, 80),
            "c0  F0F1f0f1F2  b0--F3b1--f2B0--f3B1--  b2--  b3--B2--B3--\n"
            "c1    F0F1f0b0--f1b1--F2B0--F3B1--f2b2--f3b3--B2--B3--\n"
            "27 units of time; F takes 1, B 2\n"
            "lower case: the second stage of a device\n");
}

TEST(PictureOf, ShowsTheHalvesOfBackwardPasses)
{
  // ZB-H1: device i warms up with 3-i forwards, and its weight gradients come i rounds after the inputs' ones.
  const auto orders = orders_from({R"([[3, "F0.0+"], [3, "F0.3+ I0.0+ W0.0+"], [3, "I0.3+ W0.3+"]])",
                                   R"([[2, "F0.0+"], [1, "F0.2 I0.0"], [3, "F0.3+ I0.1+ W0.0+"], [2, "I0.4+ W0.3+"],
                                     [1, "W0.5"]])",
                                   R"([[1, "F0.0"], [2, "F0.1+ I0.0+"], [3, "F0.3+ I0.2+ W0.0+"], [1, "I0.5 W0.3"],
                                     [2, "W0.4+"]])",
                                   R"([[3, "F0.0+ I0.0+"], [3, "F0.3+ I0.3+ W0.0+"], [3, "W0.3+"]])"});
  EXPECT_EQ(picture_of(plan_on({0, 1, 2, 3}, 6), orders, 80),
            "c0  F0F1F2F3      I0W0F4I1W1F5I2W2I3W3I4W4I5W5\n"
            "c1    F0F1F2    I0F3I1W0F4I2W1F5I3W2I4W3I5W4W5\n"
            "c2      F0F1  I0F2I1F3I2W0F4I3W1F5I4W2I5W3W4W5\n"
            "c3        F0I0F1I1F2I2F3I3W0F4I4W1F5I5W2W3W4W5\n"
            "21 units of time; F takes 1, I 1, W 1\n");
}

TEST(PictureOf, NamesTheStagesOfDevicesWithMoreThanTwo)
{
  const auto orders =
      orders_from({R"([[2, "F0.0+"], [2, "F1.0+"], [2, "F2.0+"], [2, "B2.0+"], [2, "B1.0+"], [2, "B0.0+"]])",
                   R"([[2, "F0.0+"], [2, "F1.0+"], [2, "F2.0+ B2.0+"], [2, "B1.0+"], [2, "B0.0+"]])"});
  EXPECT_EQ(picture_of(plan_on({0, 1, 0, 1, 0, 1}, 2), orders),
            "c0  0F00F12F02F14F04F1      4B0---   4B1---2B0---2B1---0B0---0B1---\n"
            "c1     1F01F13F03F15F05B0---5F15B1---3B0---3B1---1B0---1B1---\n"
            "21 units of time; F takes 1, B 2\n"
            "2F0: the forward of micro-batch 0 on stage 2\n");
}

TEST(PictureOf, ShowsEveryMicroBatchOnAllReplicasThatDivideOperators)
{
  Plan plan = plan_on({0, 1}, 2);
  for (std::size_t i = 0; i < 2; ++i) {
    plan.stages[i].splits = {{"x", "-> full"}};
    plan.stages[i].replicas.push_back({0, {{"c" + std::to_string(2 + i)}}});
  }
  plan.goal.schedule = {.name = "duplex"};
  EXPECT_EQ(picture_of(plan, orders_of(plan), 80),
            "c0  F0F1      B1--B0--\n"
            "c2  F0F1      B1--B0--\n"
            "c1    F0F1B1--B0--\n"
            "c3    F0F1B1--B0--\n"
            "9 units of time; F takes 1, B 2\n");
}

TEST(PictureOf, ShowsReplicasWithTheMicroBatchesOfTheStep)
{
  // Two thirds and one third of six micro-batches, then all of them on c2.
  Plan plan = plan_on({0, 2}, 6);
  plan.stages[0].replicas = {{4, {{"c0"}}}, {2, {{"c1"}}}};
  plan.goal.schedule = {"gpipe"};
  EXPECT_EQ(picture_of(plan, schedules::orders_of(plan)),
            "c0  F0F2F3F5          B5--    B3--B2--    B0--\n"
            "c1  F1F4                  B4--        B1--\n"
            "c2    F0F1F2F3F4F5B5--B4--B3--B2--B1--B0--\n"
            "21 units of time; F takes 1, B 2\n");
}

TEST(PictureOf, ShowsTheSameForAllShardsOfAReplica)
{
  Plan plan = plan_on({0, 1}, 2);
  for (auto& stage : plan.stages) {
    auto& shards = stage.replicas.front().shards;
    shards.front().share = 0.5;
    shards.push_back({shards.front().device + "b", 0.5});
  }
  EXPECT_EQ(picture_of(plan, schedules::orders_of(plan)),
            "c0   F0F1    B0--  B1--\n"
            "c0b  F0F1    B0--  B1--\n"
            "c1     F0B0--F1B1--\n"
            "c1b    F0B0--F1B1--\n"
            "9 units of time; F takes 1, B 2\n");
}

TEST(PictureOf, LeavesOutTheMiddleOfALongStep)
{
  const auto orders = one_forward_one_backward(64);
  const auto plan = plan_on({0, 1, 2, 3}, 64);
  EXPECT_EQ(picture_of(plan, orders, 80),
            "c0  F0 F1 F2 F3                   B0---- … F63B60---   B61---   B62---   B63---\n"
            "c1     F0 F1 F2             B0----F3 B1- … ---F63B61---   B62---   B63---\n"
            "c2        F0 F1       B0----F2 B1----F3  … B61---F63B62---   B63---\n"
            "c3           F0 B0----F1 B1----F2 B2---- … F62B62---F63B63---\n"
            "201 units of time; F takes 1, B 2\n"
            "…: 177 units that are not shown\n");
  std::istringstream lines(picture_of(plan, orders));
  std::string first;
  std::getline(lines, first);
  EXPECT_EQ(first.size(), 4U + 3 * 201);
}

TEST(PictureOf, ShowsAtLeastTwoUnitsInAnyWidth)
{
  EXPECT_THAT(picture_of(plan_on({0, 1, 2, 3}, 8), one_forward_one_backward(8), 1),
              testing::StartsWith("c0  F0 … --\nc1     …\n"));
}

TEST(PictureOf, KeepsControlCharactersOfNamesOffTheTerminal)
{
  Plan plan = plan_on({0}, 1);
  plan.stages.front().replicas.front().shards.front().device = "a\x1b[31m";
  EXPECT_THAT(picture_of(plan, orders_from({R"([[1, "F0.0 B0.0"]])"})),
              testing::StartsWith("a\\x1b[31m  F0B0--\n3 units"));
}

TEST(PictureOf, RefusesMoreTasksThanItsLimit)
{
  const auto orders = orders_from({R"([[6000000, "F0.0+ B0.0+"]])"});
  EXPECT_THAT(
      [&] { picture_of(plan_on({0}, 6'000'000), orders); },
      testing::ThrowsMessage<InputError>("schedule: 1 stage and 6000000 micro-batches are too many for a picture "
                                         "of at most 10000000 tasks; use --json"));
}

TEST(PictureOf, NeedsOrdersThatEnd)
{
  const auto orders = orders_from({R"([[1, "B0.0 F0.0"]])"});
  EXPECT_THROW(picture_of(plan_on({0}, 1), orders), std::logic_error);
}

}  // namespace
}  // namespace isobar::schedules::order_picture_test
