#include "core/program/player.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/costs/step_recurrence.hpp"
#include "schedules/lowering/schedule.hpp"
#include "schedules/orders/schedule.hpp"
#include "tests/schedules/orders/order_play.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/unit_devices.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

// The player (core/program/player.hpp) on the programs of all schedules.
namespace isobar::schedules::player_test {
namespace {

// --- chains, against their recurrence ---------------------------------------------------------------------------

TEST(PlayProgram, TakesTheStepOfTheRecurrenceAndTheMemoryOfTheCostModel)
{
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const auto workload = testing_support::random_chain(random, 1 + random() % 12);
    const auto cluster = testing_support::random_cluster(random, 6, 1e9);
    const CostModel cost(workload, cluster);
    const auto stages = testing_support::random_placement(random, cost.layers(), cost.devices());
    for (const auto schedule :
         {ChainSchedule::Sequential, ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}) {
      for (const auto communication : {Communication::Played, Communication::None}) {
        const Goal goal{Objective::Step, communication, choice_of(schedule), 1 + random() % 20};
        const Plan plan = testing_support::plan_of(stages, cost, goal);
        const auto played = play_program(*make_program(plan, workload, cluster), nominal_rates(plan, cluster));
        const double expected = step_time_by_recurrence(cost, stages, goal).value;
        ASSERT_NEAR(played.periods.front().end.value, expected, 1e-9 * expected) << "round " << round;
        for (std::size_t i = 0; i < stages.size(); ++i) {
          const double peak = plan.predicted->peak_memory.at(plan.stages[i].device()).value;
          const auto& peaks = played.peak_memory[i];
          ASSERT_NEAR(peaks[static_cast<std::size_t>(Tier::Device)].value, peak, 1e-9 * peak) << "round " << round;
        }
      }
    }
  }
}

// --- pipelines of all foldings ----------------------------------------------------------------------------------

/// The seconds that a device takes for a micro-batch, in all its stages: forward, and backward for the gradients of
/// inputs and of parameters.
struct DeviceTimes {
  double F = 1;
  double B = 1;
  double W = 1;

