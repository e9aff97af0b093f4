#include "core/check/checked_step.hpp"
#include "core/check/program_checker.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/transfer_rules.hpp"
#include "core/program/collective.hpp"
#include "core/program/player.hpp"
#include "core/steps/planned_step.hpp"
#include "schedules/lowering/fold.hpp"
#include "schedules/lowering/order_picture.hpp"
#include "schedules/lowering/replicas.hpp"
#include "schedules/lowering/schedule.hpp"
#include "schedules/orders/divided_ends.hpp"
#include "tests/support/editable_program.hpp"
#include "tests/support/shards.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

// Plans whose devices divide some stages and have others alone.
namespace isobar::schedules::partly_divided_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::EditableProgram;

const std::vector<std::string>& names()
{
  static const std::vector<std::string> all = {"1f1b-interlaced", "1f1b-vocab-1", "1f1b-vocab-2"};
  return all;
}

double uniform(std::mt19937_64& random, double low, double high)
{
  return std::uniform_real_distribution<double>(low, high)(random);
}

/// Each pair of endpoints has a path of its own.
class OwnPaths : public Network {
 public:
  explicit OwnPaths(std::function<Path()> next, std::size_t endpoints) : endpoints_(endpoints)
  {
    for (std::size_t i = 0; i < endpoints * endpoints; ++i) paths_.push_back(next());
  }
  Path path(std::size_t from, std::size_t to) const override { return paths_[from * endpoints_ + to]; }
  std::vector<std::string> links(std::size_t, std::size_t) const override { return {}; }

 private:
  std::size_t endpoints_;
  std::vector<Path> paths_;
};

struct Case {
  Plan plan;
  Workload workload;
  Cluster cluster;
};

/// Devices d0, d1, … of 1 GFLOP/s that divide the first and the last layer among `ranks` of each replica, and have one
/// of the others each.
Case divided(const std::string& schedule, std::size_t ranks, std::uint64_t microbatches, std::size_t replicas = 1)
{
  Case each;
  const std::uint64_t taken = replicas == 1 ? 0 : microbatches;
  each.plan.goal.schedule = {schedule};
  each.plan.goal.microbatches = microbatches * replicas;
  Stage ends;
  for (std::size_t replica = 0; replica < replicas; ++replica) {
    Replica& all = ends.replicas.emplace_back();
    all.microbatches = taken;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      all.shards.push_back({fmt::format("d{}", replica * ranks + rank), 1 / static_cast<double>(ranks)});
    }
  }
  for (std::size_t layer = 0; layer < ranks + 2; ++layer) {
    Stage& stage = each.plan.stages.emplace_back(ends);
    stage.first_layer = stage.last_layer = layer;
    if (layer == 0 || layer == ranks + 1) continue;
    for (Replica& replica : stage.replicas) replica.shards = {{replica.shards[layer - 1].device}};
  }
  each.workload = testing_support::chain(std::vector<double>(ranks + 2, 1), 80, 80, 80);
  for (auto& layer : each.workload.layers) {
    layer.gradient = Bytes(80);
    layer.backward_weight = layer.backward * 0.5;
    layer.split = Split{.name = "words", .units = 12, .parameters = layer.parameters / 12 * 12};
  }
  each.workload.layers.back().split->gathered = Bytes(5);
  for (std::size_t i = 0; i < ranks * replicas; ++i) {
    Device& device = each.cluster.devices.emplace_back();
    device.name = fmt::format("d{}", i);
    device.speed = FlopsPerSecond(1e9);
    device.memory = Bytes(1e15);
  }
  each.cluster.network = std::make_shared<OwnPaths>(
      [] {
        return Path{Seconds(0), BytesPerSecond(1e9)};
      },
      ranks * replicas + 1);
  return each;
}

std::unique_ptr<Program> program_of(const Case& each)
{
  return make_program(each.plan, each.workload, each.cluster);
}

double step_of(const Case& each, const Program& program)
{
  return play_program(program, nominal_rates(each.plan, each.cluster)).periods.front().step_time.value;
}

Case random_case(std::mt19937_64& random)
{
  const std::size_t ranks = 2 + random() % 3;
  const std::size_t replicas = 1 + random() % 2;
  Case each = divided(names()[random() % names().size()], ranks, 1 + random() % 9, replicas);
  for (auto& device : each.cluster.devices) device.speed = FlopsPerSecond(uniform(random, 5e8, 5e9));
  each.cluster.network = std::make_shared<OwnPaths>(
      [&random] {
        return Path{Seconds(uniform(random, 0, 0.5)), BytesPerSecond(uniform(random, 1, 1000))};
      },
      each.cluster.devices.size() + 1);
  for (auto& layer : each.workload.layers) {
    layer.forward = Flops(uniform(random, 0, 2e9));
    layer.backward = Flops(uniform(random, 1e8, 4e9));
    layer.backward_weight = layer.backward * uniform(random, 0, 0.9);
    layer.output = Bytes(static_cast<double>(random() % 200));
    layer.gradient = Bytes(static_cast<double>(random() % 200));
  }
  testing_support::add_splits(random, each.workload);
  if (random() % 2 == 0) each.workload.training.clip_norm = 1;
  each.plan.sync.sharded = static_cast<Sharding>(random() % 4);
  if (each.plan.sync.sharded == Sharding::Parameters) each.plan.sync.each_microbatch = random() % 2 == 0;
  if (random() % 2 == 0) each.cluster.data_server = "data";
  each.plan.data_server = each.cluster.data_server;
  return each;
}

