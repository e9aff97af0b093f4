#include "tests/support/shards.hpp"
#include "core/program/player.hpp"
#include "exec/model/batch.hpp"
#include "tests/exec/model/small_models.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/exec/run/trained.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::exec::shards_test {
namespace {

constexpr std::uint64_t microbatches = 5;
constexpr std::uint64_t steps = 4;
/// Of the losses of shards, which add up outputs and gradients in another order than one process.
constexpr double relative_tolerance = 1e-5;

/// A stage whose replicas take so many micro-batches each, and divide their layers by these shares.
struct Divided {
  std::vector<std::uint64_t> takes;
  std::vector<double> shares = {1};
  std::vector<std::string> groups = {};                  ///< of devices, by replica; none: of their own
  std::vector<std::vector<double>> shares_of_each = {};  ///< by replica, in place of `shares`
};

/// The plan with the sequence divided between layers too.
Plan with_divided_sequence(Plan plan)
{
  for (auto& stage : plan.stages) stage.grid = {ShardGrid::Form::Sequence, stage.replicas.front().shards.size()};
  return plan;
}

/// Stages with as many layers as whole ones allow.
Plan plan_of(const Workload& workload, const ScheduleChoice& schedule, const std::vector<Divided>& stages)
{
  Plan plan;
  plan.goal.schedule = schedule;
  plan.goal.microbatches = std::accumulate(stages.front().takes.begin(), stages.front().takes.end(), std::uint64_t{0});
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const std::size_t first = i * workload.layers.size() / stages.size();
    Stage stage = {first, (i + 1) * workload.layers.size() / stages.size() - 1, {}};
    for (std::size_t k = 0; k < stages[i].takes.size(); ++k) {
      Replica& replica = stage.replicas.emplace_back(Replica{stages[i].takes[k], {}});
      const auto& shares = stages[i].shares_of_each.empty() ? stages[i].shares : stages[i].shares_of_each[k];
      for (std::size_t s = 0; s < shares.size(); ++s) {
        const auto group = stages[i].groups.empty() ? fmt::format("d{}.{}", i, k) : stages[i].groups[k];
        replica.shards.push_back({fmt::format("{}.{}", group, s), shares[s]});
      }
    }
    plan.stages.push_back(std::move(stage));
  }
  plan.stages = testing_support::by_layers(plan.stages);
  return plan;
}

std::vector<double> expected_losses(const Workload& workload)
{
  return losses_of_a_plain_loop(workload, steps, microbatches);
}

struct Shape {
  std::string name;
  ScheduleChoice schedule;
  std::vector<Divided> stages;
  bool divides_sequence = false;

  Plan plan(const Workload& workload) const
  {
    const Plan plan = plan_of(workload, schedule, stages);
    return divides_sequence ? with_divided_sequence(plan) : plan;
  }
};

