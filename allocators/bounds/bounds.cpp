#include "allocators/bounds/bounds.hpp"

#include "allocators/bounds/comparisons.hpp"

#include <algorithm>
#include <vector>

namespace isobar::allocators {

namespace {

/// The most work that fits into some memory when layers may be cut anywhere: those with most work per byte first.
class Knapsack {
 public:
  /// Every stage needs at least its layers without transfer buffers, with that many bytes of a parameter, and that many
  /// micro-batches in flight.
  Knapsack(const CostModel& cost, double per_parameter, std::uint64_t in_flight)
  {
    struct Item {
      double work;
      double memory;
    };
    const auto& workload = cost.workload();
    double free_work = 0;
    std::vector<Item> items;
    for (std::size_t i = 0; i < workload.layers.size(); ++i) {
      const Layer& layer = workload.layers[i];
      const double memory = cost.memory_ignores_schedule()
                                ? layer.sky_memory.value
                                : static_cast<double>(layer.parameters) * per_parameter +
                                      layer.activations.value * static_cast<double>(in_flight);
      const double work = (cost.layer_work(i).forward + cost.layer_work(i).backward).value;
      if (memory > 0) {
        items.push_back({work, memory});
      } else {
        free_work += work;
      }
    }
    std::sort(items.begin(), items.end(),
              [](const Item& a, const Item& b) { return a.work / a.memory > b.work / b.memory; });
    work_.push_back(free_work);
    memory_.push_back(0);
    for (const auto& item : items) {
      work_.push_back(work_.back() + item.work);
      memory_.push_back(memory_.back() + item.memory);
    }
  }

  double all_work() const { return work_.back(); }

  /// Rounded up, so that rounding never invalidates a bound.
  double most_work(double memory) const
  {
    memory *= 1 + 1e-12;
    const auto beyond = std::upper_bound(memory_.begin(), memory_.end(), memory);
    if (beyond == memory_.end()) return all_work();
    const auto i = static_cast<std::size_t>(beyond - memory_.begin());
    const double fraction = (memory - memory_[i - 1]) / (memory_[i] - memory_[i - 1]);
    return (work_[i - 1] + fraction * (work_[i] - work_[i - 1])) * (1 + 1e-12);
  }

  /// False when all memory together is too small.
  bool holds_all(double memory) const { return memory * (1 + 1e-9) >= memory_.back(); }

