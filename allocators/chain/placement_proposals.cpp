#include "allocators/chain/placement_costs.hpp"

#include <algorithm>

// The proposals of PlacementCosts: which stages a move puts where.
namespace isobar::allocators {

void PlacementCosts::begin_proposal()
{
  window_count_ = 0;
  scratch_.clear();
  is_changed_known_ = false;
  are_terms_spliced_ = false;
  fits_after_.reset();
}

void PlacementCosts::open_window(std::size_t begin, std::size_t end)
{
  if (window_count_ > 0) {
    Window& last = windows_[window_count_ - 1];
    if (begin <= last.end + 1) {  // the stage between would be a neighbour of both: make one window of them
      for (std::size_t i = last.end; i < begin; ++i) scratch_.push_back(stages_[i]);
      last.count += begin - last.end;
      last.end = end;
      return;
    }
  }
  windows_[window_count_++] = {begin, end, scratch_.size(), 0};
}

void PlacementCosts::put(std::size_t device, std::size_t first, std::size_t count)
{
  scratch_.push_back({device, first, first + count - 1});
  ++windows_[window_count_ - 1].count;
}

bool PlacementCosts::shift_boundaries(std::size_t from, std::size_t to, std::ptrdiff_t layers)
{
  if (from == 0 || from > to || to >= size() || layers == 0) return false;
  const std::size_t shrinking = layers > 0 ? to : from - 1;
  if (static_cast<std::size_t>(layers > 0 ? layers : -layers) >= layers_of(shrinking)) return false;
  begin_proposal();
  open_window(from - 1, to + 1);
  const auto shifted = [layers](std::size_t layer) {
    return static_cast<std::size_t>(static_cast<std::ptrdiff_t>(layer) + layers);
  };
  for (std::size_t i = from - 1; i <= to; ++i) {
    const std::size_t first = i < from ? stages_[i].first_layer : shifted(stages_[i].first_layer);
    const std::size_t end = i == to ? stages_[i].last_layer + 1 : shifted(stages_[i].last_layer + 1);
    put(stages_[i].device, first, end - first);
  }
  return true;
}

bool PlacementCosts::swap_devices(std::size_t a, std::size_t b)
{
  if (a == b || std::max(a, b) >= size()) return false;
  if (a > b) std::swap(a, b);
  begin_proposal();
  open_window(a, a + 1);
  put(stages_[b].device, stages_[a].first_layer, layers_of(a));
  open_window(b, b + 1);
  put(stages_[a].device, stages_[b].first_layer, layers_of(b));
  return true;
}

bool PlacementCosts::exchange_stages(std::size_t a, std::size_t b)
{
  if (a == b || std::max(a, b) >= size()) return false;
  if (a > b) std::swap(a, b);
  begin_proposal();
  open_window(a, b + 1);
  std::size_t first = stages_[a].first_layer;
  for (std::size_t i = a; i <= b; ++i) {
    const std::size_t source = i == a ? b : i == b ? a : i;
    put(stages_[source].device, first, layers_of(source));
    first += layers_of(source);
  }
  return true;
}

bool PlacementCosts::move_stage(std::size_t from, std::size_t to)
{
  if (from == to || std::max(from, to) >= size()) return false;
  begin_proposal();
  const std::size_t begin = std::min(from, to);
  const std::size_t end = std::max(from, to) + 1;
  open_window(begin, end);
  std::size_t first = stages_[begin].first_layer;
  for (std::size_t i = begin; i < end; ++i) {
    const std::size_t source = i == to ? from : from < to ? i + 1 : i - 1;
    put(stages_[source].device, first, layers_of(source));
    first += layers_of(source);
  }
  return true;
}

bool PlacementCosts::reverse_stages(std::size_t from, std::size_t to)
{
  if (from >= to || to >= size()) return false;
  begin_proposal();
  open_window(from, to + 1);
  std::size_t first = stages_[from].first_layer;
  for (std::size_t i = to + 1; i-- > from;) {
    put(stages_[i].device, first, layers_of(i));
    first += layers_of(i);
  }
  return true;
}

bool PlacementCosts::replace_device(std::size_t stage, std::size_t device)
{
  if (stage >= size() || device >= devices_ || is_used(device)) return false;
  begin_proposal();
  open_window(stage, stage + 1);
  put(device, stages_[stage].first_layer, layers_of(stage));
  return true;
}

bool PlacementCosts::can_split(std::size_t stage, std::size_t layers) const
{
  return stage < size() && layers > 0 && layers < layers_of(stage);
}

void PlacementCosts::put_split(std::size_t stage, std::size_t device, std::size_t layers, bool takes_first)
{
  const auto& [owner, first, last] = stages_[stage];
  const std::size_t kept = last - first + 1 - layers;
  open_window(stage, stage + 1);
  if (takes_first) {
    put(device, first, layers);
    put(owner, first + layers, kept);
  } else {
    put(owner, first, kept);
    put(device, first + kept, layers);
  }
}

bool PlacementCosts::split_stage(std::size_t stage, std::size_t device, std::size_t layers, bool takes_first)
{
  if (!can_split(stage, layers) || device >= devices_ || is_used(device)) return false;
  begin_proposal();
  put_split(stage, device, layers, takes_first);
  return true;
}

bool PlacementCosts::can_drop(std::size_t stage, std::size_t to_before) const
{
  if (stage >= size() || size() < 2) return false;
  if (stage == 0) return to_before == 0;
  return stage + 1 == size() ? to_before == layers_of(stage) : to_before <= layers_of(stage);
}

void PlacementCosts::put_dropped(std::size_t stage, std::size_t to_before)
{
  const std::size_t to_next = layers_of(stage) - to_before;
  open_window(to_before > 0 ? stage - 1 : stage, to_next > 0 ? stage + 2 : stage + 1);
  if (to_before > 0) put(stages_[stage - 1].device, stages_[stage - 1].first_layer, layers_of(stage - 1) + to_before);
  if (to_next > 0)
    put(stages_[stage + 1].device, stages_[stage].first_layer + to_before, layers_of(stage + 1) + to_next);
}

bool PlacementCosts::drop_stage(std::size_t stage, std::size_t to_before)
{
  if (!can_drop(stage, to_before)) return false;
  begin_proposal();
  put_dropped(stage, to_before);
  return true;
}

bool PlacementCosts::move_device(std::size_t stage, std::size_t to_before, std::size_t other, std::size_t layers,
                                 bool takes_first)
{
  if (!can_drop(stage, to_before) || !can_split(other, layers)) return false;
  if (other + 1 >= stage && other <= stage + 1) return false;
  begin_proposal();
  const std::size_t device = stages_[stage].device;
  if (other < stage) put_split(other, device, layers, takes_first);
  put_dropped(stage, to_before);
  if (other > stage) put_split(other, device, layers, takes_first);
  return true;
}

}  // namespace isobar::allocators
