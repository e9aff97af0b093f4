#include "core/plan/sync_groups.hpp"
#include "tests/support/shards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace isobar::sync_groups_test {
namespace {

using testing::ElementsAre;

Layer layer_of(std::uint64_t units)
{
  Layer layer;
  layer.split = Split{.name = "units", .units = units};
  return layer;
}

Stage stage_of(const std::vector<std::vector<double>>& shares)
{
  Stage stage;
  for (const auto& replica : shares) {
    stage.replicas.emplace_back();
    for (const double share : replica) stage.replicas.back().shards.push_back({"d", share});
  }
  return stage;
}

TEST(SyncGroups, AreOneForEachShardOfReplicasThatAreDividedAlike)
{
  const Stage stage = stage_of({{0.25, 0.75}, {0.25, 0.75}});
  EXPECT_TRUE(are_divided_alike(stage));
  const auto groups = sync_groups(layer_of(8), stage);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].units, (UnitRange{0, 2, 8}));
  EXPECT_THAT(groups[0].shards, ElementsAre(0, 0));
  EXPECT_EQ(groups[1].units, (UnitRange{2, 8, 8}));
  EXPECT_THAT(groups[1].shards, ElementsAre(1, 1));
}

TEST(SyncGroups, OfDevicesAloneAreOne)
{
  const auto groups = sync_groups(Layer{}, stage_of({{1}, {1}, {1}}));
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_TRUE(groups[0].units.is_whole());
  EXPECT_THAT(groups[0].shards, ElementsAre(0, 0, 0));
}

TEST(SyncGroups, CutTheUnitsWhereAnyReplicaCutsThem)
{
  const Stage stage = stage_of({{0.5, 0.5}, {1}, {0.25, 0.5, 0.25}});
  EXPECT_FALSE(are_divided_alike(stage));
  const auto groups = sync_groups(layer_of(8), stage);
  ASSERT_EQ(groups.size(), 4U);
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(groups[i].units, (UnitRange{2 * i, 2 * i + 2, 8}));
  EXPECT_THAT(groups[0].shards, ElementsAre(0, 0, 0));
  EXPECT_THAT(groups[1].shards, ElementsAre(0, 0, 1));
  EXPECT_THAT(groups[2].shards, ElementsAre(1, 0, 1));
  EXPECT_THAT(groups[3].shards, ElementsAre(1, 0, 2));
}

TEST(SyncGroups, HaveEachUnitOnceWithTheShardsThatHaveIt)
{
  std::mt19937_64 random(6);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> devices(20, "d");
    const Stage stage =
        testing_support::stage_of_unlike_replicas(random, std::vector<std::uint64_t>(1 + random() % 4, 1), devices);
    const Layer layer = layer_of(3 + random() % 20);
    std::uint64_t next = 0;
    for (const auto& [units, shards] : sync_groups(layer, stage)) {
      ASSERT_EQ(units.begin, next);
      ASSERT_LT(units.begin, units.end);
      next = units.end;
      ASSERT_EQ(shards.size(), stage.replicas.size());
      for (std::size_t i = 0; i < shards.size(); ++i) {
        const UnitRange own = units_of_shard(layer, stage.replicas[i], shards[i]);
        EXPECT_TRUE(own.is_whole() || (own.begin <= units.begin && units.end <= own.end));
      }
    }
    EXPECT_EQ(next, layer.split->units);
  }
}

}  // namespace
}  // namespace isobar::sync_groups_test
