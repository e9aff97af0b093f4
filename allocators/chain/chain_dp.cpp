#include "allocators/chain/chain_dp.hpp"

#include "allocators/bounds/bounds.hpp"
#include "allocators/chain/best_placements.hpp"
#include "allocators/chain/chain_search.hpp"
#include "allocators/chain/needed_devices.hpp"
#include "allocators/memory_fit.hpp"
#include "allocators/search_clock.hpp"
#include "core/costs/step_recurrence.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <queue>
#include <utility>

namespace isobar::allocators {

namespace {

using chain_dp::ChainSearch;
using chain_dp::Found;
using chain_dp::resolution;

/// The search for one goal; `best` holds the best plan so far, also after OutOfLimits.
template <Communication communication>
class GoalSearch {
 public:
  GoalSearch(const Problem& problem, SearchClock& clock, std::optional<Found>& best, BestPlacements& kept)
      : problem_(problem), search_(problem.cost, problem.goal, 1, clock), clock_(clock), best_(best), kept_(kept)
  {
  }

  void run()
  {
    if (problem_.goal.objective == Objective::Step) {
      find_short_step();
      return;
    }
    const bool only_sum = problem_.goal.objective == Objective::Sequential ||
                          (problem_.goal.objective == Objective::Pipeline && problem_.goal.microbatches == 1);
    if (only_sum) {
      find_best_single_device();
      if (auto found = search_.least_sum(infinity, best_ ? best_->sum : infinity)) best_ = std::move(found);
      return;
    }
    find_least_bottleneck();
    if (best_ && problem_.goal.objective == Objective::Pipeline) find_best_pipeline();
  }

  /// Describes why no plan exists, after run() found none.
  std::string reason()
  {
    if (auto layer = oversized_layer(problem_.cost, problem_.goal)) return *layer;
    const StagePlacement stage = search_.overfull_beginning();
    const Device& device = problem_.cost.cluster().devices[stage.device];
    // The stage's least need, whatever its level, is what matters to the reader.
    std::string text = fmt::format("device {}: {} and it has {} when the devices after it are full", device.name,
                                   need_text(0, stage.last_layer, stage_memory(problem_.cost, problem_.goal, stage, 0)),
                                   text_of(device.memory));
    if (const auto percent = enough_memory_in_order()) {
      text += fmt::format("; {} % more memory on every device would be enough", *percent);
    }
    text += recomputation_hint(problem_.cost.workload(), [&](const Workload& recomputed) {
      return surely_fits_in_order(problem_.cost.of(recomputed, problem_.cost.cluster()), problem_.goal);
    });
    return text;
  }

 private:
  double objective_of(const Found& found) const
  {
    if (problem_.goal.objective == Objective::Step) {
      return step_time_by_recurrence(problem_.cost, found.stages, problem_.goal).value;
    }
    return CostModel::objective_of(problem_.goal.objective, problem_.goal.microbatches, Seconds(found.bottleneck),
                                   Seconds(found.sum))
        .value;
  }

  /// A first plan, where a device holds the whole chain: it bounds what is worth searching.
  void find_best_single_device()
  {
    const CostModel& cost = problem_.cost;
    for (std::size_t device = 0; device < cost.devices(); ++device) {
      const StagePlacement stage{device, 0, cost.layers() - 1};
      if (stage_memory(cost, problem_.goal, stage, 0) > cost.cluster().devices[device].memory) continue;
      const auto evaluation = cost.evaluate({stage}, problem_.goal);
      improve({{stage}, evaluation.bottleneck.value, evaluation.sum.value});
    }
  }

  void improve(Found found)
  {
    const double objective = objective_of(found);
    kept_.offer(found.stages, objective);
    if (!best_ || objective < objective_of(*best_)) best_ = std::move(found);
  }

  // --- step: a heuristic ---------------------------------------------------------------------------------------------

  static constexpr Communication played =
      communication == Communication::None ? Communication::None : Communication::Played;

  void find_short_step()
  {
    ChainSearch<played> sums(problem_.cost, problem_.goal, 1, clock_);  // serial, limits on compute
    const bool is_one_at_a_time =
        require_chain_schedule(problem_.goal.schedule) == ChainSchedule::Sequential || problem_.goal.microbatches == 1;
    if (is_one_at_a_time) {
      if (auto found = sums.least_sum(infinity)) improve(std::move(*found));
      return;
    }
    find_least_bottleneck();
    if (!best_) return;
    kept_.offer(best_->stages, objective_of(*best_));
    const double low = best_->bottleneck;
    find_best_single_device();
    auto widest = sums.least_sum(infinity, objective_of(*best_));
    if (!widest) return;  // no step is below its serial sum
    const double high = widest->bottleneck;
    improve(std::move(*widest));
    if (high <= low) return;
    try_limits(sums, low, high, 20);
    const double best_limit = best_->bottleneck;
    const double ratio = std::pow(high / low, 1.0 / 20);
    try_limits(sums, std::max(low, best_limit / ratio), std::min(high, best_limit * ratio), 8);
  }

