#include "core/order/order.hpp"

#include "core/errors.hpp"
#include "core/order/order_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <tuple>

namespace isobar {

namespace {

constexpr std::uint64_t most_tasks = std::numeric_limits<std::int64_t>::max();

std::uint64_t magnitude(std::int64_t stride)
{
  return stride < 0 ? 0 - static_cast<std::uint64_t>(stride) : static_cast<std::uint64_t>(stride);
}

/// The micro-batch of a slot in a repetition. Unsigned arithmetic wraps to the right number for negative strides.
std::uint64_t microbatch_of(const Slot& slot, std::uint64_t repetition)
{
  return slot.first.microbatch + repetition * static_cast<std::uint64_t>(slot.stride);
}

/// a x b mod m, without a type of 128 bits; m is at most 2^63.
std::uint64_t product_modulo(std::uint64_t a, std::uint64_t b, std::uint64_t m)
{
  std::uint64_t product = 0;
  for (a %= m, b %= m; b > 0; b >>= 1U) {
    if ((b & 1U) != 0) product = (product + a) % m;
    a = (a + a) % m;
  }
  return product;
}

/// The inverse of a modulo m, which have no common factor.
std::uint64_t inverse_modulo(std::uint64_t a, std::uint64_t m)
{
  // Euclid's algorithm: a x inverse = rest and a x next_inverse = next_rest, modulo m, throughout.
  std::uint64_t rest = a % m;
  std::uint64_t next_rest = m;
  std::uint64_t inverse = 1 % m;
  std::uint64_t next_inverse = 0;
  while (next_rest != 0) {
    const std::uint64_t quotient = rest / next_rest;
    rest = std::exchange(next_rest, rest - quotient * next_rest);
    const std::uint64_t step = product_modulo(quotient, next_inverse, m);
    inverse = std::exchange(next_inverse, (inverse + (m - step)) % m);
  }
  return inverse;
}

/// The largest number that two arithmetic progressions share, each given by its lowest and highest number and stride.
std::optional<std::uint64_t> shared_number(std::uint64_t low_a, std::uint64_t high_a, std::uint64_t stride_a,
                                           std::uint64_t low_b, std::uint64_t high_b, std::uint64_t stride_b)
{
  const std::uint64_t low = std::max(low_a, low_b);
  const std::uint64_t high = std::min(high_a, high_b);
  if (low > high) return std::nullopt;
  // From the largest number of a that is in the range, i steps downwards: the least i that meets b.
  const std::uint64_t from = low_a + (high - low_a) / stride_a * stride_a;
  if (from < low) return std::nullopt;
  const std::uint64_t divisor = std::gcd(stride_a, stride_b);
  const std::uint64_t distance = (from - low_b) % stride_b;
  if (distance % divisor != 0) return std::nullopt;
  const std::uint64_t modulus = stride_b / divisor;
  const std::uint64_t steps = product_modulo(distance / divisor, inverse_modulo(stride_a / divisor, modulus), modulus);
  if (steps > (from - low) / stride_a) return std::nullopt;
  return from - steps * stride_a;
}

}  // namespace

std::string name_of(const Task& task)
{
  return fmt::format("{}{}.{}", letter_of(task.opcode), task.part, task.microbatch);
}

Order::Order(std::vector<Run> runs) : runs_(std::move(runs))
{
  std::erase_if(runs_, [](const Run& run) { return run.times == 0 || run.slots.empty(); });
  begin_.reserve(runs_.size());
  for (std::size_t run = 0; run < runs_.size(); ++run) add_run(run);
  for (auto& [key, track] : tracks_) {
    std::sort(track.progressions.begin(), track.progressions.end(), [](const Progression& a, const Progression& b) {
      return std::tuple(a.stride, a.residue(), a.lowest) < std::tuple(b.stride, b.residue(), b.lowest);
    });
    for (const auto& progression : track.progressions) {
      if (track.strides.empty() || track.strides.back() != progression.stride) {
        track.strides.push_back(progression.stride);
      }
    }
    check_for_duplicates(key.first, key.second, track);
  }
}

void Order::add_run(std::size_t run)
{
  const std::uint64_t times = runs_[run].times;
  const std::vector<Slot>& slots = runs_[run].slots;
  if (times > (most_tasks - length_) / slots.size()) {
    throw InputError(fmt::format("{} times {} tasks at position {} make more than 2^63; repeat them less often", times,
                                 slots.size(), length_));
  }
  begin_.push_back(length_);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const Task& task = slots[i].first;
    const std::int64_t stride = slots[i].stride;
    const std::uint64_t step = magnitude(stride);
    const std::uint64_t first = task.microbatch;
    if (first > most_tasks) {
      throw InputError(
          fmt::format("{} at position {} is beyond micro-batch 2^63; number them from 0", name_of(task), length_ + i));
    }
    if (times > 1 && stride == 0) {
      throw InputError(fmt::format("{} occurs twice, at positions {} and {}; give it a stride", name_of(task),
                                   length_ + i, length_ + slots.size() + i));
    }
    const std::uint64_t most_steps = times == 1 ? 0 : (stride < 0 ? first : most_tasks - first) / step;
    if (times > 1 && times - 1 > most_steps) {
      throw InputError(fmt::format("{} of run {} gets {} at position {}; repeat it at most {} times", name_of(task),
                                   run, stride < 0 ? "below micro-batch 0" : "beyond micro-batch 2^63",
                                   length_ + (most_steps + 1) * slots.size() + i, most_steps + 1));
    }
    Track& track = tracks_[{task.opcode, task.part}];
    if (track.blocks.empty() || track.blocks.back().run != run) {
      track.blocks.push_back({run, track.count, track.slots.size()});
    }
    track.slots.push_back(i);
    track.count += times;
    const std::uint64_t last = microbatch_of(slots[i], times - 1);
    track.progressions.push_back({times == 1 ? 0 : step, std::min(first, last), std::max(first, last), run, i});
  }
  length_ += times * slots.size();
}

