#include "schedules/orders/interleaved.hpp"

#include "tests/schedules/orders/order_play.hpp"
#include "tests/schedules/orders/reference_orders.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

namespace isobar::schedules::interleaved_test {
namespace {

TEST(Interleaved, WouldDeadlockWithAShorterLastGroup)
{
  // Why the order of the next multiple of p is taken instead: Megatron-LM's own rule for p = 5, v = 2, M = 7.
  const PipelineShape shape = folded(Folding::RoundRobin, 5, 2, 7);
  std::vector<Order> orders;
  for (std::size_t rank = 0; rank < 5; ++rank) {
    std::vector<isobar::Run> runs;
    for (const auto& task : reference::megatron(rank, 5, 2, 7, 5)) runs.push_back({1, {{task}}});
    orders.emplace_back(runs);
  }
  EXPECT_FALSE(play(shape, orders).ends);
  EXPECT_TRUE(play(shape, orders_of(require_schedule("interleaved"), shape)).ends);
}

/// Calls `check` for every pipeline of up to 5 devices with 2 to 4 stages each, and every group that Megatron-LM takes.
void for_every_group(const std::function<void(const PipelineShape&, std::size_t, std::uint64_t)>& check)
{
  for (std::size_t ranks = 1; ranks <= 5; ++ranks) {
    for (std::size_t chunks = 2; chunks <= 4; ++chunks) {
      for (std::uint64_t microbatches = ranks; microbatches <= 24; ++microbatches) {
        for (std::uint64_t group = ranks; group <= microbatches; ++group) {
          const std::uint64_t rest = microbatches % group;
          if (rest > 0 && rest < ranks) continue;
          SCOPED_TRACE(fmt::format("p = {}, v = {}, M = {}, G = {}", ranks, chunks, microbatches, group));
          check(folded(Folding::RoundRobin, ranks, chunks, microbatches), chunks, group);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(InterleavedGroups, AreThoseOfMegatron)
{
  for_every_group([](const PipelineShape& shape, std::size_t chunks, std::uint64_t group) {
    const auto orders = require_schedule("interleaved").orders(shape, {"interleaved", {{"group", {group}}}});
    for (std::size_t rank = 0; rank < shape.ranks(); ++rank) {
      ASSERT_EQ(tasks_of(orders[rank]), reference::megatron(rank, shape.ranks(), chunks, shape.microbatches, group))
          << "rank " << rank;
    }
  });
}

TEST(InterleavedGroups, AreOfAsManyMicroBatchesAsDevicesByDefault)
{
  for_every_group([](const PipelineShape& shape, std::size_t, std::uint64_t group) {
    if (group != shape.ranks()) return;
    const auto& schedule = require_schedule("interleaved");
    EXPECT_EQ(schedule.orders(shape, {"interleaved", {{"group", {group}}}}), orders_of(schedule, shape));
  });
}

TEST(InterleavedGroups, HoldAndIdleAsTheFormulasSay)
{
  const PlayedStage stage{1, 2};
  for_every_group([&](const PipelineShape& shape, std::size_t chunks, std::uint64_t group) {
    const std::uint64_t p = shape.ranks();
    const auto orders = require_schedule("interleaved").orders(shape, {"interleaved", {{"group", {group}}}});
    for (std::uint64_t i = 0; i < p; ++i) {
      EXPECT_EQ(most_in_flight(orders[i]),
                std::min(chunks * shape.microbatches, 2 * (p - 1 - i) + (chunks - 1) * group + 1));
    }
    const Played played = play(shape, orders, stage);
    EXPECT_TRUE(played.ends);
    const auto work = static_cast<double>(3 * chunks * shape.microbatches);
    EXPECT_DOUBLE_EQ(played.makespan - work, static_cast<double>(3 * (p - 1)));
  });
}

TEST(InterleavedGroups, HideTheDelayOfTransfers)
{
  // Two devices with two stages each. A micro-batch is on its way for half of a forward; with groups of p devices wait
  // for it, with longer ones they compute the next micro-batch.
  const PipelineShape shape = folded(Folding::RoundRobin, 2, 2, 12);
  const PlayedStage stage{1, 2, 0, 0.5, 0.5};
  const auto idle_of = [&](std::uint64_t group) {
    const ScheduleChoice choice{"interleaved", {{"group", {group}}}};
    return play(shape, require_schedule("interleaved").orders(shape, choice), stage).makespan - 12 * 2 * 3;
  };
  EXPECT_GT(idle_of(2), idle_of(4));
  EXPECT_GE(idle_of(4), 3 + 2 * 0.5);
}

TEST(InterleavedGroups, HaveSlotsForThoseOfAGroup)
{
  const std::size_t ranks = 4;
  const std::size_t chunks = 3;
  const std::uint64_t group = 7;
  const auto slots_with = [&](std::uint64_t microbatches) {
    const PipelineShape shape = folded(Folding::RoundRobin, ranks, chunks, microbatches);
    const auto orders = require_schedule("interleaved").orders(shape, {"interleaved", {{"group", {group}}}});
    EXPECT_EQ(orders[1].length(), 2 * chunks * microbatches);
    EXPECT_EQ(orders[1].at(orders[1].length() - 1), (Task{Opcode::Backward, 0, microbatches - 1}));
    return slots_of(orders[1]);
  };
  EXPECT_EQ(slots_with(7'000'004), slots_with(704));
  EXPECT_LE(slots_with(704), 4 * chunks * group);
  EXPECT_LE(slots_of(interleaved_order(0, 2, 3, 1'000'000, 900'000)), 60U);
}

TEST(InterleavedGroups, AreRefusedWhereTheLastOneWouldBeTooShort)
{
  for (std::uint64_t ranks = 1; ranks <= 5; ++ranks) {
    for (std::uint64_t microbatches = 1; microbatches <= 20; ++microbatches) {
      for (std::uint64_t group = 1; group <= 22; ++group) {
        const std::uint64_t rest = microbatches % group;
        const bool is_taken = group >= ranks && group <= microbatches && (rest == 0 || rest >= ranks);
        EXPECT_EQ(why_no_group(ranks, microbatches, group).has_value(), !is_taken);
      }
    }
  }
  EXPECT_THROW(interleaved_order(0, 3, 2, 8, 7), std::logic_error);
}

}  // namespace
}  // namespace isobar::schedules::interleaved_test
