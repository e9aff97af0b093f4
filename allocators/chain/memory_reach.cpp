#include "allocators/chain/memory_reach.hpp"

#include <algorithm>

namespace isobar::allocators {

MemoryReach::MemoryReach(const CostModel& cost, const Goal& goal, double memory_factor,
                         const std::function<void()>& each_layer)
    : cost_(&cost), layers_(cost.layers()), devices_(cost.devices())
{
  for (const auto& device : cost.cluster().devices) memory_.push_back(device.memory.value * memory_factor);
  const ChainSchedule schedule = require_chain_schedule(goal.schedule);
  const std::size_t most_stages = std::min(layers_, devices_);
  for (std::size_t stages_after = 0; stages_after < most_stages; ++stages_after) {
    const auto in_flight = microbatches_in_flight(schedule, stages_after, goal.microbatches);
    if (stages_after > 0 && (in_flight == in_flight_.back() || cost.memory_ignores_schedule())) break;
    in_flight_.push_back(in_flight);
  }
  levels_ = in_flight_.size();
  const std::size_t table = devices_ * layers_;
  reach_.resize(levels_ * table);
  // The first level reaches furthest and the last one least far: where they agree, those between agree too.
  tabulate(0, each_layer);
  if (levels_ > 1) tabulate(levels_ - 1, each_layer);
  const auto same = [](const Reach& a, const Reach& b) { return a.all == b.all && a.furthest == b.furthest; };
  const auto first_level_end = reach_.begin() + static_cast<std::ptrdiff_t>(table);
  const auto certain = [](const Reach& reach) { return reach.all == reach.furthest; };
  if (levels_ > 1 &&
      std::equal(reach_.begin(), first_level_end, reach_.end() - static_cast<std::ptrdiff_t>(table), same) &&
      std::all_of(reach_.begin(), first_level_end, certain)) {
    levels_ = 1;
    reach_.resize(table);
  }
  for (std::size_t level = 1; level + 1 < levels_; ++level) tabulate(level, each_layer);

  furthest_up_to_.resize(table);
  for (std::size_t device = 0; device < devices_; ++device) {
    std::uint32_t furthest = 0;
    for (std::size_t first = 0; first < layers_; ++first) {
      furthest = std::max(furthest, reach_[device * layers_ + first].furthest);
      furthest_up_to_[device * layers_ + first] = furthest;
    }
  }
}

bool MemoryReach::fits_exactly(std::size_t level, std::size_t device, std::size_t first, std::size_t end) const
{
  return cost_->memory(first, end - 1, in_flight_[level]).value <= memory_[device];
}

bool MemoryReach::is_hereditary() const
{
  for (std::size_t row = 0; row < levels_ * devices_; ++row) {
    const Reach* reach = &reach_[row * layers_];
    for (std::size_t first = 0; first < layers_; ++first) {
      if (reach[first].all != reach[first].furthest) return false;
      if (first > 0 && reach[first].furthest < reach[first - 1].furthest) return false;
    }
  }
  return true;
}

void MemoryReach::tabulate(std::size_t level, const std::function<void()>& each_layer)
{
  const double largest = *std::max_element(memory_.begin(), memory_.end());
  std::vector<double> need(layers_ + 1);
  std::vector<double> most(layers_ + 1);   // of ends up to this one
  std::vector<double> least(layers_ + 1);  // of this end and those after it
  for (std::size_t first = 0; first < layers_; ++first) {
    each_layer();
    std::size_t stop = first;
    while (stop < layers_) {
      ++stop;
      need[stop] = cost_->memory(first, stop - 1, in_flight_[level]).value;
      most[stop] = stop == first + 1 ? need[stop] : std::max(most[stop - 1], need[stop]);
      // Without the buffers at its end the stage only grows: no later end fits anywhere.
      const Bytes end_buffers = cost_->boundary_output(stop) + cost_->boundary_gradient(stop);
      if (need[stop] - end_buffers.value > largest * (1 + 1e-12)) break;
    }
    least[stop] = need[stop];
    for (std::size_t end = stop; --end > first;) least[end] = std::min(need[end], least[end + 1]);
    const auto begin = static_cast<std::ptrdiff_t>(first) + 1;
    const auto end = static_cast<std::ptrdiff_t>(stop) + 1;
    for (std::size_t device = 0; device < devices_; ++device) {
      const auto ends_within = [&](const std::vector<double>& sorted) {
        const auto beyond = std::upper_bound(sorted.begin() + begin, sorted.begin() + end, memory_[device]);
        return static_cast<std::uint32_t>(beyond - sorted.begin() - 1);
      };
      reach_[(level * devices_ + device) * layers_ + first] = {ends_within(most), ends_within(least)};
    }
  }
}

}  // namespace isobar::allocators
