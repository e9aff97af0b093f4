#include "allocators/mix/matching.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace isobar::allocators {

namespace {

std::string fault_of_mates(std::size_t vertices, const std::vector<MatchingEdge>& edges, const Matching& matching)
{
  if (matching.mates.size() != vertices) {
    return fmt::format("the matching has {} mates for {} vertices", matching.mates.size(), vertices);
  }
  for (std::size_t i = 0; i < vertices; ++i) {
    const std::size_t mate = matching.mates[i];
    if (mate != Matching::unmatched && (mate >= vertices || mate == i || matching.mates[mate] != i)) {
      return fmt::format("the mate of vertex {} has another mate", i);
    }
  }
  std::int64_t weight = 0;
  std::size_t matched = 0;
  for (const auto& [first, second, gain] : edges) {
    if (matching.mates[first] != second) continue;
    weight += gain;
    matched += 2;
  }
  const auto unmatched = std::count(matching.mates.begin(), matching.mates.end(), Matching::unmatched);
  if (matched + static_cast<std::size_t>(unmatched) != vertices) return "mates without an edge between them";
  if (weight != matching.weight) return fmt::format("the edges weigh {}, not {}", weight, matching.weight);
  return "";
}

}  // namespace

std::string fault_of_matching(std::size_t vertices, const std::vector<MatchingEdge>& edges, const Matching& matching)
{
  if (auto fault = fault_of_mates(vertices, edges, matching); !fault.empty()) return fault;
  if (matching.duals.size() != vertices) return "not one dual for each vertex";

  std::int64_t sum = 0;
  for (const auto dual : matching.duals) {
    if (dual < 0) return "a vertex has a negative dual";
    sum += dual;
  }
  std::vector<std::vector<std::size_t>> sets_of(vertices);  // ascending
  for (std::size_t i = 0; i < matching.odd_sets.size(); ++i) {
    const auto& [members, dual] = matching.odd_sets[i];
    if (dual < 0) return "an odd set has a negative dual";
    for (const std::size_t vertex : members) {
      if (vertex >= vertices || (!sets_of[vertex].empty() && sets_of[vertex].back() == i)) {
        return "an odd set lists a vertex twice, or one that does not exist";
      }
      sets_of[vertex].push_back(i);
    }
    if (members.size() % 2 == 0) return fmt::format("a set of {} vertices is not odd", members.size());
    sum += dual * static_cast<std::int64_t>((members.size() - 1) / 2);
  }
  if (sum != 4 * matching.weight) {
    return fmt::format("the duals sum to {}, four times the weight is {}", sum, 4 * matching.weight);
  }
  for (const auto& [first, second, gain] : edges) {
    std::int64_t covered = matching.duals[first] + matching.duals[second];
    for (const std::size_t set : sets_of[first]) {
      if (std::binary_search(sets_of[second].begin(), sets_of[second].end(), set))
        covered += matching.odd_sets[set].dual;
    }
    if (covered < 4 * gain) return fmt::format("the duals of edge {}-{} do not cover its weight", first, second);
  }
  return "";
}

}  // namespace isobar::allocators
