#include "core/plan/operator_plan.hpp"
#include "core/spmd/pieces.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/stage/stored_tensors.hpp"
#include "schedules/lowering/schedule.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/exec/run/trained.hpp"
#include "tests/support/divisions.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

/// Training by plans whose devices divide operators, against the same model by blocks on one device.
namespace isobar::exec::operators_test {
namespace {

using testing_support::equal_shares;

constexpr std::uint64_t steps = 5;
constexpr std::uint64_t microbatches = 2;
constexpr double relative_tolerance = 2e-5;

enum class Trunk : std::uint8_t { Plain, Bert, Vit };

/// The same model with a layer for each block, and for each operator.
struct Pair {
  explicit Pair(Trunk trunk) : Pair(text_of(trunk)) {}

  template <typename Change>
  void change(Change change)
  {
    change(blocks);
    change(operators);
  }

  Workload blocks;
  Workload operators;

 private:
  explicit Pair(const std::string& text)
      : blocks(testing_support::small_moe(text)), operators(testing_support::small_moe(text + "unit: operator\n"))
  {
    change([](Workload& workload) {
      workload.optimizer = Optimizer::Sgd;
      workload.training.learning_rate = 1e-3;  // the loss is a sum over many tokens
    });
  }
  static std::string text_of(Trunk trunk)
  {
    switch (trunk) {
      case Trunk::Plain:
        return "trunk: plain\nsequence: 12\ntop_k: 1\n";
      case Trunk::Bert:
        return "trunk: bert\nsequence: 12\nvocabulary: 24\ntop_k: 2\n";
      default:
        return "trunk: vit\nimage: 8\npatch: 4\nclasses: 12\ntop_k: 1\ncapacity_factor: 2\n";
    }
  }
};

/// Of groups with these shares, each of `replicas`.
Plan random_pipeline(const Workload& workload, const std::vector<std::vector<double>>& shares, std::uint64_t count,
                     std::mt19937_64& random, const std::string& schedule = "duplex", std::size_t replicas = 1)
{
  const auto graph = operator_graph_of(workload, workload.micro_batch / replicas);
  const auto division = testing_support::random_division(graph, spmd::Rules::Corrected, random, shares.size());
  Plan plan = testing_support::plan_of_groups(graph, division, shares, schedule, count, replicas);
  if (random() % 2 == 0) testing_support::add_random_buckets(plan, workload, random);
  return plan;
}

Plan random_plan(const Workload& workload, const std::vector<double>& shares, std::uint64_t count,
                 std::mt19937_64& random, const std::string& schedule = "duplex", std::size_t replicas = 1)
{
  return random_pipeline(workload, {shares}, count, random, schedule, replicas);
}

/// Relative to the largest loss: the first one of the plain trunk is the rounding of a zero.
void expect_close_to_largest(const std::vector<double>& losses, const std::vector<double>& expected, double relative)
{
  ASSERT_EQ(losses.size(), expected.size());
  double largest = 0;
  for (const double loss : expected) largest = std::max(largest, std::abs(loss));
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_LE(std::abs(losses[i] - expected[i]), relative * largest) << "step " << i;
  }
}

class OperatorsOf : public testing::TestWithParam<Trunk> {};

TEST_P(OperatorsOf, AModelHaveThePlainLoopsLosses)
{
  const Pair pair(GetParam());
  std::mt19937_64 random(2);
  for (const std::uint64_t count : {1U, 2U, 4U}) {
    const auto expected = losses_of_a_plain_loop(pair.blocks, steps, count);
    EXPECT_NE(expected.front(), expected.back());
    for (const auto& shares : {equal_shares(2), std::vector<double>{0.25, 0, 0.75}, equal_shares(4)}) {
      for (const Way way : {Way::InProcess, Way::Tcp}) {
        SCOPED_TRACE(fmt::format("{} micro-batches on {}", count, shares.size()));
        const Plan plan = random_plan(pair.operators, shares, count, random);
        expect_close_to_largest(trained(pair.operators, plan, way, options_for(steps)).losses, expected,
                                relative_tolerance);
      }
    }
  }
}

TEST_P(OperatorsOf, AModelHaveThemWithDropoutAndClippedGradients)
{
  Pair pair(GetParam());
  pair.change([](Workload& workload) {
    workload.optimizer = Optimizer::Momentum;
    workload.training.dropout = 0.2;
    workload.training.clip_norm = 0.5;
    workload.training.learning_rate = 0.1;
  });
  const auto expected = losses_of_a_plain_loop(pair.blocks, steps, microbatches);
  std::mt19937_64 random(3);
  for (const Way way : {Way::InProcess, Way::Tcp}) {
    for (const std::size_t replicas : {1U, 2U}) {
      SCOPED_TRACE(fmt::format("{} replicas", replicas));
      const Plan plan = random_plan(pair.operators, {0.5, 0.2, 0.3}, microbatches, random, "1f1b", replicas);
      expect_close_to_largest(trained(pair.operators, plan, way, options_for(steps)).losses, expected,
                              relative_tolerance);
    }
  }
}

TEST_P(OperatorsOf, AModelHaveThemInReplicas)
{
  const Pair pair(GetParam());
  std::mt19937_64 random(9);
  for (const std::uint64_t count : {1U, 2U}) {
    const auto expected = losses_of_a_plain_loop(pair.blocks, steps, count);
    for (const auto& shares : {std::vector<double>{1}, {0.3, 0.7}}) {
      for (const auto& [replicas, way] : {std::pair(2U, Way::Tcp), {3U, Way::InProcess}}) {
        SCOPED_TRACE(fmt::format("{} micro-batches on {} replicas of {}", count, replicas, shares.size()));
        const Plan plan = random_plan(pair.operators, shares, count, random, "duplex", replicas);
        expect_close_to_largest(trained(pair.operators, plan, way, options_for(steps)).losses, expected,
                                relative_tolerance);
      }
    }
  }
}

TEST_P(OperatorsOf, AModelHaveThemInAPipeline)
{
  Pair pair(GetParam());
  pair.change([](Workload& workload) {
    workload.optimizer = Optimizer::Momentum;
    workload.training.dropout = 0.2;
    workload.training.clip_norm = 0.5;
    workload.training.learning_rate = 0.1;
  });
  std::mt19937_64 random(10);
  for (const std::uint64_t count : {1U, 2U, 4U}) {
    const auto expected = losses_of_a_plain_loop(pair.blocks, steps, count);
    for (const auto& [replicas, way] : {std::pair(1U, Way::Tcp), {2U, Way::InProcess}}) {
      for (const auto& shares : {std::vector<std::vector<double>>{{0.3, 0.7}, {1}}, {{1}, {0.5, 0.5}, {0.6, 0.4}}}) {
        SCOPED_TRACE(fmt::format("{} micro-batches through {} groups of {} replicas", count, shares.size(), replicas));
        const Plan plan = random_pipeline(pair.operators, shares, count, random, "duplex", replicas);
        expect_close_to_largest(trained(pair.operators, plan, way, options_for(steps)).losses, expected,
                                relative_tolerance);
      }
    }
  }
}

/// The parameters of a checkpoint after `steps` steps, by name.
std::map<std::string, at::Tensor> parameters_after(const Workload& workload, const Plan& plan)
{
  const testing_support::TemporaryFolder folder;
  RunOptions options = options_for(steps);
  options.checkpoints.folder = folder.path() / "checkpoints";
  trained(workload, plan, Way::InProcess, options);
  const Checkpoint checkpoint = CheckpointStore(options.checkpoints.folder).open(steps);
  std::map<std::string, at::Tensor> parameters;
  for (const auto& name : checkpoint.names()) parameters[name] = read_tensor(checkpoint, *checkpoint.find(name));
  return parameters;
}

TEST_P(OperatorsOf, AModelHaveTheParametersOfTheModelByBlocks)
{
  const Pair pair(GetParam());
  std::mt19937_64 random(8);
  const auto expected = parameters_after(pair.blocks, even_split(pair.blocks, 1, {"1f1b"}, microbatches));
  ASSERT_FALSE(expected.empty());
  for (const Plan& plan : {random_plan(pair.operators, {0.5, 0, 0.2, 0.3}, microbatches, random),
                           random_plan(pair.operators, {0.6, 0.4}, microbatches, random, "duplex", 3),
                           random_pipeline(pair.operators, {{1}, {0.6, 0.4}}, microbatches, random, "duplex", 2)}) {
    const auto found = parameters_after(pair.operators, plan);
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, parameter] : expected) {
      const double error = (found.at(name) - parameter).abs().max().item<double>();
      EXPECT_LE(error, relative_tolerance * parameter.abs().max().item<double>()) << name;
    }
  }
}

