#include "allocators/plan_stages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::allocators::plan_stages_test {
namespace {

using testing::ElementsAre;
using testing::Optional;

ChainView view_of(std::vector<std::size_t> first_layer)
{
  ChainView view;
  view.first_layer = std::move(first_layer);
  return view;
}

TEST(NearestCuts, MoveToTheNearestLayersOfTheChain)
{
  const auto view = view_of({0, 1, 3, 5, 7, 8});
  EXPECT_THAT(nearest_cuts(view, {0, 3, 5}), Optional(ElementsAre(0, 2, 3)));
  EXPECT_THAT(nearest_cuts(view, {0, 4, 6}), Optional(ElementsAre(0, 2, 3)));  // of two as near, the first
}

TEST(NearestCuts, LeaveEachStageALayer)
{
  const auto view = view_of({0, 4, 8, 12});
  EXPECT_THAT(nearest_cuts(view, {0, 1, 2}), Optional(ElementsAre(0, 1, 2)));
  EXPECT_THAT(nearest_cuts(view, {0, 10, 11}), Optional(ElementsAre(0, 1, 2)));
}

TEST(NearestCuts, AreNoneForMoreStagesThanLayers)
{
  EXPECT_EQ(nearest_cuts(view_of({0, 4, 8}), {0, 1, 2}), std::nullopt);
}

}  // namespace
}  // namespace isobar::allocators::plan_stages_test
