#include "exec/run/rank_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace isobar::exec {
namespace {

using testing::ElementsAre;

/// A program without instructions, whose reports are complete without times.
class EmptyProgram : public Program {
 public:
  explicit EmptyProgram(std::size_t ranks) : ranks_(ranks) {}
  std::size_t ranks() const override { return ranks_; }
  const std::vector<Lane>& lanes(std::size_t) const override { return lanes_; }
  const std::vector<Channel>& channels() const override { return channels_; }
  Bytes resident(std::size_t, Tier) const override { return {}; }
  std::uint64_t length(std::size_t, LaneId) const override { return 0; }
  Instruction at(std::size_t, LaneId, std::uint64_t) const override
  {
    throw std::logic_error("there are no instructions");
  }

 private:
  std::size_t ranks_;
  std::vector<Lane> lanes_ = {{"compute", Engine::Device, {}}};
  std::vector<Channel> channels_;
};

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

TEST(MeasuredRun, AveragesTheLossesOfSeveralLastRanks)
{
  const EmptyProgram program(3);
  const RankReport first = RankReport::of(program, 0);
  RankReport one = first;
  RankReport other = first;
  one.losses = {4, 2};
  other.losses = {2, 1};
  EXPECT_THAT(MeasuredRun(program, 0, {first, one, other}).losses(), ElementsAre(3, 1.5));
  EXPECT_THAT(MeasuredRun(program, 0, {first, one, first}).losses(), ElementsAre(4, 2));
  EXPECT_TRUE(MeasuredRun(program, 0, {first, first, first}).losses().empty());
  other.losses = {2};
  EXPECT_THROW(MeasuredRun(program, 0, {first, one, other}).losses(), std::logic_error);
}

TEST(MeasuredRun, AddsTheEvaluationsOfSeveralLastRanks)
{
  const EmptyProgram program(2);
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
}  // namespace isobar::exec
