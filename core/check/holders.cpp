#include "core/check/holders.hpp"

#include <algorithm>
#include <cmath>

namespace isobar {

double fraction_of(const Plan& plan, const Holder& holder, const Part& part, const Layer& layer)
{
  if (holder.parts.size() == 1) return 1;
  if (grid_of(plan, holder).is_grid()) return 1 / static_cast<double>(holder.parts.size());
  // Whole units, at least one each; those that are left go to the shards that lack most of their share.
  const auto units = static_cast<double>(layer.split->units);
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
  return taken[static_cast<std::size_t>(&part - holder.parts.data())] / units;
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
  return all - (1 - fraction_of(plan, holder, part, layer)) * divided;
}

}  // namespace isobar
