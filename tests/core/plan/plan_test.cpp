#include "core/plan/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isobar::plan_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// A plan with one layer on each of these devices, in this order.
Plan plan_on(const std::vector<std::string>& devices)
{
  Plan plan;
  for (std::size_t i = 0; i < devices.size(); ++i) plan.stages.push_back(stage_on(devices[i], i, i));
  return plan;
}

TEST(DevicesOf, AreInTheOrderOfTheirFirstStages)
{
  EXPECT_THAT(devices_of(plan_on({})), IsEmpty());
  EXPECT_THAT(devices_of(plan_on({"b", "a", "c"})), ElementsAre("b", "a", "c"));
  EXPECT_THAT(devices_of(plan_on({"b", "a", "b", "a"})), ElementsAre("b", "a"));
  EXPECT_THAT(devices_of(plan_on({"b", "a", "a", "b"})), ElementsAre("b", "a"));
}

TEST(DevicesOf, CountsEachDeviceOfAStage)
{
  Plan plan = plan_on({"a", "b"});
  plan.stages[0].replicas[0].shards.push_back({"c", 0.5});
  EXPECT_THAT(devices_of(plan), ElementsAre("a", "c", "b"));
}

TEST(IsChain, NeedsADeviceForEachStageAndAScheduleWithARecurrence)
{
  Plan plan = plan_on({"a", "b"});
  EXPECT_TRUE(is_chain(plan));
  plan.goal.schedule = {"gpipe"};
  EXPECT_TRUE(is_chain(plan));
  plan.goal.schedule = {"zero-bubble-h1"};
  EXPECT_FALSE(is_chain(plan));
  plan.goal.schedule = {"1f1b", {{"warm_up", {1, 0}}}};
  EXPECT_FALSE(is_chain(plan));
  EXPECT_FALSE(is_chain(plan_on({"a", "b", "a"})));
  Plan shared = plan_on({"a", "b"});
  shared.stages[0].replicas[0].shards.push_back({"c", 0.5});
  EXPECT_FALSE(is_chain(shared));
}

}  // namespace
}  // namespace isobar::plan_test
