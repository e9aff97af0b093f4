#include "core/order/order.hpp"

#include "core/base/pcg64.hpp"
#include "core/errors.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace isobar::order_test {
namespace {

constexpr std::uint64_t billions = 5'000'000'000;

using Runs = std::vector<Run>;  // in tests, Run alone is a member of theirs

Slot slot(Opcode opcode, std::uint32_t part, std::uint64_t first, std::int64_t stride = 1)
{
  return {{opcode, part, first}, stride};
}

Slot forward(std::uint64_t first, std::int64_t stride = 1)
{
  return slot(Opcode::Forward, 0, first, stride);
}

Slot backward(std::uint64_t first, std::int64_t stride = 1)
{
  return slot(Opcode::Backward, 0, first, stride);
}

Order order_of(Runs runs)
{
  return Order(std::move(runs));
}

/// What the constructor says against some runs; "" if it takes them.
std::string fault_of(Runs runs)
{
  try {
    order_of(std::move(runs));
    return "";
  } catch (const InputError& fault) {
    return fault.what();
  }
}

using TaskKey = std::tuple<Opcode, std::uint32_t, std::uint64_t>;

TaskKey key_of(const Task& task)
{
  return {task.opcode, task.part, task.microbatch};
}

/// All tasks of some runs, one by one; none if a micro-batch is below 0.
std::optional<std::vector<Task>> expanded(const Runs& runs)
{
  std::vector<Task> tasks;
  for (const auto& run : runs) {
    for (std::uint64_t n = 0; n < run.times; ++n) {
      for (const auto& one : run.slots) {
        const auto microbatch =
            static_cast<std::int64_t>(one.first.microbatch) + static_cast<std::int64_t>(n) * one.stride;
        if (microbatch < 0) return std::nullopt;
        tasks.push_back({one.first.opcode, one.first.part, static_cast<std::uint64_t>(microbatch)});
      }
    }
  }
  return tasks;
}

bool has_duplicates(const std::vector<Task>& tasks)
{
  std::set<TaskKey> seen;
  return !std::all_of(tasks.begin(), tasks.end(), [&](const Task& task) { return seen.insert(key_of(task)).second; });
}

/// Draws runs with all strides, so few tasks that their slots often meet.
class RandomRuns {
 public:
  explicit RandomRuns(std::uint64_t seed) : random_(seed) {}

  std::uint64_t number(std::uint64_t least, std::uint64_t most) { return least + random_.next() % (most - least + 1); }

  Run run(std::uint32_t parts)
  {
    Run run{number(0, 6), {}};
    for (std::uint64_t slots = number(0, 4); slots > 0; --slots) {
      constexpr std::array<Opcode, 4> opcodes = {Opcode::Forward, Opcode::Backward, Opcode::BackwardInput,
                                                 Opcode::BackwardWeight};
      const auto stride = static_cast<std::int64_t>(number(1, 6)) * (number(0, 2) == 0 ? -1 : 1);
      run.slots.push_back(slot(opcodes[number(0, parts == 1 ? 0 : 3)], static_cast<std::uint32_t>(number(0, parts - 1)),
                               number(0, 60), stride));
    }
    return run;
  }

  /// Runs of an order: each is left out that would repeat a task or leave the micro-batches.
  Runs runs_of_an_order()
  {
    Runs runs;
    for (std::uint64_t tries = number(0, 12); tries > 0; --tries) {
      runs.push_back(run(3));
      const auto tasks = expanded(runs);
      if (!tasks || has_duplicates(*tasks)) runs.pop_back();
    }
    return runs;
  }

