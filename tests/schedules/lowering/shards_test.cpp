#include "tests/support/shards.hpp"
#include "core/check/program_checker.hpp"
#include "core/model/dtype.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/sync_groups.hpp"
#include "core/program/collective.hpp"
#include "core/program/player.hpp"
#include "schedules/evaluation.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/schedules/lowering/sample_programs.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace isobar::schedules::shards_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::IsEmpty;

std::vector<std::string> devices(std::size_t count)
{
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back(fmt::format("d{}", i));
  return names;
}

/// One stage of all layers, which so many devices divide in equal parts.
Plan alone(const Workload& workload, std::size_t shards, std::uint64_t microbatches)
{
  Plan plan;
  plan.goal.microbatches = microbatches;
  Replica all{0, {}};
  for (const auto& name : devices(shards)) all.shards.push_back({name, 1.0 / static_cast<double>(shards)});
  plan.stages = by_layers({{0, workload.layers.size() - 1, {all}}});
  return plan;
}

Workload gpt(const std::string& more)
{
  return workload_from_text(
      "model: gpt\nlayers: 2\nhidden: 48\nheads: 12\nintermediate: 192\nvocabulary: 96\nmicro_batch: 2\nsequence: 16\n"
      "optimizer: adam\nunit: operator\n" +
          more,
      "x.yaml");
}

/// Plays two periods on devices of 1 GFLOP/s, whose links have this latency and bandwidth.
PlayedProgram play(const Program& program, double latency, double bandwidth)
{
  PlayerRates rates;
  rates.transfer = [=](std::size_t, std::size_t, Bytes size) {
    return TransferTimes{Seconds(latency), size / BytesPerSecond(bandwidth)};
  };
  return play_program(program, rates);
}

struct RandomCase {
  Plan plan;
  Workload workload;
};

/// One to three stages of two layers each, under any schedule with a stage on each device. `make_stage` makes a stage
/// of the micro-batches of its replicas and the names of the devices that are left.
template <typename MakeStage>
RandomCase random_case(std::mt19937_64& random, MakeStage make_stage)
{
  const std::vector<std::string> schedules = {"sequential", "gpipe", "1f1b", "zero-bubble-h1", "zero-bubble-h2"};
  const std::vector<std::vector<std::uint64_t>> divisions = {{0}, {3, 3}, {2, 4}, {1, 2, 3}};
  RandomCase made;
  made.plan.goal.schedule = schedule_from_text(schedules[random() % schedules.size()]);
  made.plan.goal.microbatches = 6;
  const std::size_t stages = 1 + random() % 3;
  auto names = devices(30);
  for (std::size_t i = 0; i < stages; ++i) {
    made.plan.stages.push_back(make_stage(divisions[random() % divisions.size()], names));
    made.plan.stages.back().first_layer = 2 * i;
    made.plan.stages.back().last_layer = 2 * i + 1;
  }
  if (random() % 3 == 0) made.plan.data_server = "data";
  made.plan.sync.bucket = Bytes(static_cast<double>(random() % 20'000));
  made.workload = unequal_chain(2 * stages);
  add_splits(random, made.workload);
  if (random() % 3 == 0) made.workload.training.clip_norm = 1;
  return made;
}

TEST(Shards, MakeSoundProgramsUnderEverySchedule)
{
  std::mt19937_64 random(7);
  std::size_t with_both = 0;
  std::size_t with_parameters = 0;
  for (int round = 0; round < 300; ++round) {
    auto [plan, workload] = random_case(random, [&](const auto& division, auto& names) {
      return random_stage(random, division, 1 + random() % 3, names);
    });
    const bool take_alike = std::all_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
      return !why_not_divided({.sharded = Sharding::Parameters}, stage, {});
    });
    plan.sync.sharded = static_cast<Sharding>(random() % (take_alike ? 4 : 3));
    if (plan.sync.sharded != Sharding::None) plan.sync.bucket = {};
    with_parameters += plan.sync.sharded == Sharding::Parameters && has_replicas(plan) ? 1U : 0U;
    with_both += has_replicas(plan) && has_shards(plan) ? 1U : 0U;
    plan.stages = by_layers(plan.stages);
    ASSERT_THAT(faults_of(*testing_support::program_at(FlopsPerSecond(1e9), plan, workload)), IsEmpty()) << round;
    ASSERT_THAT(faults_of(*testing_support::unit_evaluation(plan, workload), ProgramUse::Evaluation), IsEmpty())
        << round;
  }
  EXPECT_GT(with_both, 50U);
  EXPECT_GT(with_parameters, 5U);
}

