#include "core/plan/tied_copies.hpp"
#include "exec/files/checkpoint.hpp"
#include "exec/model/layer_module.hpp"
#include "exec/run/profile.hpp"
#include "tests/exec/model/plain_loop.hpp"
#include "tests/exec/model/small_models.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/exec/run/replicated_plans.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/exec/run/trained.hpp"
#include "tests/support/shards.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/unit_devices.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

/// A head that uses the embedding's matrix.
namespace isobar::exec::tied_test {
namespace {

constexpr std::uint64_t steps = 6;
constexpr std::uint64_t microbatches = 4;

/// The losses of a plain loop whose head and embedding have one tensor.
std::vector<double> plain_losses(const Workload& workload, PlainLoop::Order order = PlainLoop::Order::Ascending)
{
  at::set_num_threads(1);
  PlainLoop loop(workload, seed, microbatches);
  std::vector<double> losses;
  for (std::uint64_t step = 0; step < steps; ++step) losses.push_back(loop.step(order));
  return losses;
}

Workload trained_gpt()
{
  Workload workload = small_tied_gpt();
  workload.optimizer = Optimizer::Adam;
  workload.training.dropout = 0.2;
  return workload;
}

TEST(TiedHead, HasThePlainLoopsLossesUnderEverySchedule)
{
  const Workload workload = trained_gpt();
  for (const char* schedule : {"sequential", "gpipe", "1f1b", "zero-bubble-h1", "zero-bubble-h2"}) {
    const auto order = schedule == std::string("gpipe") ? PlainLoop::Order::Descending : PlainLoop::Order::Ascending;
    const auto expected = plain_losses(workload, order);
    EXPECT_NE(expected.front(), expected.back());
    Plan plan = even_split(workload, 1, ScheduleChoice{schedule, {}, {}}, microbatches);
    for (const Way way : {Way::InProcess, Way::Tcp}) {
      EXPECT_EQ(trained(workload, plan, way, options_for(steps)).losses, expected) << schedule;
    }
    plan.recompute.resize(workload.layers.size());
    std::iota(plan.recompute.begin(), plan.recompute.end(), 0);
    EXPECT_EQ(trained(workload, plan, Way::InProcess, options_for(steps)).losses, expected)
        << schedule << " with recomputation, which has a graph for each layer";
  }
}

TEST(TiedHead, HasThePlainLoopsLossesWithEveryOptimizer)
{
  for (const Optimizer optimizer : {Optimizer::Sgd, Optimizer::Momentum, Optimizer::AdamW}) {
    Workload workload = small_tied_gpt();
    workload.optimizer = optimizer;
    workload.training.weight_decay = 0.1;
    const Plan plan = even_split(workload, 1, ChainSchedule::OneForwardOneBackward, microbatches);
    const auto losses = trained(workload, plan, Way::InProcess, options_for(steps)).losses;
    EXPECT_EQ(losses, plain_losses(workload));
    Workload own = small_gpt();
    own.optimizer = optimizer;
    own.training.weight_decay = 0.1;
    EXPECT_NE(losses, plain_losses(own)) << "a head with a matrix of its own trains otherwise";
  }
}

TEST(TiedHead, HasTheSameLossesInHalfPrecisionWithAndWithoutRecomputation)
{
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    Workload workload = trained_gpt();
    workload.dtype = dtype;
    workload.layers.clear();
    build_gpt(std::get<GptSizes>(workload.model), workload);
    Plan plan = even_split(workload, 1, ChainSchedule::OneForwardOneBackward, microbatches);
    const auto kept = trained(workload, plan, Way::InProcess, options_for(steps)).losses;
    plan.recompute = {0, 3, workload.layers.size() - 1};
    EXPECT_EQ(trained(workload, plan, Way::InProcess, options_for(steps)).losses, kept);
    if (dtype == DType::BFloat16) {
      EXPECT_EQ(kept, plain_losses(workload));
    }
  }
}

TEST(TiedHead, TrainsInReplicasHoweverTheyDivideTheOptimizer)
{
  const Workload workload = trained_gpt();
  const auto expected = plain_losses(workload);
  Plan plan = replicated_plan(workload, {"1f1b"}, {{{"a", 2}, {"b", 2}}});
  for (const auto& name : sharding_names()) {
    plan.sync.sharded = sharding_from_name(name).value();
    expect_close(trained(workload, plan, Way::Tcp, options_for(steps)).losses, expected, 1e-6);
  }
}

TEST(TiedHead, IsInCheckpointsOnceAndResumes)
{
  const Workload workload = trained_gpt();
  const Plan plan = even_split(workload, 1, ChainSchedule::OneForwardOneBackward, microbatches);
  const testing_support::TemporaryFolder folder;
  RunOptions options = options_for(steps / 2);
  options.checkpoints.folder = folder.path() / "checkpoints";
  trained(workload, plan, Way::InProcess, options);
  const Checkpoint checkpoint = CheckpointStore(options.checkpoints.folder).open(steps / 2);
  const auto names = checkpoint.names();
  const auto matrices = std::count_if(names.begin(), names.end(), [](const std::string& name) {
    return name.find("words") != std::string::npos && name.find(':') == std::string::npos;
  });
  EXPECT_EQ(matrices, 1);
  EXPECT_NE(checkpoint.find("layers.0.words:exp_avg"), nullptr);

  const auto all = plain_losses(workload);
  const std::vector<double> second_half(all.begin() + steps / 2, all.end());
  EXPECT_EQ(losses_after_resuming(workload, plan, plan, steps), second_half);
}

// --- on other devices than the embedding -----------------------------------------------------------------------------

constexpr double relative_tolerance = 1e-6;

Workload tied_gpt_by_operators()
{
  Workload workload = small_gpt_by_operators();
  std::get<GptSizes>(workload.model).tied = true;
  workload.layers.clear();
  build_gpt(std::get<GptSizes>(workload.model), workload);
  workload.optimizer = Optimizer::AdamW;
  workload.training.weight_decay = 0.1;
  workload.training.dropout = 0.2;
  return workload;
}

/// Stages of replicas of so many shards, each on devices of its own.
Plan divided_plan(const Workload& workload, const ScheduleChoice& schedule, std::size_t stages, std::size_t replicas,
                  const std::vector<double>& shares)
{
  std::vector<std::vector<Takes>> takes(stages);
  for (auto& stage : takes) stage.assign(replicas, {"", microbatches / replicas});
  Plan plan = replicated_plan(workload, schedule, takes);
  for (std::size_t i = 0; i < stages; ++i) {
    for (std::size_t r = 0; r < replicas; ++r) {
      auto& shards = plan.stages[i].replicas[r].shards;
      shards.clear();
      for (std::size_t s = 0; s < shares.size(); ++s) shards.push_back({fmt::format("d{}.{}.{}", i, r, s), shares[s]});
    }
  }
  if (shares.size() > 1) plan.stages = testing_support::by_layers(plan.stages);
  return plan;
}

TEST(TiedHeadApart, HasThePlainLoopsLossesInPipelines)
{
  for (const double clip_norm : {0.0, 0.5}) {
    Workload workload = trained_gpt();
    if (clip_norm > 0) workload.training.clip_norm = clip_norm;
    const auto expected = plain_losses(workload);
    for (const std::size_t stages : {2U, 3U, 6U}) {
      for (const char* schedule : {"sequential", "gpipe", "1f1b", "zero-bubble-h1"}) {
        SCOPED_TRACE(fmt::format("{} stages, {}, clip_norm {}", stages, schedule, clip_norm));
        Plan plan = even_split(workload, stages, ScheduleChoice{schedule}, microbatches);
        expect_close(trained(workload, plan, Way::InProcess, options_for(steps)).losses, expected, relative_tolerance);
        plan.recompute = {0, 2, workload.layers.size() - 1};
        expect_close(trained(workload, plan, Way::Tcp, options_for(steps)).losses, expected, relative_tolerance);
      }
    }
  }
}

TEST(TiedHeadApart, WouldTrainOtherwiseWithoutTheSum)
{
  const Workload workload = trained_gpt();
  const Plan plan = even_split(workload, 2, ChainSchedule::OneForwardOneBackward, microbatches);
  const Workload planned = with_tied_copies(workload, plan);
  Plan unlike = plan;
  Workload lacks_it = planned;
  lacks_it.layers.back().has_tied_copy = false;
  const auto program = testing_support::unit_program(unlike, lacks_it);
  EXPECT_TRUE(program->tied_stages().empty());
  const auto losses =
      run_by(Way::InProcess, planned, unlike, *program, options_for(steps), [](const StepReport&) {}).losses();
  EXPECT_GT(std::abs(losses.back() - plain_losses(workload).back()), 1e-4);
}

TEST(TiedHeadApart, HasThePlainLoopsLossesWhereOneDeviceHasSeveralStages)
{
  const Workload workload = trained_gpt();
  const auto expected = plain_losses(workload);
  const auto on_two = [](std::size_t stage) { return stage % 2; };
  const Plan interleaved =
      even_split_over(workload, 4, ScheduleChoice{"interleaved", {{"chunks", {2}}}}, microbatches, on_two);
  EXPECT_FALSE(tied_matrices(with_tied_copies(workload, interleaved), interleaved).empty());
  expect_close(trained(workload, interleaved, Way::Tcp, options_for(steps)).losses, expected, relative_tolerance);
  const auto in_v = [](std::size_t stage) { return stage < 2 ? stage : 3 - stage; };
  const Plan v = even_split_over(workload, 4, ScheduleChoice{"zero-bubble-v"}, microbatches, in_v);
  EXPECT_TRUE(tied_matrices(with_tied_copies(workload, v), v).empty()) << "one device has both ends";
  expect_close(trained(workload, v, Way::Tcp, options_for(steps)).losses, expected, relative_tolerance);
}

TEST(TiedHeadApart, TrainsInReplicasHoweverTheyDivideTheOptimizer)
{
  for (const double clip_norm : {0.0, 0.5}) {
    Workload workload = trained_gpt();
    if (clip_norm > 0) workload.training.clip_norm = clip_norm;
    const auto expected = plain_losses(workload);
    for (const auto& ends :
         {std::vector<Takes>{{"a", 2}, {"b", 2}}, {{"a", 3}, {"b", 1}}, {{"a", 2}, {"b", 1}, {"c", 1}}}) {
      std::vector<Takes> last = ends;
      for (auto& [device, taken] : last) device += "1";
      Plan plan = replicated_plan(workload, {"1f1b"}, {ends, {{"m", 4}}, last});
      for (const Sharding sharded : {Sharding::None, Sharding::Optimizer, Sharding::Gradients}) {
        SCOPED_TRACE(fmt::format("{} replicas, {}, clip_norm {}", ends.size(), name_of(sharded), clip_norm));
        plan.sync.sharded = sharded;
        expect_close(trained(workload, plan, Way::Tcp, options_for(steps)).losses, expected, relative_tolerance);
      }
    }
  }
}

TEST(TiedHeadApart, TrainsInShards)
{
  const Workload workload = tied_gpt_by_operators();
  const auto expected = plain_losses(workload);
  for (const std::size_t stages : {1U, 2U, 3U}) {
    for (const std::size_t replicas : {1U, 2U}) {
      for (const auto& shares : {std::vector{0.5, 0.5}, {0.25, 0.75}}) {
        Plan plan = divided_plan(workload, {"1f1b"}, stages, replicas, shares);
        for (const Sharding sharded : {Sharding::None, Sharding::Optimizer}) {
          if (sharded != Sharding::None && replicas == 1) continue;
          SCOPED_TRACE(fmt::format("{} stages, {} replicas, shares from {}, {}", stages, replicas, shares.front(),
                                   name_of(sharded)));
          plan.sync.sharded = sharded;
          expect_close(trained(workload, plan, Way::InProcess, options_for(steps)).losses, expected, 1e-5);
        }
      }
    }
  }
}

TEST(TiedHeadApart, IsInCheckpointsOnceAndResumesOnOtherPlans)
{
  const Workload workload = trained_gpt();
  const auto all = plain_losses(workload);
  const std::vector<double> second_half(all.begin() + steps / 2, all.end());
  const auto pipeline = [&](std::size_t stages) {
    return even_split(workload, stages, ChainSchedule::OneForwardOneBackward, microbatches);
  };
  Plan divided = replicated_plan(workload, {"1f1b"}, {{{"a", 2}, {"b", 2}}, {{"c", 2}, {"d", 2}}});
  divided.sync.sharded = Sharding::Optimizer;
  for (const auto& [before, after] : {std::pair(pipeline(2), pipeline(1)),
                                      {pipeline(1), pipeline(3)},
                                      {pipeline(3), divided},
                                      {divided, pipeline(2)}}) {
    expect_close(losses_after_resuming(workload, before, after, steps), second_half, relative_tolerance);
  }

  const testing_support::TemporaryFolder folder;
  RunOptions options = options_for(steps / 2);
  options.checkpoints.folder = folder.path() / "checkpoints";
  trained(workload, pipeline(2), Way::InProcess, options);
  const Checkpoint checkpoint = CheckpointStore(options.checkpoints.folder).open(steps / 2);
  const auto names = checkpoint.names();
  EXPECT_EQ(std::count(names.begin(), names.end(), "layers.0.words"), 1);
  EXPECT_EQ(std::count_if(names.begin(), names.end(),
                          [](const std::string& name) { return name.find("words") != std::string::npos; }),
            4)
      << "the matrix, its number of steps and its moments";
}

TEST(TiedHead, IsProfiledWithAMatrixThatItDoesNotUpdate)
{
  ProfileOptions options;
  options.repetitions = 3;
  const DeviceProfile profile = measure_profile(small_tied_gpt(), options);
  EXPECT_EQ(profile.layers.back().name, "head");
  EXPECT_GT(profile.layers.back().backward.value, 0);
}

TEST(TiedHead, BeginsWithTheEmbeddingsValuesAlsoByItself)
{
  const Workload workload = small_tied_gpt();
  const std::size_t head = workload.layers.size() - 1;
  const auto embedding = make_layer_module(workload, 0, seed, "cpu");
  const auto tied = make_layer_module(workload, head, seed, "cpu", {}, embedding.get());
  const auto alone = make_layer_module(workload, head, seed, "cpu");
  const auto hidden = at::ones({1, 8, 16});
  const auto outputs = tied->forward({hidden}, {}).at(0);
  EXPECT_TRUE(at::equal(alone->forward({hidden}, {}).at(0), outputs));
  EXPECT_THAT(tied->parameter_names(), testing::ElementsAre("norm.weight", "norm.bias"));
  const at::NoGradGuard no_graph;
  embedding->parameters().front().mul_(2);
  EXPECT_TRUE(at::equal(tied->forward({hidden}, {}).at(0), 2 * outputs)) << "it is the embedding's tensor";
}

}  // namespace
}  // namespace isobar::exec::tied_test