 private:
  std::vector<double> work_;    // of the densest layers
  std::vector<double> memory_;  // likewise
};

/// The micro-batches that every stage holds at once: of a chain those of the last stage, else one.
std::uint64_t least_in_flight(const Goal& goal)
{
  const auto schedule = chain_schedule(goal.schedule);
  return schedule ? microbatches_in_flight(*schedule, 0, goal.microbatches) : 1;
}

struct Capacity {
  double speed = 0;
  double memory = 0;
};

std::vector<Capacity> fastest_first(const CostModel& cost)
{
  std::vector<Capacity> capacities;
  for (std::size_t i = 0; i < cost.devices(); ++i) {
    capacities.push_back({cost.speed(i).value, cost.cluster().devices[i].memory.value});
  }
  std::sort(capacities.begin(), capacities.end(),
            [](const Capacity& a, const Capacity& b) { return a.speed > b.speed; });
  return capacities;
}

/// Least T at which the work that the devices do within T, and within their memory, adds up to all work.
double divided_bound(const std::vector<Capacity>& capacities, const Knapsack& knapsack)
{
  struct Device {
    double speed;
    double most_work;

    double full_at() const { return most_work / speed; }
  };
  std::vector<Device> devices;
  for (const auto& capacity : capacities) devices.push_back({capacity.speed, knapsack.most_work(capacity.memory)});
  std::sort(devices.begin(), devices.end(), [](const Device& a, const Device& b) { return a.full_at() < b.full_at(); });
  std::vector<double> speed_from(devices.size() + 1, 0);
  for (std::size_t i = devices.size(); i-- > 0;) speed_from[i] = speed_from[i + 1] + devices[i].speed;
  // The devices that are full soonest work at their capacity, the others share the rest.
  double left = knapsack.all_work();
  double time = 0;
  for (std::size_t i = 0; i < devices.size() && left > 0; ++i) {
    time = std::max(time, left / speed_from[i]);
    if (time <= devices[i].full_at()) break;
    left -= devices[i].most_work;
  }
  return time;
}

/// The same for layers on one device each: never below the heaviest one on the fastest device.
double bottleneck_bound(const CostModel& cost, const std::vector<Capacity>& capacities, const Knapsack& knapsack)
{
  double heaviest = 0;
  for (std::size_t i = 0; i < cost.layers(); ++i) {
    heaviest = std::max(heaviest, (cost.layer_work(i).forward + cost.layer_work(i).backward).value);
  }
  return std::max(divided_bound(capacities, knapsack), heaviest / capacities.front().speed);
}

/// Fills the fastest devices as far as their memory together allows.
double sum_bound(const std::vector<Capacity>& capacities, const Knapsack& knapsack)
{
  double sum = 0;
  double done = 0;
  double memory = 0;
  for (const auto& capacity : capacities) {
    memory += capacity.memory;
    const double possible = std::max(done, knapsack.most_work(memory));
    sum += (possible - done) / capacity.speed;
    done = possible;
  }
  return sum;
}

/// A plan that uses the k fastest devices takes at least (turns+k) F / S_k: each stage is at most the largest, and the
/// fractional optimum makes all k equal. For the pipeline's formula turns are M-1.
double pipeline_bound(const std::vector<Capacity>& capacities, double all_work, double turns)
{
  double least = infinity;
  double speed = 0;
  for (std::size_t k = 1; k <= capacities.size(); ++k) {
    speed += capacities[k - 1].speed;
    least = std::min(least, (turns + static_cast<double>(k)) * all_work / speed);
  }
  return least;
}

double least_step(const CostModel& cost, const Goal& goal, const std::vector<Capacity>& capacities,
                  const Knapsack& knapsack)
{
  const double sum = sum_bound(capacities, knapsack);
  if (require_chain_schedule(goal.schedule) == ChainSchedule::Sequential)
    return static_cast<double>(goal.microbatches) * sum;
  const double turns = turns_of_step(cost, goal);
  const double by_both = turns * bottleneck_bound(cost, capacities, knapsack) + sum;
  return turns > 0 ? std::max(by_both, pipeline_bound(capacities, knapsack.all_work(), turns)) : by_both;
}

}  // namespace

double turns_of_step(const CostModel& cost, const Goal& goal)
{
  const double others = static_cast<double>(goal.microbatches - 1);
  const ChainSchedule schedule = require_chain_schedule(goal.schedule);
  if (schedule == ChainSchedule::GPipe) return others;
  double least_forward = 1;
  double least_backward = 1;
  const auto count = [&](const auto& layer) {
    const auto work = layer.forward + layer.backward;
    if (work.value <= 0) return;
    least_forward = std::min(least_forward, layer.forward / work);
    least_backward = std::min(least_backward, layer.backward / work);
  };
  for (std::size_t i = 0; i < cost.layers(); ++i) count(cost.layer_work(i));
  for (const auto& [type, own] : cost.workload().times) std::ranges::for_each(own, count);
  const double larger = std::max({0.5, least_forward, least_backward}) * (1 - 1e-11);
  const std::size_t most_stages = std::min(cost.layers(), cost.devices());
  const auto in_flight = microbatches_in_flight(schedule, most_stages - 1, goal.microbatches);
  return others - static_cast<double>(in_flight - 1) * (1 - larger);
}

Bound played_bound(const CostModel& cost, const Goal& goal, bool shares_stages)
{
  const ParameterBytes bytes = parameter_bytes(cost.workload());
  const auto most_replicas = std::min<std::uint64_t>(cost.devices(), goal.microbatches);
  const double per_parameter = shares_stages ? held_bytes(bytes, Sharding::Parameters, most_replicas) : bytes.all();
  const Knapsack knapsack(cost, per_parameter, shares_stages ? 1 : least_in_flight(goal));
  const auto capacities = fastest_first(cost);
  double memory = 0;
  for (const auto& capacity : capacities) memory += capacity.memory;
  double value = infinity;
  if (knapsack.holds_all(memory)) {
    value = static_cast<double>(goal.microbatches) *
            (shares_stages ? divided_bound(capacities, knapsack) : bottleneck_bound(cost, capacities, knapsack));
  }
  return {Seconds(value), {.kind = CertificateKind::Fractional}};
}

Bound objective_bound(const CostModel& cost, const Goal& goal)
{
  if (goal.objective == Objective::Step && !chain_schedule(goal.schedule)) return played_bound(cost, goal, false);
  const double per_parameter = bytes_per_parameter(cost.workload());
  const Knapsack knapsack(cost, per_parameter, least_in_flight(goal));
  const auto capacities = fastest_first(cost);
  double memory = 0;
  for (const auto& capacity : capacities) memory += capacity.memory;
  double value = infinity;
  if (knapsack.holds_all(memory) && goal.objective == Objective::Step) {
    value = least_step(cost, goal, capacities, knapsack);
  } else if (knapsack.holds_all(memory)) {
    const double microbatches = static_cast<double>(goal.microbatches);
    const double bottleneck = bottleneck_bound(cost, capacities, knapsack);
    const double sum = sum_bound(capacities, knapsack);
    value = CostModel::objective_of(goal.objective, goal.microbatches, Seconds(bottleneck), Seconds(sum)).value;
    if (goal.objective == Objective::Pipeline) {
      value = std::max(value, pipeline_bound(capacities, knapsack.all_work(), microbatches - 1));
    }
  }
  return {Seconds(value), {.kind = CertificateKind::Fractional}};
}

}  // namespace isobar::allocators
