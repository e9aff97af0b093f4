#include "schedules/lowering/series.hpp"

#include "core/errors.hpp"

#include <algorithm>
#include <utility>

namespace isobar::schedules {

OrderSlots::OrderSlots(const Order& order) : order_(order)
{
  std::uint64_t begin = 0;
  for (std::size_t run = 0; run < order.runs().size(); ++run) {
    const auto& [times, slots] = order.runs()[run];
    for (std::size_t i = 0; i < slots.size(); ++i) {
      const Task& first = slots[i].first;
      auto& places = places_[{first.opcode, first.part}];
      if (places.size() < most)
        places.push_back({run, begin + i, slots.size(), times, first.microbatch, slots[i].stride});
    }
    begin += times * slots.size();
  }
}

std::span<const OrderSlots::Place> OrderSlots::of(Opcode opcode, std::uint32_t part) const
{
  const auto found = places_.find({opcode, part});
  return found == places_.end() ? std::span<const Place>() : found->second;
}

Series::Series(const OrderSlots& slots, Opcode opcode, std::uint32_t part)
    : order_(&slots.order()), opcode_(opcode), part_(part)
{
  find_loops(slots.of(opcode, part));
}

Series Series::backwards(const OrderSlots& slots, std::uint32_t part)
{
  for (const Opcode opcode : {Opcode::Backward, Opcode::BackwardInput}) {
    if (!slots.of(opcode, part).empty()) return {slots, opcode, part};
  }
  return {};
}

Series Series::only(const std::function<bool(std::uint64_t microbatch)>& is_taken) const
{
  std::vector<std::uint64_t> taken;
  for (std::uint64_t index = 0; index < length(); ++index) {
    if (is_taken(nth(index).microbatch)) taken.push_back(index);
  }
  ensure(!taken.empty(), "a part of a series has tasks");
  if (taken.size() == length()) return *this;
  Division division = division_ == nullptr ? Division() : *division_;
  division.taken = std::move(taken);
  Series part = *this;
  part.division_ = std::make_shared<const Division>(std::move(division));
  return part;
}

Series Series::of_replica(const MicrobatchPattern* pattern, std::size_t replica) const
{
  Series series = *this;
  if (pattern != nullptr) series.division_ = std::make_shared<const Division>(Division{pattern, replica, {}});
  return series;
}

/// Leaves no loops if there are too many, if two slots of a run take turns, or if one passes over micro-batches.
void Series::find_loops(std::span<const OrderSlots::Place> places)
{
  std::uint64_t index = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const OrderSlots::Place& place = places[i];
    const bool is_first = i == 0 || places[i - 1].run != place.run;
    const bool takes_turns = place.times > 1 && (!is_first || (place.stride != 1 && place.stride != -1));
    if (takes_turns || loop_count_ == loops_.size()) {
      loop_count_ = 0;
      return;
    }
    loops_[loop_count_++] = {index, place.times, place.microbatch, place.stride != -1, place.position, place.step};
    index += place.times;
  }
}

const Series::Loop* Series::loop_with(std::uint64_t microbatch) const
{
  for (const auto& loop : loops()) {
    if (loop.distance_to(microbatch) < loop.length) return &loop;
  }
  return nullptr;
}

Task Series::nth(std::uint64_t index) const
{
  return nth_of_all(is_part() ? division_->taken[index] : index);
}

Task Series::nth_of_all(std::uint64_t index) const
{
  for (const auto& loop : loops()) {
    const std::uint64_t distance = index - loop.index;
    if (distance >= loop.length) continue;
    return {opcode_, part_, loop.is_ascending ? loop.microbatch + distance : loop.microbatch - distance};
  }
  return order_->nth(opcode_, part_, index);
}

std::uint64_t Series::index_of(const Task& task) const
{
  const std::uint64_t index = index_among_all(task);
  if (!is_part()) return index;
  const auto& taken = division_->taken;
  const auto found = std::lower_bound(taken.begin(), taken.end(), index);
  ensure(found != taken.end() && *found == index, "a task of another part of a series");
  return static_cast<std::uint64_t>(found - taken.begin());
}

std::uint64_t Series::index_among_all(const Task& task) const
{
  const Loop* loop = loop_with(task.microbatch);
  return loop == nullptr ? order_->index_of(task) : loop->index + loop->distance_to(task.microbatch);
}

std::uint64_t Series::position_of(const Task& task) const
{
  const Loop* loop = loop_with(task.microbatch);
  if (loop == nullptr) return order_->position_of(task);
  return loop->position + loop->distance_to(task.microbatch) * loop->step;
}

}  // namespace isobar::schedules
