#include "schedules/orders/divided_ends.hpp"

#include "core/errors.hpp"
#include "core/order/order_text.hpp"
#include "schedules/orders/listed.hpp"
#include "tests/schedules/orders/order_play.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::schedules::divided_ends_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Devices d0, d1, … that divide the first and the last stage, and have one of the others each.
PipelineShape divided(std::size_t ranks, std::uint64_t microbatches)
{
  PipelineShape shape;
  shape.microbatches = microbatches;
  std::vector<std::size_t> all(ranks);
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (std::size_t stage = 0; stage < ranks + 2; ++stage) {
    const std::size_t rank = rank_of_stage(Folding::DividedEnds, stage, ranks);
    shape.rank_of_stage.push_back(rank);
    shape.ranks_of_stage.push_back(stage == 0 || stage == ranks + 1 ? all : std::vector{rank});
  }
  for (const std::size_t rank : all) shape.devices.push_back(fmt::format("d{}", rank));
  return shape;
}

const std::vector<std::string>& names()
{
  static const std::vector<std::string> all = {"1f1b-interlaced", "1f1b-vocab-1", "1f1b-vocab-2"};
  return all;
}

std::vector<Order> orders_of(const std::string& name, std::size_t ranks, std::uint64_t microbatches)
{
  return require_schedule(name).orders(divided(ranks, microbatches), {name});
}

