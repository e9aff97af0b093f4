#include "cli/explanation_text.hpp"

#include <gtest/gtest.h>

namespace isobar::cli::explanation_text_test {
namespace {

using results::ComparisonRow;
using results::Explanation;

/// A row whose plan is proven by multipliers, with more of everything than is shown.
ComparisonRow row_of(Objective objective)
{
  ComparisonRow row;
  row.allocator = "exact";
  row.goal = Goal::with_defaults(objective);
  row.outcome = "feasible";
  row.objective = Seconds(4);
  auto& explanation = row.explanation.emplace();
  explanation.bottleneck = {.stage = 3,
                            .device = "d3",
                            .cost = Seconds(0.5),
                            .compute = Seconds(0.25),
                            .send = Seconds(0.5),
                            .is_transfer = true,
                            .links = {"up", "wan", "down", "in"},
                            .near = 1};
  explanation.devices = {{"d3", Seconds(2), 0.5}};
  explanation.links = {{"wan", Seconds(1), 0.25}};
  explanation.full = {{"d3", Bytes(0x1p30), Bytes(0x1p31)}};
  explanation.faster_devices = {{"d3", Seconds(0)}};
  explanation.faster_links = {{"wan", Seconds(0.04)}};
  explanation.prices = {{"d1", 0.25, Seconds(0.3), true}, {"d3", 0.125, Seconds(0.2), false}};
  explanation.not_worth_using = {"d5", "d6", "d7", "d8", "d9"};
  explanation.gap = Seconds(0.04);
  explanation.devices_used = 4;
  explanation.worth_using = {2, 5};
  return row;
}

TEST(ExplanationsOf, ShowTheFirstFewOfEachKindAndHowManyMoreThereAre)
{
  EXPECT_EQ(explanations_of({row_of(Objective::Pipeline)}, 9), R"(
exact, pipeline (1f1b, M = 8, communication overlapped): 4 s
  largest stage cost: stage 3 on d3, 500 ms, by its transfers over up, wan, down and 1 more; 1 other stage within 1 %
  largest shares: d3 50.0 %; links wan 25.0 %
  no room in memory for another layer: d3 (1.00 GiB of 2.00 GiB)
  10 % more speed of any one of those tried saves nothing
  10 % more bandwidth of wan saves 40.0 ms (1.0 %)
  one more device lowers the bound by at most: 300 ms (like d1, which is idle), 200 ms (like d3)
  idle, and without effect on the bound: d5, d6, d7 and 2 more
  no chain has an objective lower by more than 40.0 ms (1.0 %)

pipeline, M = 8: if transfers were free, 2 of 9 devices would be worth using, the fastest 5 to hold the model; exact uses 4
)");
}

TEST(ExplanationsOf, DescribesTheStepWhereItIsTheObjective)
{
  using Kind = Explanation::PathPart::Kind;
  auto row = row_of(Objective::Step);
  row.explanation->step = {.parts = {{Kind::Compute, 3, std::nullopt, "d3", "", Seconds(1.6), 0.4},
                                     {Kind::Latency, 1, std::nullopt, "d1", "d2", Seconds(1), 0.25},
                                     {Kind::Data, std::nullopt, std::nullopt, "server", "d1", Seconds(0.6), 0.15},
                                     {Kind::Compute, 4, std::nullopt, "d3", "", Seconds(0.4), 0.1},
                                     {Kind::Compute, 1, std::nullopt, "d1", "", Seconds(0.4), 0.1}},
                           .full = {{1, "d1", 5, 7, Seconds(0.5), Seconds(0)}},
                           .saved_without_latency = Seconds(1.5)};
  row.explanation->prices.clear();
  row.explanation->not_worth_using.clear();
  EXPECT_EQ(explanations_of({row}, 9), R"(
exact, step (1f1b, M = 8, communication played): 4 s
  the step waits
    60.0 % for compute: d3 50.0 %, d1 10.0 %
    15.0 % for bytes: server to d1 15.0 %
    25.0 % for latency: d1 to d2 25.0 %
  idle with a micro-batch at hand: d1 for 500 ms, with 5 in flight, its limit; one more in flight there and before it saves nothing
  without any latency this placement saves 1.50 s (37.5 %)
  no room in memory for another layer: d3 (1.00 GiB of 2.00 GiB)
  10 % more speed of any one of those tried saves nothing
  10 % more bandwidth of wan saves 40.0 ms (1.0 %)
  no chain has an objective lower by more than 40.0 ms (1.0 %)

step, M = 8: if transfers were free, 2 of 9 devices would be worth using, the fastest 5 to hold the model; exact uses 4
)");
}

TEST(ExplanationsOf, CallsTheEffectOfOneMoreDeviceOnTheBottleneckAnEstimate)
{
  auto row = row_of(Objective::Bottleneck);
  row.outcome = "optimal";
  row.explanation->bottleneck->stage.reset();
  const std::string text = explanations_of({row}, 9);
  EXPECT_NE(text.find("input from d3"), std::string::npos) << text;
  EXPECT_NE(text.find("lowers the bound by about: 300 ms"), std::string::npos) << text;
  EXPECT_EQ(text.find("largest shares"), std::string::npos) << text;
  EXPECT_NE(text.find("no chain has a lower objective\n"), std::string::npos) << text;
}

TEST(ExplanationsOf, SayHowMuchOfTheStepIsInCollectives)
{
  using Kind = Explanation::PathPart::Kind;
  auto row = row_of(Objective::Step);
  row.explanation->step = {.parts = {{Kind::Data, 0, Payload::Activation, "d1", "d2", Seconds(2), 0.5},
                                     {Kind::Data, 0, Payload::ParameterGradient, "d1", "d3", Seconds(1), 0.25},
                                     {Kind::Latency, 0, Payload::ParameterGradient, "d1", "d3", Seconds(1), 0.25}},
                           .full = {},
                           .saved_without_latency = Seconds(0)};
  row.explanation->worth_using.reset();
  const std::string text = explanations_of({row}, 9);
  EXPECT_NE(text.find("    100.0 % of these bytes and latencies in collectives: activation 50.0 %, "
                      "parameter gradient 50.0 %\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("would be worth using"), std::string::npos) << text;
}

TEST(ExplanationsOf, AreEmptyForRowsWithoutAnExplanation)
{
  EXPECT_EQ(explanations_of({ComparisonRow()}, 9), "");
}

}  // namespace
}  // namespace isobar::cli::explanation_text_test
