#include "core/errors.hpp"
#include "core/model/sharding.hpp"
#include "exec/model/batch.hpp"
#include "tests/exec/model/small_decoders.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/exec/run/exchange_plans.hpp"
#include "tests/exec/run/replicated_plans.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/exec/run/trained.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

/// Plans whose replicas divide experts.
namespace isobar::exec::experts_test {
namespace {

constexpr std::uint64_t microbatches = 8;
constexpr std::uint64_t steps = 4;
constexpr double relative_tolerance = 1e-6;

/// A mixture of four experts, of which a token uses two.
Workload mixture(const std::string& other_keys)
{
  return small_decoder(
      "heads: 4, experts: 4, top_k: 2, expert_intermediate: 10, mlp_layer_types: [dense, experts, experts], "
      "intermediate: 20, unit: operator, optimizer: adamw, learning_rate: 0.01, clip_norm: 0.5",
      other_keys, {{"micro_batch", "2"}, {"sequence", "8"}});
}

/// `replicas` of `stages` parts of the model, of which groups of `degree` divide the experts.
Plan plan_of(const Workload& workload, const ScheduleChoice& schedule, std::size_t stages, std::size_t replicas,
             std::size_t degree)
{
  std::vector<std::vector<Takes>> takes(stages);
  for (std::size_t i = 0; i < stages; ++i) {
    for (std::size_t k = 0; k < replicas; ++k)
      takes[i].emplace_back(fmt::format("d{}.{}", i, k), microbatches / replicas);
  }
  Plan plan = replicated_plan(workload, schedule, takes);
  plan.experts = {.degree = degree};
  std::vector<Stage> by_layers;
  for (const auto& stage : plan.stages) {
    for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
      by_layers.push_back({layer, layer, stage.replicas});
    }
  }
  plan.stages = by_layers;
  return plan;
}

std::vector<double> losses_of(const Workload& workload, const Plan& plan, Way way, const RunOptions& options)
{
  return trained(with_divisions(workload, plan), plan, way, options).losses;
}

std::vector<double> expected_losses(const Workload& workload)
{
  return losses_of_a_plain_loop(workload, steps, microbatches);
}

TEST(DividedExperts, HaveThePlainLoopsLosses)
{
  for (const char* keys :
       {"shared_intermediate: 8, shared_gate: true, norm_topk_prob: false",
        "moe_latent_size: 12, gated: false, biases: [mlp, experts, router], scoring_func: sigmoid"}) {
    SCOPED_TRACE(keys);
    const Workload workload = mixture(keys);
    const auto expected = expected_losses(workload);
    Way way = Way::InProcess;
    for (const auto& [replicas, degree] : {std::pair(2, 2), {4, 1}, {4, 2}, {4, 4}}) {
      SCOPED_TRACE(fmt::format("groups of {} of {} replicas", degree, replicas));
      const Plan plan =
          plan_of(workload, {"1f1b"}, 1, static_cast<std::size_t>(replicas), static_cast<std::size_t>(degree));
      expect_close(losses_of(workload, plan, way, options_for(steps)), expected, relative_tolerance);
      way = way == Way::InProcess ? Way::Tcp : Way::InProcess;
    }
  }
}

TEST(DividedExperts, HaveThePlainLoopsLossesInPipelines)
{
  const Workload workload = mixture("shared_intermediate: 8");
  const auto expected = expected_losses(workload);
  for (const char* schedule : {"1f1b", "gpipe", "zero-bubble-h1"}) {
    SCOPED_TRACE(schedule);
    const Plan plan = plan_of(workload, {schedule}, 2, 2, 2);
    expect_close(losses_of(workload, plan, Way::InProcess, options_for(steps)), expected, relative_tolerance);
    expect_close(losses_of(workload, plan, Way::Tcp, options_for(steps)), expected, relative_tolerance);
  }
}

TEST(DividedExperts, HaveThePlainLoopsLossesWithShardsRecomputationDividedOptimizersAndSequences)
{
  const ExpertParallelism halves = {.degree = 2};
  const ExpertParallelism whole_on_shards = {.degree = 2, .are_whole = true};
  const ContextParallelism parts = {2, ContextExchange::AllGather};
  const std::vector<ExchangeShape> shapes = {
      {.experts = halves, .replicas = 2, .recomputes = true},
      {.experts = halves, .replicas = 4, .sharded = Sharding::Optimizer},
      {.experts = halves, .replicas = 2, .sharded = Sharding::Optimizer},
      {.experts = halves, .replicas = 4, .stages = 2, .sharded = Sharding::Gradients},
      {.experts = halves, .replicas = 2, .shards = 2},
      {.experts = whole_on_shards, .replicas = 2, .shards = 2},
      {.experts = {.degree = 1, .are_whole = true}, .replicas = 1, .shards = 2},
      {.context = parts, .experts = halves, .replicas = 2},
      {.context = parts, .experts = {.degree = 4}, .replicas = 4},
      {.experts = halves, .replicas = 4, .shards = 2, .sharded = Sharding::Optimizer, .recomputes = true},
      {.context = parts,
       .experts = whole_on_shards,
       .replicas = 4,
       .shards = 2,
       .stages = 2,
       .schedule = {"zero-bubble-h1"},
       .sharded = Sharding::Optimizer,
       .recomputes = true}};
  Way way = Way::InProcess;
  for (const char* keys :
       {"shared_intermediate: 8, shared_gate: true, norm_topk_prob: false",
        "moe_latent_size: 12, gated: false, biases: [mlp, router], scoring_func: sigmoid, shared_intermediate: 8"}) {
    const Workload workload = mixture(keys);
    const auto expected = expected_losses(workload);
    for (const auto& shape : shapes) {
      SCOPED_TRACE(fmt::format("{}: {}", keys, text_of(shape)));
      const Plan plan = exchange_plan(workload, shape, microbatches);
      expect_close(losses_of(workload, plan, way, options_for(steps)), expected, relative_tolerance);
      way = way == Way::InProcess ? Way::Tcp : Way::InProcess;
    }
  }
}

TEST(DividedExperts, ResumeOnAnotherPlan)
{
  const Workload workload = mixture("shared_intermediate: 8");
  const auto expected = expected_losses(workload);
  const Plan whole = even_split(workload, 1, ScheduleChoice{"1f1b"}, microbatches);
  const Plan halves = plan_of(workload, {"1f1b"}, 1, 4, 2);
  const Plan quarters = plan_of(workload, {"1f1b"}, 1, 4, 4);
  const Plan of_shards = exchange_plan(
      workload, {.experts = {.degree = 2}, .replicas = 4, .shards = 2, .sharded = Sharding::Optimizer}, microbatches);
  const Plan on_shards =
      exchange_plan(workload, {.experts = {.degree = 2, .are_whole = true}, .replicas = 2, .shards = 2}, microbatches);
  for (const auto& [before, after] : {std::pair(&whole, &halves),
                                      {&halves, &quarters},
                                      {&quarters, &of_shards},
                                      {&of_shards, &on_shards},
                                      {&on_shards, &whole}}) {
    expect_close(losses_after_resuming(workload, *before, *after, steps), {expected[2], expected[3]},
                 relative_tolerance);
  }
}

TEST(DividedExperts, EvaluateAsOneDeviceDoes)
{
  const Workload workload = mixture("shared_intermediate: 8");
  const auto batches = synthetic_batches(workload);
  RunOptions options = options_for(1);
  options.evaluation = batches.get();
  options.evaluation_steps = 2;
  const auto expected =
      trained(workload, even_split(workload, 1, ScheduleChoice{"1f1b"}, microbatches), Way::InProcess, options);
  const Plan plan = plan_of(workload, {"1f1b"}, 2, 2, 2);
  for (const Way way : {Way::InProcess, Way::Tcp}) {
    const auto divided = trained(with_experts(workload, plan.experts), plan, way, options);
    ASSERT_TRUE(divided.evaluation.has_value());
    EXPECT_EQ(divided.evaluation->labels, expected.evaluation->labels);
    EXPECT_NEAR(divided.evaluation->loss, expected.evaluation->loss, 1e-5 * expected.evaluation->loss);
  }
}

}  // namespace
}  // namespace isobar::exec::experts_test
