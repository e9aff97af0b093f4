#include "allocators/mix/matching.hpp"

#include "core/base/pcg64.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace isobar::allocators::matching_test {
namespace {

using testing::ElementsAre;

/// The largest weight over all matchings, by trying them.
std::int64_t best_of_all(const std::vector<std::vector<std::int64_t>>& weight, std::uint32_t used)
{
  const std::size_t count = weight.size();
  std::size_t first = 0;
  while (first < count && (used >> first & 1) != 0) ++first;
  if (first == count) return 0;
  std::int64_t best = best_of_all(weight, used | 1u << first);
  for (std::size_t other = first + 1; other < count; ++other) {
    if ((used >> other & 1) != 0 || weight[first][other] <= 0) continue;
    best = std::max(best, weight[first][other] + best_of_all(weight, used | 1u << first | 1u << other));
  }
  return best;
}

TEST(Matching, LeavesTheHeaviestEdgeWhereTwoOthersWeighMore)
{
  const auto matching = maximum_weight_matching(4, {{0, 1, 5}, {1, 2, 8}, {2, 3, 5}});
  EXPECT_EQ(matching.weight, 10);
  EXPECT_THAT(matching.mates, ElementsAre(1, 0, 3, 2));
}

TEST(Matching, LeavesAVertexOfATriangleAlone)
{
  const auto matching = maximum_weight_matching(3, {{0, 1, 5}, {1, 2, 6}, {0, 2, 7}});
  EXPECT_EQ(matching.weight, 7);
  EXPECT_EQ(matching.mates[1], Matching::unmatched);
}

TEST(Matching, OfAGraphWithoutEdgesIsEmpty)
{
  EXPECT_EQ(maximum_weight_matching(0, {}).weight, 0);
  EXPECT_THAT(maximum_weight_matching(2, {}).mates, ElementsAre(Matching::unmatched, Matching::unmatched));
}

TEST(Matching, WeighsAsMuchAsTheBestOfAllAndIsProved)
{
  Pcg64 random(7);
  std::size_t with_odd_sets = 0;
  for (std::size_t round = 0; round < 600; ++round) {
    const std::size_t vertices = 2 + round % 11;  // to 12
    const std::uint32_t range = round % 3 == 0 ? 4 : 1'000'000'000;
    const double density = 0.3 + 0.7 * random.uniform();
    std::vector<std::vector<std::int64_t>> weight(vertices, std::vector<std::int64_t>(vertices));
    std::vector<MatchingEdge> edges;
    for (std::size_t i = 0; i < vertices; ++i) {
      for (std::size_t j = i + 1; j < vertices; ++j) {
        if (random.uniform() > density) continue;
        weight[i][j] = 1 + static_cast<std::int64_t>(random.below(range)) * (range > 4 ? 1'000'000 : 1);
        edges.push_back({i, j, weight[i][j]});
      }
    }
    const auto matching = maximum_weight_matching(vertices, edges);
    EXPECT_EQ(fault_of_matching(vertices, edges, matching), "");
    EXPECT_EQ(matching.weight, best_of_all(weight, 0));
    if (!matching.odd_sets.empty()) ++with_odd_sets;
  }
  EXPECT_GT(with_odd_sets, 50U);
}

TEST(Matching, HasAProofInLargeGraphsToo)
{
  // Those of 460 vertices are matched on some of their edges first.
  for (const std::size_t vertices : {81U, 460U}) {
    Pcg64 random(3);
    std::vector<MatchingEdge> edges;
    for (std::size_t i = 0; i < vertices; ++i) {
      for (std::size_t j = i + 1; j < vertices; ++j) edges.push_back({i, j, 1 + random.below(1000)});
    }
    EXPECT_EQ(fault_of_matching(vertices, edges, maximum_weight_matching(vertices, edges)), "");
  }
}

TEST(Matching, WithTheMostEdgesHasABarrierThatLeavesAsManyOddComponents)
{
  // Three vertices around one: only one of them has a mate.
  const auto star = largest_matching(4, {{0, 1, 1}, {0, 2, 1}, {0, 3, 1}});
  EXPECT_EQ(std::count(star.mates.begin(), star.mates.end(), Matching::unmatched), 2);
  EXPECT_THAT(star.barrier, ElementsAre(0));
  const auto square = largest_matching(4, {{0, 1, 1}, {1, 2, 1}, {2, 3, 1}, {0, 3, 1}});
  EXPECT_EQ(std::count(square.mates.begin(), square.mates.end(), Matching::unmatched), 0);
  EXPECT_THAT(largest_matching(2, {}).mates, ElementsAre(Matching::unmatched, Matching::unmatched));
}

TEST(Matching, IsRefusedWithAFalseProof)
{
  const std::vector<MatchingEdge> edges = {{0, 1, 5}, {1, 2, 6}, {0, 2, 7}};
  const auto right = maximum_weight_matching(3, edges);
  ASSERT_EQ(fault_of_matching(3, edges, right), "");

  auto wrong = right;
  wrong.weight = 8;
  EXPECT_EQ(fault_of_matching(3, edges, wrong), "the edges weigh 7, not 8");
  wrong = right;
  wrong.mates = {1, 2, 0};
  EXPECT_EQ(fault_of_matching(3, edges, wrong), "the mate of vertex 0 has another mate");
  wrong.mates = {0, 1};
  EXPECT_EQ(fault_of_matching(3, edges, wrong), "the matching has 2 mates for 3 vertices");
  EXPECT_EQ(fault_of_matching(3, {edges[0]}, right), "mates without an edge between them");
  // A lighter matching with the same duals.
  wrong = right;
  wrong.mates = {1, 0, Matching::unmatched};
  wrong.weight = 5;
  EXPECT_EQ(fault_of_matching(3, edges, wrong), "the duals sum to 28, four times the weight is 20");
  wrong = right;
  wrong.duals.pop_back();
  EXPECT_EQ(fault_of_matching(3, edges, wrong), "not one dual for each vertex");
  wrong = right;
  wrong.odd_sets.clear();
  wrong.duals = {28, 0, 0};
  EXPECT_EQ(fault_of_matching(3, edges, wrong), "the duals of edge 1-2 do not cover its weight");
  wrong.duals = {29, -1, 0};
  EXPECT_EQ(fault_of_matching(3, edges, wrong), "a vertex has a negative dual");
  wrong.duals = {28, 0, 0};
  wrong.odd_sets = {{{0, 1}, 0}};
  EXPECT_EQ(fault_of_matching(3, edges, wrong), "a set of 2 vertices is not odd");
  wrong.odd_sets = {{{0, 1, 1}, 0}};
  EXPECT_EQ(fault_of_matching(3, edges, wrong), "an odd set lists a vertex twice, or one that does not exist");
  wrong.odd_sets = {{{0, 1, 2}, -4}};
  EXPECT_EQ(fault_of_matching(3, edges, wrong), "an odd set has a negative dual");
}

}  // namespace
}  // namespace isobar::allocators::matching_test