  double sum() const { return F + B + W; }
};

DeviceTimes random_times(std::mt19937_64& random)
{
  std::uniform_real_distribution<double> seconds(0.1, 2);
  return {seconds(random), seconds(random), seconds(random)};
}

/// The program of a schedule on `ranks` devices of 1 FLOP/s with `chunks` stages of one layer each. Every layer keeps 1
/// byte of activations and has no parameters; every message is of 0 bytes.
std::unique_ptr<Program> program_of(const Schedule& schedule, std::size_t ranks, std::size_t chunks,
                                    std::uint64_t microbatches, const std::vector<DeviceTimes>& times_of_stage)
{
  const PipelineShape shape = folded(schedule.folding, ranks, chunks, microbatches);
  Workload workload;
  Plan plan;
  plan.goal.schedule = {std::string(schedule.name)};
  plan.goal.microbatches = microbatches;
  for (std::size_t stage = 0; stage < shape.stages(); ++stage) {
    const DeviceTimes& times = times_of_stage[stage];
    Layer layer;
    layer.forward = Flops(times.F);
    layer.backward = Flops(times.B + times.W);
    layer.backward_weight = Flops(times.W);
    layer.activations = Bytes(1);
    if (stage > 0) layer.inputs = {stage - 1};
    workload.layers.push_back(layer);
    plan.stages.push_back(stage_on(shape.devices[shape.rank_of_stage[stage]], stage, stage));
  }
  return testing_support::unit_program(plan, workload);
}

/// One of devices with equal times, each divided over its stages.
std::unique_ptr<Program> program_of(std::string_view name, std::size_t ranks, std::size_t chunks,
                                    std::uint64_t microbatches, const DeviceTimes& times)
{
  const auto v = static_cast<double>(chunks);
  const std::vector<DeviceTimes> all(ranks * chunks, {times.F / v, times.B / v, times.W / v});
  return program_of(require_schedule(name), ranks, chunks, microbatches, all);
}

PlayerRates rates_of(double latency)
{
  PlayerRates rates;
  rates.transfer = [latency](std::size_t, std::size_t, Bytes) { return TransferTimes{Seconds(latency), Seconds(0)}; };
  return rates;
}

TEST(PlayProgram, TakesTheTimesOfAnIndependentPlayOfTheOrders)
{
  std::mt19937_64 random(8);
  std::uniform_real_distribution<double> seconds(0, 3);
  for (const Schedule& schedule : schedules()) {
    if (schedule.takes_orders || schedule.folding == Folding::DividedEnds) continue;
    for (int round = 0; round < 40; ++round) {
      const std::size_t ranks = 1 + random() % 6;
      const std::size_t chunks = schedule.folding == Folding::OneEach ? 1 : 2;
      const std::uint64_t microbatches = 1 + random() % 20;
      std::vector<std::vector<double>> latency(ranks, std::vector<double>(ranks));
      for (auto& row : latency) {
        for (auto& hop : row) hop = seconds(random);
      }
      const PipelineShape shape = folded(schedule.folding, ranks, chunks, microbatches);
      std::vector<DeviceTimes> times;
      std::vector<PlayedStage> stages;
      for (std::size_t i = 0; i < shape.stages(); ++i) {
        times.push_back(random_times(random));
        const auto& [F, B, W] = times.back();
        const std::size_t rank = shape.rank_of_stage[i];
        const std::size_t next = i + 1 < shape.stages() ? shape.rank_of_stage[i + 1] : rank;
        stages.push_back({F, schedule.splits_backward ? B : B + W, W, latency[rank][next], latency[next][rank]});
      }
      PlayerRates rates = rates_of(0);
      rates.transfer = [&](std::size_t from, std::size_t to, Bytes) {
        return TransferTimes{Seconds(latency[from][to]), Seconds(0)};
      };
      const auto program = program_of(schedule, ranks, chunks, microbatches, times);
      const auto played = play_program(*program, rates);
      const Played expected = play(shape, schedule.orders(shape, {std::string(schedule.name)}), stages);
      ASSERT_NEAR(played.periods[0].end.value, expected.makespan, 1e-9 * expected.makespan) << schedule.name;
      ASSERT_NEAR(played.periods[0].window().value, expected.window, 1e-9 * expected.window) << schedule.name;
    }
  }
}

/// What a schedule takes beyond M times a device's time for a micro-batch, and the most activations on a device.
struct ClosedForm {
  double makespan = 0;
  double window = 0;
  std::uint64_t in_flight = 0;
};

/// Plays a schedule and compares it with the closed form by rank.
template <typename FormOfRank>
void expect_closed_form(std::string_view name, std::size_t ranks, std::size_t chunks, std::uint64_t microbatches,
                        const DeviceTimes& times, FormOfRank form_of)
{
  const auto program = program_of(name, ranks, chunks, microbatches, times);
  const auto played = play_program(*program, rates_of(0));
  const double all = static_cast<double>(microbatches) * times.sum();
  const auto where = std::string(name) + ", " + std::to_string(ranks) + " devices, M = " + std::to_string(microbatches);
  const ClosedForm first = form_of(0);
  EXPECT_NEAR(played.periods[0].end.value, all + first.makespan, 1e-9 * all) << where;
  EXPECT_NEAR(played.periods[0].window().value, all + first.window, 1e-9 * all) << where;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const double peak = played.peak_memory[rank][static_cast<std::size_t>(Tier::Device)].value;
    EXPECT_EQ(peak, static_cast<double>(form_of(rank).in_flight)) << where << ", rank " << rank;
    EXPECT_NEAR(played.periods[0].ranks[rank].busy.value, all, 1e-9 * all) << where;
  }
}

TEST(PlayProgram, TakesTheClosedFormsOfSchedulesWithWholeBackwards)
{
  std::mt19937_64 random(9);
  for (int round = 0; round < 100; ++round) {
    const std::size_t p = 1 + random() % 6;
    const DeviceTimes times = random_times(random);
    const double fill = static_cast<double>(p - 1) * times.sum();
    const std::uint64_t M = 1 + random() % 20;
    expect_closed_form("gpipe", p, 1, M, times, [&](std::size_t) { return ClosedForm{fill, fill, M}; });
    expect_closed_form("1f1b", p, 1, M, times, [&](std::size_t i) {
      return ClosedForm{fill, fill, std::min<std::uint64_t>(M, p - i)};
    });
    const std::size_t v = 2 + random() % 3;
    const std::uint64_t rounds = p * (1 + random() % 4);
    const double part = fill / static_cast<double>(v);
    expect_closed_form("interleaved", p, v, rounds, times, [&](std::size_t i) {
      return ClosedForm{part, part, std::min<std::uint64_t>(v * rounds, 2 * (p - 1 - i) + (v - 1) * p + 1)};
    });
  }
}