 private:
  Pcg64 random_;
};

TEST(Order, OfNothingIsEmpty)
{
  EXPECT_EQ(Order().length(), 0U);
  EXPECT_EQ(Order(), order_of({{0, {forward(0)}}, {3, {}}}));
  EXPECT_EQ(order_of({}).count(Opcode::Forward, 0), 0U);
  EXPECT_FALSE(Order().contains({Opcode::Forward, 0, 0}));
  EXPECT_EQ(Order().peak([](const Task&) { return Bytes(1); }), Bytes(0));
}

TEST(Order, DropsRunsWithoutTasksAndMergesNoOthers)
{
  const Order order = order_of({{1, {forward(0)}}, {0, {backward(0)}}, {2, {}}, {1, {forward(1)}}});
  EXPECT_EQ(order.runs(), (Runs{{1, {forward(0)}}, {1, {forward(1)}}}));
}

TEST(Order, ReadsItsRunsInTurn)
{
  // 1F1B with two warm-up forwards and five micro-batches.
  const Order order = order_of({{2, {forward(0)}}, {3, {forward(2), backward(0)}}, {2, {backward(3)}}});
  std::string text;
  for (std::uint64_t position = 0; position < order.length(); ++position) text += name_of(order.at(position)) + " ";
  EXPECT_EQ(text, "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 F0.4 B0.2 B0.3 B0.4 ");
  EXPECT_EQ(order.position_of({Opcode::Backward, 0, 1}), 5U);
  EXPECT_EQ(order.index_of({Opcode::Backward, 0, 3}), 3U);
  EXPECT_EQ(order.nth(Opcode::Backward, 0, 4), (Task{Opcode::Backward, 0, 4}));
  EXPECT_EQ(order.count(Opcode::Forward, 0), 5U);
}

TEST(Order, NamesTasksByLetterPartAndMicroBatch)
{
  EXPECT_EQ(name_of(Task{Opcode::Forward, 0, 3}), "F0.3");
  EXPECT_EQ(name_of(Task{Opcode::Backward, 2, 0}), "B2.0");
  EXPECT_EQ(name_of(Task{Opcode::BackwardInput, 1, 17}), "I1.17");
  EXPECT_EQ(name_of(Task{Opcode::BackwardWeight, 1, 0}), "W1.0");
}

TEST(Order, LooksUpBothWaysAsAPlainList)
{
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    const auto runs = RandomRuns(seed).runs_of_an_order();
    const auto tasks = expanded(runs).value();
    const Order order = order_of(runs);
    ASSERT_EQ(order.length(), tasks.size());
    std::map<std::pair<Opcode, std::uint32_t>, std::uint64_t> counts;
    for (std::uint64_t position = 0; position < tasks.size(); ++position) {
      const Task& task = tasks[position];
      const std::uint64_t index = counts[{task.opcode, task.part}]++;
      ASSERT_EQ(order.at(position), task);
      ASSERT_TRUE(order.contains(task));
      ASSERT_EQ(order.position_of(task), position) << name_of(task);
      ASSERT_EQ(order.index_of(task), index) << name_of(task);
      ASSERT_EQ(order.nth(task.opcode, task.part, index), task);
    }
    for (const auto& [key, count] : counts) EXPECT_EQ(order.count(key.first, key.second), count);
    for (std::uint64_t microbatch = 0; microbatch < 100; ++microbatch) {
      const Task task{Opcode::BackwardInput, 1, microbatch};
      EXPECT_EQ(order.contains(task), std::find(tasks.begin(), tasks.end(), task) != tasks.end()) << name_of(task);
    }
  }
}

TEST(Order, RefusesRunsExactlyIfTheirListHasATaskTwice)
{
  std::size_t refused = 0;
  std::size_t taken = 0;
  for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
    RandomRuns random(seed);
    // One part, so that strides meet often; the runs may reach below micro-batch 0.
    Runs runs;
    for (std::uint64_t n = random.number(1, 4); n > 0; --n) runs.push_back(random.run(1));
    const auto tasks = expanded(runs);
    const std::string fault = fault_of(runs);
    if (!tasks) {
      EXPECT_NE(fault, "") << "seed " << seed;
      continue;
    }
    EXPECT_EQ(fault.find(" occurs twice, at positions ") != std::string::npos, has_duplicates(*tasks))
        << "seed " << seed << ": " << fault;
    ++(fault.empty() ? taken : refused);
  }
  EXPECT_GT(refused, 500U);
  EXPECT_GT(taken, 500U);
}

TEST(Order, NamesBothPositionsOfATaskThatOccursTwice)
{
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    RandomRuns random(seed);
    const Runs runs = {random.run(1), random.run(1), random.run(1)};
    const auto tasks = expanded(runs);
    if (!tasks || !has_duplicates(*tasks)) continue;
    const std::string fault = fault_of(runs);
    bool is_true = false;
    for (std::size_t second = 0; second < tasks->size(); ++second) {
      for (std::size_t first = 0; first < second; ++first) {
        if ((*tasks)[first] != (*tasks)[second]) continue;
        is_true = is_true || fault == fmt::format("{} occurs twice, at positions {} and {}; order each task once",
                                                  name_of((*tasks)[first]), first, second);
      }
    }
    EXPECT_TRUE(is_true) << "seed " << seed << ": " << fault;
  }
}

