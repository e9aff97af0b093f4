#include "core/order/order_text.hpp"

#include "core/errors.hpp"
#include "core/text/document.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

namespace isobar::order_text_test {
namespace {

using testing::ElementsAre;

Order order_from(const std::string& json, const OrderLimits& limits = {3, 100})
{
  FaultList faults("plan.json");
  auto order = read_order(parse_json(json, "plan.json"), "orders.d0", limits, faults);
  faults.throw_if_any();
  return order;
}

std::vector<Task> tasks_of(const Order& order)
{
  std::vector<Task> tasks;
  for (std::uint64_t i = 0; i < order.length(); ++i) tasks.push_back(order.at(i));
  return tasks;
}

TEST(ReadOrder, ReadsLoopsOfSlots)
{
  const auto order = order_from(R"([[3, "F0.0+"], [2, "F0.3+ B0.0+"], [3, "B0.2+"]])");
  const Opcode f = Opcode::Forward;
  const Opcode b = Opcode::Backward;
  EXPECT_THAT(tasks_of(order), ElementsAre(Task{f, 0, 0}, Task{f, 0, 1}, Task{f, 0, 2}, Task{f, 0, 3}, Task{b, 0, 0},
                                           Task{f, 0, 4}, Task{b, 0, 1}, Task{b, 0, 2}, Task{b, 0, 3}, Task{b, 0, 4}));
}

TEST(ReadOrder, ReadsStridesOfBothDirections)
{
  const auto order = order_from(R"([[3, "F1.2- F2.0+3"], [1, "B2.0"], [2, "B2.6-3"]])");
  const Opcode f = Opcode::Forward;
  const Opcode b = Opcode::Backward;
  EXPECT_THAT(tasks_of(order), ElementsAre(Task{f, 1, 2}, Task{f, 2, 0}, Task{f, 1, 1}, Task{f, 2, 3}, Task{f, 1, 0},
                                           Task{f, 2, 6}, Task{b, 2, 0}, Task{b, 2, 6}, Task{b, 2, 3}));
}

TEST(ReadOrder, TakesBBesideWForTheInputsGradient)
{
  EXPECT_EQ(order_from(R"([[2, "F0.0+ B0.0+"]])").at(1).opcode, Opcode::Backward);
  EXPECT_EQ(order_from(R"([[2, "F0.0+ B0.0+"], [2, "W0.0+"]])").at(1).opcode, Opcode::BackwardInput);
  EXPECT_EQ(order_from(R"([[2, "F0.0+ I0.0+"], [2, "W0.0+"]])").at(1).opcode, Opcode::BackwardInput);
}

TEST(ReadOrder, TakesBBesideIForTheWholeBackward)
{
  const auto order = order_from(R"([[2, "F0.0+"], [1, "B0.0 I0.1 W0.1"]])");
  EXPECT_EQ(order.at(2).opcode, Opcode::Backward);
  EXPECT_EQ(order.at(3).opcode, Opcode::BackwardInput);
}

TEST(ReadOrder, DecidesWhatBMeansForEachPart)
{
  const auto order = order_from(R"([[1, "F0.0 F1.0 B1.0 W1.0 B0.0"]])");
  EXPECT_EQ(order.at(2).opcode, Opcode::BackwardInput);
  EXPECT_EQ(order.at(4).opcode, Opcode::Backward);
}

TEST(ReadOrder, TakesAStrideOfARunOfOneForNothing)
{
  EXPECT_EQ(order_from(R"([[1, "F0.5+ B0.5-3"]])"), order_from(R"([[1, "F0.5 B0.5"]])"));
}

TEST(ReadOrder, NamesTheRunAndTheSlotOfEachFault)
{
  EXPECT_THAT(
      [] { order_from("[\n[3, \"F0.0+\"],\n[3, \"B0.0+ B0,1+\"],\n7]"); },
      testing::ThrowsMessage<InputError>(
          "plan.json:3: orders.d0[1]: slot 2: \"B0,1+\" is not a slot; write a letter, the part, a point and the "
          "micro-batch, such as \"F0.3+\"\n"
          "plan.json:4: orders.d0[2]: is not a run; write [times, \"slots\"], such as [3, \"F0.0+\"]"));
}

TEST(RunTextsOf, WritesWhatWasRead)
{
  for (const auto* json :
       {R"([[3,"F0.0+"],[21,"F0.3+ B0.0+ W0.0+"],[3,"B0.21+ W0.21+"]])", R"([[1,"F0.0 F1.7 B1.7 B0.0"]])",
        R"([[4,"F0.0+2"],[4,"B0.6-2 F1.3-"]])", R"([[2,"F0.0+"],[1,"B0.0 I0.1 W0.1"]])", R"([[2,"F0.0+ I0.0+"]])",
        R"([[3,"F0.1+& B0.0+"],[1,"F1.0& I0.3 W0.3 F0.4& B1.2"]])", "[]"}) {
    std::string text;
    for (const auto& run : run_texts_of(order_from(json))) {
      text += (text.empty() ? "" : ",") + ("[" + std::to_string(run.times) + ",\"" + run.slots + "\"]");
    }
    EXPECT_EQ("[" + text + "]", json);
  }
}

/// Tasks in turn.
std::vector<ListedTask> listed(const std::vector<Task>& tasks)
{
  std::vector<ListedTask> all;
  for (const Task& task : tasks) all.push_back({task});
  return all;
}

TEST(WithLoops, FindsTheLoopsOf1F1B)
{
  std::vector<Task> tasks;
  for (std::uint64_t m = 0; m < 3; ++m) tasks.push_back({Opcode::Forward, 0, m});
  for (std::uint64_t m = 0; m < 20; ++m) {
    if (m + 3 < 20) tasks.push_back({Opcode::Forward, 0, m + 3});
    tasks.push_back({Opcode::Backward, 0, m});
  }
  EXPECT_THAT(run_texts_of(with_loops(listed(tasks))),
              ElementsAre(RunText{4, "F0.0+"}, RunText{16, "B0.0+ F0.4+"}, RunText{4, "B0.16+"}));
}

TEST(WithLoops, PutsTasksWithoutLoopsIntoOneRun)
{
  const std::vector<Task> tasks = {
      {Opcode::Forward, 0, 0}, {Opcode::Forward, 1, 5}, {Opcode::Backward, 1, 5}, {Opcode::Backward, 0, 0}};
  EXPECT_THAT(run_texts_of(with_loops(listed(tasks))), ElementsAre(RunText{1, "F0.0 F1.5 B1.5 B0.0"}));
}

TEST(WithLoops, KeepsEveryTaskAtItsPlace)
{
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    // Pieces of ascending micro-batches of a few parts, so that there are loops to find and to end.
    std::vector<Task> tasks;
    std::vector<std::uint64_t> next(3);
    while (tasks.size() < 60) {
      const std::size_t parts = 1 + random() % 3;
      for (std::uint64_t times = 1 + random() % 6; times > 0; --times) {
        for (std::uint32_t part = 0; part < parts; ++part) tasks.push_back({Opcode::Forward, part, next[part]++});
      }
    }
    EXPECT_EQ(tasks_of(with_loops(listed(tasks))), tasks);
  }
}

TEST(WithLoops, KeepsPassesTogetherThatRunTogether)
{
  for (const bool has_halves : {false, true}) {
    std::vector<ListedTask> tasks = {{{Opcode::Forward, 0, 0}}};
    for (std::uint64_t m = 0; m < 9; ++m) {
      tasks.push_back({{Opcode::Forward, 0, m + 1}, true});
      tasks.push_back({{has_halves ? Opcode::BackwardInput : Opcode::Backward, 0, m}});
      if (has_halves) tasks.push_back({{Opcode::BackwardWeight, 0, m}});
    }
    tasks.push_back({{Opcode::Backward, 1, 9}});
    const Order order = with_loops(tasks);
    EXPECT_THAT(run_texts_of(order),
                ElementsAre(RunText{1, "F0.0"}, RunText{9, has_halves ? "F0.1+& B0.0+ W0.0+" : "F0.1+& B0.0+"},
                            RunText{1, "B1.9"}));
    EXPECT_TRUE(has_overlaps(order));
    const auto again = listed_tasks(order);
    ASSERT_EQ(again.size(), tasks.size());
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      EXPECT_EQ(again[i].task, tasks[i].task);
      EXPECT_EQ(again[i].overlaps, tasks[i].overlaps);
    }
  }
}

TEST(LetterOf, RefusesWhatNoOrderHas)
{
  EXPECT_EQ(letter_of(Opcode::BackwardInput), 'I');
  EXPECT_THROW(letter_of(Opcode::Send), std::logic_error);
  EXPECT_FALSE(opcode_from_letter('S'));
}

}  // namespace
}  // namespace isobar::order_text_test
