#include "schedules/orders/one_forward_one_backward.hpp"

#include "core/errors.hpp"
#include "schedules/orders/warm_up.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace isobar::schedules {

namespace {

/// @throws InputError for a warm-up under which the forward of a pair is of the micro-batch that its backward, or that
/// of the next device's pair, takes back.
void require_pairs(const std::vector<std::uint64_t>& warm_up, std::uint64_t microbatches)
{
  for (std::size_t rank = 0; rank < warm_up.size(); ++rank) {
    const bool is_last = rank + 1 == warm_up.size();
    const std::uint64_t least = is_last ? 1 : std::min(warm_up[rank + 1], microbatches) + 1;
    if (warm_up[rank] >= std::min(least, microbatches)) continue;
    throw InputError("schedule",
                     is_last ? fmt::format("warm_up[{}] is 0, and overlap_experts runs a backward pass beside the "
                                           "forward pass of a later micro-batch; give 1 or more",
                                           rank)
                             : fmt::format("warm_up[{}] is {} and warm_up[{}] is {}; with overlap_experts give a "
                                           "device more than the next one",
                                           rank, warm_up[rank], rank + 1, warm_up[rank + 1]));
  }
}

}  // namespace

Order one_forward_one_backward_order(std::uint64_t warm_up, std::uint64_t microbatches, bool overlaps)
{
  const std::uint64_t ahead = std::min(warm_up, microbatches);
  const std::uint64_t rounds = microbatches - ahead;
  std::vector<Run> runs = {{ahead, {{{Opcode::Forward, 0, 0}}}},
                           {rounds, {{{Opcode::Forward, 0, ahead}, 1, overlaps}, {{Opcode::Backward, 0, 0}}}},
                           {ahead, {{{Opcode::Backward, 0, rounds}}}}};
  return Order(std::move(runs));
}

std::vector<Order> one_forward_one_backward_orders(const PipelineShape& shape, const ScheduleChoice& choice)
{
  const auto given = given_warm_up(shape, choice);
  const bool overlaps = overlaps_experts(choice);
  if (given && overlaps) require_pairs(*given, shape.microbatches);
  std::vector<Order> orders;
  for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
    const std::uint64_t after = shape.ranks() - 1 - rank;
    const std::uint64_t warm_up = given ? (*given)[rank] : overlaps ? 2 * after + 1 : after;
    orders.push_back(one_forward_one_backward_order(warm_up, shape.microbatches, overlaps));
  }
  return orders;
}

}  // namespace isobar::schedules