std::string name_of_trunk(const testing::TestParamInfo<Trunk>& tested)
{
  return std::vector<std::string>{"Plain", "Bert", "Vit"}.at(static_cast<std::size_t>(tested.param));
}
INSTANTIATE_TEST_SUITE_P(Executor, OperatorsOf, testing::Values(Trunk::Plain, Trunk::Bert, Trunk::Vit), name_of_trunk);

TEST(Executor, ResumesACheckpointOfOperatorsOnAnyOtherDivision)
{
  Pair pair(Trunk::Bert);
  pair.change([](Workload& workload) { workload.optimizer = Optimizer::Adam; });
  constexpr std::uint64_t all_steps = 6;
  const auto expected = losses_of_a_plain_loop(pair.blocks, all_steps, microbatches);
  const std::vector<double> second_half(expected.begin() + all_steps / 2, expected.end());
  std::mt19937_64 random(4);
  const std::vector<Plan> plans = {random_plan(pair.operators, equal_shares(2), microbatches, random),
                                   random_plan(pair.operators, {0, 0.6, 0.4}, microbatches, random, "1f1b"),
                                   random_plan(pair.operators, {0.4, 0.6}, microbatches, random, "duplex", 3),
                                   random_pipeline(pair.operators, {{0.5, 0.5}, {1}}, microbatches, random),
                                   random_plan(pair.operators, {1}, microbatches, random, "duplex", 2)};
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const Plan& after = plans[(i + 1) % plans.size()];
    expect_close(losses_after_resuming(pair.operators, plans[i], after, all_steps), second_half, relative_tolerance);
  }
}

