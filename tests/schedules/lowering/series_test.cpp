#include "schedules/lowering/series.hpp"

#include "schedules/orders/schedule.hpp"
#include "tests/schedules/orders/order_play.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace isobar::schedules::series_test {
namespace {

/// Compares a series with the tasks that `is_wanted` selects of its order, one after another.
template <typename IsWanted>
void expect_tasks(const Series& series, const Order& order, IsWanted is_wanted)
{
  std::uint64_t index = 0;
  for (std::uint64_t position = 0; position < order.length(); ++position) {
    const Task task = order.at(position);
    if (!is_wanted(task)) continue;
    EXPECT_EQ(series.nth(index), task);
    EXPECT_EQ(series.of(task.microbatch), task);
    EXPECT_EQ(series.index_of(task), index);
    EXPECT_EQ(series.position_of(task), position);
    ++index;
  }
  EXPECT_EQ(series.length(), index);
}

void expect_all_tasks(const Order& order, std::uint32_t parts)
{
  for (std::uint32_t part = 0; part < parts; ++part) {
    expect_tasks(Series::forwards(OrderSlots(order), part), order,
                 [&](const Task& task) { return task.part == part && task.opcode == Opcode::Forward; });
    expect_tasks(Series::backwards(OrderSlots(order), part), order, [&](const Task& task) {
      return task.part == part && (task.opcode == Opcode::Backward || task.opcode == Opcode::BackwardInput);
    });
  }
}

TEST(Series, HasTheTasksOfEverySchedule)
{
  for (const Schedule& schedule : schedules()) {
    if (schedule.takes_orders || schedule.folding == Folding::DividedEnds) continue;
    for (const std::size_t ranks : std::initializer_list<std::size_t>{1, 2, 4}) {
      for (const std::uint64_t microbatches : std::initializer_list<std::uint64_t>{1, 2, 5, 24}) {
        SCOPED_TRACE(std::string(schedule.name) + ", " + std::to_string(ranks) +
                     " ranks, M = " + std::to_string(microbatches));
        const std::size_t parts = schedule.folding == Folding::OneEach ? 1 : 2;
        const PipelineShape shape = folded(schedule.folding, ranks, parts, microbatches);
        for (const auto& order : schedule.orders(shape, {std::string(schedule.name)})) {
          expect_all_tasks(order, static_cast<std::uint32_t>(parts));
        }
      }
    }
  }
}

TEST(Series, HasTheTasksOfLoopsThatTakeTurnsOrPassOverMicroBatches)
{
  const auto forward = [](std::uint64_t microbatch, std::int64_t stride) {
    return Slot{{Opcode::Forward, 0, microbatch}, stride};
  };
  expect_all_tasks(Order({{3, {forward(0, 2), forward(1, 2)}}, {2, {forward(7, -1)}}}), 1);
  expect_all_tasks(Order({{3, {forward(8, -4)}}, {1, {forward(5, 1), forward(3, -1), forward(9, 0)}}}), 1);
  expect_all_tasks(Order({{4, {forward(0, 3)}}, {4, {forward(10, -3)}}, {4, {forward(2, 3)}}}), 1);
}

TEST(Series, HasTheTasksOfListsInAnyOrder)
{
  std::mt19937_64 random(5);
  for (int round = 0; round < 100; ++round) {
    const std::uint64_t microbatches = 1 + random() % 30;
    std::vector<std::uint64_t> order(microbatches);
    for (std::uint64_t i = 0; i < microbatches; ++i) order[i] = i;
    std::vector<isobar::Run> runs;
    const auto append = [&](Opcode opcode, std::uint64_t microbatch) {
      runs.push_back({1, {{{opcode, 0, microbatch}, 1}}});
    };
    std::shuffle(order.begin(), order.end(), random);
    for (const auto microbatch : order) append(Opcode::Forward, microbatch);
    std::shuffle(order.begin(), order.end(), random);
    const bool is_whole = random() % 2 == 0;
    for (const auto microbatch : order) {
      append(is_whole ? Opcode::Backward : Opcode::BackwardInput, microbatch);
      if (!is_whole) append(Opcode::BackwardWeight, microbatch);
    }
    expect_all_tasks(Order(runs), 1);
  }
}

TEST(Series, IsEmptyWithoutBackwards)
{
  const Order order(std::vector<isobar::Run>{{5, {{{Opcode::Forward, 0, 0}, 1}}}});
  EXPECT_TRUE(Series().empty());
  EXPECT_TRUE(Series::backwards(OrderSlots(order), 0).empty());
  EXPECT_EQ(Series::backwards(OrderSlots(order), 0).length(), 0U);
  EXPECT_EQ(Series::forwards(OrderSlots(order), 0).length(), 5U);
}

TEST(Series, RefusesTasksBeyondItsOwn)
{
  const Order order(std::vector<isobar::Run>{{5, {{{Opcode::Forward, 0, 0}, 1}}}});
  const Series series = Series::forwards(OrderSlots(order), 0);
  EXPECT_THROW(series.nth(5), std::logic_error);
  EXPECT_THROW(series.index_of({Opcode::Forward, 0, 5}), std::logic_error);
  EXPECT_THROW(series.position_of({Opcode::Forward, 0, 5}), std::logic_error);
}

}  // namespace
}  // namespace isobar::schedules::series_test
