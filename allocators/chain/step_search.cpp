#include "allocators/chain/step_search.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "allocators/chain/annealing.hpp"
#include "allocators/chain/placement_costs.hpp"
#include "allocators/chain/placement_moves.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace isobar::allocators {

namespace {

// Tuned with bert160 on sky64, geo_8cities and geo_12regions: hot cycles cross the valleys between sites, cold ones
// find the last hundredth among devices of one site. An extra term for stages near the largest, as in local_search.cpp,
// improved nothing.
constexpr int step_cycles = 8;
constexpr std::array<double, 4> hot_step_temperatures = {3e-2, 3e-3, 1e-3,
                                                         3e-4};  // of the step; one per cycle, in turn

class StepSearch {
 public:
  StepSearch(const CostModel& cost, const Goal& goal, SearchClock& clock, std::uint64_t seed, Seconds bound,
             std::uint64_t budget, BestPlacements& kept)
      : clock_(clock), random_(seed), bound_(bound.value), budget_(budget), costs_(cost, goal), kept_(kept)
  {
  }

  std::vector<StagePlacement> run(std::vector<StagePlacement> start)
  {
    best_ = std::move(start);
    costs_.assign(best_);
    best_step_ = costs_.step_time();
    kept_.offer(best_, best_step_);
    const double begin = progress();
    for (int cycle = 0; cycle < step_cycles && !is_over(); ++cycle) {
      const auto end_of = [begin](int count) { return begin + (1 - begin) * count / step_cycles; };
      costs_.assign(best_);
      anneal(end_of(cycle), end_of(cycle + 1), hot_step_temperatures[static_cast<std::size_t>(cycle) % 4]);
    }
    return std::move(best_);
  }

 private:
  bool is_over() { return spent_ >= budget_ || clock_.is_over() || best_step_ <= bound_ * (1 + tolerance); }

  double progress() const
  {
    const double spent = budget_ > 0 ? static_cast<double>(spent_) / static_cast<double>(budget_) : 1;
    return std::max(spent, clock_.used_fraction());
  }

  /// Cools down while progress() runs from `from` to `to`.
  void anneal(double from, double to, double hot)
  {
    const double unit = best_step_;
    double now = costs_.step_time();
    cycle_step_ = now;
    cycle_best_ = costs_.placement();
    while (!is_over()) {
      const double part = (progress() - from) / (to - from);
      if (part >= 1) break;
      const double temperature = unit * hot * std::pow(cold_temperature / hot, part);
      const std::uint64_t end = std::min(spent_ + moves_between_looks, budget_);
      while (spent_ < end) {
        ++spent_;
        const bool aimed = random_.uniform() < aimed_fraction;
        const std::size_t stage = aimed ? costs_.bottleneck_stage() : random_.below(costs_.size());
        if (!propose_random_move(costs_, random_, stage)) continue;
        const double ceiling = now - temperature * std::log(1 - random_.uniform());
        if (costs_.value_after().objective > ceiling) continue;
        if (!costs_.fits_after()) continue;
        const double after = costs_.step_time_after();
        if (after > ceiling) continue;
        costs_.apply();
        now = after;
        keep(now);
      }
    }
    kept_.offer(cycle_best_, cycle_step_);
  }

  void keep(double step)
  {
    if (step >= cycle_step_) return;
    cycle_step_ = step;
    cycle_best_ = costs_.placement();
    if (step >= best_step_) return;
    best_step_ = step;
    best_ = cycle_best_;
  }

  SearchClock& clock_;
  FastRandom random_;
  double bound_;
  std::uint64_t budget_;
  std::uint64_t spent_ = 0;
  PlacementCosts costs_;
  BestPlacements& kept_;
  std::vector<StagePlacement> best_;
  double best_step_ = 0;
  std::vector<StagePlacement> cycle_best_;
  double cycle_step_ = 0;
};

}  // namespace

std::vector<StagePlacement> improve_step(const CostModel& cost, const Goal& goal, std::vector<StagePlacement> start,
                                         SearchClock& clock, std::uint64_t seed, Seconds bound, std::uint64_t budget,
                                         BestPlacements& kept)
{
  return StepSearch(cost, goal, clock, seed, bound, budget, kept).run(std::move(start));
}

}  // namespace isobar::allocators
