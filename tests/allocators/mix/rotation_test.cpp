#include "allocators/mix/rotation.hpp"

#include "allocators/mix/shared_round.hpp"
#include "core/base/pcg64.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace isobar::allocators::rotation_test {
namespace {

JobStepTimes step_of(double compute, double network)
{
  return {Seconds(compute + network), {Seconds(0), Seconds(compute), Seconds(network)}};
}

/// Strict rotation from rest with a link in the order of the turns, event by event.
double played(const std::vector<JobStepTimes>& steps, int rounds)
{
  double device = 0;
  double link = 0;
  std::vector<double> ready(steps.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t job = 0; job < steps.size(); ++job) {
      device = std::max(device, ready[job]) + steps[job].busy[1].value;
      link = std::max(device, link) + steps[job].busy[2].value;
      ready[job] = link;
    }
  }
  return link;
}

std::vector<JobStepTimes> drawn(Pcg64& random, std::size_t jobs)
{
  std::vector<JobStepTimes> steps;
  for (std::size_t i = 0; i < jobs; ++i) steps.push_back(step_of(1 + random.below(9), 1 + random.below(9)));
  return steps;
}

TEST(Rotation, TakesTheTimeOfItsEventsFromRest)
{
  Pcg64 random(1);
  for (int mix = 0; mix < 1000; ++mix) {
    const auto steps = drawn(random, 2 + random.below(4));
    for (const int rounds : {1, 2, 7}) {
      EXPECT_NEAR(time_of_rounds(steps, static_cast<std::uint64_t>(rounds)).value, played(steps, rounds), 1e-9);
    }
  }
}

TEST(Rotation, IsShortestInJohnsonsOrder)
{
  Pcg64 random(4);
  for (int mix = 0; mix < 200; ++mix) {
    const auto steps = drawn(random, 2 + random.below(4));
    std::vector<std::size_t> order(steps.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto time_in = [&](const std::vector<std::size_t>& turns) {
      std::vector<JobStepTimes> ordered;
      for (const std::size_t job : turns) ordered.push_back(steps[job]);
      return time_of_rounds(ordered, 3);
    };
    Seconds best(1e9);
    do best = std::min(best, time_in(order));
    while (std::next_permutation(order.begin(), order.end()));
    EXPECT_EQ(time_in(johnson_order(steps)), best);
  }
}

TEST(Rotation, HasAsMuchOfASyncLeftAsItsBucketsAllow)
{
  EXPECT_DOUBLE_EQ(exposed_sync(Seconds(1), Seconds(10), 4).value, 0.25);
  EXPECT_DOUBLE_EQ(exposed_sync(Seconds(4), Seconds(2), 4).value, 2.5);
  EXPECT_DOUBLE_EQ(exposed_sync(Seconds(3), Seconds(2), 1).value, 3);
}

TEST(Rotation, HidesNothingMoreWithMoreTurns)
{
  const auto a = step_of(1, 0.5);
  const auto b = step_of(1, 2);
  EXPECT_DOUBLE_EQ(round_with_turns(a, b, 1).value, 3);
  EXPECT_DOUBLE_EQ(round_with_turns(a, b, 3).value, 6);
}

TEST(Rotation, LeavesRatesBelowThatOfAFullResource)
{
  EXPECT_DOUBLE_EQ(max_min_rate({step_of(1, 0.1), step_of(4, 0.4)}), 1.1 / 2);
  EXPECT_DOUBLE_EQ(max_min_rate({step_of(1, 1), step_of(2, 2)}), 1);
  EXPECT_DOUBLE_EQ(max_min_rate({step_of(1, 3), step_of(1, 3)}), 1 / 1.5);
}

TEST(Rotation, PaysForEachHandOver)
{
  const auto step = with_hand_over(step_of(1, 0.2), Seconds(0.02));
  EXPECT_NEAR(2 * 1.2 / shared_round_time({step, step}, RoundForm::Overlap).value, 1.176, 5e-4);
  EXPECT_DOUBLE_EQ(swap_time(Bytes(2e9), Bytes(1e9), BytesPerSecond(55e9)).value, 2.0 / 55);
}

TEST(Rotation, TellsWhatThePublishedTwentyPercentImply)
{
  const auto equal = step_of(1, sync_ratio_of(1.2));
  EXPECT_NEAR(2 * equal.alone / shared_round_time({equal, equal}, RoundForm::Overlap), 1.2, 1e-12);
  const auto inverse = step_of(1, 1 / sync_ratio_of(1.2));
  EXPECT_NEAR(2 * inverse.alone / shared_round_time({inverse, inverse}, RoundForm::Overlap), 1.2, 1e-12);
}

}  // namespace
}  // namespace isobar::allocators::rotation_test
