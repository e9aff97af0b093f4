#include "allocators/chain/start_placements.hpp"

#include "allocators/chain/chain_dp.hpp"
#include "allocators/memory_fit.hpp"
#include "allocators/sky/even.hpp"
#include "allocators/sky/sky_dynamic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace isobar::allocators {

namespace {

class Starts {
 public:
  Starts(const Problem& problem, const SearchClock& clock) : problem_(problem), cost_(problem.cost), clock_(clock) {}

  std::vector<StagePlacement> best()
  {
    offer(stages_of_counts(even_counts(cost_.layers(), cost_.devices())));
    offer(place_by_sky_dynamic_fixed({cost_, problem_.goal, limits(200, 0.1)}).stages);
    fill_in_orders();
    run_chain_dp();
    return std::move(best_);
  }

 private:
  /// Limits of an allocator that only provides a start: a budget, and a part of the remaining time.
  SearchLimits limits(std::uint64_t budget, double time_fraction) const
  {
    SearchLimits limits;
    limits.budget = budget;
    limits.time_limit = clock_.left();
    if (limits.time_limit) *limits.time_limit *= time_fraction;
    return limits;
  }

  void offer(std::vector<StagePlacement> stages)
  {
    if (stages.empty()) return;
    double excess = 0;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const Bytes need = stage_memory(cost_, problem_.goal, stages[i], stages.size() - 1 - i);
      excess += std::max(0.0, (need - cost_.cluster().devices[stages[i].device].memory).value);
    }
    const double objective = cost_.evaluate(stages, problem_.goal).objective.value;
    if (excess > least_excess_ || (excess == least_excess_ && objective >= least_objective_)) return;
    least_excess_ = excess;
    least_objective_ = objective;
    best_ = std::move(stages);
  }

  void run_chain_dp()
  {
    const double devices = static_cast<double>(cost_.devices());
    const double passes = std::floor(2e8 / (static_cast<double>(cost_.layers()) * devices * devices));
    if (passes < 1) return;
    const auto budget = static_cast<std::uint64_t>(std::min(passes, 100.0));
    offer(place_by_chain_dp({cost_, problem_.goal, limits(budget, 0.3)}).stages);
  }

  void fill_in_orders()
  {
    std::vector<std::size_t> order(cost_.devices());
    std::iota(order.begin(), order.end(), std::size_t{0});
    fill_in(order);
    const auto by_speed = [this](std::size_t a, std::size_t b) { return cost_.speed(a) > cost_.speed(b); };
    std::stable_sort(order.begin(), order.end(), by_speed);
    fill_in(order);
    const std::size_t fastest = order.front();
    std::reverse(order.begin(), order.end());
    fill_in(order);
    constexpr std::size_t most_devices = 512;  // a path is looked up for each pair
    if (problem_.goal.communication != Communication::None && cost_.devices() <= most_devices) {
      fill_in(by_distance_from(fastest));
    }
  }

  /// Takes the nearest device next, by the mean transfer.
  std::vector<std::size_t> by_distance_from(std::size_t first) const
  {
    const std::size_t middle = cost_.layers() / 2;
    std::vector<std::size_t> left(cost_.devices());
    std::iota(left.begin(), left.end(), std::size_t{0});
    std::vector<std::size_t> order;
    std::size_t next = first;
    for (;;) {
      order.push_back(next);
      left.erase(std::find(left.begin(), left.end(), next));
      if (left.empty() || clock_.is_over()) return order;
      const std::size_t last = order.back();
      Seconds least(std::numeric_limits<double>::infinity());
      for (const std::size_t device : left) {
        const Seconds time =
            cost_.output_transfer(device, last, middle).total() + cost_.gradient_transfer(device, last, middle).total();
        if (time >= least) continue;
        least = time;
        next = device;
      }
    }
  }

  /// Fills the devices in this order from the end of the chain, for limits from the time of all devices together to no
  /// limit.
  void fill_in(const std::vector<std::size_t>& order)
  {
    constexpr int limits = 32;
    FlopsPerSecond all;
    FlopsPerSecond fastest;
    for (const std::size_t device : order) {
      all += cost_.speed(device);
      fastest = std::max(fastest, cost_.speed(device));
    }
    const Flops work = cost_.forward_work(0, cost_.layers() - 1) + cost_.backward_work(0, cost_.layers() - 1);
    const double low = (work / all).value;
    const double high = (work / fastest).value * (1 + 1e-9);
    if (!(low > 0)) return;
    for (int k = 0; k <= limits && !clock_.is_over(); ++k) {
      offer(filled(order, Seconds(low * std::pow(high / low, static_cast<double>(k) / limits))));
    }
  }

  /// Empty when layers are left over.
  std::vector<StagePlacement> filled(const std::vector<std::size_t>& order, Seconds limit) const
  {
    std::vector<StagePlacement> stages;
    std::size_t end = cost_.layers();
    for (const std::size_t device : order) {
      if (end == 0) break;
      const Bytes memory = cost_.cluster().devices[device].memory;
      std::size_t first = end;
      while (first > 0 && cost_.compute_time(device, first - 1, end - 1) <= limit &&
             stage_memory(cost_, problem_.goal, {device, first - 1, end - 1}, stages.size()) <= memory) {
        --first;
      }
      if (first == end) continue;
      stages.push_back({device, first, end - 1});
      end = first;
    }
    if (end > 0) return {};
    std::reverse(stages.begin(), stages.end());
    return stages;
  }

  const Problem& problem_;
  const CostModel& cost_;
  const SearchClock& clock_;
  std::vector<StagePlacement> best_;
  double least_excess_ = std::numeric_limits<double>::infinity();
  double least_objective_ = std::numeric_limits<double>::infinity();
};

}  // namespace

std::vector<StagePlacement> best_start(const Problem& problem, const SearchClock& clock)
{
  return Starts(problem, clock).best();
}

std::string why_none_fits(const Problem& problem, const SearchClock& clock)
{
  const CostModel& cost = problem.cost;
  if (const auto layer = oversized_layer(cost, problem.goal)) return *layer;
  const auto nearest = overfull_stage(cost, problem.goal, best_start(problem, clock));
  const std::string none = "no choice and order of devices holds the chain" +
                           (nearest ? "; in the nearest one found, " + *nearest : std::string());
  const auto percent = enough_memory_percent([&](int more) {
    Cluster larger = cost.cluster();
    for (auto& device : larger.devices) device.memory *= 1 + more / 100.0;
    const CostModel with_more = cost.of(cost.workload(), larger);
    const auto stages = best_start({with_more, problem.goal, {}}, clock);
    return !stages.empty() && !overfull_stage(with_more, problem.goal, stages);
  });
  const auto recomputation = recomputation_hint(cost.workload(), [&](const Workload& recomputed) {
    const CostModel with_recomputation = cost.of(recomputed, cost.cluster());
    const auto stages = best_start({with_recomputation, problem.goal, {}}, clock);
    return !stages.empty() && !overfull_stage(with_recomputation, problem.goal, stages);
  });
  const auto how_much = percent ? fmt::format("{} % more memory", *percent) : "more memory";
  return fmt::format("{}; {} on every device would be enough{}", none, how_much, recomputation);
}

}  // namespace isobar::allocators