std::vector<Shape> shapes()
{
  const ScheduleChoice one_f_one_b = {"1f1b"};
  return {
      {"TwoShardsOfAll", {"gpipe"}, {{{5}, {0.5, 0.5}}}},
      {"ThreeUnequalShards", one_f_one_b, {{{5}, {0.5, 0.2, 0.3}}}},
      {"TwoStagesOfShards", {"zero-bubble-h1"}, {{{5}, {0.5, 0.5}}, {{5}, {0.3, 0.7}}}},
      {"FewerShardsAfter", one_f_one_b, {{{5}, {0.4, 0.3, 0.3}}, {{5}, {0.5, 0.5}}, {{5}}}},
      {"MoreShardsAfter", one_f_one_b, {{{5}}, {{5}, {0.5, 0.5}}, {{5}, {0.4, 0.3, 0.3}}}},
      {"UnequalReplicasOfShards", one_f_one_b, {{{3, 2}, {0.5, 0.5}}, {{3, 2}, {0.4, 0.6}}}},
      {"PipelinesOfTheirOwnCuts",
       one_f_one_b,
       {{{3, 2}, {0.4, 0.6}, {"a0", "b0"}}, {{3, 2}, {0.4, 0.6}, {"a0", "b1"}}, {{3, 2}, {0.4, 0.6}, {"a1", "b1"}}}},
      {"InterleavedStages",
       {"interleaved"},
       {{{5}, {0.5, 0.5}, {"a"}}, {{5}, {0.4, 0.6}, {"b"}}, {{5}, {0.5, 0.5}, {"a"}}, {{5}, {0.4, 0.6}, {"b"}}}},
      {"OtherReplicasAfter", {"gpipe"}, {{{3, 2}, {0.5, 0.5}}, {{1, 2, 2}, {0.5, 0.5}}}},
      {"OneDeviceBesideShards", one_f_one_b, {{.takes = {3, 2}, .shares_of_each = {{0.5, 0.5}, {1}}}}},
      {"UnlikeReplicas",
       one_f_one_b,
       {{.takes = {2, 2, 1}, .shares_of_each = {{0.3, 0.7}, {1}, {0.5, 0.25, 0.25}}},
        {.takes = {3, 2}, .shares_of_each = {{1}, {0.5, 0.5}}}}},
      {"HalvesOfASequence", {"gpipe"}, {{{5}, {0.5, 0.5}}}, true},
      {"HalvesOfASequenceInTwoStages", {"zero-bubble-h1"}, {{{5}, {0.5, 0.5}}, {{5}, {0.3, 0.7}}}, true},
      {"HalvesOfASequenceInReplicas", one_f_one_b, {{{3, 2}, {0.5, 0.5}}, {{3, 2}, {0.4, 0.6}}}, true},
      {"HalvesOfASequenceInterleaved",
       {"interleaved"},
       {{{5}, {0.5, 0.5}, {"a"}}, {{5}, {0.4, 0.6}, {"b"}}, {{5}, {0.5, 0.5}, {"a"}}, {{5}, {0.4, 0.6}, {"b"}}},
       true},
  };
}

class ShardsOf : public testing::TestWithParam<std::tuple<Shape, Way>> {
 protected:
  static const Shape& shape() { return std::get<Shape>(GetParam()); }
  static Way way() { return std::get<Way>(GetParam()); }
};

TEST_P(ShardsOf, AModelHaveThePlainLoopsLosses)
{
  for (const Workload& workload : {small_gpt_by_operators(), small_llama_by_operators()}) {
    expect_close(trained(workload, shape().plan(workload), way(), options_for(steps)).losses, expected_losses(workload),
                 relative_tolerance);
  }
}

TEST_P(ShardsOf, AModelHaveThemWithDropoutRecomputationAndClippedGradients)
{
  Workload workload = small_gpt_by_operators();
  workload.optimizer = Optimizer::Momentum;
  workload.training.dropout = 0.2;
  workload.training.clip_norm = 0.05;
  Plan plan = shape().plan(workload);
  for (std::size_t layer = 0; layer < workload.layers.size(); layer += 2) plan.recompute.push_back(layer);
  expect_close(trained(workload, plan, way(), options_for(steps)).losses, expected_losses(workload),
               relative_tolerance);
}

TEST_P(ShardsOf, AModelTakeTheirDataFromTheDataServerAndEvaluateIt)
{
  const Workload workload = small_gpt_by_operators();
  const auto batches = synthetic_batches(workload);
  RunOptions options = options_for(1);
  options.evaluation = batches.get();
  options.evaluation_steps = 2;
  const auto expected = trained(workload, even_split(workload, 1, {"1f1b"}, microbatches), Way::InProcess, options);
  Plan plan = shape().plan(workload);
  plan.data_server = "server";
  const auto divided = trained(workload, plan, way(), options);
  expect_close(divided.losses, expected.losses, relative_tolerance);
  ASSERT_TRUE(divided.evaluation.has_value());
  EXPECT_EQ(divided.evaluation->labels, expected.evaluation->labels);
  EXPECT_EQ(divided.evaluation->correct, expected.evaluation->correct);
  EXPECT_NEAR(divided.evaluation->loss, expected.evaluation->loss, 1e-5 * expected.evaluation->loss);
}

