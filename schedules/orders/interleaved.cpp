#include "schedules/orders/interleaved.hpp"

#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace isobar::schedules {

namespace {

/// The order of one rank; micro-batches from `microbatches` on are left out.
class InterleavedOrder {
 public:
  /// `laid_out`: micro-batches of all groups, those beyond `microbatches` too.
  InterleavedOrder(std::size_t rank, std::size_t ranks, std::size_t chunks, std::uint64_t microbatches,
                   std::uint64_t group, std::uint64_t laid_out, bool overlaps)
      : chunks_(chunks), microbatches_(microbatches), group_(group), laid_out_(laid_out), overlaps_(overlaps)
  {
    const std::uint64_t full_groups = microbatches / group;
    const std::uint64_t per_group = chunks * group;
    const std::uint64_t forwards = chunks * laid_out;
    warm_up_ = std::min<std::uint64_t>(forwards, 2 * (ranks - 1 - rank) + (chunks - 1) * group + (overlaps ? 1 : 0));
    const std::uint64_t rounds = forwards - warm_up_;
    // Rounds repeat, a group further, until a forward reaches the last group if that is not full.
    const std::uint64_t full_rounds = full_groups * per_group > warm_up_ ? full_groups * per_group - warm_up_ : 0;
    const std::uint64_t repetitions = full_rounds / per_group;

    add_all(Opcode::Forward, 0, warm_up_);
    add_rounds(repetitions, 0, per_group);
    if (group == ranks) {  // stretches would have few rounds each
      add_rounds(1, repetitions * per_group, rounds);
    } else {
      add_stretches(repetitions * per_group, rounds);
    }
    add_all(Opcode::Backward, rounds, forwards);
  }

  Order order() && { return Order(std::move(runs_)); }

 private:
  /// Which pass of a rank is forward or backward n.
  struct Place {
    std::uint64_t first = 0;  ///< micro-batch of its group
    std::uint64_t size = 0;   ///< of that
    std::uint64_t chunk = 0;  ///< from the first of this direction
    std::uint64_t index = 0;  ///< in its group
  };

  Place place_of(std::uint64_t n) const
  {
    const std::uint64_t first = n / (chunks_ * group_) * group_;
    const std::uint64_t size = std::min(group_, laid_out_ - first);
    const std::uint64_t within = n - chunks_ * first;
    return {first, size, within / size, within % size};
  }

  Task task(Opcode opcode, std::uint64_t n) const
  {
    const Place place = place_of(n);
    return {opcode, static_cast<std::uint32_t>(opcode == Opcode::Forward ? place.chunk : chunks_ - 1 - place.chunk),
            place.first + place.index};
  }

  /// How many passes from n on are of the same chunk and group.
  std::uint64_t left_of_chunk(std::uint64_t n) const
  {
    const Place place = place_of(n);
    return place.size - place.index;
  }

  /// Forwards or backwards first..end-1: a run for each chunk of a group.
  void add_all(Opcode opcode, std::uint64_t first, std::uint64_t end)
  {
    while (first < end) {
      const std::uint64_t length = std::min(end - first, left_of_chunk(first));
      const Task begin = task(opcode, first);
      if (begin.microbatch < microbatches_) {
        runs_.push_back({std::min(length, microbatches_ - begin.microbatch), {{begin, 1}}});
      }
      first += length;
    }
  }

  /// Rounds first..end-1, each a forward and a backward, as the first repetition of a run.
  void add_rounds(std::uint64_t times, std::uint64_t first, std::uint64_t end)
  {
    Run run{times, {}};
    const auto stride = static_cast<std::int64_t>(group_);
    for (std::uint64_t n = first; times > 0 && n < end; ++n) {
      const Task forward = task(Opcode::Forward, warm_up_ + n);
      const Task backward = task(Opcode::Backward, n);
      const bool has_backward = backward.microbatch < microbatches_;
      if (forward.microbatch < microbatches_) run.slots.push_back({forward, stride, overlaps_ && has_backward});
      if (has_backward) run.slots.push_back({backward, stride});
    }
    runs_.push_back(std::move(run));
  }

