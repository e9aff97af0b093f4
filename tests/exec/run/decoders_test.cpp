#include "tests/exec/model/small_decoders.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/exec/run/replicated_plans.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/exec/run/trained.hpp"
#include "tests/support/shards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

/// Plans of decoders, whose losses are those of one process.
namespace isobar::exec::decoders_test {
namespace {

constexpr std::uint64_t microbatches = 4;
constexpr std::uint64_t steps = 4;
constexpr double relative_tolerance = 1e-6;
/// Of the losses of shards, which add up outputs and gradients in another order than one process.
constexpr double tolerance_of_shards = 1e-5;

/// A decoder that trains with clipped gradients.
Workload trained_decoder(const std::string& kind, const std::string& other_keys = "")
{
  const std::string training = "optimizer: adamw, learning_rate: 0.01, clip_norm: 0.5";
  return small_decoder(keys_of_kind(kind), other_keys.empty() ? training : training + ", " + other_keys,
                       {{"micro_batch", "2"}, {"sequence", "8"}});
}

std::vector<double> expected_losses(const Workload& workload)
{
  return losses_of_a_plain_loop(workload, steps, microbatches);
}

/// Shards of all layers: stages of two devices each, in these parts.
Plan plan_of_shards(const Workload& workload, const ScheduleChoice& schedule, std::size_t stages,
                    const std::vector<double>& shares)
{
  Plan plan = even_split(workload, stages, schedule, microbatches);
  for (std::size_t i = 0; i < plan.stages.size(); ++i) {
    auto& shards = plan.stages[i].replicas.front().shards;
    shards.clear();
    for (std::size_t s = 0; s < shares.size(); ++s) {
      shards.push_back({"d" + std::to_string(i) + "." + std::to_string(s), shares[s]});
    }
  }
  plan.stages = testing_support::by_layers(plan.stages);
  return plan;
}

TEST(ExecutedDecoders, HaveThePlainLoopsLossesInPipelines)
{
  for (const char* kind : {"windows", "latent", "cohere", "deepseek", "gpt_oss", "gemma2"}) {
    SCOPED_TRACE(kind);
    const Workload workload = trained_decoder(kind);
    const auto expected = expected_losses(workload);
    for (const char* schedule : {"1f1b", "zero-bubble-h1"}) {
      Plan plan = even_split(workload, 3, ScheduleChoice{schedule}, microbatches);
      expect_close(trained(workload, plan, Way::Tcp, options_for(steps)).losses, expected, relative_tolerance);
      plan.recompute = {1, 3};
      expect_close(trained(workload, plan, Way::InProcess, options_for(steps)).losses, expected, relative_tolerance);
    }
  }
}

TEST(ExecutedDecoders, HaveThePlainLoopsLossesInReplicas)
{
  for (const char* kind : {"qwen3", "qwen2_moe"}) {
    SCOPED_TRACE(kind);
    const Workload workload = trained_decoder(kind);
    Plan plan = replicated_plan(workload, {"1f1b"}, {{{"a0", 2}, {"b0", 2}}, {{"a1", 2}, {"b1", 2}}});
    const auto expected = expected_losses(workload);
    expect_close(trained(workload, plan, Way::InProcess, options_for(steps)).losses, expected, relative_tolerance);
    plan.sync.sharded = Sharding::Parameters;
    expect_close(trained(workload, plan, Way::Tcp, options_for(steps)).losses, expected, relative_tolerance);
  }
}

TEST(ExecutedDecoders, HaveThePlainLoopsLossesInShards)
{
  for (const char* kind : {"windows", "qwen3", "latent", "deepseek", "gpt_oss", "latent_experts"}) {
    SCOPED_TRACE(kind);
    const Workload workload = trained_decoder(kind, "unit: operator");
    const auto expected = expected_losses(workload);
    Plan plan = plan_of_shards(workload, {"1f1b"}, 2, {0.5, 0.5});
    expect_close(trained(workload, plan, Way::Tcp, options_for(steps)).losses, expected, tolerance_of_shards);
    plan = plan_of_shards(workload, {"zero-bubble-h1"}, 1, {0.4, 0.6});
    expect_close(trained(workload, plan, Way::InProcess, options_for(steps)).losses, expected, tolerance_of_shards);
    for (auto& stage : plan.stages) stage.grid = {ShardGrid::Form::Sequence, 2};
    expect_close(trained(workload, plan, Way::InProcess, options_for(steps)).losses, expected, tolerance_of_shards);
  }
}

TEST(ExecutedDecoders, ResumeOnAnotherPlan)
{
  for (const char* kind : {"gemma2", "deepseek"}) {
    SCOPED_TRACE(kind);
    const Workload workload = trained_decoder(kind, "unit: operator");
    const Plan whole = even_split(workload, 1, ScheduleChoice{"1f1b"}, microbatches);
    const bool has_tied_ends = std::string(kind) == "gemma2";
    const Plan other = has_tied_ends ? even_split(workload, 2, ScheduleChoice{"1f1b"}, microbatches)
                                     : plan_of_shards(workload, {"1f1b"}, 2, {0.5, 0.5});
    const auto expected = expected_losses(workload);
    expect_close(losses_after_resuming(workload, whole, other, steps), {expected[2], expected[3]}, tolerance_of_shards);
    expect_close(losses_after_resuming(workload, other, whole, steps), {expected[2], expected[3]}, tolerance_of_shards);
  }
}

}  // namespace
}  // namespace isobar::exec::decoders_test
