#include "schedules/orders/listed.hpp"

#include "core/base/pcg64.hpp"
#include "core/errors.hpp"
#include "core/order/order_text.hpp"
#include "tests/schedules/orders/order_play.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace isobar::schedules::listed_test {
namespace {

/// Reads "2x F0.0+; F0.2 B0.0": runs, with their times unless they have one, of slots as files write them.
Order order_from(const std::string& text)
{
  std::vector<Run> runs;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line, ';');) {
    Run run;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (word.back() == 'x') {
        run.times = std::stoull(word);
        continue;
      }
      const std::size_t point = word.find('.');
      const std::size_t sign = word.find_first_of("+-");
      Slot slot;
      slot.first.opcode = opcode_from_letter(word.front()).value();
      slot.first.part = static_cast<std::uint32_t>(std::stoul(word.substr(1, point - 1)));
      slot.first.microbatch = std::stoull(word.substr(point + 1, sign - point - 1));
      if (sign != std::string::npos) {
        slot.stride = std::stoll(sign + 1 == word.size() ? word.substr(sign) + "1" : word.substr(sign));
      }
      run.slots.push_back(slot);
    }
    runs.push_back(run);
  }
  return Order(runs);
}

/// Devices a, b, c, as far as they have stages.
PipelineShape shape_with(const std::vector<std::size_t>& rank_of_stage, std::uint64_t microbatches)
{
  PipelineShape shape{{}, rank_of_stage, microbatches};
  const std::size_t ranks = *std::max_element(rank_of_stage.begin(), rank_of_stage.end()) + 1;
  for (std::size_t rank = 0; rank < ranks; ++rank) shape.devices.emplace_back(1, static_cast<char>('a' + rank));
  return shape;
}

/// Orders of a pipeline, and what is wrong with them.
struct Case {
  std::string name;
  std::vector<std::size_t> rank_of_stage;
  std::uint64_t microbatches = 1;
  std::map<std::string, std::string> orders;
  std::string fault;
};

std::string fault_of(const Case& one)
{
  try {
    ScheduleChoice choice{"listed"};
    for (const auto& [device, text] : one.orders) choice.orders[device] = order_from(text);
    listed_schedule.orders(shape_with(one.rank_of_stage, one.microbatches), choice);
    return "";
  } catch (const InputError& fault) {
    return fault.what();
  }
}

