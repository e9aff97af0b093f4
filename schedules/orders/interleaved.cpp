#include "schedules/orders/interleaved.hpp"

#include "core/errors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace isobar::schedules {

namespace {

/// The order of one rank for whole groups of p micro-batches; those from `microbatches` on are left out.
class InterleavedOrder {
 public:
  InterleavedOrder(std::size_t rank, std::size_t ranks, std::size_t chunks, std::uint64_t microbatches)
      : ranks_(ranks), chunks_(chunks), microbatches_(microbatches)
  {
    const std::uint64_t groups = (microbatches + ranks - 1) / ranks;
    const std::uint64_t full_groups = microbatches / ranks;
    const std::uint64_t per_group = chunks * ranks;
    const std::uint64_t forwards = groups * per_group;
    warm_up_ = std::min<std::uint64_t>(forwards, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks);
    const std::uint64_t rounds = forwards - warm_up_;
    // Rounds repeat, p micro-batches further, until a forward reaches the last group if that is not full.
    const std::uint64_t full_rounds = full_groups * per_group > warm_up_ ? full_groups * per_group - warm_up_ : 0;
    const std::uint64_t repetitions = full_rounds / per_group;

    add_all(Opcode::Forward, 0, warm_up_);
    add_rounds(repetitions, 0, per_group);
    add_rounds(1, repetitions * per_group, rounds);
    add_all(Opcode::Backward, rounds, forwards);
  }

  Order order() && { return Order(std::move(runs_)); }

 private:
  Task task(Opcode opcode, std::uint64_t n) const
  {
    const std::uint64_t per_group = chunks_ * ranks_;
    const std::uint64_t chunk = n % per_group / ranks_;
    return {opcode, static_cast<std::uint32_t>(opcode == Opcode::Forward ? chunk : chunks_ - 1 - chunk),
            n / per_group * ranks_ + n % ranks_};
  }

  /// Forwards or backwards first..end-1: a run for each chunk of a group.
  void add_all(Opcode opcode, std::uint64_t first, std::uint64_t end)
  {
    while (first < end) {
      const std::uint64_t length = std::min(end - first, ranks_ - first % ranks_);
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
    for (std::uint64_t n = first; times > 0 && n < end; ++n) {
      for (const Task& one : {task(Opcode::Forward, warm_up_ + n), task(Opcode::Backward, n)}) {
        if (one.microbatch < microbatches_) run.slots.push_back({one, static_cast<std::int64_t>(ranks_)});
      }
    }
    runs_.push_back(std::move(run));
  }

  std::uint64_t ranks_;
  std::uint64_t chunks_;
  std::uint64_t microbatches_;
  std::uint64_t warm_up_ = 0;
  std::vector<Run> runs_;
};

}  // namespace

Order interleaved_order(std::size_t rank, std::size_t ranks, std::size_t chunks, std::uint64_t microbatches)
{
  return InterleavedOrder(rank, ranks, chunks, microbatches).order();
}

std::vector<Order> interleaved_orders(const PipelineShape& shape, const ScheduleChoice& choice)
{
  const std::size_t chunks = shape.stages() / shape.ranks();
  const auto given = choice.numbers.find("chunks");
  if (given != choice.numbers.end() && given->second.front() != chunks) {
    throw InputError("schedule", fmt::format("chunks is {} and each device has {} stages; give both alike",
                                             given->second.front(), chunks));
  }
  std::vector<Order> orders;
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    orders.push_back(interleaved_order(rank, shape.ranks(), chunks, shape.microbatches));
  }
  return orders;
}

}  // namespace isobar::schedules
