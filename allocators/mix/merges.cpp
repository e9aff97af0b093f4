#include "allocators/mix/merges.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace isobar::allocators {

namespace {

void sort_by_gain(std::vector<Merge>& merges)
{
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) { return a.gain > b.gain; });
}

}  // namespace

std::vector<Merge> all_merges(const std::vector<std::size_t>& devices, const MergeGain& gain)
{
  std::vector<Merge> merges;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (std::size_t j = i + 1; j < devices.size(); ++j) {
      if (devices[i] != devices[j]) continue;
      const auto found = gain(i, j);
      if (found && *found > 0) merges.push_back({i, j, *found});
    }
  }
  return merges;
}

BestMerges best_merges(const std::vector<std::size_t>& devices, const std::vector<Merge>& merges)
{
  std::map<std::size_t, MatchedParts> by_devices;
  std::vector<std::size_t> vertex_of;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    auto& same = by_devices[devices[i]];
    same.devices = devices[i];
    vertex_of.push_back(same.parts.size());
    same.parts.push_back(i);
  }
  std::map<std::size_t, std::vector<MatchingEdge>> edges;
  for (const auto& [first, second, gain] : merges) {
    edges[devices[first]].push_back({vertex_of[first], vertex_of[second], gain});
  }
  BestMerges best;
  for (auto& [number, same] : by_devices) {
    same.matching = maximum_weight_matching(same.parts.size(), edges[number]);
    ensure(fault_of_matching(same.parts.size(), edges[number], same.matching).empty(),
           "a matching whose proof is wrong");
    for (const auto& [first, second, gain] : edges[number]) {
      if (same.matching.mates[first] == second) best.merges.push_back({same.parts[first], same.parts[second], gain});
    }
    best.matchings.push_back(std::move(same));
  }
  sort_by_gain(best.merges);
  return best;
}

std::vector<Merge> greedy_merges(std::size_t parts, std::vector<Merge> merges)
{
  sort_by_gain(merges);
  std::vector<bool> is_taken(parts);
  std::erase_if(merges, [&](const Merge& merge) {
    if (is_taken[merge.first] || is_taken[merge.second]) return true;
    is_taken[merge.first] = is_taken[merge.second] = true;
    return false;
  });
  return merges;
}

}  // namespace isobar::allocators
