#include "allocators/planners/grid_stages.hpp"

#include "allocators/plan_stages.hpp"
#include "allocators/schedule_numbers.hpp"
#include "core/errors.hpp"
#include "core/model/split_text.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/plan/tied_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace isobar::allocators {

namespace {

using Form = ShardGrid::Form;

}  // namespace

std::vector<std::uint64_t> divisors_of(std::uint64_t number)
{
  std::vector<std::uint64_t> divisors;
  for (std::uint64_t i = 1; i <= number; ++i) {
    if (number % i == 0) divisors.push_back(i);
  }
  return divisors;
}

const schedules::Schedule& require_schedule_of_replicas(const Goal& goal, std::string_view allocator)
{
  const auto& schedule = schedules::require_schedule(goal.schedule.name);
  if (schedule.takes_orders) {
    throw InputError("schedule", fmt::format("{} makes orders for one placement of a chain; allocator {} takes the "
                                             "other schedules",
                                             schedule.name, allocator));
  }
  return schedule;
}

std::vector<ShardGrid> shard_grids(ShardGrid::Form form, std::uint64_t shards)
{
  if (form == Form::OneD) return {ShardGrid()};
  if (form == Form::Sequence) return shards > 1 ? std::vector{ShardGrid{form, shards}} : std::vector<ShardGrid>();
  std::vector<ShardGrid> grids;
  for (std::uint64_t side = 2; side * side <= shards; ++side) {
    const std::uint64_t depth = shards / (side * side);
    if (shards % (side * side) != 0) continue;
    const bool has_form = form == Form::TwoD ? depth == 1 : form == Form::ThreeD ? depth == side : depth > 1;
    if (has_form) grids.push_back({form, side, depth});
  }
  return grids;
}

std::optional<std::string> why_no_shards(const Workload& workload, std::uint64_t shards, const ShardGrid& grid)
{
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    const Layer& layer = workload.layers[i];
    if (!layer.split && !grid.is_grid()) {
      return fmt::format("layer {} cannot be divided; {}", shown(layer.name), why_whole(workload));
    }
    if (!grid.is_grid() && layer.split->units < shards) {
      return fmt::format("layer {} has {} to divide ({})", shown(layer.name), layer.split->units,
                         units_in_words(workload, *layer.split));
    }
    if (const auto why_not = why_not_divided(workload, i, grid)) {
      return fmt::format("{} of layer {}, {}", text_of(grid), shown(layer.name), *why_not);
    }
  }
  return std::nullopt;
}

bool share_sites(const Cluster& cluster, std::span<const std::size_t> devices, std::size_t shards)
{
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::size_t first = devices[i - i % shards];
    if (cluster.devices[devices[i]].site != cluster.devices[first].site) return false;
  }
  return true;
}

std::vector<ReplicaPlacement> equal_replicas(std::span<const std::size_t> devices, std::size_t shards,
                                             std::uint64_t microbatches)
{
  const std::size_t count = devices.size() / shards;
  std::vector<ReplicaPlacement> replicas;
  for (std::size_t i = 0; i < count; ++i) {
    const auto own = devices.subspan(i * shards, shards);
    replicas.push_back({count == 1 ? 0 : microbatches / count, {own.begin(), own.end()}});
  }
  return replicas;
}

std::vector<Stage> stages_on(const CostModel& cost, std::size_t first, std::size_t last,
                             const std::vector<ReplicaPlacement>& replicas, const ShardGrid& grid)
{
  std::vector<Stage> layers = {{first, last, {}, grid}};
  Stage& whole = layers.front();
  const FlopsPerSecond reference = reference_speed(cost.cluster(), cost.workload().dtype);
  for (const auto& placed : replicas) {
    Replica& replica = whole.replicas.emplace_back();
    replica.microbatches = placed.microbatches;
    for (const std::size_t device : placed.devices) {
      replica.shards.push_back(shard_on(cost, device, reference));
      replica.shards.back().share = 1 / static_cast<double>(placed.devices.size());
    }
  }
  if (!has_shards(layers) && !has_exchanges(cost.workload())) return layers;
  layers.resize(last - first + 1, Stage(whole));
  for (std::size_t i = 0; i < layers.size(); ++i) layers[i].first_layer = layers[i].last_layer = first + i;
  return layers;
}

bool crosses_sites(const Plan& plan)
{
  return std::any_of(plan.stages.begin(), plan.stages.end(), [](const Stage& stage) {
    const auto sites = sites_of(stage, 0);
    return std::any_of(sites.begin(), sites.end(), [&](const auto& site) { return site != sites.front(); });
  });
}

bool can_divide(const Workload& workload, const Plan& plan)
{
  if (fault_of_ties(workload, plan)) return false;
  if (why_copies_are_not_divided(plan)) return false;
  return std::none_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
    for (std::size_t shard = 0; shard < stage.replicas.front().shards.size(); ++shard) {
      if (why_not_divided(plan.sync, stage, sites_of(stage, shard))) return true;
    }
    return false;
  });
}

std::vector<Plan> with_warm_ups(Plan plan, const CostModel& chain_cost, const std::vector<StagePlacement>& stages,
                                std::size_t replicas, std::size_t shards)
{
  if (!chooses_warm_up(plan.goal)) return {std::move(plan)};
  plan.goal.schedule.numbers.erase(warm_up_key);
  Goal of_replica = plan.goal;
  of_replica.microbatches /= replicas;
  const auto& schedule = schedules::require_schedule(plan.goal.schedule.name);
  const auto chosen = chosen_warm_up(schedule, chain_cost, stages, of_replica);
  std::vector<Plan> plans = {plan};
  if (!chosen) return plans;
  auto& numbers = plan.goal.schedule.numbers[warm_up_key];  // by device
  for (const std::uint64_t number : *chosen) numbers.insert(numbers.end(), replicas * shards, number);
  plans.push_back(std::move(plan));
  return plans;
}

}  // namespace isobar::allocators