INSTANTIATE_TEST_SUITE_P(Executor, ShardsOf, testing::ValuesIn(by_one_way_each(shapes())), [](const auto& test) {
  const bool is_in_process = std::get<Way>(test.param) == Way::InProcess;
  return std::get<Shape>(test.param).name + (is_in_process ? "InProcess" : "OverTcp");
});

/// .ci/full runs it; the other tests of this file are a sample of it.
TEST(Executor, DISABLED_HasThePlainLoopsLossesForAllDegreesOfShards)
{
  const std::vector<std::vector<std::uint64_t>> all_takes = {{5}, {3, 2}, {2, 2, 1}};
  const std::vector<std::vector<double>> all_shares = {{0.5, 0.5}, {0.7, 0.3}, {0.4, 0.3, 0.3}, {0.2, 0.5, 0.3}};
  for (const Workload& workload : {small_gpt_by_operators(), small_llama_by_operators()}) {
    const auto expected = expected_losses(workload);
    for (const std::size_t stages : {1UL, 2UL, 3UL}) {
      for (const auto& takes : all_takes) {
        for (const auto& shares : all_shares) {
          const Plan plan = plan_of(workload, {"1f1b"}, std::vector<Divided>(stages, {takes, shares}));
          for (const Way way : {Way::InProcess, Way::Tcp}) {
            SCOPED_TRACE(fmt::format("{}: {} stages, replicas of {} micro-batches, shares {}, {}", workload.name,
                                     stages, fmt::join(takes, "+"), fmt::join(shares, "+"),
                                     way == Way::Tcp ? "TCP" : "in process"));
            expect_close(trained(workload, plan, way, options_for(steps)).losses, expected, relative_tolerance);
          }
        }
      }
    }
  }
}

/// .ci/full runs it too.
TEST(Executor, DISABLED_HasThePlainLoopsLossesForReplicasOfAllDegrees)
{
  const std::vector<std::vector<double>> degrees = {{1}, {0.5, 0.5}, {0.7, 0.3}, {0.2, 0.5, 0.3}};
  const Workload workload = small_gpt_by_operators();
  const auto expected = expected_losses(workload);
  for (const std::size_t stages : {1UL, 2UL, 3UL}) {
    for (const auto& first : degrees) {
      for (const auto& second : degrees) {
        for (const double bucket : {0.0, 1e9}) {
          Plan plan = plan_of(workload, {"1f1b"},
                              std::vector(stages, Divided{.takes = {3, 2}, .shares_of_each = {first, second}}));
          plan.sync.bucket = Bytes(bucket);
          for (const Way way : {Way::InProcess, Way::Tcp}) {
            SCOPED_TRACE(fmt::format("{} stages, shares {} and {}, {}", stages, fmt::join(first, "+"),
                                     fmt::join(second, "+"), way == Way::Tcp ? "TCP" : "in process"));
            expect_close(trained(workload, plan, way, options_for(steps)).losses, expected, relative_tolerance);
          }
        }
      }
    }
  }
}

TEST(Executor, AddsUpGradientsOfUnlikeReplicasInBuckets)
{
  Workload workload = small_llama_by_operators();
  workload.optimizer = Optimizer::Adam;
  workload.training.clip_norm = 0.05;
  Plan plan = plan_of(workload, {"1f1b"}, {{.takes = {3, 2}, .shares_of_each = {{0.5, 0.5}, {0.25, 0.25, 0.5}}}});
  const auto by_part = trained(workload, plan, Way::InProcess, options_for(steps)).losses;
  expect_close(by_part, expected_losses(workload), relative_tolerance);
  plan.sync.bucket = Bytes(1e9);
  for (const Way way : {Way::InProcess, Way::Tcp}) {
    expect_close(trained(workload, plan, way, options_for(steps)).losses, by_part, relative_tolerance);
  }
}

TEST(Executor, DividesASequenceIntoQuarters)
{
  Workload workload = small_gpt_by_operators();
  workload.training.dropout = 0.2;
  const Plan plan = with_divided_sequence(plan_of(workload, {"1f1b"}, {{{5}, {0.2, 0.2, 0.2, 0.4}}}));
  for (const Way way : {Way::InProcess, Way::Tcp}) {
    expect_close(trained(workload, plan, way, options_for(steps)).losses, expected_losses(workload),
                 relative_tolerance);
  }
}

