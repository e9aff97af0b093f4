#include "core/check/program_checker.hpp"
#include "core/errors.hpp"
#include "core/order/order_text.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/program/player.hpp"
#include "core/program/walk.hpp"
#include "schedules/lowering/replicas.hpp"
#include "schedules/orders/order_csv.hpp"
#include "schedules/orders/schedule.hpp"
#include "tests/support/experts.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

// Passes of two micro-batches that run layer by layer together while tokens travel to experts and back.
namespace isobar::schedules::overlapped_experts_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Blocks of two layers, of which the second one has experts, between a first and a last layer without.
struct Model {
  std::size_t blocks = 2;
  double forward = 1;  ///< seconds of a layer; a backward takes twice as long, half of it for weights
  double exchange = 0.5;

  std::size_t layers() const { return 2 * blocks + 2; }
};

Workload workload_of(const Model& model)
{
  Workload workload;
  workload.optimizer = Optimizer::Sgd;
  for (std::size_t i = 0; i < model.layers(); ++i) {
    Layer& layer = workload.layers.emplace_back();
    layer.name = fmt::format("layer{}", i);
    layer.forward = Flops(model.forward);
    layer.backward = Flops(2 * model.forward);
    layer.backward_weight = Flops(model.forward);
    layer.output = Bytes(0);
    layer.gradient = Bytes(0);
    layer.activations = Bytes(100);
    const bool has_experts = i % 2 == 0 && i > 0 && i + 1 < model.layers();
    // Of two devices, each sends half of what is dispatched.
    if (has_experts) testing_support::add_experts(layer, 2, 0, Flops(0), Bytes(2000 * model.exchange));
  }
  return with_experts(workload, {2});
}

/// `devices` of a pipeline with two replicas. Stages have whole blocks; the first and the last have one layer more.
Plan plan_of(const Model& model, const std::string& schedule, std::size_t devices, std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.schedule = schedule_from_text(schedule);
  plan.goal.microbatches = 2 * microbatches;
  plan.experts = {2};
  const Schedule& known = require_schedule(plan.goal.schedule.name);
  const auto chunks_given = plan.goal.schedule.numbers.find("chunks");
  const std::size_t chunks = known.folding == Folding::OneEach                  ? 1
                             : chunks_given == plan.goal.schedule.numbers.end() ? 2
                                                                                : chunks_given->second.front();
  const std::size_t stages = devices * chunks;
  for (std::size_t i = 0; i < stages; ++i) {
    const std::size_t device = rank_of_stage(known.folding, i, devices);
    const std::size_t first = i == 0 ? 0 : 1 + 2 * (model.blocks * i / stages);
    const std::size_t end = i + 1 == stages ? model.layers() : 1 + 2 * (model.blocks * (i + 1) / stages);
    for (std::size_t layer = first; layer < end; ++layer) {
      Stage& stage = plan.stages.emplace_back();
      stage.first_layer = stage.last_layer = layer;
      for (std::size_t replica = 0; replica < 2; ++replica) {
        stage.replicas.push_back({microbatches, {Shard{fmt::format("d{}.{}", device, replica)}}});
      }
    }
    plan.stages[first].starts_chunk = i > 0 && device == rank_of_stage(known.folding, i - 1, devices);
  }
  return plan;
}

/// Transfers take a millisecond for a byte.
PlayerRates rates()
{
  PlayerRates rates;
  rates.transfer = [](std::size_t, std::size_t, Bytes size) {
    return TransferTimes{Seconds(0), Seconds(size.value / 1000)};
  };
  return rates;
}

double step_of(const Model& model, const std::string& schedule, std::size_t devices, std::uint64_t microbatches)
{
  const auto program =
      testing_support::unit_program(plan_of(model, schedule, devices, microbatches), workload_of(model));
  return play_program(*program, rates()).periods.front().end.value;
}

std::string tasks_of(const Order& order, std::uint64_t first, std::uint64_t end)
{
  std::vector<std::string> names;
  for (std::uint64_t i = first; i < end; ++i) names.push_back(name_of(order.at(i)));
  return fmt::format("{}", fmt::join(names, " "));
}

