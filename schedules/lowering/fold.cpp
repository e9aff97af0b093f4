#include "schedules/lowering/fold.hpp"

#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/program/player.hpp"
#include "core/program/walk.hpp"
#include "schedules/lowering/folder.hpp"
#include "schedules/lowering/places.hpp"
#include "schedules/lowering/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace isobar::schedules {

namespace {

/// By rank of the plan, the one that acts in its place.
Ranks acting_ranks(const Places& places, const Acting& acting)
{
  Ranks acting_for;
  for (std::size_t rank = 0; rank < places.devices(); ++rank) {
    const std::size_t replica = *places.replica_of(rank) % acting.replicas;
    acting_for.push_back(places.counterpart(rank, replica, acting.only_first_shard));
  }
  return acting_for;
}

/// Above that many, a step whose collectives meet other flows is folded as if they did not.
constexpr double most_instructions = 1e6;

/// About how many computations and collectives the shards of one replica have in a step.
double count_instructions(const Plan& plan, const Places& places)
{
  const std::uint64_t each = plan.goal.microbatches / places.replicas();
  const auto microbatches = static_cast<double>(each);
  return 4 * microbatches * static_cast<double>(plan.stages.size() * places.shards());
}

/// The ways to fold, those with the fewest devices that act first. Whole groups of replicas that exchange something
/// act.
std::vector<Acting> ways_to_fold(const Places& places, const Workload& workload, bool may_fold_shards,
                                 bool may_merge_shards)
{
  const std::size_t all = places.replicas();
  std::set<std::size_t> replicas = {all};
  for (const std::size_t each : {std::size_t{1}, std::size_t{2}, 2 * places.replicas_in_site()}) {
    const std::size_t parts = replicas_that_meet(workload);
    const std::size_t few = (each + parts - 1) / parts * parts;
    if (few < all) replicas.insert(few);
  }
  std::vector<Acting> ways;
  for (const std::size_t few : replicas) {
    if (may_fold_shards) {
      if (may_merge_shards) ways.push_back({.replicas = few, .only_first_shard = true, .merges_shards = true});
      ways.push_back({.replicas = few, .only_first_shard = true});
    }
    if (few < all) ways.push_back({.replicas = few});
  }
  const auto acting = [&](const Acting& way) { return way.replicas * (way.only_first_shard ? 1 : places.shards()); };
  std::stable_sort(ways.begin(), ways.end(), [&](const Acting& a, const Acting& b) { return acting(a) < acting(b); });
  return ways;
}

/// Folds a plan in the first way that it can be folded.
class PlanFolder {
 public:
  PlanFolder(const Plan& plan, const Workload& workload, const Cluster& cluster, bool keeps_stages)
      : plan_(plan),
        workload_(workload),
        cluster_(cluster),
        places_(plan, workload, cluster),
        paths_(*cluster.network),
        keeps_stages_(keeps_stages)
  {
  }

  std::variant<FoldedStep, std::string> fold()
  {
    if (auto why_not = places_.why_not()) return std::move(*why_not);
    const auto why_not_shards = places_.why_not_shards();
    const bool may_merge = !why_not_shards && may_merge_shards();
    const auto ways = ways_to_fold(places_, workload_, !why_not_shards, may_merge);
    const bool exchanges = has_exchanges(workload_);
    if (ways.empty() && !exchanges) return fmt::format("its stages have one replica, and {}", *why_not_shards);
    auto folded = first_of(exchanges ? short_ones(ways) : ways, {});
    if (std::holds_alternative<FoldedStep>(folded)) return folded;
    if (exchanges && is_too_long()) {
      auto timed = with_timed_exchanges(!why_not_shards);
      if (std::holds_alternative<FoldedStep>(timed)) return timed;
    }
    if (!may_merge || count_instructions(plan_, places_) < most_instructions) return folded;
    std::vector<Acting> approximate = ways;
    std::erase_if(approximate, [](const Acting& way) { return !way.merges_shards; });
    for (Acting& way : approximate) way.ignores_meetings = true;
    auto merged = first_of(approximate, "transfers do not slow down what shards add up");
    return std::holds_alternative<FoldedStep>(merged) ? std::move(merged) : std::move(folded);
  }

  std::variant<FoldedStep, std::string> fold_most()
  {
    if (!has_exchanges(workload_)) return fold();
    if (auto why_not = places_.why_not()) return std::move(*why_not);
    return with_timed_exchanges(!places_.why_not_shards());
  }

 private:
  /// One replica acts, and what replicas exchange takes what it takes alone.
  std::variant<FoldedStep, std::string> with_timed_exchanges(bool only_first_shard)
  {
    return first_of({{.replicas = 1, .only_first_shard = only_first_shard, .times_exchanges = true}},
                    "transfers, sums and what replicas exchange for their passes do not slow down each other");
  }

  /// Whether collectives of shards may be work: others run beside computations, which are those after a pass, unless
  /// devices wait for them, gathers of a divided sequence, what replicas exchange, and sums of gradients of what
  /// several shards have.
  bool may_merge_shards() const
  {
    return !keeps_stages_ && plan_.transfers.blocking && !has_exchanges(workload_) &&
           std::all_of(plan_.stages.begin(), plan_.stages.end(), [&](const Stage& stage) {
             return stage.grid.blocks() == 1 && shared_parameters(workload_.layers[stage.first_layer], stage.grid) == 0;
           });
  }

  bool is_too_long() const
  {
    return static_cast<double>(instructions_of(*make_program(plan_, workload_, cluster_))) > most_instructions;
  }

  /// The ways whose computations and flows are few enough.
  std::vector<Acting> short_ones(std::vector<Acting> ways) const
  {
    std::erase_if(ways, [&](const Acting& way) {
      const double shards = way.only_first_shard ? static_cast<double>(places_.shards()) : 1;
      const double flows_of_each = static_cast<double>(replicas_that_meet(workload_));
      return count_instructions(plan_, places_) / shards * static_cast<double>(way.replicas) * flows_of_each >
             most_instructions;
    });
    return ways;
  }

  /// The plan folded in the first way that can be, or why it cannot in the first one. `note`: of the step.
  std::variant<FoldedStep, std::string> first_of(const std::vector<Acting>& ways, const std::string& note)
  {
    std::optional<std::string> first_reason;
    for (const Acting& way : ways) {
      auto folded = fold_so(plan_, workload_, cluster_, places_, paths_, way);
      if (auto* reason = std::get_if<std::string>(&folded)) {
        if (!first_reason) first_reason = std::move(*reason);
        continue;
      }
      auto& [program, links] = std::get<0>(folded);
      return FoldedStep{plan_, workload_, std::move(program), std::move(links), acting_ranks(places_, way), note};
    }
    return first_reason.value_or("groups of replicas that exchange something are all, or have too many flows");
  }

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  Places places_;
  KnownPaths paths_;
  bool keeps_stages_;
};

}  // namespace

std::variant<FoldedStep, std::string> fold(const Plan& plan, const Workload& workload, const Cluster& cluster,
                                           bool keeps_stages)
{
  ensure(!plan.stages.empty() && plan.goal.microbatches > 0, "a program needs a feasible plan");
  return PlanFolder(plan, workload, cluster, keeps_stages).fold();
}

std::variant<FoldedStep, std::string> fold_most(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  ensure(!plan.stages.empty() && plan.goal.microbatches > 0, "a program needs a feasible plan");
  return PlanFolder(plan, workload, cluster, false).fold_most();
}

}  // namespace isobar::schedules