Task Order::at(std::uint64_t position) const
{
  ensure(position < length_, "a position beyond the end of its order");
  const auto run = static_cast<std::size_t>(std::upper_bound(begin_.begin(), begin_.end(), position) - begin_.begin());
  const auto& slots = runs_[run - 1].slots;
  const std::uint64_t offset = position - begin_[run - 1];
  std::uint64_t repetition = offset;
  if (slots.size() == 2) repetition /= 2;  // as 1F1B has them; a division by a variable takes ten times as long
  if (slots.size() > 2) repetition /= slots.size();
  const Slot& slot = slots[offset - repetition * slots.size()];
  return {slot.first.opcode, slot.first.part, microbatch_of(slot, repetition)};
}

bool Order::contains(const Task& task) const
{
  const Track* track = find_track(task.opcode, task.part);
  return track != nullptr && find(*track, task.microbatch) != nullptr;
}

std::uint64_t Order::position_of(const Task& task) const
{
  const Track* track = find_track(task.opcode, task.part);
  const Progression* progression = track == nullptr ? nullptr : find(*track, task.microbatch);
  ensure(progression != nullptr, "a task that is not in the order");
  return position_in(*progression, task.microbatch);
}

std::uint64_t Order::index_of(const Task& task) const
{
  const Track* track = find_track(task.opcode, task.part);
  const Progression* progression = track == nullptr ? nullptr : find(*track, task.microbatch);
  ensure(progression != nullptr, "a task that is not in the order");
  const auto block = std::lower_bound(track->blocks.begin(), track->blocks.end(), progression->run,
                                      [](const Track::Block& one, std::size_t run) { return one.run < run; });
  const std::size_t slots = track->slots_of(static_cast<std::size_t>(block - track->blocks.begin()));
  const auto first = track->slots.begin() + static_cast<std::ptrdiff_t>(block->first_slot);
  const auto slot = std::lower_bound(first, first + static_cast<std::ptrdiff_t>(slots), progression->slot);
  const std::uint64_t repetition =
      (position_in(*progression, task.microbatch) - begin_[progression->run]) / runs_[progression->run].slots.size();
  return block->index + repetition * slots + static_cast<std::uint64_t>(slot - first);
}

Task Order::nth(Opcode opcode, std::uint32_t part, std::uint64_t index) const
{
  const Track* track = find_track(opcode, part);
  ensure(track != nullptr && index < track->count, "an index beyond the tasks of its opcode and part");
  const auto after = std::upper_bound(track->blocks.begin(), track->blocks.end(), index,
                                      [](std::uint64_t wanted, const Track::Block& one) { return wanted < one.index; });
  const Track::Block& block = *std::prev(after);
  const std::size_t slots = track->slots_of(static_cast<std::size_t>(std::prev(after) - track->blocks.begin()));
  const std::uint64_t offset = index - block.index;
  const std::size_t slot = track->slots[block.first_slot + offset % slots];
  return {opcode, part, microbatch_of(runs_[block.run].slots[slot], offset / slots)};
}

