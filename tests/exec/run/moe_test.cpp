#include "exec/run/profile.hpp"
#include "tests/exec/model/plain_loop.hpp"
#include "tests/exec/run/even_split.hpp"
#include "tests/exec/run/machine_plans.hpp"
#include "tests/exec/run/replicated_plans.hpp"
#include "tests/exec/run/run_options.hpp"
#include "tests/exec/run/trained.hpp"
#include "tests/support/small_models.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

/// Training of mixtures of experts by plans that place their layers.
namespace isobar::exec::moe_test {
namespace {

using spmd::Trunk;
using testing_support::small_moe;
using testing_support::small_moes;

constexpr std::uint64_t steps = 5;
constexpr std::uint64_t microbatches = 4;

Workload trained_by_adam(Workload workload)
{
  workload.optimizer = Optimizer::Adam;
  workload.training.dropout = 0.2;
  return workload;
}

std::vector<double> losses_by(const Workload& workload, const Plan& plan, Way way = Way::InProcess)
{
  return trained(workload, plan, way, options_for(steps)).losses;
}

std::vector<double> plain_losses(const Workload& workload, PlainLoop::Order order = PlainLoop::Order::Ascending)
{
  at::set_num_threads(1);
  PlainLoop loop(workload, seed, microbatches);
  std::vector<double> losses;
  for (std::uint64_t step = 0; step < steps; ++step) losses.push_back(loop.step(order));
  return losses;
}

TEST(Moe, HasThePlainLoopsLossesUnderEverySchedule)
{
  for (const Workload& small : small_moes()) {
    const Workload workload = trained_by_adam(small);
    const std::vector<double> expected = plain_losses(workload);
    const std::vector<double> descending = plain_losses(workload, PlainLoop::Order::Descending);
    EXPECT_NE(expected.front(), expected.back());
    for (const std::size_t stages : {1U, 3U}) {
      for (const char* schedule : {"sequential", "gpipe", "1f1b", "zero-bubble-h1"}) {
        SCOPED_TRACE(std::string(schedule) + " on " + std::to_string(stages));
        const auto& wanted = schedule == std::string("gpipe") ? descending : expected;
        Plan plan = even_split(workload, stages, ScheduleChoice{schedule, {}, {}}, microbatches);
        EXPECT_EQ(losses_by(workload, plan), wanted);
        if (stages == 1) continue;
        plan.recompute.resize(workload.layers.size());
        std::iota(plan.recompute.begin(), plan.recompute.end(), 0);
        EXPECT_EQ(losses_by(workload, plan), wanted) << "with recomputation, which has a graph for each layer";
      }
    }
  }
}

TEST(Moe, HasTheSameLossesOverTcpAndThroughTheMachine)
{
  const Workload workload = trained_by_adam(small_moe(Trunk::Bert));
  const Plan resident = resident_plan(workload, 2, ScheduleChoice{"gpipe", {}, {}}, microbatches);
  const std::vector<double> expected = losses_by(workload, resident);
  EXPECT_EQ(losses_by(workload, resident, Way::Tcp), expected);
  System system = window(UpdateOverlap::NextForward, 0, 2);
  system.inner.gradient_slots = 3;
  const Plan through = machine_plan(workload, system, 2, ScheduleChoice{"gpipe", {}, {}}, microbatches);
  EXPECT_EQ(losses_by(workload, through), expected);
}

TEST(Moe, HasTheSameLossesInHalfPrecisionOnEverySplit)
{
  for (const DType dtype : {DType::BFloat16, DType::Float16}) {
    for (const Workload& small : small_moes(dtype)) {
      const Workload workload = trained_by_adam(small);
      const auto plan = even_split(workload, 1, ChainSchedule::OneForwardOneBackward, microbatches);
      const std::vector<double> expected = losses_by(workload, plan);
      EXPECT_EQ(losses_by(workload, even_split(workload, 3, ChainSchedule::OneForwardOneBackward, microbatches)),
                expected);
      if (dtype == DType::BFloat16) {
        EXPECT_EQ(expected, plain_losses(workload));
      }
    }
  }
}

TEST(Moe, ResumesOnAnotherNumberOfStages)
{
  constexpr std::uint64_t resumed_steps = 6;
  for (const Workload& small : small_moes()) {
    const Workload workload = trained_by_adam(small);
    const auto all = losses_of_a_plain_loop(workload, resumed_steps, microbatches);
    const std::vector<double> second_half(all.begin() + resumed_steps / 2, all.end());
    const auto plan_of = [&](std::size_t stages) {
      return even_split(workload, stages, ChainSchedule::OneForwardOneBackward, microbatches);
    };
    EXPECT_EQ(losses_after_resuming(workload, plan_of(3), plan_of(2), resumed_steps), second_half);
  }
}

TEST(Moe, HasNearlyThePlainLoopsLossesInReplicas)
{
  const Workload workload = trained_by_adam(small_moe(Trunk::Bert));
  const Plan plan = replicated_plan(workload, {"1f1b"}, {{{"a", 2}, {"b", 2}}, {{"c", 2}, {"d", 2}}});
  expect_close(losses_by(workload, plan, Way::Tcp), plain_losses(workload), 1e-5);
}

TEST(Moe, MinimisesTheSumOverAMicroBatch)
{
  const auto losses_of = [](Workload workload) {
    workload.optimizer = Optimizer::Adam;
    return losses_by(workload, even_split(workload, 1, ChainSchedule::OneForwardOneBackward, microbatches));
  };
  const auto of_images = losses_of(small_moe(Trunk::Vit));
  EXPECT_NEAR(of_images.front(), 3 * std::log(7.0), 0.5) << "three samples of seven classes";
  const auto of_tokens = losses_of(small_moe(Trunk::Bert));
  EXPECT_NEAR(of_tokens.front(), 3 * 7 * std::log(29.0), 3) << "three samples of seven tokens";
  const auto of_states = losses_of(small_moe(Trunk::Plain));
  EXPECT_NEAR(of_states.front(), 0, 1e-3) << "what a norm gives adds up to 0";
  EXPECT_LT(of_states.back(), -1);
}

TEST(Moe, IsProfiledByKindsOfLayers)
{
  ProfileOptions options;
  options.repetitions = 3;
  for (const Workload& workload : small_moes()) {
    const DeviceProfile profile = measure_profile(workload, options);
    ASSERT_EQ(profile.layers.size(), 7U);
    EXPECT_GT(profile.layers[1].backward.value, 0);
    EXPECT_EQ(profile.layers[1].forward, profile.layers[3].forward) << "both are dense";
    EXPECT_NE(profile.layers[1].forward, profile.layers[2].forward) << "one has experts";
  }
}

}  // namespace
}  // namespace isobar::exec::moe_test
