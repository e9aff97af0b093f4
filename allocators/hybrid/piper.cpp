#include "allocators/hybrid/piper.hpp"

#include "allocators/planners/grid_stages.hpp"
#include "allocators/schedule_numbers.hpp"
#include "core/costs/cost_model.hpp"
#include "core/model/layer_graph.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace isobar::allocators {

namespace {

constexpr std::size_t most_units = 64;

class PiperSearch {
 public:
  PiperSearch(const HybridProblem& problem, const DeviceKind& kind)
      : problem_(problem),
        kind_(kind),
        cost_(problem.view.workload, problem.cluster),
        unit_((kind.devices.size() + most_units - 1) / most_units),
        units_(kind.devices.size() / unit_),
        layers_(cost_.layers()),
        tails_((layers_ + 1) * (units_ + 1))
  {
    parameters_.push_back(0);
    for (const auto& layer : problem.view.workload.layers) {
      parameters_.push_back(parameters_.back() + static_cast<double>(layer.parameters));
    }
    path_ = problem.cluster.path(kind.devices.front(), kind.devices.back());
  }

  std::optional<Plan> best()
  {
    tail(layers_, 0).load = Seconds(0);
    for (std::size_t end = layers_; end > 0; --end) {
      for (std::size_t used = 0; used < units_; ++used) {
        if (tail(end, used).load < never) add_stages(end, used);
      }
    }
    std::size_t used = 0;
    for (std::size_t units = 1; units <= units_; ++units) {
      if (tail(0, units).load < tail(0, used).load) used = units;
    }
    return used == 0 ? std::nullopt : std::optional(plan(used));
  }

 private:
  static constexpr Seconds never{std::numeric_limits<double>::infinity()};

  /// The best stages from a layer on, on a number of units of devices.
  struct Tail {
    Seconds load = never;
    std::size_t end = 0;    // of the first stage's layers
    std::size_t units = 0;  // of the first stage
  };

  Tail& tail(std::size_t first, std::size_t used) { return tails_[first * (units_ + 1) + used]; }

  /// Puts a stage before the stages that begin at layer `end`.
  void add_stages(std::size_t end, std::size_t used)
  {
    const Seconds behind = tail(end, used).load;
    for (std::size_t first = end; first-- > 0;) {
      const Seconds each = time_of_microbatch(first, end - 1);
      for (std::size_t units = 1; used + units <= units_; ++units) {
        if (units * unit_ > problem_.goal.microbatches) break;
        if (!fits(first, end - 1, units * unit_, used * unit_)) continue;
        const Seconds load =
            std::max(behind, each / static_cast<double>(units * unit_) + sync(first, end, units * unit_));
        Tail& here = tail(first, used + units);
        if (load < here.load) here = {load, end, units};
      }
    }
  }

  Seconds time_of_microbatch(std::size_t first, std::size_t last) const
  {
    const auto moved = [&](std::size_t layer) {
      return path_.data_time(cost_.boundary_output(layer)) + path_.data_time(cost_.boundary_gradient(layer));
    };
    Seconds time = cost_.compute_time(kind_.devices.front(), first, last);
    if (first > 0) time += moved(first);
    if (last + 1 < layers_) time += moved(last + 1);
    return time;
  }

  /// For each micro-batch of the step.
  Seconds sync(std::size_t first, std::size_t end, std::size_t replicas) const
  {
    const auto all = static_cast<double>(replicas);
    const Bytes part(bytes_of_a_gradient * (parameters_[end] - parameters_[first]) / all);
    return 2 * (all - 1) * path_.transfer_time(part) / static_cast<double>(problem_.goal.microbatches);
  }

  bool fits(std::size_t first, std::size_t last, std::size_t replicas, std::size_t behind) const
  {
    const std::uint64_t own = (problem_.goal.microbatches + replicas - 1) / replicas;
    const std::uint64_t in_flight = (behind + replicas + replicas - 1) / replicas;
    const Bytes need = cost_.memory(first, last, std::min(own, in_flight));
    return need <= problem_.cluster.devices[kind_.devices.front()].memory;
  }

  Plan plan(std::size_t used)
  {
    const CostModel cost(problem_.workload, problem_.cluster);
    Plan plan;
    plan.goal = problem_.goal;
    plan.goal.schedule = given_part_of(plan.goal.schedule);
    std::size_t device = 0;
    for (std::size_t first = 0; first < layers_;) {
      const Tail stage = tail(first, used);
      const std::size_t replicas = stage.units * unit_;
      const std::span devices(&kind_.devices[device], replicas);
      const auto placed = replicas_by_turns(devices);
      const auto more =
          stages_on(cost, problem_.view.first_layer[first], problem_.view.first_layer[stage.end] - 1, placed);
      plan.stages.insert(plan.stages.end(), more.begin(), more.end());
      device += replicas;
      used -= stage.units;
      first = stage.end;
    }
    return plan;
  }

  /// A replica on each device; they take micro-batches as evenly as whole ones allow.
  std::vector<ReplicaPlacement> replicas_by_turns(std::span<const std::size_t> devices) const
  {
    const std::uint64_t all = problem_.goal.microbatches;
    std::vector<ReplicaPlacement> replicas;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const std::uint64_t own = all / devices.size() + (i < all % devices.size() ? 1 : 0);
      replicas.push_back({devices.size() == 1 ? 0 : own, {devices[i]}});
    }
    return replicas;
  }

  const HybridProblem& problem_;
  const DeviceKind& kind_;
  CostModel cost_;
  std::size_t unit_;   // devices
  std::size_t units_;  // of the kind
  std::size_t layers_;
  Path path_;
  std::vector<double> parameters_;  // prefix sums
  std::vector<Tail> tails_;
};

}  // namespace

std::optional<Plan> propose_by_piper(const HybridProblem& problem, const DeviceKind& kind)
{
  if (kind.devices.size() < 2) return std::nullopt;
  return PiperSearch(problem, kind).best();
}

}  // namespace isobar::allocators