std::uint64_t Order::count(Opcode opcode, std::uint32_t part) const
{
  const Track* track = find_track(opcode, part);
  return track == nullptr ? 0 : track->count;
}

Bytes Order::peak(const std::function<Bytes(const Task&)>& change) const
{
  Bytes peak;
  Bytes before;
  for (const auto& [times, slots] : runs_) {
    Bytes change_of_repetition;
    Bytes peak_of_repetition;
    for (const auto& slot : slots) {
      change_of_repetition += change(slot.first);
      peak_of_repetition = std::max(peak_of_repetition, change_of_repetition);
    }
    // The sums at the same place of all repetitions are linear, so the first or the last is the largest.
    const Bytes before_last = before + static_cast<double>(times - 1) * change_of_repetition;
    peak = std::max({peak, before + peak_of_repetition, before_last + peak_of_repetition});
    before = before_last + change_of_repetition;
  }
  return peak;
}

std::size_t Order::Track::slots_of(std::size_t block) const
{
  return (block + 1 == blocks.size() ? slots.size() : blocks[block + 1].first_slot) - blocks[block].first_slot;
}

std::uint64_t Order::position_in(const Progression& progression, std::uint64_t microbatch) const
{
  const auto& slots = runs_[progression.run].slots;
  const Slot& slot = slots[progression.slot];
  std::uint64_t repetition = 0;
  if (progression.stride != 0) {
    const std::uint64_t distance = slot.stride < 0 ? progression.highest - microbatch : microbatch - progression.lowest;
    repetition = distance / progression.stride;
  }
  return begin_[progression.run] + repetition * slots.size() + progression.slot;
}

const Order::Track* Order::find_track(Opcode opcode, std::uint32_t part) const
{
  const auto track = tracks_.find({opcode, part});
  return track == tracks_.end() ? nullptr : &track->second;
}

const Order::Progression* Order::find(const Track& track, std::uint64_t microbatch)
{
  for (const auto stride : track.strides) {
    const Progression* progression = find(track, stride, microbatch);
    if (progression != nullptr) return progression;
  }
  return nullptr;
}

const Order::Progression* Order::find(const Track& track, std::uint64_t stride, std::uint64_t microbatch)
{
  const std::uint64_t residue = stride == 0 ? 0 : microbatch % stride;
  const auto after = std::upper_bound(
      track.progressions.begin(), track.progressions.end(), std::tuple(stride, residue, microbatch),
      [](const auto& wanted, const auto& one) { return wanted < std::tuple(one.stride, one.residue(), one.lowest); });
  if (after == track.progressions.begin()) return nullptr;
  const Progression& before = *std::prev(after);
  const bool has = before.stride == stride && before.residue() == residue && microbatch <= before.highest;
  return has ? &before : nullptr;
}

void Order::check_for_duplicates(Opcode opcode, std::uint32_t part, const Track& track) const
{
  const auto refuse = [&](std::uint64_t microbatch, const Progression& one, const Progression& another) {
    const auto [first, second] = std::minmax({position_in(one, microbatch), position_in(another, microbatch)});
    throw InputError(fmt::format("{} occurs twice, at positions {} and {}; order each task once",
                                 name_of(Task{opcode, part, microbatch}), first, second));
  };
  const auto& all = track.progressions;
  for (std::size_t i = 1; i < all.size(); ++i) {
    const bool is_alike = all[i - 1].stride == all[i].stride && all[i - 1].residue() == all[i].residue();
    if (is_alike && all[i].lowest <= all[i - 1].highest) refuse(all[i].lowest, all[i - 1], all[i]);
  }
  if (track.strides.size() < 2) return;
  // A loop of one repetition, whose stride counts as 0, is looked up among all others.
  std::size_t i = 0;
  for (; all[i].stride == 0; ++i) {
    for (const auto stride : track.strides) {
      const Progression* other = stride == 0 ? nullptr : find(track, stride, all[i].lowest);
      if (other != nullptr) refuse(all[i].lowest, all[i], *other);
    }
  }
  for (std::size_t larger = i; i < all.size(); ++i) {
    while (larger < all.size() && all[larger].stride == all[i].stride) ++larger;
    for (std::size_t k = larger; k < all.size(); ++k) {
      const auto shared =
          shared_number(all[i].lowest, all[i].highest, all[i].stride, all[k].lowest, all[k].highest, all[k].stride);
      if (shared) refuse(*shared, all[i], all[k]);
    }
  }
}

}  // namespace isobar
