#include "exec/launch/plan_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace isobar::exec::plan_ranks_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

/// Four stages on two devices, as in a V.
Plan folded_plan()
{
  Plan plan;
  plan.stages = {stage_on("a", 0, 0), stage_on("b\n", 1, 1), stage_on("b\n", 2, 2), stage_on("a", 3, 3)};
  plan.data_server = "server";
  return plan;
}

TEST(PlanRanks, AreTheDevicesByFirstAppearanceAndThenTheDataServer)
{
  EXPECT_THAT(devices_of_ranks(folded_plan()), ElementsAre("a", "b\n", "server"));
  EXPECT_THAT(names_of_ranks(folded_plan()), ElementsAre("rank 0 (a)", "rank 1 (b\\x0a)", "rank 2 (data server)"));
}

/// The stages and replicas of a rank.
std::vector<std::pair<std::size_t, std::size_t>> held_by(const Plan& plan, std::size_t rank)
{
  std::vector<std::pair<std::size_t, std::size_t>> held;
  for (const auto& placed : shards_of_rank(plan, rank)) held.emplace_back(placed.stage, placed.replica);
  return held;
}

TEST(PlanRanks, HoldTheStagesOfTheirDevices)
{
  EXPECT_THAT(held_by(folded_plan(), 0), ElementsAre(Pair(0, 0), Pair(3, 0)));
  EXPECT_THAT(held_by(folded_plan(), 1), ElementsAre(Pair(1, 0), Pair(2, 0)));
  EXPECT_THAT(held_by(folded_plan(), 2), IsEmpty());
  EXPECT_EQ(rank_of_loss(folded_plan()), 0);
}

TEST(PlanRanks, HoldTheReplicasOfTheirDevices)
{
  Plan plan;
  plan.stages = {{0, 0, {{3, {{"a"}}}, {2, {{"b"}}}}}, {1, 1, {{1, {{"c"}}}, {4, {{"b", 1, 2.5}}}}}};
  EXPECT_THAT(devices_of_ranks(plan), ElementsAre("a", "b", "c"));
  EXPECT_THAT(held_by(plan, 1), ElementsAre(Pair(0, 1), Pair(1, 1)));
  EXPECT_EQ(shard_of(plan, shards_of_rank(plan, 1).back()).slowdown, 2.5);
  EXPECT_EQ(rank_of_loss(plan), 2);
}

}  // namespace
}  // namespace isobar::exec::plan_ranks_test