TEST(PlayProgram, TakesTheClosedFormsOfZeroBubbleSchedules)
{
  std::mt19937_64 random(10);
  for (int round = 0; round < 300; ++round) {
    const std::size_t p = 1 + random() % 6;
    const std::uint64_t M = 2 * p - 1 + random() % 7;
    const DeviceTimes times = random_times(random);
    const auto& [F, B, W] = times;
    const auto hops = static_cast<double>(p - 1);
    const ClosedForm h1{hops * std::max({F, B, F + B - W}), hops * std::max(B, F + B - W),
                        std::min<std::uint64_t>(M, p)};
    expect_closed_form("zero-bubble-h1", p, 1, M, times, [&](std::size_t) { return h1; });
    const ClosedForm h2{hops * std::max({F, B - F, F + B - 2 * W}), hops * std::max({0.0, B - F, F + B - 2 * W}),
                        2 * p - 1};
    expect_closed_form("zero-bubble-h2", p, 1, M, times, [&](std::size_t) { return h2; });
    const ClosedForm pairs{hops * F / 2, hops * F / 2, 2 * p + 1};
    expect_closed_form("dualpipe-v", p, 2, M + 1, {F, F, F}, [&](std::size_t) { return pairs; });
    const ClosedForm folded_form{hops * F / 2, 0, 2 * p};
    expect_closed_form("zero-bubble-v", p, 2, M + 1, {F, F, F}, [&](std::size_t) { return folded_form; });
  }
}

TEST(PlayProgram, TakesAWindowPerStepWhereStepsFlow)
{
  std::mt19937_64 random(11);
  for (const char* name : {"1f1b", "gpipe", "zero-bubble-h1", "zero-bubble-h2"}) {
    for (int round = 0; round < 50; ++round) {
      const std::size_t p = 1 + random() % 6;
      const auto program = program_of(name, p, 1, 2 * p - 1 + random() % 7, random_times(random));
      const auto played = play_program(*program, rates_of(0), 4);
      const double window = played.periods[0].window().value;
      for (std::size_t step = 1; step < 4; ++step) {
        EXPECT_NEAR(played.periods[step].step_time.value, window, 1e-9 * window) << name << ", step " << step;
      }
    }
  }
}

TEST(PlayProgram, HasThePublishedBubbleRates)
{
  // The first two are from Qi et al., Zero Bubble Pipeline Parallelism, 2024. Times in milliseconds.
  struct Case {
    DeviceTimes times;
    double hop;
    std::size_t devices;
    std::uint64_t microbatches;
    double one_forward_one_backward, h1, h2;
  };
  const Case cases[] = {{{18.522, 18.086, 9.337}, 0.601, 8, 24, 0.2431, 0.1585, 0.1083},
                        {{29.718, 29.444, 19.927}, 0.527, 8, 24, 0.2347, 0.1323, 0.0698},
                        {{10.419, 10.207, 7.715}, 0.408, 32, 96, 0.2646, 0.1421, 0.0641}};
  for (const Case& each : cases) {
    const auto expect_rate = [&each](const char* name, double expected) {
      const auto program = program_of(name, each.devices, 1, each.microbatches, each.times);
      const auto played = play_program(*program, rates_of(each.hop));
      const double work = static_cast<double>(each.microbatches) * each.times.sum();
      const double rate = 1 - work / played.periods[0].window().value;
      EXPECT_NEAR(rate, expected, 0.5e-4 + 1e-6) << name << " on " << each.devices << " devices";
    };
    expect_rate("1f1b", each.one_forward_one_backward);
    expect_rate("zero-bubble-h1", each.h1);
    expect_rate("zero-bubble-h2", each.h2);
  }
}

}  // namespace
}  // namespace isobar::schedules::player_test
