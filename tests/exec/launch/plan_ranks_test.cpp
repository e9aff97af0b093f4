#include "exec/launch/plan_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::exec {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

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

TEST(PlanRanks, HoldTheStagesOfTheirDevices)
{
  EXPECT_THAT(stages_of_rank(folded_plan(), 0), ElementsAre(0, 3));
  EXPECT_THAT(stages_of_rank(folded_plan(), 1), ElementsAre(1, 2));
  EXPECT_THAT(stages_of_rank(folded_plan(), 2), IsEmpty());
  EXPECT_EQ(rank_of_last_stage(folded_plan()), 0);
}

}  // namespace
}  // namespace isobar::exec