TEST(OverlappedExperts, AlternateTheLayersOfAForwardAndOfABackward)
{
  const auto orders = orders_of(plan_of({}, "1f1b(overlap_experts=1)", 1, 3));
  ASSERT_EQ(orders.size(), 2U);
  EXPECT_EQ(orders[0], orders[1]);
  ASSERT_EQ(orders[0].length(), 36U);
  EXPECT_EQ(tasks_of(orders[0], 0, 6), "F0.0 F1.0 F2.0 F3.0 F4.0 F5.0");
  // The ends of the model are the first and the last.
  EXPECT_EQ(tasks_of(orders[0], 6, 18), "F0.1 B5.0 F1.1 B4.0 F2.1 B3.0 F3.1 B2.0 F4.1 B1.0 F5.1 B0.0");
  EXPECT_EQ(tasks_of(orders[0], 18, 30), "F0.2 B5.1 F1.2 B4.1 F2.2 B3.1 F3.2 B2.1 F4.2 B1.1 F5.2 B0.1");
  EXPECT_EQ(tasks_of(orders[0], 30, 36), "B5.2 B4.2 B3.2 B2.2 B1.2 B0.2");
}

// The weight gradients of a layer come before the next layer of the forward, so that what the input gradient sends
// travels beside both.
TEST(OverlappedExperts, ComputeWeightGradientsOfALayerBeforeTheNextForward)
{
  const auto orders = orders_of(plan_of({.blocks = 2}, "dualpipe-v(overlap_experts=1)", 1, 3));
  // The stages of the device have layers 0 to 2 and 3 to 5.
  EXPECT_EQ(tasks_of(orders[0], 0, 6), "F0.0 F1.0 F2.0 F3.0 F4.0 F5.0");
  EXPECT_EQ(tasks_of(orders[0], 6, 15), "F0.1 I5.0 W5.0 F1.1 I4.0 W4.0 F2.1 I3.0 W3.0");
  EXPECT_EQ(tasks_of(orders[0], 15, 24), "F3.1 I2.0 W2.0 F4.1 I1.0 W1.0 F5.1 I0.0 W0.0");
}

TEST(OverlappedExperts, ContinueWithTheRestOfTheLongerPass)
{
  // The first stage has layers 0 to 2, the next two 3 to 4 and 5 to 6, and the last one 7 to 11.
  const auto orders = orders_of(plan_of({.blocks = 5}, "interleaved(chunks=2;overlap_experts=1)", 2, 4));
  const Order& last = orders[2];  // of the first replica on the second device
  EXPECT_EQ(tasks_of(last, 0, 9), "F0.0 F1.0 F0.1 F1.1 F2.0 F3.0 F4.0 F5.0 F6.0");
  EXPECT_EQ(tasks_of(last, 9, 19), "B6.0 F2.1 B5.0 F3.1 B4.0 F4.1 B3.0 F5.1 B2.0 F6.1");
  EXPECT_EQ(tasks_of(last, 19, 26), "B6.1 F0.2 B5.1 F1.2 B4.1 B3.1 B2.1");
}

TEST(OverlappedExperts, TakeThePairOfTheLongerLaneWhereOneIsAlwaysBusy)
{
  for (const std::size_t blocks : {1U, 2U, 5U}) {
    for (const double exchange : {0.0, 0.25, 1.0}) {
      const Model model{blocks, 1, exchange};
      const auto layers = static_cast<double>(model.layers());
      const double exchanged = 4 * exchange * static_cast<double>(blocks);
      for (const std::uint64_t microbatches : {1U, 2U, 6U}) {
        const auto pairs = static_cast<double>(microbatches - 1);
        // A forward and a backward alone wait for their exchanges; in a pair all are hidden.
        EXPECT_NEAR(step_of(model, "1f1b(overlap_experts=1)", 1, microbatches), 3 * layers * (pairs + 1) + exchanged,
                    1e-9);
        EXPECT_NEAR(step_of(model, "1f1b", 1, microbatches), (3 * layers + exchanged) * (pairs + 1), 1e-9);
      }
    }
  }
}