/// When the last device has ended its last pass, where a stage takes 1 forward and 2 backward, the divided ones
/// nothing, and ranks that divide them wait for each other. 0 if they wait forever.
double makespan(const std::string& name, std::size_t ranks, std::uint64_t microbatches)
{
  const PipelineShape shape = divided(ranks, microbatches);
  const auto orders = orders_of(name, ranks, microbatches);
  const bool sums_loss = sums_loss_with_gradients({name});
  const auto stages = stages_by_rank(shape);
  std::map<std::tuple<bool, std::size_t, std::uint64_t>, std::vector<double>> ends;  // of all that compute it
  const auto end_of = [&](bool forward, std::size_t stage, std::uint64_t microbatch) {
    const auto found = ends.find({forward, stage, microbatch});
    const bool is_whole = found != ends.end() && found->second.size() == shape.ranks_of(stage).size();
    return is_whole ? *std::max_element(found->second.begin(), found->second.end()) : -1;
  };
  const std::size_t last = shape.stages() - 1;
  const auto ready_at = [&](std::size_t stage, const Task& task) -> double {
    if (task.opcode == Opcode::Forward) return stage == 0 ? 0 : end_of(true, stage - 1, task.microbatch);
    if (task.opcode == Opcode::BackwardWeight) return end_of(true, stage, task.microbatch);
    if (stage == last) return sums_loss ? 0 : end_of(true, stage, task.microbatch);
    const double gradient = end_of(false, stage + 1, task.microbatch);
    const double loss = sums_loss && stage + 1 == last ? end_of(true, last, task.microbatch) : 0;
    return std::min(gradient, loss) < 0 ? -1 : std::max(gradient, loss);
  };
  std::vector<double> free(ranks, 0);
  std::vector<std::uint64_t> done(ranks, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (; done[rank] < orders[rank].length(); ++done[rank]) {
        const Task task = orders[rank].at(done[rank]);
        const std::size_t stage = stages[rank][task.part];
        const double ready = ready_at(stage, task);
        if (ready < 0) break;
        const bool is_divided = stage == 0 || stage == last;
        const bool is_forward = task.opcode == Opcode::Forward;
        free[rank] = std::max(free[rank], ready) + (is_divided ? 0 : is_forward ? 1 : 2);
        if (task.opcode != Opcode::BackwardWeight) ends[{is_forward, stage, task.microbatch}].push_back(free[rank]);
        moved = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (done[rank] < orders[rank].length()) return 0;
  }
  return *std::max_element(free.begin(), free.end());
}

TEST(DividedEnds, HaveEachPassOfEachPartOnce)
{
  for (const auto& name : names()) {
    for (std::size_t ranks = 2; ranks <= 7; ++ranks) {
      for (std::uint64_t microbatches = 1; microbatches <= 20; ++microbatches) {
        SCOPED_TRACE(fmt::format("{}, p = {}, M = {}", name, ranks, microbatches));
        for (const auto& order : orders_of(name, ranks, microbatches)) {
          const bool splits = name == "1f1b-vocab-2";
          ASSERT_EQ(order.length(), (splits ? 7 : 6) * microbatches);
          for (std::uint32_t part = 0; part < 3; ++part) {
            const bool is_split = splits && part == 2;
            EXPECT_EQ(order.count(Opcode::Forward, part), microbatches);
            EXPECT_EQ(order.count(Opcode::Backward, part), is_split ? 0 : microbatches);
            EXPECT_EQ(order.count(Opcode::BackwardInput, part), is_split ? microbatches : 0);
            EXPECT_EQ(order.count(Opcode::BackwardWeight, part), is_split ? microbatches : 0);
          }
        }
      }
    }
  }
}

TEST(DividedEnds, HoldAsManyMicroBatchesAsTheSumsThatTheyWaitForNeed)
{
  for (std::size_t p = 2; p <= 9; ++p) {
    for (const std::uint64_t M : {1, 2, 3, 8, 40}) {
      for (std::size_t r = 0; r < p; ++r) {
        SCOPED_TRACE(fmt::format("p = {}, M = {}, r = {}", p, M, r));
        const auto held = [&](const std::string& name, std::uint32_t part) {
          return most_in_flight(orders_of(name, p, M)[r], part);
        };
        EXPECT_EQ(held("1f1b-vocab-1", 1), std::min<std::uint64_t>(M, p - r + 2));
        EXPECT_EQ(held("1f1b-vocab-2", 1), std::min<std::uint64_t>(M, p - r + 1));
        EXPECT_EQ(held("1f1b-interlaced", 1), std::min<std::uint64_t>(M, 1 + (3 * (p - 1 - r) + 1) / 2));
        for (const auto& name : names()) EXPECT_EQ(held(name, 2), 1U) << name;
      }
    }
  }
}

TEST(DividedEnds, IdleAboutAsLongAsUnderOneForwardOneBackward)
{
  for (std::size_t p = 2; p <= 12; ++p) {
    for (const std::size_t M : {3 * p, 3 * p + 1, 50 * p}) {
      SCOPED_TRACE(fmt::format("p = {}, M = {}", p, M));
      const auto work = static_cast<double>(3 * M);
      const auto span = static_cast<double>(3 * p);
      EXPECT_EQ(makespan("1f1b-interlaced", p, M), work + span - 3);
      EXPECT_EQ(makespan("1f1b-vocab-2", p, M), work + span - (p % 3 == 0 ? 1 : 2));
      if (p < 5) continue;
      EXPECT_EQ(makespan("1f1b-vocab-1", p, M), work + span + 2 - static_cast<double>(p % 3));
    }
  }
}

TEST(DividedEnds, EndForFewMicroBatches)
{
  for (const auto& name : names()) {
    for (std::size_t ranks = 2; ranks <= 9; ++ranks) {
      for (std::uint64_t microbatches = 1; microbatches <= 24; ++microbatches) {
        EXPECT_GT(makespan(name, ranks, microbatches), 0)
            << fmt::format("{}, p = {}, M = {}", name, ranks, microbatches);
      }
    }
  }
}

TEST(DividedEnds, HaveTheSameSlotsForBillionsOfMicroBatches)
{
  constexpr std::uint64_t billions = 5'000'000'000;
  for (const auto& name : names()) {
    const auto small = orders_of(name, 5, 100);
    const auto large = orders_of(name, 5, billions);
    for (std::size_t rank = 0; rank < 5; ++rank) {
      EXPECT_EQ(slots_of(large[rank]), slots_of(small[rank])) << name;
      EXPECT_LE(slots_of(large[rank]), 60U) << name;
      const Task last{Opcode::Forward, 1, billions - 1};
      EXPECT_EQ(large[rank].at(large[rank].position_of(last)), last);
    }
  }
}

TEST(DividedEnds, HaveTheirPassesThroughDividedStagesInOneOrder)
{
  for (const auto& name : {"1f1b-interlaced", "1f1b-vocab-1"}) {
    for (std::size_t ranks = 2; ranks <= 9; ++ranks) {
      for (std::uint64_t microbatches = 1; microbatches <= 24; ++microbatches) {
        const PipelineShape shape = divided(ranks, microbatches);
        EXPECT_THAT(faults_of_orders(shape, orders_of(name, ranks, microbatches)), IsEmpty())
            << fmt::format("{}, p = {}, M = {}", name, ranks, microbatches);
      }
    }
  }
}

std::string fault_of(const std::string& schedule, const PipelineShape& shape)
{
  try {
    require_schedule(schedule).orders(shape, {schedule});
    return "";
  } catch (const InputError& fault) {
    return fault.what();
  }
}

TEST(DividedEnds, RefuseOtherStages)
{
  EXPECT_EQ(fault_of("1f1b-vocab-1", folded(Folding::OneEach, 4, 1, 8)),
            "schedule: 1f1b-vocab-1 needs a stage on each of several devices, between two that all of them divide, not "
            "4 stages on 4 devices");
  EXPECT_EQ(fault_of("1f1b-interlaced", divided(1, 8)),
            "schedule: 1f1b-interlaced needs a stage on each of several devices, between two that all of them divide, "
            "not 3 stages on 1 device");
  PipelineShape shape = divided(3, 8);
  shape.ranks_of_stage.back() = {0, 1};
  EXPECT_EQ(fault_of("1f1b-vocab-2", shape),
            "schedule: 1f1b-vocab-2 needs stages[4] divided among all devices, in the order of their stages");
  shape = divided(3, 8);
  std::swap(shape.ranks_of_stage[1], shape.ranks_of_stage[2]);
  EXPECT_EQ(fault_of("1f1b-vocab-2", shape), "schedule: 1f1b-vocab-2 needs stages[1] on d0 alone");
}

TEST(DividedEnds, AreRefusedByOtherSchedules)
{
  for (const auto& name : {"1f1b", "interleaved", "zero-bubble-v"}) {
    EXPECT_EQ(fault_of(name, divided(2, 8)),
              fmt::format("schedule: {} works with devices that have each of their stages alone, and 2 devices divide "
                          "stages[0]; use 1f1b-interlaced, 1f1b-vocab-1, 1f1b-vocab-2, listed",
                          name));
  }
}

/// "F0.0 B0.0": a letter, the part, and the micro-batch.
Order order_of(const std::string& text)
{
  Run run{1, {}};
  std::istringstream tasks(text);
  for (std::string task; tasks >> task;) {
    const auto part = static_cast<std::uint32_t>(task[1] - '0');
    run.slots.push_back({{opcode_from_letter(task[0]).value(), part, static_cast<std::uint64_t>(task[3] - '0')}});
  }
  return Order({run});
}

/// What listing orders of two devices with two micro-batches finds wrong.
std::vector<std::string> faults_of_listed(const std::string& first, const std::string& second)
{
  const PipelineShape shape = divided(2, 2);
  return faults_of_orders(shape, {order_of(first), order_of(second)});
}

constexpr auto sound = "F0.0 F1.0 F2.0 B2.0 B1.0 B0.0 F0.1 F1.1 F2.1 B2.1 B1.1 B0.1";

TEST(DividedEnds, MayBeListed)
{
  EXPECT_THAT(faults_of_listed(sound, sound), IsEmpty());
}

TEST(DividedEnds, AreNotListedInOtherOrdersOnDevicesThatMeet)
{
  EXPECT_THAT(
      faults_of_listed(sound, "F0.0 F0.1 F1.0 F2.0 B2.0 B1.0 B0.0 F1.1 F2.1 B2.1 B1.1 B0.1"),
      ElementsAre("schedule.orders: d1 has F0.1 (position 1) where d0 has F2.0 (position 2); devices that divide "
                  "stages have the passes through these in one order"));
}

TEST(DividedEnds, AreNotListedWithWholeBackwardsOnOneDeviceAndHalvesOnAnother)
{
  EXPECT_THAT(faults_of_listed(sound, "F0.0 F1.0 F2.0 I2.0 W2.0 B1.0 B0.0 F0.1 F1.1 F2.1 I2.1 W2.1 B1.1 B0.1"),
              ElementsAre("schedule.orders.d1: has halves of backwards of stage 3, and d0, with which it divides the "
                          "stage, has whole ones; use one kind on both"));
}

TEST(DividedEnds, AreNotListedBeforeWhatOtherStagesOfTheDeviceMake)
{
  EXPECT_THAT(faults_of_listed(sound, "F0.0 F2.0 F1.0 B2.0 B1.0 B0.0 F0.1 F1.1 F2.1 B2.1 B1.1 B0.1"),
              ElementsAre("schedule.orders: F2.0 (position 1) of d1 waits for F1.0 (position 2) of d1, so none of them "
                          "can run; move an awaited one forward"));
}

}  // namespace
}  // namespace isobar::schedules::divided_ends_test