TEST(PartlyDivided, MakeSoundPrograms)
{
  for (unsigned seed = 1; seed <= 150; ++seed) {
    std::mt19937_64 random(seed);
    const Case each = random_case(random);
    EXPECT_THAT(faults_of(*program_of(each)), IsEmpty()) << "seed " << seed;
  }
}

TEST(PartlyDivided, TakeAsLongAsTheCheckerPlays)
{
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const Case each = random_case(random);
    const auto program = program_of(each);
    const double played = step_of(each, *program);
    EXPECT_NEAR(play_step(each.plan, each.workload, each.cluster, passes_of(*program)), played, 1e-9 * played)
        << "seed " << seed;
  }
}

/// The bytes of all ends of the channels whose lanes have this name on some rank, in a step.
double bytes_sent(const Program& program, const std::string& lane_name, Opcode opcode)
{
  double bytes = 0;
  for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
    for (LaneId lane = 0; lane < program.lanes(rank).size(); ++lane) {
      if (!program.lanes(rank)[lane].name.starts_with(lane_name)) continue;
      for (std::uint64_t position = 0; position < program.length(rank, lane); ++position) {
        const Instruction instruction = program.at(rank, lane, position);
        if (instruction.opcode == opcode) bytes += instruction.size.value;
      }
    }
  }
  return bytes;
}

TEST(PartlyDivided, SendWhatTheirFormulasSay)
{
  constexpr double output = 80;
  constexpr double loss = 5;
  for (const auto& name : names()) {
    for (std::size_t p = 2; p <= 5; ++p) {
      constexpr std::uint64_t M = 7;
      const auto program = program_of(divided(name, p, M));
      const auto each = static_cast<double>(M);
      const auto devices = static_cast<double>(p);
      // Between stages, and from the last one to the p - 1 other devices that divide the last layer.
      EXPECT_EQ(bytes_sent(*program, "send activation", Opcode::Send), each * 2 * (devices - 1) * output) << name;
      // Likewise back, and from the first one to those that divide the first layer.
      EXPECT_EQ(bytes_sent(*program, "send gradient", Opcode::Send), each * 2 * (devices - 1) * output) << name;
      // Of the first layer's outputs on each device, and of what the loss needs; of the last layer's input.
      EXPECT_EQ(bytes_sent(*program, "sum activations", Opcode::AllReduce), each * devices * output) << name;
      EXPECT_EQ(bytes_sent(*program, "sum activations", Opcode::AllGather), each * devices * loss) << name;
      EXPECT_EQ(bytes_sent(*program, "sum gradients", Opcode::AllReduce), each * devices * output) << name;
    }
  }
}

TEST(PartlyDivided, TakeTheStepOfTheirOrdersWhereNothingElseTakesTime)
{
  for (const auto& name : names()) {
    for (const std::size_t p : {5, 6, 7}) {
      constexpr std::uint64_t M = 30;
      Case each = divided(name, p, M);
      each.cluster.network = std::make_shared<OwnPaths>([] { return Path{Seconds(0), BytesPerSecond(1e300)}; }, p + 1);
      for (auto& layer : each.workload.layers) layer.update = Flops(0);
      for (const std::size_t end : {std::size_t{0}, p + 1}) {
        Layer& layer = each.workload.layers[end];
        layer.forward = layer.backward = layer.backward_weight = Flops(0);
      }
      for (std::size_t layer = 1; layer <= p; ++layer) {
        each.workload.layers[layer].forward = Flops(1e9);
        each.workload.layers[layer].backward = Flops(2e9);
      }
      const double idle = name == "1f1b-interlaced" ? -3.0
                          : name == "1f1b-vocab-2"  ? (p % 3 == 0 ? -1.0 : -2.0)
                                                    : 2.0 - static_cast<double>(p % 3);
      EXPECT_NEAR(step_of(each, *program_of(each)), static_cast<double>(3 * (M + p)) + idle, 1e-9)
          << fmt::format("{}, p = {}", name, p);
    }
  }
}