  /// Tries the plans of least sum under limits from `low` to `high`, with transfers serial and overlapped.
  void try_limits(ChainSearch<played>& sums, double low, double high, int steps)
  {
    for (int k = 0; k < steps; ++k) {
      const double limit = low * std::pow(high / low, static_cast<double>(k) / steps) * (1 + resolution);
      if (auto found = sums.least_sum(limit, objective_of(*best_))) improve(std::move(*found));
      if (communication == Communication::None) continue;
      if (auto found = search_.least_sum(limit)) improve(std::move(*found));
    }
  }

  void find_least_bottleneck()
  {
    best_ = search_.within(infinity);
    if (!best_) return;
    Goal goal = problem_.goal;
    goal.objective = Objective::Bottleneck;
    double low = objective_bound(problem_.cost, goal).value.value * (1 - resolution);
    while (low < best_->bottleneck * (1 - resolution)) {
      const double middle = (low + best_->bottleneck) / 2;
      const double limit = low > 0 ? std::min(middle, 1.25 * low) : middle;
      if (auto found = search_.within(limit)) {
        best_ = std::move(found);
      } else {
        low = std::max(limit, search_.next_limit());
      }
    }
  }

  /// Plans whose largest stage lies in (low, high) and whose sum is therefore at least `sum`.
  struct Interval {
    double low;
    double high;
    double sum;
    double bound;

    friend bool operator<(const Interval& a, const Interval& b) { return a.bound > b.bound; }
  };

  void find_best_pipeline()
  {
    const double weight = static_cast<double>(problem_.goal.microbatches - 1);
    const double least_bottleneck = best_->bottleneck;
    std::priority_queue<Interval> open;
    const auto add = [&](double low, double high, double sum) {
      high = std::min(high, (objective_of(*best_) - sum) / weight);  // above it nothing is better
      if (low < high * (1 - resolution)) open.push({low, high, sum, weight * low + sum});
    };

    find_best_single_device();
    if (auto found = search_.least_sum(least_bottleneck * (1 + resolution))) improve(std::move(*found));
    if (auto found = search_.least_sum(infinity, objective_of(*best_) - weight * least_bottleneck)) {
      add(least_bottleneck, found->bottleneck, found->sum);
      improve(std::move(*found));
    }
    while (!open.empty()) {
      const Interval interval = open.top();
      open.pop();
      const double best = objective_of(*best_);
      if (interval.bound >= best * (1 - resolution)) return;
      const double high = std::min(interval.high, (best - interval.sum) / weight);
      const double middle = (interval.low + high) / 2;
      if (auto found = search_.least_sum(middle, best - weight * interval.low)) {
        add(interval.low, found->bottleneck, found->sum);
        improve(std::move(*found));
      }
      add(middle, high, interval.sum);
    }
  }

  /// The least whole percentage of more memory on every device that makes the chain fit; none when no percentage does
  /// or the limits are reached first.
  std::optional<int> enough_memory_in_order()
  {
    try {
      return enough_memory_percent([&](int percent) {
        ChainSearch<communication> search(problem_.cost, problem_.goal, 1 + percent / 100.0, clock_);
        return search.within(infinity).has_value();
      });
    } catch (const OutOfLimits&) {
      return std::nullopt;
    }
  }

  const Problem& problem_;
  ChainSearch<communication> search_;
  SearchClock& clock_;
  std::optional<Found>& best_;
  BestPlacements& kept_;
};

template <Communication communication>
Placement place(const Problem& problem)
{
  SearchClock clock(problem.limits);
  std::optional<Found> best;
  BestPlacements kept(problem.goal.objective == Objective::Step ? problem.limits.candidates : 0);
  Placement placement;
  try {
    GoalSearch<communication> search(problem, clock, best, kept);
    search.run();
    if (!best) {
      placement.outcome = Outcome::Infeasible;
      placement.reason = search.reason();
    }
  } catch (const OutOfLimits&) {
    placement.outcome = Outcome::TimedOut;
    if (!best) placement.reason = "no plan was found within the limits; raise --time-limit or --budget";
  }
  if (!best) return placement;
  placement.alternatives = kept.without(best->stages);
  placement.stages = std::move(best->stages);
  return placement;
}

Placement place_by_passes(const Problem& problem)
{
  switch (problem.goal.communication) {
    case Communication::None:
      return place<Communication::None>(problem);
    case Communication::Overlapped:
    case Communication::Played:
      return place<Communication::Overlapped>(problem);
    case Communication::Serial:
      return place<Communication::Serial>(problem);
  }
  throw std::logic_error("chain-dp: unknown communication");
}

}  // namespace

Placement place_by_chain_dp(const Problem& problem)
{
  return place_on_needed_devices(problem, DeviceOrder::OfFile, place_by_passes);
}

}  // namespace isobar::allocators
