#include "core/plan/sync_groups.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace isobar {

bool are_divided_alike(const Stage& stage)
{
  constexpr double tolerance = 1e-9;
  const auto& first = stage.replicas.front().shards;
  return std::all_of(stage.replicas.begin(), stage.replicas.end(), [&](const Replica& replica) {
    return std::equal(first.begin(), first.end(), replica.shards.begin(), replica.shards.end(),
                      [](const Shard& a, const Shard& b) { return std::abs(a.share - b.share) <= tolerance; });
  });
}

std::vector<SyncGroup> sync_groups(const Layer& layer, const Stage& stage)
{
  const std::uint64_t all = layer.split ? layer.split->units : 1;
  const auto end_of = [&](std::size_t replica, std::size_t shard) {
    const Replica& shards = stage.replicas[replica];
    return shards.shards.size() == 1 ? all : units_of_shard(layer, shards, shard).end;
  };
  std::vector<SyncGroup> groups;
  std::vector<std::size_t> shards(stage.replicas.size(), 0);
  for (std::uint64_t begin = 0; begin < all;) {
    std::uint64_t end = all;
    for (std::size_t i = 0; i < shards.size(); ++i) end = std::min(end, end_of(i, shards[i]));
    groups.push_back({{begin, end, all}, shards});
    for (std::size_t i = 0; i < shards.size(); ++i) shards[i] += end_of(i, shards[i]) == end ? 1 : 0;
    begin = end;
  }
  return groups;
}

}  // namespace isobar
