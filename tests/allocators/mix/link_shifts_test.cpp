#include "allocators/mix/link_shifts.hpp"

#include "core/base/pcg64.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace isobar::allocators::link_shifts_test {
namespace {

using testing::Each;

double sum_of(const std::vector<double>& excess)
{
  return std::accumulate(excess.begin(), excess.end(), 0.0);
}

/// The least excess over all shifts in whole ticks.
double least_of_all(const std::vector<PeriodicJob>& jobs, std::size_t links)
{
  std::vector<Ticks> shifts(jobs.size());
  double least = 1e9;
  std::function<void(std::size_t)> try_from = [&](std::size_t job) {
    if (job == jobs.size()) {
      least = std::min(least, sum_of(excess_of(jobs, links, shifts)));
      return;
    }
    for (shifts[job] = 0; shifts[job] < jobs[job].period; ++shifts[job]) try_from(job + 1);
  };
  try_from(1);  // the first job's shift only turns all others
  return least;
}

/// A job that sends for a part of its period over each of these links.
PeriodicJob drawn_job(Pcg64& random, Ticks period, const std::vector<std::size_t>& links, bool at_full_rate)
{
  PeriodicJob job{period, {}};
  for (const std::size_t link : links) {
    const Ticks begin = random.below(static_cast<std::uint32_t>(period - 1));
    const Ticks end = begin + 1 + random.below(static_cast<std::uint32_t>(period - begin));
    job.pieces.push_back({link, begin, std::min(end, period), at_full_rate ? 1 : 0.25 * (1 + random.below(4))});
  }
  return job;
}

TEST(LinkShifts, OfTwoJobsAreTheBestOfAll)
{
  Pcg64 random(5);
  const Ticks periods[] = {6, 8, 9, 12, 15, 20};
  for (int round = 0; round < 550; ++round) {
    std::vector<PeriodicJob> jobs;
    for (int i = 0; i < 2; ++i) {
      auto job = drawn_job(random, periods[random.below(6)], {0}, false);
      if (round % 2 == 0) {  // a second burst
        const auto more = drawn_job(random, job.period, {0}, false).pieces.front();
        job.pieces.push_back(more);
      }
      jobs.push_back(job);
    }
    const auto found = best_shifts(jobs, 1);
    EXPECT_TRUE(found.is_exact);
    EXPECT_NEAR(sum_of(found.excess), least_of_all(jobs, 1), 1e-9) << round;
  }
}

TEST(LinkShifts, OfTwoBurstsLeaveNoExcessWhereTheyFitIntoTheCommonDivisorOfThePeriods)
{
  Pcg64 random(2);
  const Ticks periods[] = {6, 8, 9, 12, 15, 20, 24};
  int fitting = 0;
  for (int round = 0; round < 300; ++round) {
    const std::vector<PeriodicJob> jobs = {drawn_job(random, periods[random.below(7)], {0}, true),
                                           drawn_job(random, periods[random.below(7)], {0}, true)};
    Ticks sent = 0;
    for (const auto& job : jobs) sent += job.pieces.front().end - job.pieces.front().begin;
    const bool fits = sent <= std::gcd(jobs[0].period, jobs[1].period);
    fitting += fits ? 1 : 0;
    EXPECT_EQ(sum_of(best_shifts(jobs, 1).excess) < 1e-12, fits) << round;
  }
  EXPECT_GT(fitting, 30);
}

TEST(LinkShifts, OfThreeJobsOnALinkAreTheBestOfAll)
{
  Pcg64 random(3);
  const Ticks periods[] = {6, 8, 12};
  for (int round = 0; round < 60; ++round) {
    std::vector<PeriodicJob> jobs;
    for (int i = 0; i < 3; ++i) jobs.push_back(drawn_job(random, periods[random.below(3)], {0}, round % 2 == 0));
    const auto found = best_shifts(jobs, 1);
    EXPECT_TRUE(found.is_exact);
    EXPECT_NEAR(sum_of(found.excess), least_of_all(jobs, 1), 1e-9) << round;
  }
}

TEST(LinkShifts, GoLinkByLinkAlongATreeAndCloseACycle)
{
  Pcg64 random(9);
  const Ticks periods[] = {6, 8};
  for (int round = 0; round < 60; ++round) {
    const bool is_cycle = round % 2 == 0;
    const std::vector<PeriodicJob> jobs = {
        drawn_job(random, periods[random.below(2)],
                  is_cycle ? std::vector<std::size_t>{0, 2} : std::vector<std::size_t>{0}, true),
        drawn_job(random, periods[random.below(2)], {0, 1}, true),
        drawn_job(random, periods[random.below(2)],
                  is_cycle ? std::vector<std::size_t>{1, 2} : std::vector<std::size_t>{1}, true)};
    const auto found = best_shifts(jobs, 3);
    EXPECT_TRUE(found.is_exact);
    EXPECT_NEAR(sum_of(found.excess), least_of_all(jobs, 3), 1e-9) << round;
  }
}

TEST(LinkShifts, AreFoundForManyJobsWithoutBeingTheBest)
{
  std::vector<PeriodicJob> jobs;
  for (Ticks i = 0; i < 9; ++i) jobs.push_back({1000 + 7 * i, {{0, 100, 300, 1}, {0, 400, 500, 1}}});
  const auto found = best_shifts(jobs, 1, 2000);
  EXPECT_FALSE(found.is_exact);
  EXPECT_EQ(found.shifts.size(), 9U);
}

TEST(LinkShifts, OfJobsThatMeetOnNoLinkAreNone)
{
  const auto found = best_shifts({{10, {{0, 0, 10, 1}}}, {10, {{1, 0, 10, 1}}}, {10, {}}}, 2);
  EXPECT_TRUE(found.is_exact);
  EXPECT_THAT(found.shifts, Each(0));
  EXPECT_THAT(found.excess, Each(0.0));
}

}  // namespace
}  // namespace isobar::allocators::link_shifts_test
