#include "allocators/sky/sky_dynamic.hpp"

#include "allocators/memory_fit.hpp"
#include "allocators/search_clock.hpp"
#include "allocators/sky/even.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace isobar::allocators {

namespace {

constexpr std::uint64_t published_sweeps = 1000;

/// The published procedure; device j has layers p[j]..p[j+1]-1, as in the published code.
class SkyDynamic {
 public:
  SkyDynamic(const SkyInputs& inputs, const SearchLimits& limits, bool is_index_fixed)
      : in_(inputs), clock_(limits), is_index_fixed_(is_index_fixed), devices_(inputs.slowness.size()), p_(devices_ + 1)
  {
    const auto counts = even_counts(inputs.multiply_adds.size(), devices_);
    for (std::size_t j = 0; j < devices_; ++j) p_[j + 1] = p_[j] + counts[j];
    for (std::size_t j = 0; j < devices_; ++j) {
      memory_.push_back(in_.stage_memory + sum(in_.layer_memory, j));
      load_.push_back(in_.slowness[j] * sum(in_.multiply_adds, j));
      if (memory_[j] > in_.device_memory[j]) ++overfull_;
    }
  }

  bool is_over() const { return clock_.is_over(); }

  /// Phase 1; false when the boundaries stop moving before memory holds, or when the limits end it.
  bool fit_memory()
  {
    for (;;) {
      if (overfull_ == 0) return true;
      if (clock_.is_over()) return false;
      const auto old = p_;
      for (std::size_t j = 0; j + 1 < devices_; ++j) {
        while (memory(j) > in_.device_memory[j] && count(j) > 1) {
          move_boundary(j, p_[j + 1] - 1);
          if (overfull_ == 0) return true;
        }
        while (memory(j) < in_.device_memory[j] && count(j + 1) > 1) {
          if (!(memory(j) + in_.layer_memory[p_[j + 1]] < in_.device_memory[j])) break;
          move_boundary(j, p_[j + 1] + 1);
          if (overfull_ == 0) return true;
        }
      }
      if (p_ == old) return false;
    }
  }

  /// Phase 2; false when the limits end it.
  bool balance_loads()
  {
    for (std::uint64_t sweeps = 0; sweeps < published_sweeps; ++sweeps) {
      if (!clock_.spend() || clock_.is_over()) return false;
      double sum = 0;
      for (const double load : load_) sum += load;
      const double target = std::floor(sum / static_cast<double>(devices_));
      const auto old = p_;
      for (std::size_t j = 0; j + 1 < devices_; ++j) balance(j, target);
      if (p_ == old) return true;
    }
    return true;
  }

  std::vector<std::size_t> counts() const
  {
    std::vector<std::size_t> counts;
    for (std::size_t j = 0; j < devices_; ++j) counts.push_back(count(j));
    return counts;
  }

  /// The first device that holds more than its memory.
  std::size_t overfull_device() const
  {
    std::size_t j = 0;
    while (memory(j) <= in_.device_memory[j]) ++j;
    return j;
  }
  double memory(std::size_t j) const { return memory_[j]; }
  std::size_t begin(std::size_t j) const { return p_[j]; }

 private:
  void balance(std::size_t j, double target)
  {
    const double current = load_[j];
    if (current < target && count(j + 1) > 1) {
      if (memory(j) + in_.layer_memory[p_[j + 1]] < in_.device_memory[j]) move_boundary(j, p_[j + 1] + 1);
    } else if (count(j) > 1) {
      const double next = load_[is_index_fixed_ ? j + 1 : j];
      const double last = in_.slowness[j] * in_.multiply_adds[p_[j + 1] - 1];
      if (next < target && current > target + last &&
          memory(j + 1) + in_.layer_memory[p_[j + 1] - 1] < in_.device_memory[j + 1]) {
        move_boundary(j, p_[j + 1] - 1);
      }
    }
  }

  /// Recomputes the sums in the order of the layers: running sums would round differently.
  void move_boundary(std::size_t j, std::size_t to)
  {
    p_[j + 1] = to;
    for (const std::size_t device : {j, j + 1}) {
      if (memory_[device] > in_.device_memory[device]) --overfull_;
      memory_[device] = in_.stage_memory + sum(in_.layer_memory, device);
      load_[device] = in_.slowness[device] * sum(in_.multiply_adds, device);
      if (memory_[device] > in_.device_memory[device]) ++overfull_;
    }
  }

