#include "core/program/collective.hpp"
#include "exec/model/batch.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/exec/model/small_models.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/exec/run/replicated_plans.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/exec/run/trained.hpp"
#include "tests/support/every_algorithm.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::exec::replicas_test {
namespace {

constexpr std::uint64_t microbatches = 5;
constexpr std::uint64_t steps = 6;
/// Of the losses of replicas, which add up gradients in another order than one process.
constexpr double relative_tolerance = 1e-6;

std::vector<double> expected_losses(const Workload& workload, std::uint64_t of_steps = steps,
                                    std::uint64_t of_microbatches = microbatches)
{
  return losses_of_a_plain_loop(workload, of_steps, of_microbatches);
}

/// Which devices take how many micro-batches through which stage, under a schedule.
struct Shape {
  std::string name;
  ScheduleChoice schedule;
  std::vector<std::vector<Takes>> stages;

  Plan plan(const Workload& workload) const { return replicated_plan(workload, schedule, stages); }
};

std::vector<Shape> shapes()
{
  const ScheduleChoice one_f_one_b = {"1f1b"};
  return {
      {"TwoReplicasOfAll", {"gpipe"}, {{{"a", 3}, {"b", 2}}}},
      {"ThreeReplicasOfAll", {"sequential"}, {{{"a", 1}, {"b", 3}, {"c", 1}}}},
      {"TwoPipelines", one_f_one_b, {{{"a0", 3}, {"b0", 2}}, {{"a1", 3}, {"b1", 2}}}},
      {"ThreePipelinesOfThreeStages",
       {"zero-bubble-h1"},
       {{{"a0", 2}, {"b0", 2}, {"c0", 1}}, {{"a1", 2}, {"b1", 2}, {"c1", 1}}, {{"a2", 2}, {"b2", 2}, {"c2", 1}}}},
      {"PipelinesOfTheirOwnCuts",
       one_f_one_b,
       {{{"a0", 3}, {"b0", 2}}, {{"a0", 3}, {"b1", 2}}, {{"a1", 3}, {"b1", 2}}}},
      {"FewerReplicasAfter", one_f_one_b, {{{"a", 3}, {"b", 2}}, {{"c", 5}}}},
      {"MoreReplicasAfter", one_f_one_b, {{{"c", 5}}, {{"a", 2}, {"b", 3}}}},
      {"OtherCountsAfter", {"gpipe"}, {{{"a", 4}, {"b", 1}}, {{"c", 2}, {"d", 3}}}},
      {"InterleavedPipelines",
       {"interleaved"},
       {{{"a0", 3}, {"b0", 2}}, {{"a1", 3}, {"b1", 2}}, {{"a0", 3}, {"b0", 2}}, {{"a1", 3}, {"b1", 2}}}},
  };
}

class Replicas : public testing::TestWithParam<std::tuple<Shape, Way>> {
 protected:
  static const Shape& shape() { return std::get<Shape>(GetParam()); }
  static Way way() { return std::get<Way>(GetParam()); }
};

TEST_P(Replicas, HaveThePlainLoopsLosses)
{
  for (const Workload& workload : {small_bert(), small_gpt()}) {
    expect_close(trained(workload, shape().plan(workload), way(), options_for(steps)).losses, expected_losses(workload),
                 relative_tolerance);
  }
}

TEST_P(Replicas, HaveThePlainLoopsLossesWithDropoutRecomputationAndClippedGradients)
{
  Workload workload = small_gpt();
  workload.training.dropout = 0.2;
  workload.training.clip_norm = 0.05;
  Plan plan = shape().plan(workload);
  for (std::size_t layer = 0; layer < workload.layers.size(); layer += 2) plan.recompute.push_back(layer);
  expect_close(trained(workload, plan, way(), options_for(steps)).losses, expected_losses(workload),
               relative_tolerance);
}

TEST_P(Replicas, TakeTheirDataFromTheDataServer)
{
  const Workload workload = small_bert();
  Plan plan = shape().plan(workload);
  plan.data_server = "server";
  expect_close(trained(workload, plan, way(), options_for(2)).losses, expected_losses(workload, 2), relative_tolerance);
}

TEST_P(Replicas, EvaluateAllMicroBatchesOnce)
{
  const Workload workload = small_gpt();
  const auto batches = synthetic_batches(workload);
  RunOptions options = options_for(1);
  options.evaluation = batches.get();
  options.evaluation_steps = 2;
  const auto expected = trained(workload, even_split(workload, 1, {"1f1b"}, microbatches), Way::InProcess, options);
  const auto replicated = trained(workload, shape().plan(workload), way(), options);
  ASSERT_TRUE(replicated.evaluation.has_value());
  EXPECT_EQ(replicated.evaluation->labels, expected.evaluation->labels);
  EXPECT_NEAR(replicated.evaluation->loss, expected.evaluation->loss, 1e-5 * expected.evaluation->loss);
}

INSTANTIATE_TEST_SUITE_P(Executor, Replicas, testing::ValuesIn(by_one_way_each(shapes())), [](const auto& test) {
  const bool is_in_process = std::get<Way>(test.param) == Way::InProcess;
  return std::get<Shape>(test.param).name + (is_in_process ? "InProcess" : "OverTcp");
});

TEST(Executor, AddsUpGradientsByEveryAlgorithmToTheSameLosses)
{
  const Workload workload = small_gpt();
  const auto expected = expected_losses(workload);
  Plan plan =
      replicated_plan(workload, {"1f1b"}, {{{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}}, {{"f", 3}, {"g", 2}}});
  for (Stage& stage : plan.stages) {
    for (Replica& replica : stage.replicas) {
      Shard& shard = replica.shards.front();
      shard.site = shard.device == "b" || shard.device == "d" || shard.device == "g" ? "far" : "near";
    }
  }
  for (const Algorithm algorithm : every_algorithm()) {
    plan.sync.algorithm = algorithm;
    SCOPED_TRACE(name_of(algorithm));
    expect_close(trained(workload, plan, Way::Tcp, options_for(steps)).losses, expected, relative_tolerance);
  }
}

TEST(Executor, AddsUpGradientsInBucketsToTheSameBits)
{
  Workload workload = small_gpt();
  workload.training.clip_norm = 0.05;
  const std::vector<Takes> both = {{"a", 3}, {"b", 2}};
  Plan plan = replicated_plan(workload, {"1f1b"}, {both, both, both, both});
  for (const Way way : {Way::InProcess, Way::Tcp}) {
    plan.sync.bucket = {};
    const auto alone = trained(workload, plan, way, options_for(steps)).losses;
    expect_close(alone, expected_losses(workload), relative_tolerance);
    for (const double bytes : {1e4, 1e9}) {
      plan.sync.bucket = Bytes(bytes);
      EXPECT_EQ(trained(workload, plan, way, options_for(steps)).losses, alone) << bytes;
    }
  }
}

/// What replicas divide, and by which algorithm they exchange it.
using Divided = std::tuple<Sharding, Algorithm, Way>;

class DividedReplicas : public testing::TestWithParam<Divided> {};

/// Shapes whose replicas take as many micro-batches, six in all.
std::vector<Shape> even_shapes()
{
  return {
      {"ThreeReplicasOfAll", {"gpipe"}, {{{"a", 2}, {"b", 2}, {"c", 2}}}},
      {"TwoPipelines", {"zero-bubble-h1"}, {{{"a0", 3}, {"b0", 3}}, {{"a1", 3}, {"b1", 3}}}},
      {"PipelinesOfTheirOwnCuts", {"gpipe"}, {{{"a0", 3}, {"b0", 3}}, {{"a0", 3}, {"b1", 3}}, {{"a1", 3}, {"b1", 3}}}},
      {"FewerReplicasAfter", {"1f1b"}, {{{"a", 3}, {"b", 3}}, {{"c", 6}}}},
      {"InterleavedPipelines",
       {"interleaved"},
       {{{"a0", 3}, {"b0", 3}}, {{"a1", 3}, {"b1", 3}}, {{"a0", 3}, {"b0", 3}}, {{"a1", 3}, {"b1", 3}}}},
  };
}

TEST_P(DividedReplicas, HaveTheLossesOfWholeOnesToTheBit)
{
  const auto& [sharded, algorithm, way] = GetParam();
  Workload workload = small_gpt();
  workload.training.clip_norm = 0.05;
  for (const Shape& shape : sharded == Sharding::Parameters ? even_shapes() : shapes()) {
    SCOPED_TRACE(shape.name);
    Plan plan = shape.plan(workload);
    for (std::size_t layer = 0; layer < workload.layers.size(); layer += 2) plan.recompute.push_back(layer);
    plan.sync.algorithm = algorithm;
    const auto whole = trained(workload, plan, way, options_for(4)).losses;
    plan.sync.sharded = sharded;
    EXPECT_EQ(trained(workload, plan, way, options_for(4)).losses, whole);
  }
}

TEST_P(DividedReplicas, UpdateByEveryOptimizerAndEvaluateTheSameModel)
{
  const auto& [sharded, algorithm, way] = GetParam();
  Workload workload = small_bert();
  const auto batches = synthetic_batches(workload);
  RunOptions options = options_for(3);
  options.evaluation = batches.get();
  options.evaluation_steps = 1;
  for (const Optimizer optimizer : {Optimizer::Sgd, Optimizer::Momentum, Optimizer::Adam, Optimizer::AdamW}) {
    workload.optimizer = optimizer;
    Plan plan = even_shapes()[1].plan(workload);
    plan.sync.algorithm = algorithm;
    const auto whole = trained(workload, plan, way, options);
    plan.sync.sharded = sharded;
    const auto divided = trained(workload, plan, way, options);
    EXPECT_EQ(divided.losses, whole.losses) << name_of(optimizer);
    EXPECT_EQ(divided.evaluation.value().loss, whole.evaluation.value().loss) << name_of(optimizer);
  }
}

INSTANTIATE_TEST_SUITE_P(Executor, DividedReplicas,
                         testing::Values(Divided{Sharding::Optimizer, Algorithm::Ring, Way::InProcess},
                                         Divided{Sharding::Gradients, Algorithm::Ring, Way::InProcess},
                                         Divided{Sharding::Parameters, Algorithm::Ring, Way::InProcess},
                                         Divided{Sharding::Optimizer, Algorithm::Direct, Way::Tcp},
                                         Divided{Sharding::Gradients, Algorithm::Tree, Way::Tcp},
                                         Divided{Sharding::Parameters, Algorithm::Ring, Way::Tcp}),
                         [](const auto& test) {
                           const bool is_in_process = std::get<Way>(test.param) == Way::InProcess;
                           return fmt::format("{}By{}{}", name_of(std::get<Sharding>(test.param)),
                                              name_of(std::get<Algorithm>(test.param)),
                                              is_in_process ? "InProcess" : "OverTcp");
                         });

/// .ci/full runs it; the other tests of this file are a sample of it.
TEST(Executor, DISABLED_HasThePlainLoopsLossesForAllDegreesAndShardings)
{
  const auto train = [](std::size_t stages, const std::vector<std::uint64_t>& counts, Sharding sharded, Way way) {
    std::vector<std::vector<Takes>> takes(stages);
    for (std::size_t stage = 0; stage < stages; ++stage) {
      for (std::size_t i = 0; i < counts.size(); ++i)
        takes[stage].emplace_back(fmt::format("d{}.{}", stage, i), counts[i]);
    }
    for (const Workload& workload : {small_bert(), small_gpt()}) {
      Plan plan = replicated_plan(workload, {"1f1b"}, takes);
      plan.sync.sharded = sharded;
      expect_close(trained(workload, plan, way, options_for(steps)).losses, expected_losses(workload, steps, 6),
                   relative_tolerance);
    }
  };
  const std::vector<std::vector<std::uint64_t>> all_counts = {{6}, {4, 2}, {3, 3}, {3, 2, 1}, {2, 2, 2}};
  for (const std::size_t stages : {1UL, 2UL, 3UL}) {
    for (const auto& counts : all_counts) {
      for (const auto& name : sharding_names()) {
        const Sharding sharded = sharding_from_name(name).value();
        const bool take_alike = counts.front() == counts.back();
        if (sharded != Sharding::None && (counts.size() == 1 || (sharded == Sharding::Parameters && !take_alike)))
          continue;
        for (const Way way : {Way::InProcess, Way::Tcp}) {
          SCOPED_TRACE(fmt::format("{} stages, replicas of {} micro-batches, sharded {}, {}", stages,
                                   fmt::join(counts, "+"), name, way == Way::Tcp ? "TCP" : "in process"));
          train(stages, counts, sharded, way);
        }
      }
    }
  }
}

TEST(Executor, DividesAnOptimizerOverTwoSitesToTheBit)
{
  const Workload workload = small_gpt();
  Plan plan = replicated_plan(workload, {"1f1b"}, {{{"a", 1}, {"b", 2}, {"c", 1}, {"d", 1}}, {{"e", 3}, {"f", 2}}});
  for (Stage& stage : plan.stages) {
    for (std::size_t i = 0; i < stage.replicas.size(); ++i) {
      stage.replicas[i].shards.front().site = i % 2 == 0 ? "near" : "far";
    }
  }
  plan.sync.algorithm = Algorithm::Hierarchical;
  const auto whole = trained(workload, plan, Way::Tcp, options_for(4)).losses;
  plan.sync.sharded = Sharding::Gradients;
  EXPECT_EQ(trained(workload, plan, Way::Tcp, options_for(4)).losses, whole);
}

TEST(Executor, HoldsOnlyThePartOfAReplicaBetweenSteps)
{
  Workload workload = small_gpt();
  workload.optimizer = Optimizer::Adam;
  std::size_t parameters = 0;
  for (const auto& layer : workload.layers) parameters += layer.parameters;
  const auto held_after_steps = [&](Sharding sharded) {
    Plan plan = replicated_plan(workload, {"1f1b"}, {{{"a", 1}, {"b", 1}, {"c", 1}}});
    plan.sync.sharded = sharded;
    const auto program = testing_support::unit_program(plan, workload);
    const auto measured = run_by(Way::InProcess, workload, plan, *program, options_for(2));
    std::vector<double> held;
    for (const auto& rank : measured.ranks()) held.push_back(rank.memory.front().back().memory.value);
    return held;
  };
  const std::vector<double> whole = held_after_steps(Sharding::None);
  const ParameterBytes bytes = parameter_bytes(workload);
  for (const Sharding sharded : {Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters}) {
    const std::vector<double> held = held_after_steps(sharded);
    const double each = bytes.optimizer + (sharded == Sharding::Parameters ? bytes.parameter : 0);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      // Of all values the first is the loss.
      const ValueRange part = part_of_end(rank, 3, parameters + 1, Algorithm::Ring, {});
      const std::size_t own = part.size() - (rank == 0 ? 1 : 0);
      EXPECT_EQ(whole[rank] - held[rank], each * static_cast<double>(parameters - own)) << name_of(sharded) << rank;
    }
  }
}