TEST(Executor, ResumesACheckpointOfOperatorsByBlocks)
{
  Pair pair(Trunk::Vit);
  pair.change([](Workload& workload) { workload.optimizer = Optimizer::Momentum; });
  const auto expected = losses_of_a_plain_loop(pair.blocks, steps, microbatches);
  std::mt19937_64 random(5);
  const testing_support::TemporaryFolder folder;
  RunOptions options = options_for(2);
  options.checkpoints.folder = folder.path() / "checkpoints";
  trained(pair.operators, random_plan(pair.operators, {0.5, 0.2, 0.3}, microbatches, random), Way::InProcess, options);
  const Checkpoint checkpoint = CheckpointStore(options.checkpoints.folder).open(2);
  options = options_for(steps);
  options.first_step = checkpoint.step();
  options.resume_from = &checkpoint;
  const Plan by_blocks = even_split(pair.blocks, 2, {"1f1b"}, microbatches);
  expect_close(trained(pair.blocks, by_blocks, Way::InProcess, options).losses, {expected.begin() + 2, expected.end()},
               relative_tolerance);
}

TEST(Executor, DividesOperatorsInHalfPrecision)
{
  for (const auto& [dtype, tolerance] : {std::pair(DType::BFloat16, 2e-2), {DType::Float16, 4e-3}}) {
    Pair pair(Trunk::Bert);
    pair.change([type = dtype](Workload& workload) { workload.dtype = type; });
    const Plan one = even_split(pair.blocks, 1, {"1f1b"}, microbatches);
    const auto expected = trained(pair.blocks, one, Way::InProcess, options_for(steps)).losses;
    std::mt19937_64 random(6);
    for (const Way way : {Way::InProcess, Way::Tcp}) {
      const Plan plan = random_plan(pair.operators, {0.5, 0.2, 0.3}, microbatches, random);
      expect_close(trained(pair.operators, plan, way, options_for(steps)).losses, expected, tolerance);
    }
  }
}

TEST(Executor, HoldsAsMuchOfDividedParametersAsItsShare)
{
  Pair pair(Trunk::Bert);
  std::mt19937_64 random(7);
  const Plan plan = random_plan(pair.operators, {0.5, 0.5}, microbatches, random);
  const OperatorPlan divided = operator_plan_of(plan, pair.operators);
  const spmd::Pieces pieces(divided.graph, divided.groups.front().shares);
  const auto program = testing_support::unit_program(plan, pair.operators);
  const auto measured = run_by(Way::InProcess, pair.operators, plan, *program, options_for(2));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    double parameters = 0;
    for (std::size_t i = 0; i < divided.graph.operators.size(); ++i) {
      const auto& node = divided.graph.operators[i];
      if (node.kind != spmd::OperatorKind::Parameter) continue;
      parameters += pieces.size(node.outputs[0], divided.division.signatures[i].outputs[0], rank).value;
    }
    // After an update only the loss of each micro-batch is left.
    parameters += sizeof(float) * microbatches;
    const double held = measured.ranks()[rank].memory.front().back().memory.value;
    // Rank 0 keeps the loss of the step before while that of the other rank is on its way.
    const double loss = rank == 0 ? sizeof(double) : 0;
    EXPECT_THAT(held - parameters, testing::AnyOf(0.0, loss)) << rank;
  }
}

}  // namespace
}  // namespace isobar::exec::operators_test