TEST(Order, SaysWhichTaskIsWrongAndWhere)
{
  struct Case {
    Runs runs;
    std::string fault;
  };
  const std::vector<Case> cases = {
      {{{2, {forward(0)}}, {1, {backward(0), forward(1)}}},
       "F0.1 occurs twice, at positions 1 and 3; order each task once"},
      {{{1, {forward(7)}}, {1, {forward(7)}}}, "F0.7 occurs twice, at positions 0 and 1; order each task once"},
      {{{4, {forward(0, 2), forward(1, 2)}}, {1, {forward(5)}}},
       "F0.5 occurs twice, at positions 5 and 8; order each task once"},
      {{{4, {forward(0, 2)}}, {1, {backward(0)}}, {3, {forward(3, 3)}}},
       "F0.6 occurs twice, at positions 3 and 6; order each task once"},
      {{{3, {forward(0), forward(4, -1)}}}, "F0.2 occurs twice, at positions 4 and 5; order each task once"},
      {{{1, {backward(0)}}, {3, {forward(5, 0)}}}, "F0.5 occurs twice, at positions 1 and 2; give it a stride"},
      {{{1, {forward(0)}}, {4, {forward(2, 2), backward(2, -1)}}},
       "B0.2 of run 1 gets below micro-batch 0 at position 8; repeat it at most 3 times"},
      {{{1, {forward(std::numeric_limits<std::uint64_t>::max())}}},
       "F0.18446744073709551615 at position 0 is beyond micro-batch 2^63; number them from 0"},
      {{{3, {forward(0, std::numeric_limits<std::int64_t>::max())}}},
       "F0.0 of run 0 gets beyond micro-batch 2^63 at position 2; repeat it at most 2 times"},
      {{{1, {forward(0)}}, {std::numeric_limits<std::uint64_t>::max(), {forward(1)}}},
       "18446744073709551615 times 1 tasks at position 1 make more than 2^63; repeat them less often"},
      {{{2, {forward(1, std::numeric_limits<std::int64_t>::min())}}},
       "F0.1 of run 0 gets below micro-batch 0 at position 1; repeat it at most 1 times"},
  };
  for (const auto& [runs, fault] : cases) EXPECT_EQ(fault_of(runs), fault);
}

TEST(Order, TakesAnyStrideWhereARunHasOneRepetition)
{
  for (const std::int64_t stride : {std::int64_t{0}, std::int64_t{-9}, std::numeric_limits<std::int64_t>::min()}) {
    const Order order = order_of({{1, {forward(1, stride), forward(0, stride)}}});
    EXPECT_EQ(order.at(1), (Task{Opcode::Forward, 0, 0}));
    EXPECT_EQ(order.position_of({Opcode::Forward, 0, 1}), 0U);
  }
}

TEST(Order, RefusesWhatItDoesNotHave)
{
  const Order order = order_of({{3, {forward(2, 2)}}});
  EXPECT_FALSE(order.contains({Opcode::Forward, 0, 3}));
  EXPECT_FALSE(order.contains({Opcode::Forward, 0, 8}));
  EXPECT_FALSE(order.contains({Opcode::Forward, 1, 2}));
  EXPECT_THROW(order.at(3), std::logic_error);
  EXPECT_THROW(order.position_of({Opcode::Forward, 0, 0}), std::logic_error);
  EXPECT_THROW(order.index_of({Opcode::Backward, 0, 2}), std::logic_error);
  EXPECT_THROW(order.nth(Opcode::Forward, 0, 3), std::logic_error);
}