TEST(OverlappedExperts, HaveOneExchangeUnderWayOnADevice)
{
  // Exchanges of blocks that take no time to compute come one after another.
  const Model model{3, 0, 1};
  for (const std::uint64_t microbatches : {1U, 2U, 5U}) {
    EXPECT_NEAR(step_of(model, "1f1b(overlap_experts=1)", 1, microbatches), 12.0 * static_cast<double>(microbatches),
                1e-9);
  }
  // In a pair that is bound by them, too: each takes as long as two layers of a backward.
  const Model slow{4, 1, 4};
  const double two = step_of(slow, "1f1b(overlap_experts=1)", 1, 2);
  const double three = step_of(slow, "1f1b(overlap_experts=1)", 1, 3);
  EXPECT_GE(three - two, 4 * 4 * 4.0);
  EXPECT_LE(three - two, 4 * 4 * 4.0 + 6);  // and at most the ends of the model
}

TEST(OverlappedExperts, OfAPipelineTakeAPairForEachMicroBatch)
{
  const Model model{8, 1, 0.5};
  for (const std::size_t devices : {2U, 4U}) {
    // Of the first and the last device, which have a layer more; in turn, exchanges add to it.
    const double each = 3 * (16.0 / static_cast<double>(devices) + 1);
    const double more = step_of(model, "1f1b(overlap_experts=1)", devices, 24);
    const double less = step_of(model, "1f1b(overlap_experts=1)", devices, 20);
    EXPECT_NEAR(more - less, 4 * each, 1e-9) << devices;
    EXPECT_GT(step_of(model, "1f1b", devices, 24) - step_of(model, "1f1b", devices, 20), 4 * each);
  }
}

/// How many collectives of each kind and size a rank takes part in, and how many bytes it holds at most.
std::map<std::string, std::size_t> collectives_of(const Program& program, std::size_t rank)
{
  std::map<std::string, std::size_t> counts;
  for (LaneId lane = 0; lane < program.lanes(rank).size(); ++lane) {
    for (std::uint64_t i = 0; i < program.length(rank, lane); ++i) {
      const Instruction instruction = program.at(rank, lane, i);
      if (!is_collective(instruction.opcode)) continue;
      ++counts[fmt::format("{} {} {}", program.lanes(rank)[lane].name, name_of(instruction.opcode),
                           instruction.size.value)];
    }
  }
  return counts;
}

TEST(OverlappedExperts, SendWhatPassesInTurnSend)
{
  const Model model{5, 1, 0.5};
  for (const std::string name : {"1f1b", "interleaved", "dualpipe-v"}) {
    const Workload workload = workload_of(model);
    const auto in_turn = testing_support::unit_program(plan_of(model, name, 2, 6), workload);
    const auto overlapped = testing_support::unit_program(plan_of(model, name + "(overlap_experts=1)", 2, 6), workload);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(collectives_of(*overlapped, rank), collectives_of(*in_turn, rank)) << name;
    }
  }
}

TEST(OverlappedExperts, MakeSoundProgramsThatEnd)
{
  const Model model{11, 1, 0.75};
  const Workload workload = workload_of(model);
  for (const std::string schedule :
       {"1f1b(overlap_experts=1)", "interleaved(chunks=2;overlap_experts=1)", "interleaved(chunks=3;overlap_experts=1)",
        "interleaved(chunks=2;group=5;overlap_experts=1)", "dualpipe-v(overlap_experts=1)"}) {
    for (const std::size_t devices : {1U, 2U, 3U, 4U}) {
      for (const std::uint64_t microbatches : {1U, 2U, 3U, 5U, 8U, 11U}) {
        SCOPED_TRACE(fmt::format("{}, {} devices, {} micro-batches", schedule, devices, microbatches));
        const bool has_group = schedule.find("group") != std::string::npos;
        if (has_group && (microbatches < 5 || (microbatches % 5 > 0 && microbatches % 5 < devices))) continue;
        const auto program = testing_support::unit_program(plan_of(model, schedule, devices, microbatches), workload);
        EXPECT_THAT(faults_of(*program), IsEmpty());
        EXPECT_EQ(deadlock_of(*program).value_or(""), "");
      }
    }
  }
}

