#include "core/steps/holders.hpp"

#include "core/costs/layer_times.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

namespace isobar {

namespace {

std::size_t index_of(const Holder& holder, const Part& part)
{
  return static_cast<std::size_t>(&part - holder.parts.data());
}

}  // namespace

std::vector<Holder> holders_of(const Plan& plan)
{
  std::unordered_map<std::string, std::size_t> rank_of;
  for (const auto& name : devices_of(plan)) rank_of.emplace(name, rank_of.size());
  std::vector<Holder> holders;
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    for (const auto& replica : plan.stages[i].replicas) {
      Holder& holder = holders.emplace_back();
      holder.stage = i;
      holder.microbatches = replica.microbatches > 0 ? replica.microbatches : plan.goal.microbatches;
      for (const auto& shard : replica.shards) {
        Part& part = holder.parts.emplace_back();
        part.rank = rank_of.at(shard.device);
        part.share = shard.share;
      }
    }
  }
  return holders;
}

std::vector<double> units_of(const Holder& holder, const Layer& layer)
{
  const auto units = layer.split ? static_cast<double>(layer.split->units) : 1;
  if (holder.parts.size() == 1) return {units};
  // Whole units, at least one each; those that are left go to the shards that lack most of their share.
  std::vector<double> taken;
  double left = units;
  for (std::size_t k = 0; k < holder.parts.size(); ++k) {
    const auto others = static_cast<double>(holder.parts.size() - 1 - k);
    taken.push_back(std::min(std::max(1.0, std::floor(units * holder.parts[k].share)), left - others));
    left -= taken.back();
  }
  std::vector<bool> is_served(holder.parts.size(), false);
  for (; left > 0; --left) {
    std::optional<std::size_t> neediest;
    const auto lack = [&](std::size_t k) { return units * holder.parts[k].share - taken[k]; };
    if (std::all_of(is_served.begin(), is_served.end(), [](bool served) { return served; })) {
      is_served.assign(is_served.size(), false);
    }
    for (std::size_t k = 0; k < taken.size(); ++k) {
      if (!is_served[k] && (!neediest || lack(k) > lack(*neediest))) neediest = k;
    }
    ++taken[*neediest];
    is_served[*neediest] = true;
  }
  return taken;
}

double held_part(const Plan& plan, const Holder& holder, const Part& part, const Layer& layer, double whole)
{
  if (holder.parts.size() == 1) return whole;
  if (grid_of(plan, holder).is_grid()) return whole / static_cast<double>(holder.parts.size());
  return units_of(holder, layer)[index_of(holder, part)] * (whole / static_cast<double>(layer.split->units));
}

double fraction_of(const Plan& plan, const Holder& holder, const Part& part, const Layer& layer)
{
  if (holder.parts.size() == 1) return 1;
  if (grid_of(plan, holder).is_grid()) return 1 / static_cast<double>(holder.parts.size());
  return units_of(holder, layer)[index_of(holder, part)] / static_cast<double>(layer.split->units);
}

PassTimes pass_times_of(const Plan& plan, const Holder& holder, const Part& part, const Workload& workload,
                        std::size_t index, const Device& device)
{
  const LayerTimes whole = times_on(workload, index, device);
  const auto seconds = [](const ShardTimes& times, double fraction) {
    return PassTimes{fraction * times.forward.value, fraction * times.backward.value,
                     fraction * times.backward_weight.value};
  };
  if (holder.parts.size() == 1) return seconds(whole, 1);
  const auto known = whole.of_shards.find(holder.parts.size());
  const bool has_equal_shares =
      std::all_of(holder.parts.begin(), holder.parts.end(), [&](const Part& each) { return each.share == part.share; });
  const bool is_known = known != whole.of_shards.end() && !grid_of(plan, holder).is_grid() && has_equal_shares;
  if (is_known) return seconds(known->second, 1);
  return seconds(whole, fraction_of(plan, holder, part, workload.layers[index]));
}

const ShardGrid& grid_of(const Plan& plan, const Holder& holder)
{
  return plan.stages[holder.stage].grid;
}

double blocks_of(const Plan& plan, const Holder& holder)
{
  return grid_of(plan, holder).form == ShardGrid::Form::OneD ? 1 : static_cast<double>(holder.parts.size());
}

double parameters_of(const Plan& plan, const Holder& holder, const Part& part, const Layer& layer)
{
  const auto all = static_cast<double>(layer.parameters);
  const auto shards = static_cast<double>(holder.parts.size());
  const ShardGrid& grid = grid_of(plan, holder);
  if (grid.is_grid()) {
    const bool has_copies = grid.form == ShardGrid::Form::TwoAndAHalfD;
    return std::ceil(all / (has_copies ? shards / static_cast<double>(grid.depth) : shards));
  }
  const double divided = layer.split ? static_cast<double>(layer.split->parameters) : 0;
  return all - divided + held_part(plan, holder, part, layer, divided);
}

double experts_of(const Plan& plan, const Holder& holder, const Part& part, const Layer& layer)
{
  return layer.experts ? held_part(plan, holder, part, layer, static_cast<double>(layer.experts->parameters)) : 0;
}

}  // namespace isobar
