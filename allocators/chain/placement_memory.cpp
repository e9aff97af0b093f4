// The memory of PlacementCosts: whether it holds, now and after the proposed move.

#include "allocators/chain/placement_costs.hpp"

#include <algorithm>

namespace isobar::allocators {

std::uint64_t PlacementCosts::in_flight(std::size_t stages_after) const
{
  return microbatches_in_flight(schedule_, stages_after, goal_.microbatches);
}

bool PlacementCosts::fits(const StagePlacement& stage, std::size_t stages_after) const
{
  return cost_->memory(stage.first_layer, stage.last_layer, in_flight(stages_after)) <=
         cost_->cluster().devices[stage.device].memory;
}

double PlacementCosts::excess_of(const StagePlacement& stage, std::size_t stages_after) const
{
  const Bytes need = cost_->memory(stage.first_layer, stage.last_layer, in_flight(stages_after));
  return std::max(0.0, (need - cost_->cluster().devices[stage.device].memory).value);
}

double PlacementCosts::excess() const
{
  double total = 0;
  for (std::size_t i = 0; i < size(); ++i) total += excess_of(stages_[i], size() - 1 - i);
  return total;
}

void PlacementCosts::count_overfull()
{
  overfull_ = 0;
  for (std::size_t i = 0; i < size(); ++i) overfull_ += fits(stages_[i], size() - 1 - i) ? 0 : 1;
}

std::ptrdiff_t PlacementCosts::growth() const
{
  std::ptrdiff_t total = 0;
  for (std::size_t w = 0; w < window_count_; ++w) {
    total += static_cast<std::ptrdiff_t>(windows_[w].count + windows_[w].begin) -
             static_cast<std::ptrdiff_t>(windows_[w].end);
  }
  return total;
}

bool PlacementCosts::fits_after()
{
  if (fits_after_) return *fits_after_;
  const std::ptrdiff_t grown = growth();
  std::size_t after = static_cast<std::size_t>(static_cast<std::ptrdiff_t>(size()) + grown);
  const auto check = [&] {
    if (overfull_ > 0) {
      bool all_fit = true;
      for_each_after([&](const StagePlacement& stage) { all_fit = all_fit && fits(stage, --after); });
      return all_fit;
    }
    // Stages that hold more micro-batches than before must be checked, from the windows towards the head, as long as
    // one more stage after them still matters.
    const auto holds_more = [&](std::size_t begin, std::size_t end, std::ptrdiff_t more) {
      if (more <= 0 || !schedule_matters_) return true;
      for (std::size_t i = end; i-- > begin;) {
        const std::size_t behind = size() - 1 - i;
        if (behind + 1 >= goal_.microbatches) return true;
        if (!fits(stages_[i], behind + static_cast<std::size_t>(more))) return false;
      }
      return true;
    };
    std::ptrdiff_t more = 0;  // stages after it
    for (std::size_t w = window_count_; w-- > 0;) {
      const Window& window = windows_[w];
      const std::ptrdiff_t behind = static_cast<std::ptrdiff_t>(size() - window.end) + more;
      for (std::size_t k = 0; k < window.count; ++k) {
        if (!fits(scratch_[window.first + k], static_cast<std::size_t>(behind) + window.count - 1 - k)) return false;
      }
      more += static_cast<std::ptrdiff_t>(window.count) - static_cast<std::ptrdiff_t>(window.end - window.begin);
      if (!holds_more(w > 0 ? windows_[w - 1].end : 0, window.begin, more)) return false;
    }
    return true;
  };
  fits_after_ = check();
  return *fits_after_;
}

double PlacementCosts::excess_after() const
{
  std::size_t after = static_cast<std::size_t>(static_cast<std::ptrdiff_t>(size()) + growth());
  double total = 0;
  for_each_after([&](const StagePlacement& stage) { total += excess_of(stage, --after); });
  return total;
}

}  // namespace isobar::allocators
