#include "allocators/chain/best_placements.hpp"

#include <algorithm>

namespace isobar::allocators {

namespace {

bool are_same(const std::vector<StagePlacement>& a, const std::vector<StagePlacement>& b)
{
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const StagePlacement& x, const StagePlacement& y) {
    return x.device == y.device && x.first_layer == y.first_layer && x.last_layer == y.last_layer;
  });
}

}  // namespace

void BestPlacements::offer(const std::vector<StagePlacement>& stages, double value)
{
  if (most_ == 0 || (kept_.size() == most_ && value >= kept_.back().value)) return;
  if (std::any_of(kept_.begin(), kept_.end(), [&](const Kept& kept) { return are_same(kept.stages, stages); })) return;
  const auto place = std::upper_bound(kept_.begin(), kept_.end(), value,
                                      [](double offered, const Kept& kept) { return offered < kept.value; });
  kept_.insert(place, {stages, value});
  if (kept_.size() > most_) kept_.pop_back();
}

std::vector<std::vector<StagePlacement>> BestPlacements::without(const std::vector<StagePlacement>& stages) const
{
  std::vector<std::vector<StagePlacement>> others;
  for (const Kept& kept : kept_) {
    if (others.size() + 1 < most_ && !are_same(kept.stages, stages)) others.push_back(kept.stages);
  }
  return others;
}

}  // namespace isobar::allocators