/// By how much the most memory of a rank grows with each micro-batch that a plan of shards keeps: as measured, and as
/// the program says.
std::pair<double, double> kept_by_a_micro_batch(const Workload& workload, bool divides_sequence)
{
  std::pair<double, double> kept;
  constexpr std::uint64_t few = 4, more = 12;
  for (const std::uint64_t count : {few, more}) {
    Plan plan = plan_of(workload, {"gpipe"}, {{{count}, {0.5, 0.5}}});
    if (divides_sequence) plan = with_divided_sequence(plan);
    const auto program = testing_support::unit_program(plan, workload);
    const auto measured = run_by(Way::InProcess, workload, plan, *program, options_for(2));
    PlayerRates rates;
    const auto played = play_program(*program, rates, 2);
    const double part = (count == more ? 1.0 : -1.0) / static_cast<double>(more - few);
    kept.first += part * measured.ranks().front().peak_of(Tier::Device).value;
    kept.second += part * played.peak_memory.front().front().value;
  }
  return kept;
}

TEST(Executor, KeepsThePartsOfActivationsOfADividedSequence)
{
  for (const double dropout : {0.0, 0.2}) {
    Workload workload;
    workload.name = "wide";
    workload.micro_batch = 2;
    workload.sequence = 64;
    workload.training.dropout = dropout;
    const GptSizes sizes{.layers = 2,
                         .hidden = 64,
                         .heads = 4,
                         .intermediate = 256,
                         .vocabulary = 64,
                         .positions = 64,
                         .unit = Unit::Operator};
    workload.model = sizes;
    build_gpt(sizes, workload);
    const auto [by_heads, by_heads_played] = kept_by_a_micro_batch(workload, false);
    const auto [by_both, by_both_played] = kept_by_a_micro_batch(workload, true);
    // The formula has parts of what is normalised and of masks too, which are made again here.
    EXPECT_LT(by_both, by_both_played) << dropout;
    EXPECT_GT(by_heads - by_both, by_heads_played - by_both_played) << dropout;
  }
}

TEST(Executor, DividesWhatReplicasOfShardsHoldToTheBit)
{
  Workload workload = small_gpt_by_operators();
  workload.optimizer = Optimizer::Adam;
  workload.training.clip_norm = 0.05;
  for (const Way way : {Way::InProcess, Way::Tcp}) {
    Plan plan = plan_of(workload, {"1f1b"}, {{{3, 3}, {0.5, 0.5}}, {{3, 3}, {0.4, 0.3, 0.3}}});
    const auto whole = trained(workload, plan, way, options_for(steps)).losses;
    for (const Sharding sharded : {Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters}) {
      plan.sync.sharded = sharded;
      EXPECT_EQ(trained(workload, plan, way, options_for(steps)).losses, whole) << name_of(sharded);
    }
  }
}

TEST(Executor, SendsEachReaderOfAShardItsOwnCopies)
{
  // In an evaluation, which has no backward passes, one reader may be a step behind another.
  const Workload workload = small_gpt_by_operators();
  const auto batches = synthetic_batches(workload);
  RunOptions options = options_for(1);
  options.evaluation = batches.get();
  options.evaluation_steps = 200;
  const auto expected = trained(workload, even_split(workload, 1, {"1f1b"}, 1), Way::InProcess, options);
  const Plan plan = plan_of(workload, {"1f1b"}, {{{1}}, {{1}, {0.4, 0.3, 0.3}}});
  const auto divided = trained(workload, plan, Way::Tcp, options);
  EXPECT_NEAR(divided.evaluation->loss, expected.evaluation->loss, 1e-6 * expected.evaluation->loss);
  EXPECT_EQ(divided.evaluation->correct, expected.evaluation->correct);
}

