#include "schedules/orders/divided_ends.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace isobar::schedules {

namespace {

constexpr std::int64_t interval = 3;  // units: a forward and a backward
constexpr std::uint32_t first_layer = 0;
constexpr std::uint32_t own_stage = 1;
constexpr std::uint32_t last_layer = 2;

/// The tasks of one kind, one in each interval.
struct Stream {
  Task first;              // of micro-batch 0
  std::int64_t begin = 0;  // of that, in units

  std::int64_t first_interval() const { return (begin - phase()) / interval; }
  std::int64_t phase() const { return (begin % interval + interval) % interval; }
};

/// An order of streams. Of tasks that begin in the same unit, those of earlier streams come first.
Order order_of(std::vector<Stream> streams, std::uint64_t microbatches)
{
  std::stable_sort(streams.begin(), streams.end(),
                   [](const Stream& a, const Stream& b) { return a.phase() < b.phase(); });
  const auto count = static_cast<std::int64_t>(microbatches);
  std::set<std::int64_t> changes;  // intervals from which on other streams have tasks
  for (const auto& stream : streams) {
    changes.insert({stream.first_interval(), stream.first_interval() + count});
  }
  std::vector<Run> runs;
  for (auto from = changes.begin(); std::next(from) != changes.end(); ++from) {
    Run run;
    run.times = static_cast<std::uint64_t>(*std::next(from) - *from);
    for (const auto& stream : streams) {
      const std::int64_t done = *from - stream.first_interval();
      if (done < 0 || done >= count) continue;
      Task task = stream.first;
      task.microbatch = static_cast<std::uint64_t>(done);
      run.slots.push_back({task});
    }
    if (!run.slots.empty()) runs.push_back(std::move(run));
  }
  return Order(std::move(runs));
}

std::int64_t rounded_up(std::int64_t units)
{
  return (units + interval - 1) / interval * interval;
}

template <typename OrderOfRank>
std::vector<Order> by_rank(const PipelineShape& shape, OrderOfRank order_of_rank)
{
  std::vector<Order> orders;
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) orders.push_back(order_of_rank(rank));
  return orders;
}

}  // namespace

Order vocabulary_order(std::size_t rank, std::size_t ranks, std::uint64_t microbatches, std::uint64_t sums)
{
  const auto p = static_cast<std::int64_t>(ranks);
  const auto r = static_cast<std::int64_t>(rank);
  const std::int64_t waits = interval * static_cast<std::int64_t>(sums);
  // The last stage has forwarded micro-batch 0 in unit p. A pass of this rank ends then, or a unit later. After its
  // forward rather than before it, which others wait for.
  const std::int64_t between = p + ((p - r) % interval == 1 ? 0 : 1);
  std::vector<Stream> streams;
  const auto add = [&](Opcode opcode, std::uint32_t part, std::int64_t begin) {
    streams.push_back({{opcode, part, 0}, begin});
  };
  const bool sums_once = sums == 1;
  add(sums_once ? Opcode::BackwardWeight : Opcode::Backward, last_layer, between + interval);
  add(Opcode::Forward, last_layer, between);
  if (sums_once) add(Opcode::BackwardInput, last_layer, between);
  add(Opcode::Backward, first_layer, between + waits + rounded_up(2 * p));
  add(Opcode::Forward, first_layer, between - rounded_up(p + 2));
  add(Opcode::Forward, own_stage, r);
  add(Opcode::Backward, own_stage, p + waits + 2 * (p - 1 - r));
  return order_of(std::move(streams), microbatches);
}

std::vector<Order> vocabulary_1_orders(const PipelineShape& shape, const ScheduleChoice&)
{
  return by_rank(shape, [&](std::size_t rank) { return vocabulary_order(rank, shape.ranks(), shape.microbatches, 2); });
}

std::vector<Order> vocabulary_2_orders(const PipelineShape& shape, const ScheduleChoice&)
{
  return by_rank(shape, [&](std::size_t rank) { return vocabulary_order(rank, shape.ranks(), shape.microbatches, 1); });
}

Order interlaced_order(std::size_t rank, std::size_t ranks, std::uint64_t microbatches)
{
  const auto after = static_cast<std::int64_t>(ranks - 1 - rank);
  const auto all_after = static_cast<std::int64_t>(ranks - 1);
  const bool takes_back_first = after % 2 == 0;
  // Ranks meet for micro-batch 0 at the begin of interval 1, when the last stage has forwarded it.
  const std::int64_t forward = interval * -(after / 2) + (takes_back_first ? 2 : 0);
  const std::int64_t backward = interval * (1 + after) + (takes_back_first ? 0 : 1);
  return order_of({{{Opcode::Forward, last_layer, 0}, interval},
                   {{Opcode::Backward, last_layer, 0}, interval},
                   {{Opcode::Backward, first_layer, 0}, interval * (2 + all_after)},
                   {{Opcode::Forward, first_layer, 0}, interval * -(all_after / 2)},
                   {{Opcode::Forward, own_stage, 0}, forward},
                   {{Opcode::Backward, own_stage, 0}, backward}},
                  microbatches);
}

std::vector<Order> interlaced_orders(const PipelineShape& shape, const ScheduleChoice&)
{
  return by_rank(shape, [&](std::size_t rank) { return interlaced_order(rank, shape.ranks(), shape.microbatches); });
}

}  // namespace isobar::schedules