TEST(WrongOrders, AreRefusedWithTheTaskAndItsPlace)
{
  const std::vector<Case> wrong = {
      {"OrderOfADeviceIsMissing",
       {0, 1},
       2,
       {{"a", "F0.0 F0.1 B0.0 B0.1"}},
       "schedule.orders: b has none; give each device of the stages an order"},
      {"DeviceWithoutAStage",
       {0, 1},
       2,
       {{"a", "F0.0 F0.1 B0.0 B0.1"}, {"b", "F0.0 B0.0 F0.1 B0.1"}, {"x", "F0.0 B0.0 F0.1 B0.1"}},
       "schedule.orders.x: no stage is on this device; use a, b"},
      {"DeviceIsMisspelt",
       {0, 1},
       2,
       {{"a", "F0.0 F0.1 B0.0 B0.1"}, {"B", "F0.0 B0.0 F0.1 B0.1"}},
       "schedule.orders.B: no stage is on this device; use a, b\nschedule.orders: b has none; give each device "
       "of the stages an order"},
      {"PartBeyondTheStages",
       {0},
       2,
       {{"a", "F0.0 F1.0 B0.0 B1.0"}},
       "schedule.orders.a: F1.0 (position 1) is of part 1; number the device's stages, 1 in all, from 0"},
      {"PartBeyondTwoStages",
       {0, 1, 0, 1},
       1,
       {{"a", "F0.0 F2.0 B1.0 B0.0"}, {"b", "F0.0 F1.0 B1.0 B0.0"}},
       "schedule.orders.a: F2.0 (position 1) is of part 2; number the device's stages, 2 in all, from 0"},
      {"MicroBatchBeyondTheStep",
       {0},
       2,
       {{"a", "F0.0 F0.1 F0.2 B0.0 B0.1 B0.2"}},
       "schedule.orders.a: F0.2 (position 2) is of micro-batch 2; number the step's micro-batches, 2 in all, "
       "from 0"},
      {"LoopBeyondTheStep",
       {0},
       2,
       {{"a", "3x F0.0+; 2x B0.0+"}},
       "schedule.orders.a: F0.2 (position 2) is of micro-batch 2; number the step's micro-batches, 2 in all, "
       "from 0"},
      {"LoopDownFromBeyondTheStep",
       {0},
       3,
       {{"a", "3x F0.0+; 4x B0.3-"}},
       "schedule.orders.a: B0.3 (position 3) is of micro-batch 3; number the step's micro-batches, 3 in all, "
       "from 0"},
      {"BothDevicesBeyondTheStep",
       {0, 1},
       1,
       {{"a", "F0.0 F0.1 B0.0 B0.1"}, {"b", "F0.0 B0.0 F0.1 B0.1"}},
       "schedule.orders.a: F0.1 (position 1) is of micro-batch 1; number the step's micro-batches, 1 in all, "
       "from 0\nschedule.orders.b: F0.1 (position 2) is of micro-batch 1; number the step's micro-batches, 1 "
       "in all, from 0"},
      {"ForwardIsMissing", {0}, 2, {{"a", "F0.0 B0.0 B0.1"}}, "schedule.orders.a: F0.1 is missing; order it once"},
      {"FirstForwardIsMissing", {0}, 2, {{"a", "F0.1 B0.0 B0.1"}}, "schedule.orders.a: F0.0 is missing; order it once"},
      {"BackwardIsMissing", {0}, 2, {{"a", "F0.0 F0.1 B0.0"}}, "schedule.orders.a: B0.1 is missing; order it once"},
      {"AllBackwardsAreMissing", {0}, 2, {{"a", "2x F0.0+"}}, "schedule.orders.a: B0.0 is missing; order it once"},
      {"EverythingIsMissing",
       {0, 1},
       2,
       {{"a", "F0.0 F0.1 B0.0 B0.1"}, {"b", ""}},
       "schedule.orders.b: F0.0 is missing; order it once\nschedule.orders.b: B0.0 is missing; order it once"},
      {"OneOfALoopIsMissing",
       {0},
       6,
       {{"a", "3x F0.0+2; 2x F0.1+2; 6x B0.0+"}},
       "schedule.orders.a: F0.5 is missing; order it once"},
      {"InputGradientIsMissing",
       {0},
       2,
       {{"a", "F0.0 F0.1 I0.0 W0.0 W0.1"}},
       "schedule.orders.a: I0.1 is missing; order it once"},
      {"WeightGradientIsMissing",
       {0},
       2,
       {{"a", "F0.0 F0.1 I0.0 W0.0 I0.1"}},
       "schedule.orders.a: W0.1 is missing; order it once"},
      {"AllInputGradientsAreMissing",
       {0},
       2,
       {{"a", "F0.0 F0.1 W0.0 W0.1"}},
       "schedule.orders.a: I0.0 is missing; order it once"},
      {"AllWeightGradientsAreMissing",
       {0},
       2,
       {{"a", "F0.0 F0.1 I0.0 I0.1"}},
       "schedule.orders.a: W0.0 is missing; order it once"},
      {"WholeAndHalvesInOnePart",
       {0},
       2,
       {{"a", "F0.0 B0.0 F0.1 I0.1 W0.1"}},
       "schedule.orders.a: B0.0 (position 1) is a whole backward and I0.1 (position 3) a half; use B, or I "
       "and W, for all micro-batches of a stage"},
      {"WeightGradientAfterAWholeBackward",
       {0},
       2,
       {{"a", "F0.0 B0.0 F0.1 B0.1 W0.1"}},
       "schedule.orders.a: B0.0 (position 1) is a whole backward and W0.1 (position 4) a half; use B, or I "
       "and W, for all micro-batches of a stage"},
      {"MissingOnBothDevices",
       {0, 1},
       2,
       {{"a", "F0.0 B0.0 B0.1"}, {"b", "F0.0 F0.1 B0.1"}},
       "schedule.orders.a: F0.1 is missing; order it once\nschedule.orders.b: B0.0 is missing; order it once"},
      {"SecondStageOfADeviceIsMissing",
       {0, 1, 0, 1},
       1,
       {{"a", "F0.0 B0.0"}, {"b", "F0.0 F1.0 B1.0 B0.0"}},
       "schedule.orders.a: F1.0 is missing; order it once\nschedule.orders.a: B1.0 is missing; order it once"},
      {"TaskTwice",
       {0},
       2,
       {{"a", "F0.0 F0.1 F0.0 B0.0 B0.1"}},
       "F0.0 occurs twice, at positions 0 and 2; order each task once"},
      {"TaskTwiceInLoops",
       {0},
       3,
       {{"a", "3x F0.0+; B0.0 B0.1; 2x B0.2-"}},
       "B0.1 occurs twice, at positions 4 and 6; order each task once"},
      {"BackwardBeforeItsForward",
       {0},
       2,
       {{"a", "F0.0 B0.1 F0.1 B0.0"}},
       "schedule.orders.a: B0.1 (position 1) comes before F0.1 (position 2); move it behind"},
      {"InputGradientBeforeItsForward",
       {0},
       1,
       {{"a", "I0.0 F0.0 W0.0"}},
       "schedule.orders.a: I0.0 (position 0) comes before F0.0 (position 1); move it behind"},
      {"WeightGradientBeforeItsInputGradient",
       {0},
       2,
       {{"a", "F0.0 F0.1 I0.0 W0.1 I0.1 W0.0"}},
       "schedule.orders.a: W0.1 (position 3) comes before I0.1 (position 4); move it behind"},
      {"WeightGradientBeforeItsForward",
       {0},
       1,
       {{"a", "W0.0 F0.0 I0.0"}},
       "schedule.orders.a: W0.0 (position 0) comes before I0.0 (position 2); move it behind"},
      {"BackwardsBeforeForwardsOnTwoStages",
       {0, 0},
       1,
       {{"a", "B0.0 B1.0 F0.0 F1.0"}},
       "schedule.orders.a: B0.0 (position 0) comes before F0.0 (position 2); move it "
       "behind\nschedule.orders.a: B1.0 (position 1) comes before F1.0 (position 3); move it behind"},
      {"ForwardsCross",
       {0, 1},
       2,
       {{"a", "F0.0 F0.1 B0.0 B0.1"}, {"b", "F0.1 F0.0 B0.0 B0.1"}},
       "schedule.orders: a has F0.0 (position 0) before F0.1 (position 1) and b has F0.1 (position 0) before "
       "F0.0 (position 1), so their transfers cross; use one order for both"},
      {"BackwardsCross",
       {0, 1},
       2,
       {{"a", "F0.0 F0.1 B0.1 B0.0"}, {"b", "F0.0 B0.0 F0.1 B0.1"}},
       "schedule.orders: b has B0.0 (position 1) before B0.1 (position 3) and a has B0.1 (position 2) before "
       "B0.0 (position 3), so their transfers cross; use one order for both"},
      {"BothDirectionsCross",
       {0, 1},
       2,
       {{"a", "F0.0 F0.1 B0.0 B0.1"}, {"b", "F0.1 B0.1 F0.0 B0.0"}},
       "schedule.orders: a has F0.0 (position 0) before F0.1 (position 1) and b has F0.1 (position 0) before "
       "F0.0 (position 2), so their transfers cross; use one order for both\nschedule.orders: b has B0.1 "
       "(position 1) before B0.0 (position 3) and a has B0.0 (position 2) before B0.1 (position 3), so their "
       "transfers cross; use one order for both"},
      {"InputGradientsCross",
       {0, 1},
       2,
       {{"a", "F0.0 F0.1 I0.0 I0.1 W0.0 W0.1"}, {"b", "F0.0 F0.1 I0.1 W0.1 I0.0 W0.0"}},
       "schedule.orders: b has I0.1 (position 2) before I0.0 (position 4) and a has I0.0 (position 2) before "
       "I0.1 (position 3), so their transfers cross; use one order for both"},
      {"HalvesCrossWholeBackwards",
       {0, 1},
       2,
       {{"a", "F0.0 F0.1 B0.0 B0.1"}, {"b", "F0.0 F0.1 I0.1 I0.0 W0.0 W0.1"}},
       "schedule.orders: b has I0.1 (position 2) before I0.0 (position 3) and a has B0.0 (position 2) before "
       "B0.1 (position 3), so their transfers cross; use one order for both"},
      {"SecondHopCrosses",
       {0, 1, 2},
       2,
       {{"a", "F0.0 F0.1 B0.0 B0.1"}, {"b", "F0.0 F0.1 B0.0 B0.1"}, {"c", "F0.1 B0.1 F0.0 B0.0"}},
       "schedule.orders: b has F0.0 (position 0) before F0.1 (position 1) and c has F0.1 (position 0) before "
       "F0.0 (position 2), so their transfers cross; use one order for both\nschedule.orders: c has B0.1 "
       "(position 1) before B0.0 (position 3) and b has B0.0 (position 2) before B0.1 (position 3), so their "
       "transfers cross; use one order for both"},
      {"ForwardsOfLaterPartsCross",
       {0, 1, 0, 1},
       2,
       {{"a", "F0.0 F0.1 F1.1 F1.0 B1.0 B1.1 B0.0 B0.1"}, {"b", "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1"}},
       "schedule.orders: b has F0.0 (position 0) before F0.1 (position 1) and a has F1.1 (position 2) before "
       "F1.0 (position 3), so their transfers cross; use one order for both\nschedule.orders: a has F1.1 "
       "(position 2) before F1.0 (position 3) and b has F1.0 (position 2) before F1.1 (position 3), so their "
       "transfers cross; use one order for both"},
      {"ForwardsOnTheWayBackCross",
       {0, 1, 1, 0},
       2,
       {{"a", "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1"}, {"b", "F0.0 F0.1 F1.1 F1.0 B1.0 B1.1 B0.0 B0.1"}},
       "schedule.orders: b has F1.1 (position 2) before F1.0 (position 3) and a has F1.0 (position 2) before "
       "F1.1 (position 3), so their transfers cross; use one order for both"},
      {"TwoDevicesWaitForEachOther",
       {0, 1},
       2,
       {{"a", "F0.0 B0.0 F0.1 B0.1"}, {"b", "F0.0 F0.1 B0.0 B0.1"}},
       "schedule.orders: B0.0 (position 1) of a waits for B0.0 (position 2) of b, F0.1 (position 1) of b waits "
       "for F0.1 (position 2) of a, so none of them can run; move an awaited one forward"},
      {"TwoDevicesWaitInLoops",
       {0, 1},
       9,
       {{"a", "2x F0.0+; 7x B0.0+ F0.2+; 2x B0.7+"}, {"b", "3x F0.0+; 6x F0.3+ B0.0+; 3x B0.6+"}},
       "schedule.orders: B0.0 (position 2) of a waits for B0.0 (position 4) of b, F0.2 (position 2) of b waits "
       "for F0.2 (position 3) of a, so none of them can run; move an awaited one forward"},
      {"ThreeDevicesWaitInACircle",
       {0, 1, 2, 0, 1, 2},
       1,
       {{"a", "F1.0 F0.0 B1.0 B0.0"}, {"b", "F0.0 F1.0 B1.0 B0.0"}, {"c", "F0.0 F1.0 B1.0 B0.0"}},
       "schedule.orders: F1.0 (position 0) of a waits for F0.0 (position 0) of c, F0.0 (position 0) of c waits "
       "for F0.0 (position 0) of b, F0.0 (position 0) of b waits for F0.0 (position 1) of a, so none of them "
       "can run; move an awaited one forward"},
      {"LaterDevicesWaitForEachOther",
       {0, 1, 2},
       2,
       {{"a", "F0.0 F0.1 B0.0 B0.1"}, {"b", "F0.0 B0.0 F0.1 B0.1"}, {"c", "F0.0 F0.1 B0.0 B0.1"}},
       "schedule.orders: B0.0 (position 1) of b waits for B0.0 (position 2) of c, F0.1 (position 1) of c waits "
       "for F0.1 (position 2) of b, so none of them can run; move an awaited one forward"},
      {"DeviceWaitsForItself",
       {0, 0},
       1,
       {{"a", "F1.0 F0.0 B1.0 B0.0"}},
       "schedule.orders: F1.0 (position 0) of a waits for F0.0 (position 1) of a, so none of them can run; move "
       "an awaited one forward"},
      {"DeviceTakesStagesBackInTheWrongOrder",
       {0, 0},
       1,
       {{"a", "F0.0 F1.0 B0.0 B1.0"}},
       "schedule.orders: B0.0 (position 2) of a waits for B1.0 (position 3) of a, so none of them can run; move "
       "an awaited one forward"},
      {"WayBackComesFirst",
       {0, 1, 1, 0},
       2,
       {{"a", "F0.0 F1.0 F0.1 F1.1 B1.0 B1.1 B0.0 B0.1"}, {"b", "F0.0 F0.1 F1.0 F1.1 B1.0 B1.1 B0.0 B0.1"}},
       "schedule.orders: F1.0 (position 1) of a waits for F1.0 (position 2) of b, F0.1 (position 1) of b waits "
       "for F0.1 (position 2) of a, so none of them can run; move an awaited one forward"},
      {"InterleavedPartsWaitForEachOther",
       {0, 1, 0, 1},
       1,
       {{"a", "F0.0 F1.0 B1.0 B0.0"}, {"b", "F0.0 F1.0 B0.0 B1.0"}},
       "schedule.orders: B1.0 (position 2) of a waits for B1.0 (position 3) of b, B0.0 (position 2) of b waits "
       "for B1.0 (position 2) of a, so none of them can run; move an awaited one forward"},
      {"InputGradientsWaitForEachOther",
       {0, 1},
       2,
       {{"a", "F0.0 I0.0 W0.0 F0.1 I0.1 W0.1"}, {"b", "F0.0 F0.1 I0.0 I0.1 W0.0 W0.1"}},
       "schedule.orders: I0.0 (position 1) of a waits for I0.0 (position 2) of b, F0.1 (position 1) of b waits "
       "for F0.1 (position 3) of a, so none of them can run; move an awaited one forward"}};
  for (const auto& one : wrong) EXPECT_EQ(fault_of(one), one.fault) << one.name;
}

