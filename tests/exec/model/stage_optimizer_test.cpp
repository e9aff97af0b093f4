#include "exec/model/stage_optimizer.hpp"

#include "core/model/workload.hpp"
#include "exec/device/tensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/optim.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace isobar::exec {
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

std::unique_ptr<torch::optim::Optimizer> of_torch(const Workload& workload, const Tensors& parameters)
{
  const double rate = workload.training.learning_rate;
  const double decay = workload.training.weight_decay;
  switch (workload.optimizer) {
    case Optimizer::Adam:
      return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(rate).weight_decay(decay));
    case Optimizer::AdamW:
      return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(rate).weight_decay(decay));
    default: {
      const double momentum = workload.optimizer == Optimizer::Momentum ? 0.9 : 0;
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

TEST(StageOptimizer, UpdatesAsLibTorchsOptimizerOfItsName)
{
  for (const Optimizer kind : every_optimizer) {
    const Workload workload = workload_of(kind);
    const Tensors ours = parameters();
    const Tensors expected = parameters();
    StageOptimizer optimizer(workload, ours);
    const auto reference = of_torch(workload, expected);
    for (std::uint64_t step = 0; step < 20; ++step) {
      set_gradients(ours, step);
      set_gradients(expected, step);
      optimizer.step();
      reference->step();
    }
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_LE((ours[i] - expected[i]).abs().max().item<double>(), 1e-6) << name_of(kind) << " " << i;
    }
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
        of_whole.step();
        of_parts.step();
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
    optimizer.step();
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
    optimizer.step();
    std::vector<std::string> all;
    for (const auto& tensor : optimizer.state("weight", ours.back())) all.push_back(tensor.facts.name);
    return all;
  };
  EXPECT_THAT(names(Optimizer::Sgd), testing::IsEmpty());
  EXPECT_THAT(names(Optimizer::Momentum), testing::ElementsAre("weight:momentum_buffer"));
  EXPECT_THAT(names(Optimizer::AdamW), testing::ElementsAre("weight:step", "weight:exp_avg", "weight:exp_avg_sq"));
}

}  // namespace
}  // namespace isobar::exec
