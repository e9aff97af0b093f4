#include "exec/stage/stage_optimizer.hpp"

#include "core/model/workload.hpp"
#include "exec/device/tensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/optim.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace isobar::exec::stage_optimizer_test {
namespace {

constexpr Optimizer every_optimizer[] = {Optimizer::Sgd, Optimizer::Momentum, Optimizer::Adam, Optimizer::AdamW};

Workload workload_of(Optimizer optimizer)
{
  Workload workload;
  workload.optimizer = optimizer;
  workload.training.learning_rate = 0.01;
  workload.training.weight_decay = 0.1;
  return workload;
}

/// Other constants than the usual ones.
Workload unusual_workload_of(Optimizer optimizer)
{
  Workload workload = workload_of(optimizer);
  workload.training.beta1 = 0.7;
  workload.training.beta2 = 0.95;
  workload.training.epsilon = 0.01;
  workload.training.momentum = 0.6;
  return workload;
}

std::unique_ptr<torch::optim::Optimizer> of_torch(const Workload& workload, const Tensors& parameters)
{
  const auto& training = workload.training;
  const double rate = training.learning_rate;
  const double decay = training.weight_decay;
  const auto betas = std::tuple(training.beta1, training.beta2);
  switch (workload.optimizer) {
    case Optimizer::Adam:
      return std::make_unique<torch::optim::Adam>(
          parameters, torch::optim::AdamOptions(rate).weight_decay(decay).betas(betas).eps(training.epsilon));
    case Optimizer::AdamW:
      return std::make_unique<torch::optim::AdamW>(
          parameters, torch::optim::AdamWOptions(rate).weight_decay(decay).betas(betas).eps(training.epsilon));
    default: {
      const double momentum = workload.optimizer == Optimizer::Momentum ? training.momentum : 0;
      return std::make_unique<torch::optim::SGD>(parameters,
                                                 torch::optim::SGDOptions(rate).momentum(momentum).weight_decay(decay));
    }
  }
}

at::Tensor random(std::int64_t size, std::uint64_t seed)
{
  auto generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn({size}, generator);
}

/// Parameters of sizes that are multiples of 64 and of others.
Tensors parameters()
{
  Tensors tensors;
  for (const std::int64_t size : {1, 63, 64, 65, 200, 640}) {
    tensors.push_back(random(size, static_cast<std::uint64_t>(size)).requires_grad_());
  }
  return tensors;
}

void set_gradients(const Tensors& tensors, std::uint64_t step)
{
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].mutable_grad() = random(tensors[i].numel(), 1000 * (step + 1) + i);
  }
}

/// The largest difference from LibTorch's optimizer after 20 steps, whose rates fall as the workload's.
double difference_from_torch(const Workload& workload)
{
  const Tensors ours = parameters();
  const Tensors expected = parameters();
  StageOptimizer optimizer(workload, ours);
  const auto reference = of_torch(workload, expected);
  for (std::uint64_t step = 0; step < 20; ++step) {
    set_gradients(ours, step);
    set_gradients(expected, step);
    const double rate = learning_rate_at(workload.training, step);
    optimizer.step(rate);
    for (auto& group : reference->param_groups()) group.options().set_lr(rate);
    reference->step();
  }
  double largest = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    largest = std::max(largest, (ours[i] - expected[i]).abs().max().item<double>());
  }
  return largest;
}

TEST(StageOptimizer, UpdatesAsLibTorchsOptimizerOfItsName)
{
  for (const Optimizer kind : every_optimizer) {
    EXPECT_LE(difference_from_torch(workload_of(kind)), 1e-6) << name_of(kind);
    EXPECT_LE(difference_from_torch(unusual_workload_of(kind)), 1e-6) << name_of(kind);
  }
}

TEST(StageOptimizer, FollowsALearningRateThatChanges)
{
  for (const Optimizer kind : every_optimizer) {
    Workload workload = workload_of(kind);
    workload.training.warmup_steps = 3;
    workload.training.decay = RateDecay::Cosine;
    workload.training.decay_steps = 15;
    EXPECT_LE(difference_from_torch(workload), 1e-6) << name_of(kind);
  }
}

TEST(StageOptimizer, GivesTheSameBitsWhereverItsParametersAreCut)
{
  constexpr std::int64_t size = 333;
  for (const Optimizer kind : every_optimizer) {
    const Workload workload = workload_of(kind);
    for (const std::int64_t cut : {1, 7, 63, 64, 100, 332}) {
      const at::Tensor whole = random(size, 1).requires_grad_();
      const at::Tensor parts = random(size, 1);
      const Tensors cut_parts{parts.narrow(0, 0, cut), parts.narrow(0, cut, size - cut)};
      StageOptimizer of_whole(workload, {whole});
      StageOptimizer of_parts(workload, cut_parts);
      for (std::uint64_t step = 0; step < 5; ++step) {
        const at::Tensor gradient = random(size, step);
        whole.mutable_grad() = gradient;
        cut_parts[0].mutable_grad() = gradient.narrow(0, 0, cut);
        cut_parts[1].mutable_grad() = gradient.narrow(0, cut, size - cut);
        of_whole.step(workload.training.learning_rate);
        of_parts.step(workload.training.learning_rate);
      }
      EXPECT_TRUE(at::equal(whole, parts)) << name_of(kind) << " cut at " << cut;
    }
  }
}

TEST(StageOptimizer, LeavesParametersWithoutAGradientAsTheyAre)
{
  for (const Optimizer kind : every_optimizer) {
    const Tensors ours = parameters();
    StageOptimizer optimizer(workload_of(kind), ours);
    set_gradients({ours.front()}, 0);
    optimizer.step(0.01);
    EXPECT_FALSE(at::equal(ours.front(), parameters().front())) << name_of(kind);
    EXPECT_TRUE(at::equal(ours.back(), parameters().back())) << name_of(kind);
    EXPECT_TRUE(optimizer.state("last", ours.back()).empty()) << name_of(kind);
  }
}

TEST(StageOptimizer, NamesTheTensorsOfItsStateAsCheckpointsDo)
{
  const auto names = [](Optimizer kind) {
    const Tensors ours = parameters();
    StageOptimizer optimizer(workload_of(kind), ours);
    set_gradients(ours, 0);
    optimizer.step(0.01);
    std::vector<std::string> all;
    for (const auto& tensor : optimizer.state("weight", ours.back())) all.push_back(tensor.facts.name);
    return all;
  };
  EXPECT_THAT(names(Optimizer::Sgd), testing::IsEmpty());
  EXPECT_THAT(names(Optimizer::Momentum), testing::ElementsAre("weight:momentum_buffer"));
  EXPECT_THAT(names(Optimizer::AdamW), testing::ElementsAre("weight:step", "weight:exp_avg", "weight:exp_avg_sq"));
}

}  // namespace
}  // namespace isobar::exec::stage_optimizer_test
