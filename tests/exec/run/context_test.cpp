#include "core/errors.hpp"
#include "core/model/sharding.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "exec/model/batch.hpp"
#include "tests/exec/model/small_decoders.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/exec/run/exchange_plans.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/exec/run/trained.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

/// Plans whose replicas divide sequences.
namespace isobar::exec::context_test {
namespace {

constexpr std::uint64_t microbatches = 4;
constexpr std::uint64_t steps = 3;
constexpr double relative_tolerance = 1e-6;

/// Sequences of 16 tokens, so that up to four devices take two chunks each.
Workload small(const std::string& keys)
{
  return small_decoder(keys + ", unit: operator, optimizer: adamw, learning_rate: 0.01, clip_norm: 0.5", "",
                       {{"micro_batch", "2"}, {"sequence", "16"}});
}

const std::string grouped = "heads: 8, kv_heads: 4, head_dim: 6, intermediate: 20";

ContextParallelism parts(std::size_t degree, ContextExchange exchange)
{
  return {degree, exchange};
}

std::vector<double> expected_losses(const Workload& workload)
{
  return losses_of_a_plain_loop(workload, steps, microbatches);
}

std::vector<double> losses_of(const Workload& workload, const Plan& plan, Way way)
{
  return trained(with_divisions(workload, plan), plan, way, options_for(steps)).losses;
}

class Sequences : public testing::TestWithParam<ContextExchange> {};

TEST_P(Sequences, InPartsHaveThePlainLoopsLosses)
{
  Way way = Way::InProcess;
  for (const std::string& keys :
       {grouped, grouped + ", attention: unfused, attention_sinks: true, attn_logit_softcapping: 0.5",
        grouped + ", layer_types: [window, chunk, full], sliding_window: 5, attention_chunk: 6",
        grouped + ", layer_types: [window, chunk, full], sliding_window: 5, attention_chunk: 6, attention: unfused",
        std::string("heads: 4, intermediate: 20, norm: layer, activation: gelu_tanh, gated: false, rotary: false, "
                    "positions: 16, biases: [qkv, output, mlp]"),
        std::string("layer_types: [latent], heads: 4, kv_lora_rank: 10, qk_nope_head_dim: 6, qk_rope_head_dim: 4, "
                    "v_head_dim: 5, intermediate: 20"),
        grouped + ", attention_output_gate: true, qk_norm: head"}) {
    SCOPED_TRACE(keys);
    const Workload workload = small(keys);
    const auto expected = expected_losses(workload);
    for (const std::size_t degree : {2, 4}) {
      SCOPED_TRACE(degree);
      const Plan plan =
          exchange_plan(workload, {.context = parts(degree, GetParam()), .replicas = degree}, microbatches);
      expect_close(losses_of(workload, plan, way), expected, relative_tolerance);
      way = way == Way::InProcess ? Way::Tcp : Way::InProcess;
    }
  }
}

TEST_P(Sequences, InPartsHaveThePlainLoopsLossesInPipelinesGroupsAndShards)
{
  const Workload workload = small(grouped);
  const auto expected = expected_losses(workload);
  const ContextParallelism halves = parts(2, GetParam());
  Way way = Way::InProcess;
  for (const ExchangeShape& shape :
       {ExchangeShape{.context = halves, .replicas = 2, .stages = 2},
        ExchangeShape{.context = halves, .replicas = 2, .stages = 2, .schedule = {"zero-bubble-h1"}},
        ExchangeShape{.context = halves, .replicas = 4},
        ExchangeShape{.context = halves, .replicas = 4, .stages = 2, .schedule = {"gpipe"}},
        ExchangeShape{.context = halves, .replicas = 2, .shards = 2},
        ExchangeShape{.context = halves, .replicas = 4, .sharded = Sharding::Optimizer},
        ExchangeShape{.context = halves, .replicas = 2, .stages = 2, .sharded = Sharding::Gradients},
        ExchangeShape{.context = halves, .replicas = 2, .recomputes = true},
        ExchangeShape{.context = halves,
        .replicas = 4,
        .shards = 2,
        .stages = 2,
        .sharded = Sharding::Optimizer,
        .recomputes = true}}) {
    SCOPED_TRACE(text_of(shape));
    const Plan plan = exchange_plan(workload, shape, microbatches);
    expect_close(losses_of(workload, plan, way), expected, relative_tolerance);
    way = way == Way::InProcess ? Way::Tcp : Way::InProcess;
  }
}

TEST_P(Sequences, InPartsHaveThePlainLoopsLossesWithDropout)
{
  const Workload workload = workload_from_text(
      "{model: gpt, layers: 2, hidden: 24, heads: 4, vocabulary: 37, micro_batch: 2, sequence: 16, unit: operator, "
      "dropout: 0.2, optimizer: momentum, learning_rate: 0.01}",
      "gpt.yaml", WorkloadSettings{});
  const auto expected = expected_losses(workload);
  for (const std::size_t shards : {1, 2}) {
    const Plan plan =
        exchange_plan(workload, {.context = parts(2, GetParam()), .replicas = 2, .shards = shards}, microbatches);
    expect_close(losses_of(workload, plan, Way::InProcess), expected, relative_tolerance);
  }
}

TEST_P(Sequences, InPartsHaveNearlyThePlainLoopsLossesInBf16)
{
  constexpr double tolerance_of_bf16 = 2e-3;
  for (const char* attention : {"fused", "unfused"}) {
    const Workload workload = small(fmt::format("{}, attention: {}, dtype: bf16", grouped, attention));
    const Plan plan = exchange_plan(workload, {.context = parts(2, GetParam()), .replicas = 2}, microbatches);
    expect_close(losses_of(workload, plan, Way::Tcp), expected_losses(workload), tolerance_of_bf16);
  }
}

TEST_P(Sequences, InPartsResumeOnAnotherPlan)
{
  const Workload workload = small(grouped);
  const auto expected = losses_of_a_plain_loop(workload, 4, microbatches);
  const Plan whole = even_split(workload, 2, ScheduleChoice{"1f1b"}, microbatches);
  const Plan halves = exchange_plan(workload, {.context = parts(2, GetParam()), .replicas = 2}, microbatches);
  const Plan divided = exchange_plan(
      workload, {.context = parts(2, GetParam()), .replicas = 4, .sharded = Sharding::Optimizer}, microbatches);
  for (const auto& [before, after] : {std::pair(&whole, &halves), {&halves, &divided}, {&divided, &whole}}) {
    expect_close(losses_after_resuming(workload, *before, *after, 4), {expected[2], expected[3]}, relative_tolerance);
  }
}

TEST_P(Sequences, InPartsAreEvaluatedAsWholeOnesAre)
{
  const Workload workload = small(grouped);
  const auto batches = synthetic_batches(workload);
  RunOptions options = options_for(1);
  options.evaluation = batches.get();
  options.evaluation_steps = 2;
  const auto expected =
      trained(workload, even_split(workload, 1, ScheduleChoice{"1f1b"}, microbatches), Way::InProcess, options);
  const Plan plan =
      exchange_plan(workload, {.context = parts(2, GetParam()), .replicas = 4, .stages = 2}, microbatches);
  for (const Way way : {Way::InProcess, Way::Tcp}) {
    const auto divided = trained(with_divisions(workload, plan), plan, way, options);
    ASSERT_TRUE(divided.evaluation.has_value());
    EXPECT_EQ(divided.evaluation->labels, expected.evaluation->labels);
    EXPECT_NEAR(divided.evaluation->loss, expected.evaluation->loss, 1e-5 * expected.evaluation->loss);
  }
}

INSTANTIATE_TEST_SUITE_P(Exchanged, Sequences,
                         testing::Values(ContextExchange::Ring, ContextExchange::AllGather, ContextExchange::AllToAll),
                         [](const auto& tested) {
                           std::string name(name_of(tested.param));
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace isobar::exec::context_test
