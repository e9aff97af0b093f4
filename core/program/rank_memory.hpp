#pragma once

#include "core/program/program.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace isobar {

/// The memory of a rank over time, in bytes by tier. Internal to play_program.
class RankMemory {
 public:
  explicit RankMemory(const std::array<double, tier_count>& resident) : held_(resident), peak_(resident) {}

  /// Changes of one time count in the order of the calls.
  void change(double time, const Hold& hold, double sign)
  {
    if (hold.size.value > 0) changes_.push_back({time, hold.tier, sign * hold.size.value});
  }
  /// Counts all changes before `time`; no earlier one may follow.
  void settle(double time)
  {
    const auto is_earlier = [](const Change& a, const Change& b) { return a.time < b.time; };
    // The changes of one compute lane are in order.
    if (!std::is_sorted(changes_.begin(), changes_.end(), is_earlier)) {
      std::stable_sort(changes_.begin(), changes_.end(), is_earlier);
    }
    auto change = changes_.begin();
    for (; change != changes_.end() && change->time < time; ++change) {
      const auto tier = static_cast<std::size_t>(change->tier);
      held_[tier] += change->bytes;
      peak_[tier] = std::max(peak_[tier], held_[tier]);
    }
    changes_.erase(changes_.begin(), change);
  }
  const std::array<double, tier_count>& peak() const { return peak_; }

 private:
  struct Change {
    double time = 0;
    Tier tier = {};
    double bytes = 0;
  };

  std::array<double, tier_count> held_;
  std::array<double, tier_count> peak_;
  std::vector<Change> changes_;  // not settled yet
};

}  // namespace isobar