  /// Rounds first..end-1 of groups without micro-batches to leave out: a run for as long as both chunks stay.
  void add_stretches(std::uint64_t first, std::uint64_t end)
  {
    while (first < end) {
      const std::uint64_t length = std::min({end - first, left_of_chunk(warm_up_ + first), left_of_chunk(first)});
      runs_.push_back(
          {length, {{task(Opcode::Forward, warm_up_ + first), 1, overlaps_}, {task(Opcode::Backward, first), 1}}});
      first += length;
    }
  }

  std::uint64_t chunks_;
  std::uint64_t microbatches_;
  std::uint64_t group_;
  std::uint64_t laid_out_;
  bool overlaps_;
  std::uint64_t warm_up_ = 0;
  std::vector<Run> runs_;
};

bool is_group(std::size_t ranks, std::uint64_t microbatches, std::uint64_t group)
{
  const std::uint64_t rest = microbatches % group;
  return ranks <= group && group <= microbatches && (rest == 0 || rest >= ranks);
}

}  // namespace

Order interleaved_order(std::size_t rank, std::size_t ranks, std::size_t chunks, std::uint64_t microbatches,
                        std::optional<std::uint64_t> group, bool overlaps)
{
  if (group) {
    ensure(*group > 0 && is_group(ranks, microbatches, *group), "groups of micro-batches keep all devices busy");
    return InterleavedOrder(rank, ranks, chunks, microbatches, *group, microbatches, overlaps).order();
  }
  const std::uint64_t laid_out = (microbatches + ranks - 1) / ranks * ranks;
  return InterleavedOrder(rank, ranks, chunks, microbatches, ranks, laid_out, overlaps).order();
}

std::optional<std::string> why_no_group(std::size_t ranks, std::uint64_t microbatches, std::uint64_t group)
{
  const std::string devices = counted(ranks, "device");
  if (microbatches < ranks) {
    return fmt::format("groups need a micro-batch for each device, and there {} for {}; leave group out",
                       microbatches == 1 ? "is 1" : fmt::format("are {}", microbatches), devices);
  }
  if (group < ranks) return fmt::format("group is {}, fewer than the {}; use {} or more", group, devices, ranks);
  if (group > microbatches) {
    return fmt::format("group is {}, more than the {} of a pipeline; use {} or less", group,
                       counted(microbatches, "micro-batch", "es"), microbatches);
  }
  if (is_group(ranks, microbatches, group)) return std::nullopt;
  std::uint64_t less = group;
  while (less >= ranks && !is_group(ranks, microbatches, less)) --less;
  std::uint64_t more = group;
  while (!is_group(ranks, microbatches, more)) ++more;  // M is one
  return fmt::format("groups of {} leave {} of {}, fewer than the {}; use {}{}", group, microbatches % group,
                     counted(microbatches, "micro-batch", "es"), devices,
                     less < ranks ? "" : fmt::format("{} or ", less), more);
}

std::vector<Order> interleaved_orders(const PipelineShape& shape, const ScheduleChoice& choice)
{
  const std::size_t chunks = shape.stages() / shape.ranks();
  const auto number = [&](const char* key) {
    const auto given = choice.numbers.find(key);
    return given == choice.numbers.end() ? std::nullopt : std::optional(given->second.front());
  };
  if (const auto given = number("chunks"); given && *given != chunks) {
    throw InputError("schedule",
                     fmt::format("chunks is {} and each device has {} stages; give both alike", *given, chunks));
  }
  const auto group = number("group");
  if (group) {
    if (const auto why_not = why_no_group(shape.ranks(), shape.microbatches, *group)) {
      throw InputError("schedule", *why_not);
    }
  }
  std::vector<Order> orders;
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    orders.push_back(
        interleaved_order(rank, shape.ranks(), chunks, shape.microbatches, group, overlaps_experts(choice)));
  }
  return orders;
}

}  // namespace isobar::schedules