// Fast exchanges cost nothing: the order of the layers is another one, and nothing else.
TEST(OverlappedExperts, AreNoSlowerThanPassesInTurnOnOneDeviceOfAPipeline)
{
  for (const double exchange : {0.1, 0.5, 1.0, 2.0, 5.0, 20.0}) {
    const Model model{4, 1, exchange};
    for (const std::uint64_t microbatches : {2U, 3U, 8U}) {
      EXPECT_LE(step_of(model, "1f1b(overlap_experts=1)", 1, microbatches),
                step_of(model, "1f1b", 1, microbatches) + 1e-9)
          << exchange;
    }
  }
}

// A layer keeps what a micro-batch needs until its backward, so that two of them are in memory while they pass.
TEST(OverlappedExperts, HoldTheLayersOfTwoMicroBatches)
{
  const Model model{4, 1, 0};
  const auto held = [&](const std::string& schedule) {
    const auto program = testing_support::unit_program(plan_of(model, schedule, 1, 4), workload_of(model));
    return play_program(*program, rates()).peak_memory[0][0].value - program->resident(0, Tier::Device).value;
  };
  EXPECT_EQ(held("1f1b"), 100.0 * 10);
  // The forward is a layer ahead of the backward.
  EXPECT_EQ(held("1f1b(overlap_experts=1)"), 100.0 * 11);
}

