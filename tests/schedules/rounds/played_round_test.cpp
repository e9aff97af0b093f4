#include "schedules/rounds/played_round.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/program/walk.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/schedules/rounds/sample_rounds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace isobar::schedules::played_round_test {
namespace {

using testing_support::one_device_each;
using testing_support::play;
using testing_support::random_rounds;
using testing_support::SampleRounds;
using testing_support::set_steps;

constexpr double tolerance = 1e-9;

void expect_near(double value, double expected)
{
  EXPECT_NEAR(value, expected, tolerance * expected);
}

/// 2 (K-1) (latency + B / (K bandwidth)), of all parameters.
double ring_time(std::size_t workers, double bytes, const Path& path)
{
  const auto ends = static_cast<double>(workers);
  return 2 * (ends - 1) * (path.latency.value + bytes / ends / path.bandwidth.value);
}

// --- closed forms of docs/rounds.md, alone on their links ---

TEST(PlayedRound, WithoutDelayTakesItsStepsAndThenTheSync)
{
  const Path path{Seconds(0.05), BytesPerSecond(1e6)};
  for (const std::size_t workers : {2, 3, 8}) {
    SampleRounds sample = one_device_each(workers, 2, 240'000, path);
    for (const std::uint64_t steps : {1, 5, 100}) {
      set_steps(sample.plan, steps);
      const auto played = play(sample);
      const double sync = ring_time(workers, 960'000, path);
      expect_near(played.predicted.round_time.value, 2.0 * static_cast<double>(steps) + sync);
      expect_near(played.predicted.slowest_steps.value, 2.0 * static_cast<double>(steps));
      expect_near(played.bound.value, played.predicted.round_time.value);  // nothing else takes time
    }
  }
}

TEST(PlayedRound, WithDelayWaitsForWhatStepsDoNotHide)
{
  const Path path{Seconds(0.05), BytesPerSecond(1e6)};
  for (const std::uint64_t delay : {1, 2, 3, 7}) {
    SampleRounds sample = one_device_each(4, 0.5, 240'000, path);
    set_steps(sample.plan, 20);
    sample.plan.outer.delay = delay;
    const double sync = ring_time(4, 960'000, path);
    const double exposed = std::max(0.0, sync - 0.5 * static_cast<double>(delay));
    expect_near(play(sample).predicted.round_time.value, 10 + exposed);
  }
}

TEST(PlayedRound, OfFragmentsWaitsForEachOfThem)
{
  const Path path{Seconds(0.05), BytesPerSecond(1e6)};
  SampleRounds sample = one_device_each(2, 0.6, 0, path);
  sample.workload = isobar::testing_support::chain({0.05, 0.05, 0.05, 0.05}, 120'000);
  sample.workload.dtype = DType::BFloat16;
  for (auto& layer : sample.workload.layers) layer.update = Flops(0);
  for (auto& worker : sample.plan.workers) worker.plan.stages.front().last_layer = 3;
  set_steps(sample.plan, 40);
  sample.plan.outer.fragments = 4;
  for (const std::uint64_t delay : {0, 1}) {
    sample.plan.outer.delay = delay;
    const double sync = ring_time(2, 480'000, path);
    const double exposed = std::max(0.0, sync - 0.6 * static_cast<double>(delay));
    expect_near(play(sample).predicted.round_time.value, 40 * 0.6 + 4 * exposed);
  }
}

TEST(PlayedRound, SendsTwiceAllButOnePartToTheNextWorkerToTheByte)
{
  for (const std::size_t workers : {2, 4, 5}) {
    SampleRounds sample = one_device_each(workers, 1, 40'960, {Seconds(0), BytesPerSecond(1e6)});
    sample.plan.outer.codec = codec_from_text("int8");
    const auto traffic = play(sample).predicted.traffic;
    ASSERT_EQ(traffic.size(), workers);
    const double encoded = 40'960 + 40 * 4;  // a scale for each 1024 values
    for (const auto& each : traffic) {
      const auto parts = static_cast<double>(workers);
      EXPECT_EQ(each.bytes.value, 2 * (parts - 1) * std::ceil(encoded / parts));
    }
  }
}

// --- published rounds ---

TEST(PlayedRound, HasTheUtilizationOfIntellect1)
{
  // Jaghouar et al., INTELLECT-1 Technical Report, arXiv 2412.01152: 38 minutes of 100 steps, and syncs of 103, 382 and
  // 469 s in the United States, with Europe, and over the world.
  const struct {
    double sync;
    double published;
  } rows[] = {{103, 95.7}, {382, 85.6}, {469, 83.0}};
  for (const auto& [sync, published] : rows) {
    // Two workers exchange the int8 gradients of 10 billion parameters, each as many bytes as they have.
    const double bytes = encoded_size(codec_from_text("int8"), 10'000'000'000).value;
    SampleRounds sample = one_device_each(2, 22.8, 10'000'000'000, {Seconds(0), BytesPerSecond(bytes / sync)});
    sample.plan.outer.codec = codec_from_text("int8");
    set_steps(sample.plan, 100);
    EXPECT_NEAR(100 * play(sample).predicted.utilization_fraction(), published, 0.2);
  }
}

TEST(PlayedRound, NeedsTheBandwidthOfThePublishedTableOfDiLoCo)
{
  // Douillard et al., Streaming DiLoCo, arXiv 2501.18512, table 4: DiLoCo with 100 steps, two workers, 16 bits for each
  // of 10 billion parameters, and a step of 0.8 s needs 16.0 Gbit/s for 90 % of the time in steps.
  const double published = 16.0e9 / 8;
  const auto utilization_at = [](double bandwidth) {
    SampleRounds sample = one_device_each(2, 0.8, 10'000'000'000, {Seconds(0), BytesPerSecond(bandwidth)});
    sample.plan.outer.codec = codec_from_text("bf16");
    set_steps(sample.plan, 100);
    return play(sample).predicted.utilization_fraction();
  };
  EXPECT_LT(utilization_at(0.75 * published), 0.9);
  EXPECT_GT(utilization_at(1.25 * published), 0.9);
}

// --- many steps in one ---

TEST(PlayedRound, IsTheRoundOfAllItsSteps)
{
  std::mt19937_64 random(11);
  for (int round = 0; round < 120; ++round) {
    const SampleRounds sample = random_rounds(random);
    const auto workloads = sample.of_workers();
    const auto built = build_round({sample.plan, sample.workload, workloads, sample.cluster}, RoundSteps::All);
    const auto whole = play_program(*built.program, built.rates, rounds_to_play);
    const auto played = testing_support::play_in_one(sample);
    const double expected = whole.periods.back().step_time.value;
    ASSERT_NEAR(played.predicted.round_time.value, expected, 1e-6 * expected) << "round " << round;
    ASSERT_DOUBLE_EQ(play(sample).predicted.round_time.value, expected) << "round " << round;
    ASSERT_LE(played.bound.value, expected * (1 + tolerance)) << "round " << round;
  }
}

TEST(RoundProgram, WithoutParametersIsAsManySteps)
{
  std::mt19937_64 random(12);
  for (int round = 0; round < 60; ++round) {
    SampleRounds sample = random_rounds(random);
    for (auto& layer : sample.workload.layers) layer.parameters = 0;
    const auto workloads = sample.of_workers();
    const auto built = build_round({sample.plan, sample.workload, workloads, sample.cluster}, RoundSteps::All);
    double expected = 0;
    for (const auto& worker : sample.plan.workers) {
      const auto step = make_program(worker.plan, sample.workload, sample.cluster);
      const auto alone = play_program(*step, nominal_rates(worker.plan, sample.cluster), worker.steps);
      expected = std::max(expected, alone.periods.back().end.value);
    }
    ASSERT_NEAR(play_program(*built.program, built.rates).periods.back().end.value, expected, tolerance * expected)
        << "round " << round;
  }
}

TEST(RoundProgram, EndsAndKeepsItsMemory)
{
  std::mt19937_64 random(13);
  for (int round = 0; round < 60; ++round) {
    const SampleRounds sample = random_rounds(random);
    const auto workloads = sample.of_workers();
    const auto built = build_round({sample.plan, sample.workload, workloads, sample.cluster}, RoundSteps::All);
    ASSERT_EQ(deadlock_of(*built.program), std::nullopt) << "round " << round;
    for (std::size_t rank = 0; rank < built.program->ranks(); ++rank) {
      double change = 0;
      for (LaneId lane = 0; lane < built.program->lanes(rank).size(); ++lane) {
        for (std::uint64_t i = 0; i < built.program->length(rank, lane); ++i) {
          const auto instruction = built.program->at(rank, lane, i);
          if (instruction.acquires.tier == Tier::Host) change += instruction.acquires.size.value;
          if (instruction.releases.tier == Tier::Host) change -= instruction.releases.size.value;
        }
      }
      ASSERT_NEAR(change, 0, 1e-6) << "round " << round << ", rank " << rank;
    }
  }
}

// --- who updates what ---

TEST(OuterDivision, HasEachParameterOnceAtARankThatHoldsItsLayer)
{
  std::mt19937_64 random(14);
  for (int round = 0; round < 60; ++round) {
    const SampleRounds sample = random_rounds(random);
    const auto division = divide_outer(sample.plan.workers, sample.workload, sample.plan.outer.fragments);
    std::vector<std::uint64_t> values(sample.plan.outer.fragments, 0);
    for (const auto& piece : division.pieces) {
      for (std::size_t f = 0; f < values.size(); ++f) values[f] += piece.values[f];
    }
    std::vector<std::uint64_t> expected(values.size(), 0);
    for (std::size_t layer = 0; layer < sample.workload.layers.size(); ++layer) {
      expected[layer % values.size()] += sample.workload.layers[layer].parameters;
    }
    ASSERT_EQ(values, expected) << "round " << round;
    ASSERT_TRUE(division.gathers.empty());
  }
}

TEST(OuterDivision, GivesReplicasEqualPartsThatTheyGather)
{
  SampleRounds sample = one_device_each(2, 1, 1000, {Seconds(0), BytesPerSecond(1e6)});
  sample.cluster = testing_support::cluster_of_steps(3, {Seconds(0), BytesPerSecond(1e3)});
  Stage stage;
  stage.replicas = {{1, {{"d0"}}}, {1, {{"d1"}}}};
  sample.plan.workers[0].plan.goal.microbatches = 2;
  sample.plan.workers[0].plan.stages = {stage};
  sample.plan.workers[1].plan.stages = {stage_on("d2", 0, 0)};
  const auto division = divide_outer(sample.plan.workers, sample.workload, 1);
  ASSERT_EQ(division.pieces.size(), 2U);
  EXPECT_EQ(division.pieces[0], (OuterPiece{{0, 0}, {0, no_gather}, {500}}));
  EXPECT_EQ(division.pieces[1], (OuterPiece{{1, 0}, {0, no_gather}, {500}}));
  ASSERT_EQ(division.gathers.size(), 1U);
  EXPECT_EQ(division.gathers[0].ranks, (std::vector<std::size_t>{0, 1}));
  // Both pieces are exchanged at the same time, 2000 bytes each, and then each replica sends its 2000 bytes to the
  // other.
  const auto played = play(sample);
  const double steps = played.predicted.slowest_steps.value;
  EXPECT_GT(steps, 0);
  EXPECT_NEAR(played.predicted.round_time.value - steps, 2 + 2, 1e-3);
}

TEST(MemoryFaults, NameWhatHasNoRoom)
{
  SampleRounds sample = one_device_each(2, 1, 1000, {Seconds(0), BytesPerSecond(1e6)});
  sample.cluster.devices[1].memory = Bytes(10);
  const auto faults = memory_faults_of(play(sample), sample.cluster);
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_TRUE(faults[0].starts_with("device d1 needs ")) << faults[0];
}

}  // namespace
}  // namespace isobar::schedules::played_round_test