TEST(Executor, TellsEachStepsLossOnceWithReplicasOfTheLastStage)
{
  const Workload workload = small_gpt();
  const Plan plan = replicated_plan(workload, {"1f1b"}, {{{"a", 3}, {"b", 2}}});
  std::vector<double> told;
  const auto replicated = trained(workload, plan, Way::InProcess, options_for(4),
                                  [&](const StepReport& step) { told.push_back(step.loss); });
  EXPECT_EQ(told, replicated.losses);
}

TEST(Executor, KeepsTheLossScaleOfHalfPrecisionTheSameOnAllReplicas)
{
  Workload workload = small_gpt();
  workload.dtype = DType::Float16;
  workload.training.clip_norm = 1;
  const auto one =
      trained(workload, even_split(workload, 1, {"1f1b"}, microbatches), Way::InProcess, options_for(steps));
  for (const Way way : {Way::InProcess, Way::Tcp}) {
    const Plan plan = replicated_plan(workload, {"1f1b"}, {{{"a", 3}, {"b", 2}}, {{"c", 3}, {"d", 2}}});
    constexpr double half_precision = 2e-3;
    expect_close(trained(workload, plan, way, options_for(steps)).losses, one.losses, half_precision);
  }
}

TEST(Executor, ResumesACheckpointOfReplicasOnAnyOtherPlan)
{
  const Workload workload = [] {
    Workload adam = small_gpt();
    adam.optimizer = Optimizer::Adam;
    return adam;
  }();
  const Plan replicas = replicated_plan(workload, {"1f1b"}, {{{"a", 3}, {"b", 2}}, {{"c", 3}, {"d", 2}}});
  const Plan chain = even_split(workload, 3, {"1f1b"}, microbatches);
  const Plan others = replicated_plan(workload, {"gpipe"}, {{{"a", 1}, {"b", 2}, {"c", 2}}});
  Plan divided = replicas;
  divided.sync.sharded = Sharding::Optimizer;
  Plan in_thirds = others;
  in_thirds.sync.sharded = Sharding::Gradients;
  Plan in_fifths = replicated_plan(workload, {"gpipe"}, {{{"a", 1}, {"b", 1}, {"c", 1}, {"d", 1}, {"e", 1}}});
  in_fifths.sync.sharded = Sharding::Parameters;
  const auto whole = expected_losses(workload);
  for (const auto& [before, after] :
       {std::pair(replicas, chain), std::pair(chain, replicas), std::pair(replicas, others), std::pair(divided, chain),
        std::pair(chain, divided), std::pair(divided, in_thirds), std::pair(in_thirds, in_fifths),
        std::pair(in_fifths, replicas)}) {
    expect_close(losses_after_resuming(workload, before, after, steps), {whole.begin() + steps / 2, whole.end()},
                 relative_tolerance);
  }
}

}  // namespace
}  // namespace isobar::exec::replicas_test
