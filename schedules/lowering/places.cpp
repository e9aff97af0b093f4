#include "schedules/lowering/places.hpp"

#include "core/costs/layer_times.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/model/split_text.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/sync_groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

namespace isobar::schedules {

Places::Places(const Plan& plan, const Workload& workload, const Cluster& cluster)
    : plan_(plan), workload_(workload), cluster_(cluster), devices_(devices_of(plan)), ranks_(plan.stages.size())
{
  place_of_.resize(devices_.size());
  endpoint_of_ = indices_of_devices(plan, cluster);
  if (plan.data_server) endpoint_of_.push_back(cluster.data_server_index());
  for (const auto& placed : placed_shards(plan)) {
    auto& of_stage = ranks_[placed.stage];
    if (placed.shard == 0) of_stage.emplace_back();
    of_stage.back().push_back(placed.rank);
    if (!place_of_[placed.rank]) {
      place_of_[placed.rank] = placed;
    } else if (place_of_[placed.rank]->replica != placed.replica || place_of_[placed.rank]->shard != placed.shard) {
      moved_ = placed.rank;
    }
  }
}

std::optional<std::string> Places::why_not() const
{
  if (divides_operators(plan_)) return "its devices divide operators";
  if (uses_machines(plan_)) return "its stages live elsewhere than on their devices";
  if (moved_) return fmt::format("device {} has another place in one stage than in another", shown(devices_[*moved_]));
  for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
    if (ranks_[i].size() != replicas()) {
      return fmt::format("stage {} has {} replicas and stage 0 {}", i, ranks_[i].size(), replicas());
    }
    const auto& own = plan_.stages[i].replicas;
    if (!are_divided_alike(plan_.stages[i])) return fmt::format("the replicas of stage {} have other shards", i);
    for (const auto& replica : own) {
      if (replica.microbatches == own.front().microbatches) continue;
      return fmt::format("the replicas of stage {} take {} and {} micro-batches", i, own.front().microbatches,
                         replica.microbatches);
    }
  }
  for (std::size_t rank = 0; rank < devices(); ++rank) {
    // A device that has a stage with one counterpart has all its stages with it.
    if (auto what = difference(rank, counterpart(rank, 0))) return what;
  }
  for (std::size_t i = 1; i < plan_.stages.size(); ++i) {
    for (std::size_t r = 0; r < replicas(); ++r) {
      for (std::size_t k = 0; k < ranks_[i][r].size(); ++k) {
        if (counterpart(ranks_[i][r][k], 0) == ranks_[i][0][k]) continue;
        return fmt::format("device {} has other stages than {}", shown(devices_[ranks_[i][r][k]]),
                           shown(devices_[ranks_[i][0][k]]));
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> Places::why_not_shards() const
{
  if (shards() == 1) return "its replicas have a shard each";
  if (plan_.data_server) return "each of its shards gets the input from the data server";
  for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
    const Stage& stage = plan_.stages[i];
    if (stage.grid.is_grid()) return "its shards are in a grid";
    const Replica& first = stage.replicas.front();
    if (first.shards.size() != shards()) {
      return fmt::format("stage {} has {} shards and stage 0 {}", i, first.shards.size(), shards());
    }
    const Layer& layer = workload_.layers[stage.first_layer];
    const auto units = units_of_shards(layer.split->units, first);
    if (std::adjacent_find(units.begin(), units.end(), std::not_equal_to<>()) != units.end()) {
      return fmt::format("{} shards divide {} {} of layer {} in unequal parts", shards(), layer.split->units,
                         units_in_words(workload_, *layer.split), shown(layer.name));
    }
  }
  for (std::size_t rank = 0; rank < devices(); ++rank) {
    if (auto what = difference(rank, counterpart(rank, 0, true))) return what;
  }
  return std::nullopt;
}

std::size_t Places::replicas_in_site() const
{
  std::size_t count = 1;
  const std::string& site = device(ranks_[0][0][0]).site;
  while (count < replicas() && device(ranks_[0][count][0]).site == site) ++count;
  return count;
}

std::vector<Ranks> Places::groups_of_shards() const
{
  std::set<Ranks> groups;
  for (const auto& stage : ranks_) groups.insert(stage.begin(), stage.end());
  return {groups.begin(), groups.end()};
}

std::optional<std::string> Places::difference(std::size_t rank, std::size_t other) const
{
  const Device& a = device(rank);
  const Device& b = device(other);
  const auto rate = [&](const Device& device) { return rate_of(workload_, device); };
  const char* what = a.type != b.type                           ? "type"
                     : rate(a) != rate(b)                       ? "speed"
                     : a.memory != b.memory                     ? "memory"
                     : a.interference != b.interference         ? "interference"
                     : a.collective_start != b.collective_start ? "the start of collectives"
                                                                : nullptr;
  if (what == nullptr) return std::nullopt;
  return fmt::format("devices {} and {} differ in {}", shown(a.name), shown(b.name), what);
}

}  // namespace isobar::schedules
