#include "allocators/chain/placement_moves.hpp"

#include <algorithm>
#include <bit>

namespace isobar::allocators {

namespace {

/// Returns 1 half of the time, 2 a quarter, …, at most `most`.
std::size_t small_number(FastRandom& random, std::size_t most)
{
  const auto ones = static_cast<std::size_t>(std::countr_one(random.next()));
  return std::min(1 + ones, most);
}

/// Returns another stage: half of the time one of the nearest `near`, else any.
std::size_t other_stage(const PlacementCosts& costs, FastRandom& random, std::size_t stage, std::size_t near)
{
  if (random.below(2) == 0) return random.below(costs.size());
  const std::size_t distance = 1 + random.below(near);
  if (random.below(2) == 0) return stage >= distance ? stage - distance : stage;
  return stage + distance < costs.size() ? stage + distance : stage;
}

std::size_t stage_within(const PlacementCosts& costs, FastRandom& random, std::size_t stage, std::size_t reach)
{
  const std::size_t low = stage > reach ? stage - reach : 0;
  const std::size_t high = std::min(stage + reach, costs.size() - 1);
  return low + random.below(high - low + 1);
}

bool propose_shift(PlacementCosts& costs, FastRandom& random, std::size_t stage)
{
  const auto layers = static_cast<std::ptrdiff_t>(small_number(random, 8));
  return costs.shift_boundary(stage + random.below(2), random.below(2) == 0 ? layers : -layers);
}

bool propose_long_shift(PlacementCosts& costs, FastRandom& random, std::size_t stage)
{
  constexpr std::size_t reach = 16;
  const std::size_t other = stage_within(costs, random, stage, reach);
  const auto layers = static_cast<std::ptrdiff_t>(small_number(random, 4));
  return costs.shift_boundaries(std::min(stage, other) + 1, std::max(stage, other),
                                random.below(2) == 0 ? layers : -layers);
}

/// How many layers of the stage go to the one before it when it is dropped.
std::size_t share_before(const PlacementCosts& costs, FastRandom& random, std::size_t stage)
{
  if (stage == 0) return 0;
  if (stage + 1 == costs.size()) return costs.layers_of(stage);
  return random.below(costs.layers_of(stage) + 1);
}

std::size_t random_share(const PlacementCosts& costs, FastRandom& random, std::size_t stage)
{
  return 1 + random.below(costs.layers_of(stage) - 1);
}

}  // namespace

bool propose_random_move(PlacementCosts& costs, FastRandom& random, std::size_t stage)
{
  const auto& unused = costs.unused_devices();
  const std::size_t kind = random.below(32);
  if (kind < 10) return propose_shift(costs, random, stage);
  if (kind < 14) return propose_long_shift(costs, random, stage);
  if (kind < 18) return costs.swap_devices(stage, other_stage(costs, random, stage, 3));
  if (kind < 21) return costs.exchange_stages(stage, stage_within(costs, random, stage, 8));
  if (kind < 23) return costs.move_stage(stage, stage_within(costs, random, stage, 8));
  if (kind < 24) return costs.reverse_stages(stage, stage_within(costs, random, stage, 12));
  if (kind < 27) return !unused.empty() && costs.replace_device(stage, unused[random.below(unused.size())]);
  if (kind < 29) {
    return !unused.empty() && costs.split_stage(stage, unused[random.below(unused.size())],
                                                random_share(costs, random, stage), random.below(2) == 0);
  }
  if (kind < 30) return costs.drop_stage(stage, share_before(costs, random, stage));
  const std::size_t other = other_stage(costs, random, stage, 6);
  return costs.move_device(stage, share_before(costs, random, stage), other, random_share(costs, random, other),
                           random.below(2) == 0);
}

}  // namespace isobar::allocators
