#include "schedules/lowering/task_subset.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace isobar::schedules {

TaskSubset::TaskSubset(const Order& order, const std::function<bool(const Task&)>& has)
{
  std::uint64_t position = 0;
  for (const auto& [times, slots] : order.runs()) {
    Loop loop{position, length_, times, slots.size(), {}, {}};
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (!has(slots[i].first)) continue;
      loop.places.push_back(i);
      loop.slots.push_back(slots[i]);
    }
    position += times * slots.size();
    length_ += times * loop.slots.size();
    if (!loop.slots.empty()) loops_.push_back(std::move(loop));
  }
}

TaskSubset::Place TaskSubset::place_of(std::uint64_t index) const
{
  ensure(index < length_, "an index beyond the tasks of a subset");
  const auto after = std::upper_bound(loops_.begin(), loops_.end(), index,
                                      [](std::uint64_t wanted, const Loop& loop) { return wanted < loop.index; });
  const Loop& loop = *std::prev(after);
  const std::uint64_t offset = index - loop.index;
  const std::uint64_t repetition = offset / loop.slots.size();
  const std::size_t slot = offset - repetition * loop.slots.size();
  Task task = loop.slots[slot].first;
  task.microbatch += repetition * static_cast<std::uint64_t>(loop.slots[slot].stride);
  return {loop.position + repetition * loop.all + loop.places[slot], task};
}

std::uint64_t TaskSubset::index_at(std::uint64_t position) const
{
  const auto after = std::upper_bound(loops_.begin(), loops_.end(), position,
                                      [](std::uint64_t wanted, const Loop& loop) { return wanted < loop.position; });
  if (after == loops_.begin()) return 0;
  const Loop& loop = *std::prev(after);
  const std::uint64_t offset = position - loop.position;
  if (offset >= loop.times * loop.all) return loop.index + loop.times * loop.slots.size();
  const std::uint64_t repetition = offset / loop.all;
  const auto place = std::lower_bound(loop.places.begin(), loop.places.end(), offset - repetition * loop.all);
  return loop.index + repetition * loop.places.size() + static_cast<std::uint64_t>(place - loop.places.begin());
}

}  // namespace isobar::schedules
