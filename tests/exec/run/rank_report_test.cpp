#include "exec/run/rank_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace isobar::exec {
namespace {

using testing::ElementsAre;

/// A program without instructions, whose reports are complete without times.
class EmptyProgram : public Program {
 public:
  explicit EmptyProgram(std::size_t ranks) : ranks_(ranks) {}
  std::size_t ranks() const override { return ranks_; }
  Bytes resident_memory(std::size_t) const override { return {}; }
  std::uint64_t length(std::size_t, Lane) const override { return 0; }
  Instruction at(std::size_t, Lane, std::uint64_t) const override
  {
    throw std::logic_error("there are no instructions");
  }

 private:
  std::size_t ranks_;
};

TEST(MeasuredRun, AveragesTheLossesOfSeveralLastRanks)
{
  const EmptyProgram program(3);
  RankReport first;
  RankReport one;
  RankReport other;
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
  RankReport one;
  RankReport other;
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