TEST(Order, AddressesBillionsOfMicroBatches)
{
  const auto half = billions / 2;
  const std::vector<Order> orders = {
      order_of({{3, {forward(0)}}, {billions - 3, {forward(3), backward(0)}}, {3, {backward(billions - 3)}}}),
      order_of({{billions, {forward(0)}}, {billions, {backward(billions - 1, -1)}}}),
      order_of({{half, {forward(0, 2), forward(1, 2), backward(1, 2), backward(0, 2)}}}),
      order_of({{half, {forward(half, 1), forward(half - 1, -1)}},
                {billions / 5, {backward(4, 5), backward(0, 5), backward(2, 5), backward(3, 5), backward(1, 5)}}}),
  };
  Pcg64 random(7);
  for (std::size_t i = 0; i < orders.size(); ++i) {
    SCOPED_TRACE(fmt::format("order {}", i));
    const Order& order = orders[i];
    ASSERT_EQ(order.length(), 2 * billions);
    EXPECT_EQ(order.count(Opcode::Forward, 0), billions);
    EXPECT_EQ(order.count(Opcode::Backward, 0), billions);
    for (int n = 0; n < 2000; ++n) {
      const std::uint64_t position = n == 0 ? 0 : n == 1 ? order.length() - 1 : random.next() % order.length();
      const Task task = order.at(position);
      ASSERT_LT(task.microbatch, billions);
      ASSERT_EQ(order.position_of(task), position);
      const std::uint64_t index = order.index_of(task);
      ASSERT_LE(index, position);
      ASSERT_EQ(order.nth(task.opcode, task.part, index), task);
      const Task other{n % 2 == 0 ? Opcode::Forward : Opcode::Backward, 0, random.next() % billions};
      ASSERT_EQ(order.at(order.position_of(other)), other);
    }
  }
}

TEST(Order, FindsTheOnlyTaskThatTwoHugeLoopsShare)
{
  // Two progressions with strides without a common factor meet once in their product.
  const std::uint64_t a = 2'147'483'629;  // both are primes
  const std::uint64_t b = 2'147'483'647;
  const auto stride_a = static_cast<std::int64_t>(a);
  const auto stride_b = static_cast<std::int64_t>(b);
  const std::uint64_t meeting = a * 1'000'000 + 5;
  const std::uint64_t first_of_b = meeting % b;
  const std::uint64_t rounds = meeting / b;
  EXPECT_EQ(fault_of({{1'500'000, {forward(5, stride_a)}}, {1'500'000, {forward(first_of_b, stride_b)}}}),
            fmt::format("F0.{} occurs twice, at positions 1000000 and {}; order each task once", meeting,
                        1'500'000 + rounds));
  EXPECT_EQ(fault_of({{1'000'000, {forward(5, stride_a)}}, {1'500'000, {forward(first_of_b, stride_b)}}}), "");
  EXPECT_EQ(fault_of({{1'500'000, {forward(5, stride_a)}}, {rounds, {forward(first_of_b, stride_b)}}}), "");
}

TEST(Order, HasThePeakOfAPlainList)
{
  const auto change = [](const Task& task) {
    const double sign = task.opcode == Opcode::Forward ? 7 : task.opcode == Opcode::Backward ? -3 : -2;
    return Bytes(sign * (task.part + 1) - (task.opcode == Opcode::BackwardWeight ? 1 : 0));
  };
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const auto runs = RandomRuns(seed).runs_of_an_order();
    const auto tasks = expanded(runs).value();
    Bytes now;
    Bytes peak;
    for (const auto& task : tasks) {
      now += change(task);
      peak = std::max(peak, now);
    }
    EXPECT_EQ(order_of(runs).peak(change), peak) << "seed " << seed;
  }
}

TEST(Order, HasAPeakAtTheFirstOrTheLastRepetition)
{
  const auto change = [](const Task& task) { return Bytes(task.opcode == Opcode::Forward ? 1 : -1); };
  // Grows by one in each repetition.
  EXPECT_EQ(order_of({{billions, {forward(0, 2), backward(0), forward(1, 2)}}}).peak(change),
            Bytes(static_cast<double>(billions)));
  // Shrinks by one in each repetition, after a run that gained.
  EXPECT_EQ(order_of({{5, {forward(10)}}, {5, {forward(0), backward(0, 2), backward(1, 2)}}}).peak(change), Bytes(6));
  // Falls below where it began and never gains.
  EXPECT_EQ(order_of({{5, {backward(0)}}, {5, {forward(0)}}}).peak(change), Bytes(0));
}

TEST(Order, IsLookedUpQuicklyWhateverItsSlots)
{
  // Many residues of one stride, as interleaved schedules have them: comparing all slots in pairs, or searching through
  // them one by one, would take ten thousand million steps.
  const std::uint64_t slots = 100'000;
  isobar::Run run{billions / slots, {}};
  for (std::uint64_t i = 0; i < slots; ++i) run.slots.push_back(forward(i, static_cast<std::int64_t>(slots)));
  const Order order = order_of({run});
  for (std::uint64_t n = 0; n < 100'000; ++n)
    ASSERT_EQ(order.position_of({Opcode::Forward, 0, n * 49'999}), n * 49'999);
}

}  // namespace
}  // namespace isobar::order_test