TEST(PartlyDivided, HoldWhatTheirOrdersHold)
{
  constexpr std::size_t p = 4;
  for (const auto& name : names()) {
    Case each = divided(name, p, 20);
    for (auto& layer : each.workload.layers) layer.activations = Bytes(0);
    for (std::size_t layer = 1; layer <= p; ++layer) each.workload.layers[layer].activations = Bytes(100);
    const auto program = program_of(each);
    const auto played = play_program(*program, nominal_rates(each.plan, each.cluster));
    for (std::size_t rank = 0; rank < p; ++rank) {
      const std::size_t held = name == "1f1b-vocab-1"   ? p - rank + 2
                               : name == "1f1b-vocab-2" ? p - rank + 1
                                                        : 1 + (3 * (p - 1 - rank) + 1) / 2;
      EXPECT_EQ(played.peak_memory[rank][0] - program->resident(rank, Tier::Device),
                Bytes(static_cast<double>(100 * held)))
          << fmt::format("{}, rank {}", name, rank);
    }
  }
}

TEST(PartlyDivided, NeedWhatTheLossNeedsBeforeTheyUseIt)
{
  const auto faults_without_waits = [](const std::string& schedule, Opcode opcode, const std::string& lane_name) {
    EditableProgram program(*program_of(divided(schedule, 2, 3)));
    auto& [lanes, instructions, resident] = program.listing[1];
    for (LaneId lane = 0; lane < lanes.size(); ++lane) {
      if (lanes[lane].name != lane_name) continue;
      for (auto& instruction : instructions[lane]) {
        if (instruction.opcode == opcode && instruction.stage == 3) instruction.waits = {};
      }
    }
    return faults_of(program);
  };
  EXPECT_THAT(faults_without_waits("1f1b-vocab-1", Opcode::Backward, "compute"),
              testing::Contains(HasSubstr("does not wait for the collective of its activations")));
  EXPECT_THAT(faults_without_waits("1f1b-vocab-2", Opcode::BackwardWeight, "compute"),
              testing::Contains(HasSubstr("does not wait for the collective of its activations")));
  EXPECT_THAT(faults_without_waits("1f1b-vocab-2", Opcode::AllReduce, "sum gradients"),
              testing::Contains(HasSubstr("does not wait for the collective of its activations")));
}

std::string fault_of(const Case& each)
{
  try {
    orders_of(each.plan);
    return "";
  } catch (const InputError& fault) {
    return fault.what();
  }
}

TEST(PartlyDivided, RefuseWhatTheyDoNotHave)
{
  Case each = divided("1f1b-vocab-1", 2, 4, 2);
  each.plan.experts.degree = 2;
  EXPECT_EQ(fault_of(each),
            "stages: devices divide some of them and have others alone, and replicas that divide "
            "sequences or experts have each layer with the same others; leave context and experts out");
  each = divided("1f1b-vocab-1", 2, 4, 2);
  each.plan.stages[1].replicas[0].microbatches = 3;
  each.plan.stages[1].replicas[1].microbatches = 5;
  EXPECT_EQ(fault_of(each),
            "stages[1].replicas: are others than those of stages[0]; where devices divide some stages "
            "and have others alone, all stages have as many replicas with as many micro-batches");
  each = divided("1f1b", 2, 4);
  EXPECT_EQ(fault_of(each),
            "schedule: 1f1b works with devices that have each of their stages alone, and 2 devices "
            "divide stages[0]; use 1f1b-interlaced, 1f1b-vocab-1, 1f1b-vocab-2, listed");
  each = divided("1f1b-vocab-1", 2, 4, 2);
  std::swap(each.plan.stages[1].replicas[0].shards[0].device, each.plan.stages[1].replicas[1].shards[0].device);
  EXPECT_EQ(fault_of(each), "stages: device d2 has replicas of two pipelines; give it those of one");
}

TEST(PartlyDivided, DoNotBlockWhileTheySend)
{
  Case each = divided("1f1b-vocab-1", 2, 4);
  each.plan.transfers.blocking = true;
  EXPECT_EQ(fault_of_transfers(each.plan),
            "blocking needs devices that divide all of their stages or none, and some have a stage alone beside others "
            "that they divide");
}

TEST(PartlyDivided, AreNotFolded)
{
  const Case each = divided("1f1b-vocab-1", 3, 4, 2);
  const auto folded = fold(each.plan, each.workload, each.cluster);
  ASSERT_TRUE(std::holds_alternative<std::string>(folded));
  EXPECT_EQ(std::get<std::string>(folded), "device d5 has another place in one stage than in another");
}

TEST(PartlyDivided, AreDrawnWithEachDevicesOwnOrder)
{
  const Case each = divided("1f1b-interlaced", 2, 3);
  EXPECT_EQ(picture_of(each.plan, orders_of(each.plan), std::nullopt),
            "d0  0F01F0   3F03B0---0F11F1      3F13B1---0F21F21B0---3F23B2---0B0---1B1---0B1---1B2---0B2---\n"
            "d1  0F0   2F03F03B0---0F12B0---2F13F13B1---0F22B1---2F23F23B2---0B0---2B2---0B1---      0B2---\n"
            "30 units of time; F takes 1, B 2\n"
            "2F0: the forward of micro-batch 0 on stage 2\n");
}

}  // namespace
}  // namespace isobar::schedules::partly_divided_test
