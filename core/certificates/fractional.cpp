// The bound for layers that may be cut anywhere and lie on any device, with memory counted in the aggregate and free
// transfers (docs/certificates.md).

#include "core/certificates/proofs.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace isobar::proofs {

namespace {

/// The most work that layers of given memory can have: a fractional knapsack, by descending density.
class Density {
 public:
  explicit Density(const Chain& chain)
  {
    // A stage needs at least its layers without buffers, with the micro-batches in flight of the last stage.
    const auto held = static_cast<double>(chain.held_by(0));
    for (std::size_t k = 0; k < chain.layers; ++k) {
      const double work = chain.work.both[k + 1] - chain.work.both[k];
      const double memory = chain.is_sky ? chain.sky_memory[k + 1] - chain.sky_memory[k]
                                         : chain.parameter_bytes[k + 1] - chain.parameter_bytes[k] +
                                               (chain.activations[k + 1] - chain.activations[k]) * held;
      heaviest_ = std::max(heaviest_, work);
      all_memory_ += std::max(memory, 0.0);
      if (memory > 0) {
        items_.push_back({work, memory});
      } else {
        free_ += work;
      }
    }
    std::sort(items_.begin(), items_.end(),
              [](const Item& a, const Item& b) { return a.work * b.memory > b.work * a.memory; });
    double work = free_;
    double memory = 0;
    for (Item& item : items_) {
      work += item.work;
      memory += item.memory;
      item.work_until = work;
      item.memory_until = memory;
    }
    all_work_ = chain.work.both.back();
  }

  double all_work() const { return all_work_; }
  double all_memory() const { return all_memory_; }
  double heaviest() const { return heaviest_; }

  double most_work(double memory) const
  {
    const double room = memory * (1 + rounding);
    const auto cut =
        std::partition_point(items_.begin(), items_.end(), [&](const Item& item) { return item.memory_until <= room; });
    if (cut == items_.end()) return all_work_;
    const double part = (room - (cut->memory_until - cut->memory)) / cut->memory;
    return std::min(all_work_, (cut->work_until - (1 - part) * cut->work) * (1 + rounding));
  }

 private:
  struct Item {
    double work = 0;
    double memory = 0;
    double work_until = 0;  // of this one and the denser ones
    double memory_until = 0;
  };
  std::vector<Item> items_;
  double free_ = 0;  // work without memory
  double all_work_ = 0;
  double all_memory_ = 0;
  double heaviest_ = 0;
};

/// The least T in which all work can be done, if a device does at most speed x T and no more than its memory allows.
double least_time_for_all(const Chain& chain, const Density& density)
{
  std::vector<double> most;
  for (const double memory : chain.memory) most.push_back(density.most_work(memory));
  const auto does_all = [&](double time) {
    double done = 0;
    for (std::size_t i = 0; i < chain.devices; ++i) done += std::min(chain.speed[i] * time, most[i]);
    return done >= density.all_work();
  };
  double low = 0;  // not enough, unless there is no work
  double high = density.all_work() / *std::max_element(chain.speed.begin(), chain.speed.end());
  for (int doubled = 0; !does_all(high); ++doubled) {
    if (doubled == 2000) return infinity;  // memory is too small for all work
    low = high;
    high *= 2;
  }
  for (int halved = 0; halved < 200; ++halved) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (does_all(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace

double least_turns(const Chain& chain)
{
  if (!chain.has_turns() || chain.schedule != ChainSchedule::OneForwardOneBackward) return chain.alpha();
  // A turn is at least the larger of forward and backward. Their shares of a stage's compute lie between their shares
  // of its layers' compute.
  double least_forward = 1;
  double least_backward = 1;
  const auto count = [&](const WorkSums& sums) {
    for (std::size_t k = 0; k < chain.layers; ++k) {
      const double work = sums.both[k + 1] - sums.both[k];
      if (work <= 0) continue;
      const double share = (sums.forward[k + 1] - sums.forward[k]) / work;
      least_forward = std::min(least_forward, share);
      least_backward = std::min(least_backward, 1 - share);
    }
  };
  count(chain.work);
  for (const auto& own : chain.own_work) count(own);
  const double larger = std::max({0.5, least_forward, least_backward}) * (1 - rounding);
  const auto in_flight = chain.held_by(std::min(chain.layers, chain.devices) - 1);
  return chain.alpha() - static_cast<double>(in_flight - 1) * (1 - larger);
}

double fractional_bound(const Chain& chain)
{
  const Density density(chain);
  const double all_devices = std::accumulate(chain.memory.begin(), chain.memory.end(), 0.0);
  if (density.all_memory() > all_devices * (1 + memory_tolerance)) return infinity;

  std::vector<std::size_t> order(chain.devices);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return chain.speed[a] > chain.speed[b]; });
  const double on_one_device = chain.divides_layers ? 0 : density.heaviest() / chain.speed[order.front()];
  const double largest = std::max(least_time_for_all(chain, density), on_one_device);
  if (chain.goal.objective == Objective::Bottleneck) return largest;
  // Under any schedule the busiest device computes all micro-batches.
  if (!chain.schedule) return static_cast<double>(chain.goal.microbatches) * largest;

  // The sum is least if, for each k, the fastest k devices do all the work that fits into their memory together.
  double sum = 0;
  double done = 0;
  double memory = 0;
  for (const std::size_t i : order) {
    memory += chain.memory[i];
    const double by_these = std::max(done, density.most_work(memory));
    sum += (by_these - done) / chain.speed[i];
    done = by_these;
  }
  // If no stage takes more than T, the sum is least with the fastest devices at T and one more device on the rest. This
  // is linear in T between the values F/S_k at which k devices at T do all work, so the objective is least at one of
  // them.
  const double turns = least_turns(chain);
  double in_k_stages = infinity;
  double speeds = 0;
  double stages = 0;
  for (const std::size_t i : order) {
    speeds += chain.speed[i];
    stages += 1;
    in_k_stages = std::min(in_k_stages, (turns + stages) * density.all_work() / speeds);
  }
  const double both = turns * largest + chain.beta() * sum;
  const bool counts_both = turns > 0 && chain.goal.objective != Objective::Bottleneck;
  return counts_both ? std::max(both, in_k_stages) : both;
}

}  // namespace isobar::proofs