TEST(Shards, OfReplicasThatAreNotDividedAlikeMakeSoundPrograms)
{
  std::mt19937_64 random(9);
  std::size_t unlike = 0;
  for (int round = 0; round < 200; ++round) {
    auto [plan, workload] = random_case(
        random, [&](const auto& division, auto& names) { return stage_of_unlike_replicas(random, division, names); });
    for (const auto& stage : plan.stages) unlike += are_divided_alike(stage) ? 0U : 1U;
    plan.stages = by_layers(plan.stages);
    const auto program = testing_support::program_at(FlopsPerSecond(1e9), plan, workload);
    ASSERT_THAT(faults_of(*program), IsEmpty()) << round;
    ASSERT_THAT(faults_of(*testing_support::unit_evaluation(plan, workload), ProgramUse::Evaluation), IsEmpty())
        << round;
    play(*program, 1e-4, 1e9);
  }
  EXPECT_GT(unlike, 100U);
}

TEST(Shards, OfReplicasThatAreNotDividedAlikeShareCutsWithTheirOtherStages)
{
  // The first pipeline has both stages on the same two devices; the second has them on one device and on three.
  std::mt19937_64 random(2);
  Workload workload = unequal_chain(4);
  add_splits(random, workload);
  Plan plan;
  plan.goal.microbatches = 4;
  auto names = devices(6);
  const Replica pair = replica_on(names, 3, {0.5, 0.5});
  const Replica one = replica_on(names, 1, {1});
  const Replica three = replica_on(names, 1, {0.25, 0.5, 0.25});
  plan.stages = by_layers({{0, 1, {pair, one}}, {2, 3, {pair, three}}});
  EXPECT_THAT(faults_of(*testing_support::program_at(FlopsPerSecond(1e9), plan, workload)), IsEmpty());
}

/// The bytes of gradients that a rank adds up over the replicas.
double bytes_synced(const Program& program, std::size_t rank)
{
  double bytes = 0;
  for (LaneId lane = 1; lane < program.lanes(rank).size(); ++lane) {
    if (!program.lanes(rank)[lane].name.starts_with("sync")) continue;
    for (std::uint64_t k = 0; k < program.length(rank, lane); ++k) bytes += program.at(rank, lane, k).size.value;
  }
  return bytes;
}

