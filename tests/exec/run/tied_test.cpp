#include "exec/files/checkpoint.hpp"
#include "exec/model/layer_module.hpp"
#include "exec/run/profile.hpp"
#include "tests/exec/model/plain_loop.hpp"
#include "tests/exec/model/small_models.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/exec/run/replicated_plans.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/exec/run/trained.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <string>
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