TEST(ListedOrders, AreTakenAsTheyAre)
{
  const std::vector<Case> sound = {
      {"", {0, 1}, 2, {{"a", "F0.0 F0.1 B0.0 B0.1"}, {"b", "F0.0 B0.0 F0.1 B0.1"}}, ""},
      {"", {0, 1}, 2, {{"a", "F0.1 F0.0 B0.0 B0.1"}, {"b", "F0.1 F0.0 B0.0 B0.1"}}, ""},
      {"", {0}, 3, {{"a", "3x F0.0+; 3x B0.2-"}}, ""},
      {"", {0, 1}, 2, {{"a", "2x F0.0+; 2x B0.0+"}, {"b", "F0.0 F0.1 I0.0 W0.0 I0.1 W0.1"}}, ""},
      // On one device nothing is transferred, so nothing crosses.
      {"", {0, 0}, 2, {{"a", "F0.0 F0.1 F1.1 F1.0 B1.0 B1.1 B0.1 B0.0"}}, ""},
      {"", {0, 1, 1, 0}, 1, {{"a", "F0.0 F1.0 B1.0 B0.0"}, {"b", "F0.0 F1.0 B1.0 B0.0"}}, ""},
      // The parts of a device may differ in how they take micro-batches back.
      {"", {0, 1, 0, 1}, 1, {{"a", "F0.0 F1.0 B1.0 I0.0 W0.0"}, {"b", "F0.0 F1.0 I1.0 B0.0 W1.0"}}, ""},
  };
  for (const auto& one : sound) EXPECT_EQ(fault_of(one), "");

  const PipelineShape shape = shape_with({0, 1}, 2);
  const Order first = order_from("2x F0.0+; 2x B0.0+");
  const Order second = order_from("2x F0.0+ B0.0+");
  const auto orders = listed_schedule.orders(shape, {"listed", {}, {{"b", second}, {"a", first}}});
  EXPECT_EQ(orders, (std::vector<Order>{first, second}));
}

