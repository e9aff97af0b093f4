#include "exec/rank/rank_report.hpp"

#include "tests/support/editable_program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace isobar::exec::rank_report_test {
namespace {

using testing::ElementsAre;
using testing_support::EditableProgram;

TEST(RankReport, IsReadAsItIsWritten)
{
  RankReport report;
  report.lanes = {{"compute", {{Seconds(1), Seconds(2), Bytes(3)}}}, {"send activation 3", {}}};
  report.losses = {0.5};
  const RankReport read = report_from_json(report_to_json(report));
  ASSERT_EQ(read.lanes.size(), 2U);
  EXPECT_EQ(read.lanes[0].name, "compute");
  ASSERT_EQ(read.lanes[0].times.size(), 1U);
  EXPECT_EQ(read.lanes[0].times[0].end, Seconds(2));
  EXPECT_EQ(read.lanes[1].name, "send activation 3");
  EXPECT_THAT(read.losses, ElementsAre(0.5));
}

TEST(MeasuredRun, HasTheLossesOfTheOneRankThatTellsThem)
{
  const EditableProgram program(3);  // without instructions, so reports without times are complete
  const RankReport without = RankReport::of(program, 0);
  RankReport last = without;
  last.losses = {4, 2};
  EXPECT_THAT(MeasuredRun(program, 0, {without, last, without}).losses(), ElementsAre(4, 2));
  EXPECT_TRUE(MeasuredRun(program, 0, {without, without, without}).losses().empty());
  EXPECT_THROW(MeasuredRun(program, 0, {without, last, last}), std::logic_error);
}

TEST(MeasuredRun, AddsTheEvaluationsOfSeveralLastRanks)
{
  const EditableProgram program(2);
  RankReport one = RankReport::of(program, 0);
  RankReport other = one;
  EXPECT_FALSE(MeasuredRun(program, 0, {one, other}).evaluation());
  one.evaluation = {.loss = 6, .labels = 4, .correct = 3};
  other.evaluation = {.loss = 2, .labels = 1, .correct = 0};
  const auto sums = MeasuredRun(program, 0, {one, other}).evaluation().value();
  EXPECT_EQ(sums.loss, 8);
  EXPECT_EQ(sums.labels, 5);
  EXPECT_EQ(sums.correct, 3);
}

}  // namespace
}  // namespace isobar::exec::rank_report_test
