#include "allocators/polish.hpp"

#include "allocators/path_table.hpp"
#include "allocators/placement_costs.hpp"
#include "allocators/placement_moves.hpp"
#include "core/step_recurrence.hpp"

#include <algorithm>
#include <cmath>

namespace isobar::allocators {

namespace {

/// The step time of one placement after the other, without allocation.
class StepClock {
 public:
  StepClock(const CostModel& cost, const Goal& goal)
      : cost_(&cost), paths_(cost, Communication::Played), recurrence_(goal.schedule, goal.microbatches)
  {
  }

  double step_time(const std::vector<StagePlacement>& stages)
  {
    times_.clear();
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto& [device, first, last] = stages[i];
      StageTimes stage;
      stage.forward = cost_->forward_work(first, last) / cost_->speed(device);
      stage.backward = cost_->backward_work(first, last) / cost_->speed(device);
      stage.update = cost_->update_time(device, first, last);
      if (i + 1 < stages.size()) {
        const std::size_t next = stages[i + 1].device;
        const AffinePath& there = paths_.between(device, next);
        const AffinePath& back = paths_.between(next, device);
        stage.output = {Seconds(there.latency), Seconds(there.per_byte * cost_->boundary_output(last + 1).value)};
        stage.gradient = {Seconds(back.latency), Seconds(back.per_byte * cost_->boundary_gradient(last + 1).value)};
      }
      times_.push_back(stage);
    }
    return recurrence_.step_time(cost_->input_transfer(stages.front().device), times_).value;
  }

 private:
  const CostModel* cost_;
  PathTable paths_;
  StepRecurrence recurrence_;
  std::vector<StageTimes> times_;
};

}  // namespace

std::vector<StagePlacement> polish(const CostModel& cost, const Goal& goal, std::vector<StagePlacement> start,
                                   SearchClock& clock, std::uint64_t seed, std::uint64_t budget)
{
  constexpr double hot = 2e-3;  // of the step time; it cools down to nothing much
  constexpr double cold = 1e-6;
  StepClock step_clock(cost, goal);
  PlacementCosts costs(cost, goal);
  FastRandom random(seed);
  costs.assign(start);
  std::vector<StagePlacement> after;
  std::vector<StagePlacement> best = std::move(start);
  double now = step_clock.step_time(best);
  double least = now;
  const double begin = clock.used_fraction();
  for (std::uint64_t spent = 0; spent < budget && !clock.is_over(); ++spent) {
    const double time_part = begin < 1 ? (clock.used_fraction() - begin) / (1 - begin) : 1;
    const double part = std::max(static_cast<double>(spent) / static_cast<double>(budget), time_part);
    // Cycles of cooling, each from the best.
    constexpr int cycles = 4;
    const double cycle_part = part * cycles - std::floor(part * cycles);
    const double temperature = least * hot * std::pow(cold / hot, cycle_part);
    const std::size_t stage = random.below(4) == 0 ? costs.bottleneck_stage() : random.below(costs.size());
    if (!propose_random_move(costs, random, stage) || !costs.fits_after()) continue;
    costs.placement_after(after);
    const double time = step_clock.step_time(after);
    if (time > now && std::exp((now - time) / temperature) <= random.uniform()) continue;
    costs.apply();
    now = time;
    if (now >= least) continue;
    least = now;
    best = after;
  }
  return best;
}

}  // namespace isobar::allocators