std::string fault_of(const std::string& schedule, std::size_t devices = 2)
{
  try {
    orders_of(plan_of({}, schedule, devices, 4));
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "";
}

TEST(OverlappedExperts, RefuseWhatCannotBe)
{
  EXPECT_EQ(fault_of("1f1b(overlap_experts=1;warm_up=3/3/1/1)"), "");
  EXPECT_EQ(fault_of("1f1b(overlap_experts=1;warm_up=4/4/4/4)"), "");  // all forwards come first
  EXPECT_EQ(fault_of("1f1b(overlap_experts=1;warm_up=2/2/0/0)"),
            "schedule: warm_up[1] is 0, and overlap_experts runs a backward pass beside the forward pass of a later "
            "micro-batch; give 1 or more");
  EXPECT_EQ(fault_of("1f1b(overlap_experts=1;warm_up=2/2/2/2)"),
            "schedule: warm_up[0] is 2 and warm_up[1] is 2; with overlap_experts give a device more than the next one");
  EXPECT_EQ(fault_of("1f1b(overlap_experts=1;warm_up=auto)"),
            "schedule: 1f1b(overlap_experts=1;warm_up=auto): warm_up is chosen for passes in turn; give numbers with "
            "overlap_experts, or leave it out");
  EXPECT_EQ(fault_of("1f1b(overlap_experts=0)"),
            "schedule: 1f1b(overlap_experts=0): overlap_experts is 1; leave it out for passes in turn");
  EXPECT_EQ(fault_of("1f1b(overlap_experts=auto)"),
            "schedule: 1f1b(overlap_experts=auto): overlap_experts is 1; leave it out for passes in turn");
  EXPECT_EQ(fault_of("gpipe(overlap_experts=1)"), "schedule: gpipe takes no overlap_experts; leave it out");
  EXPECT_EQ(fault_of("zero-bubble-h1(overlap_experts=1)"),
            "schedule: zero-bubble-h1 takes no overlap_experts; it takes warm_up");
}

TEST(OverlappedExperts, RefusePipelinesInWhichAStageHasMoreReplicasThanAnother)
{
  Plan plan = plan_of({}, "1f1b(overlap_experts=1)", 2, 4);
  for (auto& stage : plan.stages) {
    if (stage.replicas.front().shards.front().device != "d1.0") continue;
    for (auto& replica : stage.replicas) replica.microbatches = 2;
    stage.replicas.push_back({2, {Shard{"d1.2"}}});
    stage.replicas.push_back({2, {Shard{"d1.3"}}});
  }
  try {
    orders_of(plan);
    ADD_FAILURE();
  } catch (const InputError& fault) {
    EXPECT_STREQ(fault.what(),
                 "schedule: overlap_experts needs pipelines with one replica of each stage; give all stages replicas "
                 "with the same micro-batches");
  }
}

/// The tasks of an order, and which run together.
std::vector<std::pair<std::string, bool>> names_of(const Order& order)
{
  std::vector<std::pair<std::string, bool>> names;
  for (const ListedTask& each : listed_tasks(order)) names.emplace_back(name_of(each.task), each.overlaps);
  return names;
}

/// The plan with the orders of its first pipeline listed, as torch's file has them.
Plan listed_by_csv(Plan plan)
{
  const auto [shape, orders] = first_pipeline_of(plan);
  const std::string text = orders_to_csv(shape, orders);
  const CsvOrders read = orders_from_csv(text, "orders.csv");
  EXPECT_EQ(read.shape.rank_of_stage, shape.rank_of_stage);
  plan.goal.schedule = {"listed", {{std::string(overlap_experts_key), {1}}}};
  for (std::size_t rank = 0; rank < orders.size(); ++rank) {
    EXPECT_EQ(names_of(read.orders[rank]), names_of(orders[rank])) << rank;
    plan.goal.schedule.orders[shape.devices[rank]] = read.orders[rank];
  }
  return plan;
}

TEST(OverlappedExperts, AreTheSameByListedOrders)
{
  const Model model{.blocks = 8};
  for (const char* schedule :
       {"1f1b(overlap_experts=1)", "interleaved(chunks=2;overlap_experts=1)", "dualpipe-v(overlap_experts=1)"}) {
    for (const std::size_t devices : {2U, 4U}) {
      const Plan plan = plan_of(model, schedule, devices, 8);
      const Plan listed = listed_by_csv(plan);
      const auto wanted = orders_of(plan);
      const auto found = orders_of(listed);
      ASSERT_EQ(found.size(), 2 * devices);
      for (std::size_t rank = 0; rank < found.size(); ++rank) {
        ASSERT_EQ(found[rank].length(), wanted[rank].length());
        for (std::uint64_t i = 0; i < found[rank].length(); ++i) ASSERT_EQ(found[rank].at(i), wanted[rank].at(i));
      }
      const auto step = [&](const Plan& of) {
        const auto program = testing_support::unit_program(of, workload_of(model));
        EXPECT_THAT(faults_of(*program), IsEmpty());
        return play_program(*program, rates()).periods.front().end.value;
      };
      EXPECT_EQ(step(listed), step(plan)) << schedule;
    }
  }
}

TEST(OverlappedExperts, AreSaidByListedOrdersAndByTheirNumber)
{
  const auto fault = [](const Plan& plan) {
    try {
      orders_of(plan);
    } catch (const InputError& found) {
      return std::string(found.what());
    }
    return std::string();
  };
  const Plan listed = listed_by_csv(plan_of({}, "1f1b(overlap_experts=1)", 2, 4));
  EXPECT_EQ(fault(listed), "");
  Plan without_number = listed;
  without_number.goal.schedule.numbers.clear();
  EXPECT_EQ(fault(without_number),
            "schedule.orders: has passes that run together (&); write overlap_experts: 1 beside them");
  Plan in_turn = listed;
  in_turn.goal.schedule.orders.clear();
  const auto [shape, orders] = first_pipeline_of(plan_of({}, "1f1b", 2, 4));
  for (std::size_t rank = 0; rank < orders.size(); ++rank) {
    in_turn.goal.schedule.orders[shape.devices[rank]] = orders[rank];
  }
  EXPECT_EQ(fault(in_turn), "schedule.overlap_experts: 1, and no passes of the orders run together (&); leave it out");
  in_turn.goal.schedule.numbers.clear();
  EXPECT_EQ(fault(in_turn), "");
  Plan without_experts = listed;
  without_experts.experts = {};
  EXPECT_EQ(fault(without_experts),
            "schedule: overlap_experts is for replicas that divide experts; leave it out, or divide them");
}

}  // namespace
}  // namespace isobar::schedules::overlapped_experts_test