TEST(Shards, OfReplicasThatAreNotDividedAlikeAddUpEachOfTheirGradientsOnce)
{
  std::mt19937_64 random(4);
  for (int round = 0; round < 50; ++round) {
    Workload workload = unequal_chain(3);
    add_splits(random, workload);
    auto names = devices(9);
    Plan plan;
    plan.goal.microbatches = 3;
    plan.stages = {stage_of_unlike_replicas(random, {1, 1, 1}, names)};
    plan.stages[0].last_layer = 2;
    plan.stages = by_layers(plan.stages);
    plan.sync.bucket = Bytes(static_cast<double>(random() % 50'000));
    const auto program = testing_support::program_at(FlopsPerSecond(1e9), plan, workload);
    for (const auto& [stage, replica, shard, rank] : placed_shards(plan)) {
      double parameters = 0;
      for (const auto& each : plan.stages) {
        for (std::size_t layer = each.first_layer; layer <= each.last_layer; ++layer) {
          const Layer part = layer_of_shard(workload.layers[layer], each, replica, shard);
          parameters += static_cast<double>(part.parameters);
        }
      }
      EXPECT_DOUBLE_EQ(bytes_synced(*program, rank), 4 * parameters) << round;
    }
  }
}

TEST(Shards, OfReplicasThatAreNotDividedAlikeTakeTheTimesOfTheirSums)
{
  // Two shards beside one device: a sum over all three of what is not divided, then one for each half.
  const Workload workload = gpt("");
  Plan plan;
  plan.goal.microbatches = 2;
  auto names = devices(3);
  plan.stages =
      by_layers({{0, workload.layers.size() - 1, {replica_on(names, 1, {0.5, 0.5}), replica_on(names, 1, {1})}}});
  plan.sync.bucket = Bytes(1e12);
  const auto program = testing_support::program_at(FlopsPerSecond(1e9), plan, workload);
  double shared = 0, divided = 0;
  for (const auto& layer : workload.layers) {
    shared += 4 * static_cast<double>(shared_parameters(layer));
    divided += 4 * static_cast<double>(layer.split->parameters);
  }
  const double latency = 1e-4, bandwidth = 1e8;
  const auto ring = [&](double n, double bytes) { return 2 * (n - 1) * (latency + bytes / (n * bandwidth)); };
  double work = 0, update = 0;
  for (const auto& layer : workload.layers) {
    work += (layer.forward + layer.backward).value / 1e9;
    update += update_work(workload, layer).value / 1e9;
  }
  // The one device computes longest; its last layer's update is the last.
  EXPECT_NEAR(play(*program, latency, bandwidth).periods.front().end.value,
              work + ring(3, shared) + 2 * ring(2, divided / 2) + update, 1e-9 * work);
}

TEST(Shards, OfSeveralStagesOnADeviceMakeSoundPrograms)
{
  std::mt19937_64 random(5);
  for (const std::string schedule : {"interleaved", "interleaved(chunks=3)"}) {
    for (const std::uint64_t microbatches : {4U, 6U}) {
      const std::size_t chunks = schedule == "interleaved" ? 2 : 3;
      Workload workload = unequal_chain(4 * chunks);
      add_splits(random, workload);
      Plan plan;
      plan.goal.schedule = schedule_from_text(schedule);
      plan.goal.microbatches = microbatches;
      auto names = devices(8);
      const std::vector<std::uint64_t> halves = {microbatches / 2, microbatches / 2};
      const Stage pipeline[2] = {random_stage(random, halves, 2, names), random_stage(random, halves, 2, names)};
      for (std::size_t i = 0; i < 2 * chunks; ++i) {
        plan.stages.push_back(pipeline[i % 2]);
        plan.stages.back().first_layer = 2 * i;
        plan.stages.back().last_layer = 2 * i + 1;
      }
      plan.stages = by_layers(plan.stages);
      EXPECT_THAT(faults_of(*testing_support::program_at(FlopsPerSecond(1e9), plan, workload)), IsEmpty()) << schedule;
      EXPECT_THAT(faults_of(*testing_support::unit_evaluation(plan, workload), ProgramUse::Evaluation), IsEmpty())
          << schedule;
    }
  }
}

TEST(Shards, ComputeAllOfALayerTogether)
{
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    Workload workload = unequal_chain(3);
    add_splits(random, workload);
    auto names = devices(4);
    const std::size_t shards = 1 + random() % 4;
    const Stage stage = random_stage(random, {0}, shards, names);
    for (const auto& layer : workload.layers) {
      const auto units = units_of_shards(layer.split->units, stage.replicas.front());
      double work = 0;
      std::uint64_t all = 0;
      std::uint64_t divided = 0;
      for (std::size_t i = 0; i < shards; ++i) {
        const double ideal = static_cast<double>(layer.split->units) * stage.replicas.front().shards[i].share;
        EXPECT_GE(units[i], 1U);
        const bool is_rounded = std::all_of(units.begin(), units.end(), [](std::uint64_t each) { return each > 1; });
        if (is_rounded) {
          EXPECT_LT(std::abs(static_cast<double>(units[i]) - ideal), 1);
        }
        const Layer part = layer_of_shard(layer, stage, 0, i);
        work += part.forward.value + part.backward.value;
        all += units[i];
        divided += part.parameters - shared_parameters(layer);
      }
      EXPECT_EQ(all, layer.split->units);
      EXPECT_NEAR(work, (layer.forward + layer.backward).value, 1e-9 * work);
      EXPECT_EQ(divided, layer.split->parameters);
    }
  }
}

/// The bytes that the first shard sends for activations and their gradients in a step.
double bytes_sent(const Program& program, std::size_t first_layer, std::size_t last_layer)
{
  double sent = 0;
  for (LaneId lane = 1; lane < program.lanes(0).size(); ++lane) {
    for (std::uint64_t k = 0; k < program.length(0, lane); ++k) {
      const Instruction instruction = program.at(0, lane, k);
      const bool is_of_layers = instruction.first_layer >= first_layer && instruction.last_layer <= last_layer;
      if (instruction.payload == Payload::ParameterGradient || !is_of_layers) continue;
      const Channel& channel = program.channels()[*program.lanes(0)[lane].channel];
      const std::vector<Bytes> sizes(channel.ends.size(), instruction.size);
      for (const auto& round : rounds_of(instruction.opcode, sizes, channel.algorithm)) {
        for (const auto& flow : round) sent += flow.from == 0 ? flow.size().value : 0;
      }
    }
  }
  return sent;
}

TEST(Shards, SendTheBytesOfOneDimensionalTensorParallelism)
{
  // Per transformer layer, forward and backward: 8 (p-1)/p n h elements (Megatron-LM), n tokens of h elements; with
  // recomputation no more, since a device keeps the whole input and needs no sum of what it computes again.
  const double nh = 2 * 16 * 48;
  for (const std::string recompute : {"", "all"}) {
    Workload workload = gpt("");
    if (!recompute.empty()) workload = with_recomputation(workload, {1, 2, 3, 4});
    for (const std::size_t p : {2U, 3U, 4U}) {
      const auto program = testing_support::program_at(FlopsPerSecond(1e9), alone(workload, p, 3), workload);
      const double per_layer = 8.0 * static_cast<double>(p - 1) / static_cast<double>(p) * nh;
      EXPECT_DOUBLE_EQ(bytes_sent(*program, 1, 4), 3 * 2 * 4 * per_layer) << p;
      // The head's loss takes two float32 of each token instead of its logits.
      const double of_head = 3 * (static_cast<double>(p - 1) * 2 * 4 * 32 +
                                  2.0 * static_cast<double>(p - 1) / static_cast<double>(p) * 4 * nh);
      EXPECT_DOUBLE_EQ(bytes_sent(*program, 5, 5), of_head) << p;
      // The embedding has no gradient of its input.
      EXPECT_DOUBLE_EQ(bytes_sent(*program, 0, 0),
                       3 * 2.0 * static_cast<double>(p - 1) / static_cast<double>(p) * 4 * nh);
    }
  }
}

TEST(Shards, TakeTheTimesOfTheirWorkAndSums)
{
  const Workload workload = gpt("");
  const double latency = 1e-4, bandwidth = 1e8, nh_bytes = 4.0 * 2 * 16 * 48;
  double work = 0;
  for (const auto& layer : workload.layers) work += (layer.forward + layer.backward).value;
  for (const double p : {1.0, 2.0, 4.0}) {
    const auto program =
        testing_support::program_at(FlopsPerSecond(1e9), alone(workload, static_cast<std::size_t>(p), 1), workload);
    const auto ring = [&](double bytes) { return 2 * (p - 1) * (latency + bytes / (p * bandwidth)); };
    // Five sums of outputs, five of gradients, the gather of the head, and the shared gradients of the embedding, which
    // are known last; the others follow each other beside the backward passes.
    double step =
        work / p / 1e9 + 10 * ring(nh_bytes) + (p - 1) * (latency + 2 * 4 * 32 / bandwidth) + ring(4.0 * 16 * 48);
    double update = 0;
    const Plan plan = alone(workload, static_cast<std::size_t>(p), 1);
    for (const auto& layer : workload.layers) {
      update += update_work(workload, layer_of_shard(layer, plan.stages.front(), 0, 0)).value / 1e9;
    }
    if (p == 1) step = work / 1e9;
    EXPECT_NEAR(play(*program, latency, bandwidth).periods.front().end.value, step + update, 1e-9 * step) << p;
  }
}

TEST(Shards, HoldTheActivationsOfThePublishedFormula)
{
  // Korthikanti et al. 2022, section 4.2.1: s b h (10 + 24/t + 5 a s / (h t)) bytes of a layer in 16 bit.
  const Workload workload = gpt("dtype: bf16\n");
  const double s = 16, b = 2, h = 48, a = 12;
  for (const double t : {2.0, 3.0, 4.0}) {
    const Plan plan = alone(workload, static_cast<std::size_t>(t), 1);
    double kept = 0;
    for (const std::size_t layer : {1U, 2U}) {
      kept += layer_of_shard(workload.layers[layer], plan.stages.front(), 0, 0).activations.value;
    }
    EXPECT_NEAR(kept, s * b * h * (10 + 24 / t + 5 * a * s / (h * t)), 1e-9 * kept) << t;
  }
}

TEST(Shards, HoldTheirPartOfTheParametersAndAllOfWhatIsNotDivided)
{
  const Workload workload = gpt("");
  const auto resident = [&](std::size_t shards) {
    return testing_support::program_at(FlopsPerSecond(1e9), alone(workload, shards, 1), workload)
        ->resident(0, Tier::Device)
        .value;
  };
  // Norms, output biases and positions: 2 (4 h + 2 h), s h and 2 h.
  const double shared = 2 * 6 * 48 + 16 * 48 + 2 * 48;
  double all = 0;
  for (const auto& layer : workload.layers) all += static_cast<double>(layer.parameters);
  const double bytes = bytes_per_parameter(workload);
  EXPECT_DOUBLE_EQ(resident(2) - resident(4), (all - shared) * (1.0 / 2 - 1.0 / 4) * bytes);
}

TEST(Shards, OfNeighbouringStagesTakeTurnsToBringEachOtherTheirInputs)
{
  std::mt19937_64 random(1);
  Workload workload = unequal_chain(2);
  add_splits(random, workload);
  for (const std::size_t before : {1U, 2U, 3U}) {
    for (const std::size_t after : {1U, 2U, 3U}) {
      Plan plan;
      plan.goal.microbatches = 2;
      auto names = devices(6);
      plan.stages = {random_stage(random, {0}, before, names), random_stage(random, {0}, after, names)};
      plan.stages[1].first_layer = plan.stages[1].last_layer = 1;
      const auto program = testing_support::program_at(FlopsPerSecond(1e9), plan, workload);
      ASSERT_THAT(faults_of(*program), IsEmpty());
      std::size_t sends = 0;
      for (std::size_t rank = 0; rank < program->ranks(); ++rank) {
        for (const auto& lane : program->lanes(rank)) sends += lane.name.starts_with("send") ? 1U : 0U;
      }
      EXPECT_EQ(sends, before + after);
    }
  }
}

}  // namespace
}  // namespace isobar::schedules::shards_test