TEST(Executor, AddsUpTheOutputsOfShardsInTheirOwnPrecision)
{
  constexpr double of_bfloat16 = 2e-2;
  constexpr double of_float16 = 4e-3;
  for (const auto& [dtype, tolerance] : {std::pair(DType::BFloat16, of_bfloat16), {DType::Float16, of_float16}}) {
    Workload workload = small_gpt_by_operators();
    workload.dtype = dtype;
    const auto one =
        trained(workload, even_split(workload, 1, {"1f1b"}, microbatches), Way::InProcess, options_for(steps));
    for (const Way way : {Way::InProcess, Way::Tcp}) {
      const Plan plan = plan_of(workload, {"1f1b"}, {{{3, 2}, {0.5, 0.5}}, {{3, 2}, {0.5, 0.5}}});
      expect_close(trained(workload, plan, way, options_for(steps)).losses, one.losses, tolerance);
      expect_close(trained(workload, with_divided_sequence(plan), way, options_for(steps)).losses, one.losses,
                   tolerance);
    }
  }
}

TEST(Executor, ResumesACheckpointOfShardsOnAnyOtherPlan)
{
  Workload workload = small_gpt_by_operators();
  workload.optimizer = Optimizer::Momentum;
  const Plan shards = plan_of(workload, {"1f1b"}, {{{5}, {0.5, 0.5}}, {{5}, {0.4, 0.3, 0.3}}});
  const Plan others = plan_of(workload, {"gpipe"}, {{{3, 2}, {0.6, 0.4}}});
  const Plan chain = even_split(workload, 3, {"1f1b"}, microbatches);
  Plan divided = others;
  divided.sync.sharded = Sharding::Optimizer;
  Plan gathered = plan_of(workload, {"gpipe"}, {{{1, 1, 1, 1, 1}, {0.5, 0.5}}});
  gathered.sync.sharded = Sharding::Parameters;
  const Plan unlike = plan_of(workload, {"1f1b"}, {{.takes = {3, 2}, .shares_of_each = {{0.4, 0.3, 0.3}, {0.5, 0.5}}}});
  const Plan sequence = with_divided_sequence(plan_of(workload, {"1f1b"}, {{{5}, {0.5, 0.5}}, {{5}, {0.4, 0.6}}}));
  const auto whole = expected_losses(workload);
  for (const auto& [before, after] :
       {std::pair(unlike, sequence), std::pair(sequence, shards), std::pair(shards, unlike), std::pair(unlike, chain),
        std::pair(shards, chain), std::pair(chain, shards), std::pair(shards, others), std::pair(others, divided),
        std::pair(divided, shards), std::pair(divided, gathered), std::pair(gathered, chain)}) {
    expect_close(losses_after_resuming(workload, before, after, steps), {whole.begin() + steps / 2, whole.end()},
                 relative_tolerance);
  }
}

TEST(Executor, HoldsAShardsPartOfTheParametersAndTheOptimizer)
{
  Workload workload = small_gpt_by_operators();
  workload.optimizer = Optimizer::Adam;
  const auto held_after_steps = [&](const Plan& plan) {
    const auto program = testing_support::unit_program(plan, workload);
    const auto measured = run_by(Way::InProcess, workload, plan, *program, options_for(2));
    std::vector<double> held;
    for (const auto& rank : measured.ranks()) held.push_back(rank.memory.front().back().memory.value);
    return held;
  };
  const Plan plan = plan_of(workload, {"1f1b"}, {{{5}, {0.5, 0.2, 0.3}}});
  const double whole = held_after_steps(even_split(workload, 1, {"1f1b"}, microbatches)).front();
  const std::vector<double> held = held_after_steps(plan);
  const ParameterBytes bytes = parameter_bytes(workload);
  for (std::size_t shard = 0; shard < 3; ++shard) {
    std::uint64_t elsewhere = 0;
    for (const auto& layer : workload.layers) {
      elsewhere += layer.parameters - layer_of_shard(layer, plan.stages.front(), 0, shard).parameters;
    }
    // One device, and the first shard, also have the loss of each micro-batch.
    const double losses = shard > 0 ? sizeof(float) * microbatches : 0;
    EXPECT_EQ(whole - held[shard], (bytes.parameter + bytes.optimizer) * static_cast<double>(elsewhere) + losses);
  }
}

}  // namespace
}  // namespace isobar::exec::shards_test