  std::size_t count(std::size_t j) const { return p_[j + 1] - p_[j]; }
  double sum(const std::vector<double>& values, std::size_t j) const
  {
    double total = 0;
    for (std::size_t i = p_[j]; i < p_[j + 1]; ++i) total += values[i];
    return total;
  }

  const SkyInputs& in_;
  SearchClock clock_;
  bool is_index_fixed_;
  std::size_t devices_;
  std::vector<std::size_t> p_;
  std::vector<double> memory_;
  std::vector<double> load_;
  std::size_t overfull_ = 0;  // devices over their memory
};

Placement infeasible(std::string reason)
{
  return {Outcome::Infeasible, {}, std::move(reason), {}, {}};
}

Placement place(const Problem& problem, bool is_index_fixed)
{
  const auto& devices = problem.cost.cluster().devices;
  const SkyInputs inputs = sky_inputs(problem.cost, problem.goal);
  const auto smallest = std::min_element(inputs.device_memory.begin(), inputs.device_memory.end());
  const auto least = std::min_element(inputs.layer_memory.begin(), inputs.layer_memory.end());
  const double least_of_a_stage = inputs.stage_memory + *least;
  if (!(*smallest > least_of_a_stage)) {
    return infeasible(
        fmt::format("device {} has {} and the smallest layer, {}, needs {}: this allocator gives every device a layer; "
                    "it may fit without the device (--without) or with allocator chain-dp",
                    devices[static_cast<std::size_t>(smallest - inputs.device_memory.begin())].name,
                    text_of(Bytes(*smallest)), least - inputs.layer_memory.begin(), text_of(Bytes(least_of_a_stage))));
  }
  SkyDynamic search(inputs, problem.limits, is_index_fixed);
  if (!search.fit_memory()) {
    if (search.is_over())
      return {Outcome::TimedOut,
              {},
              "phase 1 reached its limits before it found a placement that fits; raise --time-limit",
              {},
              {}};
    const std::size_t j = search.overfull_device();
    const Bytes need(search.memory(j));
    const std::size_t last = search.begin(j) + search.counts()[j] - 1;
    std::string reason = fmt::format(
        "device {}: {} and it has {} where phase 1 stops; {} more memory there may be enough", devices[j].name,
        need_text(search.begin(j), last, need), text_of(devices[j].memory), text_of(need - devices[j].memory));
    if (surely_fits_in_order(problem.cost, problem.goal)) reason += "; allocator chain-dp would be enough";
    return infeasible(std::move(reason));
  }
  Placement placement;
  if (!search.balance_loads()) placement.outcome = Outcome::TimedOut;
  placement.stages = stages_of_counts(search.counts());
  return placement;
}

/// With the copy of a matrix that a layer of another device has, if there are others.
Bytes memory_of_layer(const CostModel& cost, const Goal& goal, std::size_t layer)
{
  if (cost.devices() > 1) return stage_memory(cost, goal, {0, layer, layer}, cost.devices() - 1);
  const auto schedule = require_chain_schedule(goal.schedule);
  return cost.memory_beside_others(layer, layer, microbatches_in_flight(schedule, 0, goal.microbatches));
}

}  // namespace

SkyInputs sky_inputs(const CostModel& cost, const Goal& goal)
{
  SkyInputs inputs;
  double fastest = 0;
  for (std::size_t i = 0; i < cost.devices(); ++i) fastest = std::max(fastest, cost.speed(i).value);
  for (std::size_t i = 0; i < cost.devices(); ++i) {
    inputs.slowness.push_back(fastest / cost.speed(i).value);
    inputs.device_memory.push_back(cost.cluster().devices[i].memory.value);
  }
  const auto& layers = cost.workload().layers;
  inputs.stage_memory = cost.workload().workspace.value;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    inputs.multiply_adds.push_back(cost.layer_work(i).forward.value / 2);
    inputs.layer_memory.push_back(cost.memory_ignores_schedule()
                                      ? layers[i].sky_memory.value
                                      : memory_of_layer(cost, goal, i).value - inputs.stage_memory);
  }
  return inputs;
}

Placement place_by_sky_dynamic(const Problem& problem)
{
  return place(problem, false);
}

Placement place_by_sky_dynamic_fixed(const Problem& problem)
{
  return place(problem, true);
}

}  // namespace isobar::allocators
