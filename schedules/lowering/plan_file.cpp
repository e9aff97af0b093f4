#include "schedules/lowering/plan_file.hpp"

#include "core/check/residence_checker.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/plan_file.hpp"
#include "core/plan/transfer_rules.hpp"
#include "schedules/lowering/replicas.hpp"
#include "schedules/lowering/tiers.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::schedules {

namespace {

/// @throws InputError for residences that contradict each other or the orders of their devices.
void require_residences(const Plan& plan, const std::vector<Order>& orders)
{
  if (!uses_machines(plan)) return;
  const std::vector<std::size_t> number = numbers_in_file(plan);
  if (const auto found = fault_of_residences(plan)) {
    throw InputError(fmt::format("stages[{}].{}", number[found->stage], found->key), found->text);
  }
  std::vector<TieredRank> ranks(orders.size());
  for (const auto& placed : placed_shards(plan)) {
    TieredPart& part = ranks[placed.rank].parts.emplace_back();
    part.residence = plan.stages[placed.stage].residence;
    part.stage = static_cast<std::uint32_t>(number[placed.stage]);
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) TierLanes(orders[rank], ranks[rank]);
}

}  // namespace

Plan read_scheduled_plan(const std::filesystem::path& file)
{
  return read_plan(file, [](const Plan& plan) {
    if (plan.stages.empty()) return;
    require_residences(plan, orders_of(plan));
    if (const auto fault = fault_of_transfers(plan)) throw InputError("transfers", *fault);
  });
}

}  // namespace isobar::schedules