TEST(ListedOrders, AreRefusedBeforeAThousandMillionTasksAreChecked)
{
  const std::string order = "1000000000x F0.0+ B0.0+";
  EXPECT_EQ(fault_of({"", {0, 1}, 1'000'000'000, {{"a", order}, {"b", order}}, ""}),
            "schedule.orders: more than 4194304 tasks on all devices together; use fewer micro-batches");
}

TEST(ListedOrders, MayBeThoseOfEveryOtherSchedule)
{
  for (const auto& schedule : schedules()) {
    if (schedule.takes_orders || schedule.folding == Folding::DividedEnds) continue;
    for (std::size_t ranks = 1; ranks <= 5; ++ranks) {
      for (std::uint64_t microbatches = 1; microbatches <= 12; ++microbatches) {
        const std::size_t chunks = schedule.folding == Folding::OneEach ? 1 : 2;
        const PipelineShape shape = folded(schedule.folding, ranks, chunks, microbatches);
        const auto orders = schedule.orders(shape, {std::string(schedule.name)});
        ScheduleChoice choice{"listed"};
        for (std::size_t rank = 0; rank < ranks; ++rank) choice.orders[shape.devices[rank]] = orders[rank];
        EXPECT_EQ(listed_schedule.orders(shape, choice), orders)
            << fmt::format("{}, p = {}, M = {}", schedule.name, ranks, microbatches);
      }
    }
  }
}

/// Random orders: those of a play that takes any ready task, with a few tasks exchanged.
class RandomOrders {
 public:
  RandomOrders(const PipelineShape& shape, std::uint64_t seed) : shape_(shape), random_(seed)
  {
    for (std::size_t stage = 0; stage < shape.stages(); ++stage) splits_.push_back(below(2) == 0);
  }

  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(random_.next() % limit); }

  std::vector<std::vector<Task>> draw()
  {
    const auto parts = stages_by_rank(shape_);
    std::vector<std::vector<Task>> lists(shape_.ranks());
    std::vector<std::pair<std::size_t, Task>> waiting;  // with their ranks
    for (std::size_t rank = 0; rank < shape_.ranks(); ++rank) {
      for (std::uint32_t part = 0; part < parts[rank].size(); ++part) {
        for (std::uint64_t m = 0; m < shape_.microbatches; ++m) {
          for (const Opcode opcode : opcodes_of(parts[rank][part])) waiting.push_back({rank, {opcode, part, m}});
        }
      }
    }
    while (!waiting.empty()) {
      const auto next = waiting.begin() + static_cast<std::ptrdiff_t>(below(waiting.size()));
      auto& list = lists[next->first];
      list.push_back(next->second);
      std::vector<Order> orders;
      for (const auto& one : lists) orders.push_back(order_of(one));
      if (play(shape_, orders).ends) {
        waiting.erase(next);
      } else {
        list.pop_back();
      }
    }
    for (std::size_t exchanges = below(3); exchanges > 0; --exchanges) {
      auto& list = lists[below(lists.size())];
      std::swap(list[below(list.size())], list[below(list.size())]);
    }
    return lists;
  }

  static Order order_of(const std::vector<Task>& tasks)
  {
    std::vector<Run> runs;
    for (const auto& task : tasks) runs.push_back({1, {{task}}});
    return Order(runs);
  }

 private:
  std::vector<Opcode> opcodes_of(std::size_t stage) const
  {
    if (!splits_[stage]) return {Opcode::Forward, Opcode::Backward};
    return {Opcode::Forward, Opcode::BackwardInput, Opcode::BackwardWeight};
  }

  const PipelineShape& shape_;
  Pcg64 random_;
  std::vector<bool> splits_;
};

/// The micro-batches that a stage forwards or takes back, in its order.
std::vector<std::uint64_t> microbatches_of(const std::vector<Task>& tasks, std::uint32_t part, bool forwards)
{
  std::vector<std::uint64_t> microbatches;
  for (const auto& task : tasks) {
    const bool is_backward = task.opcode == Opcode::Backward || task.opcode == Opcode::BackwardInput;
    if (task.part == part && (forwards ? task.opcode == Opcode::Forward : is_backward)) {
      microbatches.push_back(task.microbatch);
    }
  }
  return microbatches;
}

TEST(FaultsOfOrders, AreFoundExactlyWhereThePlayGetsStuckOrTransfersCross)
{
  std::size_t stuck = 0;
  std::size_t crossing = 0;
  std::size_t sound = 0;
  const std::vector<PipelineShape> shapes = {shape_with({0, 1}, 2), shape_with({0, 1, 2}, 2),
                                             shape_with({0, 1, 1, 0}, 2), shape_with({0, 0, 1}, 2),
                                             shape_with({0, 1, 0, 1}, 1)};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const PipelineShape& shape = shapes[i];
    for (std::uint64_t seed = 1; seed <= 150; ++seed) {
      const auto lists = RandomOrders(shape, seed).draw();
      std::vector<Order> orders;
      for (const auto& list : lists) orders.push_back(RandomOrders::order_of(list));
      bool crosses = false;
      std::vector<std::uint32_t> parts(shape.ranks(), 0);
      for (std::size_t stage = 0; stage + 1 < shape.stages(); ++stage) {
        const std::size_t rank = shape.rank_of_stage[stage];
        const std::size_t next = shape.rank_of_stage[stage + 1];
        const std::uint32_t part = parts[rank]++;
        if (rank == next) continue;
        for (const bool forwards : {false, true}) {
          crosses = crosses ||
                    microbatches_of(lists[rank], part, forwards) != microbatches_of(lists[next], parts[next], forwards);
        }
      }
      const bool ends = play(shape, orders).ends;
      const auto faults = faults_of_orders(shape, orders);
      EXPECT_EQ(faults.empty(), ends && !crosses)
          << fmt::format("shape {}, seed {}: {}", i, seed, faults.empty() ? "no fault" : faults.front());
      ++(ends && !crosses ? sound : crosses ? crossing : stuck);
    }
  }
  EXPECT_GT(stuck, 20U);
  EXPECT_GT(crossing, 20U);
  EXPECT_GT(sound, 20U);
}

}  // namespace
}  // namespace isobar::schedules::listed_test
