#include "allocators/mix/placements.hpp"

#include "core/base/pcg64.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

namespace isobar::allocators::placements_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double rounding = 1e-9;

/// A step on one device that holds one byte there.
PlacedStep step_on(std::size_t device, double time)
{
  return {Seconds(time), {{device, Seconds(time)}}, {{device, Bytes(1), Bytes(0)}}};
}

PlacementProblem problem_of(std::vector<std::vector<PlacedStep>> jobs, std::vector<std::size_t> kinds,
                            std::size_t devices, double memory = 1e9)
{
  return {std::move(jobs), std::move(kinds), devices, devices, std::vector<Bytes>(devices, Bytes(memory))};
}

/// Jobs of a few kinds with choices of random devices and a link.
PlacementProblem drawn_problem(Pcg64& random)
{
  const std::size_t devices = 2 + random.below(3);
  const std::size_t kinds = 1 + random.below(3);
  std::vector<std::vector<PlacedStep>> choices;
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    choices.emplace_back();
    for (std::uint32_t choice = 1 + random.below(4); choice > 0; --choice) {
      PlacedStep step;
      for (std::size_t device = 0; device < devices; ++device) {
        if (random.below(2) == 0) continue;
        const Seconds time(0.1 + random.uniform());
        step.busy.emplace_back(device, time);
        step.alone = std::max(step.alone, time);
        step.memory.push_back({device, Bytes(1 + random.below(3)), Bytes(random.below(3))});
      }
      const Seconds sent(random.uniform());
      step.busy.emplace_back(devices, sent);
      step.alone += sent;
      choices.back().push_back(std::move(step));
    }
  }
  PlacementProblem problem;
  for (std::uint32_t job = 1 + random.below(5); job > 0; --job) {
    problem.kinds.push_back(random.below(static_cast<std::uint32_t>(kinds) + 1) % kinds);
    problem.jobs.push_back(choices[problem.kinds.back()]);
  }
  problem.devices = devices;
  problem.resources = devices + 1;
  problem.memory.assign(devices, Bytes(6));
  return problem;
}

/// The round of a placement by its definition; infinite where it does not fit in memory.
double round_of(const PlacementProblem& problem, const std::vector<std::size_t>& choices)
{
  double longest = 0;
  std::vector<double> busy(problem.resources);
  std::vector<double> resident(problem.memory.size());
  std::vector<double> activations(problem.memory.size());
  for (std::size_t job = 0; job < choices.size(); ++job) {
    const PlacedStep& step = problem.jobs[job][choices[job]];
    longest = std::max(longest, step.alone.value);
    for (const auto& [resource, time] : step.busy) busy[resource] += time.value;
    for (const auto& memory : step.memory) {
      resident[memory.place] += memory.resident.value;
      activations[memory.place] = std::max(activations[memory.place], memory.activations.value);
    }
  }
  for (std::size_t place = 0; place < resident.size(); ++place) {
    if (resident[place] + activations[place] > problem.memory[place].value) {
      return std::numeric_limits<double>::infinity();
    }
  }
  return std::max(longest, *std::ranges::max_element(busy));
}

/// The rounds of all placements, jobs of a kind trading places included.
std::vector<double> all_rounds(const PlacementProblem& problem)
{
  std::vector<double> rounds;
  std::vector<std::size_t> choices(problem.jobs.size());
  std::function<void(std::size_t)> try_from = [&](std::size_t job) {
    if (job == choices.size()) {
      rounds.push_back(round_of(problem, choices));
      return;
    }
    for (choices[job] = 0; choices[job] < problem.jobs[job].size(); ++choices[job]) try_from(job + 1);
  };
  try_from(0);
  std::ranges::sort(rounds);
  return rounds;
}

TEST(Placements, DivideTwoDevicesBetweenTwoJobs)
{
  const std::vector<PlacedStep> choices = {step_on(0, 60), step_on(1, 60)};
  const auto found = best_placements(problem_of({choices, choices}, {0, 0}, 2), 4);
  ASSERT_FALSE(found.best.empty());
  EXPECT_THAT(found.best.front().choices, ElementsAre(0, 1));
  EXPECT_EQ(found.best.front().round, Seconds(60));
  EXPECT_EQ(found.bound, Seconds(60));
  EXPECT_TRUE(found.is_exact);
  EXPECT_EQ(found.best.size(), 3U);  // (1, 0) is (0, 1) with the jobs in each other's place
}

TEST(Placements, PutASlowJobOnTheFastDeviceAndTheOthersTogether)
{
  const auto job = [](double work) { return std::vector<PlacedStep>{step_on(0, work), step_on(1, work / 4)}; };
  const auto found = best_placements(problem_of({job(1), job(1), job(12)}, {0, 0, 1}, 2), 1);
  EXPECT_THAT(found.best.front().choices, ElementsAre(0, 0, 1));
  EXPECT_EQ(found.bound, Seconds(3));
}

TEST(Placements, FitInMemory)
{
  const std::vector<PlacedStep> choices = {step_on(0, 1), step_on(1, 10)};
  const auto apart = best_placements(problem_of({choices, choices}, {0, 0}, 2, 1), 1);
  EXPECT_THAT(apart.best.front().choices, ElementsAre(0, 1));
  EXPECT_EQ(apart.bound, Seconds(10));
  EXPECT_THAT(best_placements(problem_of({choices, choices, choices}, {0, 0, 0}, 2, 1), 1).best, IsEmpty());
}

TEST(Placements, AreTheBestOfAll)
{
  Pcg64 random(13);
  std::size_t feasible = 0;
  for (int draw = 0; draw < 2000; ++draw) {
    const PlacementProblem problem = drawn_problem(random);
    const auto rounds = all_rounds(problem);
    const auto found = best_placements(problem, 3);
    EXPECT_TRUE(found.is_exact);
    if (rounds.front() == std::numeric_limits<double>::infinity()) {
      EXPECT_THAT(found.best, IsEmpty());
      continue;
    }
    ++feasible;
    ASSERT_FALSE(found.best.empty());
    EXPECT_NEAR(found.bound.value, rounds.front(), rounding);
    for (std::size_t i = 0; i < found.best.size(); ++i) {
      EXPECT_NEAR(found.best[i].round.value, round_of(problem, found.best[i].choices), rounding);
      if (i > 0) {
        EXPECT_GE(found.best[i].round, found.best[i - 1].round);
      }
    }
  }
  EXPECT_GT(feasible, 1000U);
}

TEST(Placements, OfALimitedSearchHaveATrueBound)
{
  Pcg64 random(14);
  std::size_t cut = 0;
  for (int draw = 0; draw < 1000; ++draw) {
    const PlacementProblem problem = drawn_problem(random);
    const double least = all_rounds(problem).front();
    for (const std::uint64_t most_steps : {0, 3, 10, 20}) {
      const auto found = best_placements(problem, 2, most_steps);
      EXPECT_LE(found.bound.value, least + rounding);
      if (!found.is_exact) ++cut;
      if (!found.best.empty()) {
        EXPECT_GE(found.best.front().round.value, least - rounding);
      }
    }
  }
  EXPECT_GT(cut, 1000U);
}

TEST(Placements, OfManyJobsEndAtTheLimit)
{
  std::vector<PlacedStep> choices;
  for (std::size_t device = 0; device < 8; ++device)
    choices.push_back(step_on(device, 1 + 0.01 * static_cast<double>(device)));
  std::vector<std::vector<PlacedStep>> jobs(64, choices);
  std::vector<std::size_t> kinds(64);
  for (std::size_t job = 0; job < kinds.size(); ++job) kinds[job] = job;  // no symmetry helps
  const auto found = best_placements(problem_of(jobs, kinds, 8), 2, 20'000);
  ASSERT_FALSE(found.best.empty());
  EXPECT_GE(found.best.front().round.value, 8);
  EXPECT_LE(found.best.front().round.value, 9);
  EXPECT_LE(found.bound, found.best.front().round);
  EXPECT_GE(found.bound.value, 8);
}

TEST(DeviceGroups, AreAllSubsetsOfFewDevices)
{
  const auto groups = device_groups(4, 15);
  EXPECT_EQ(std::set(groups.begin(), groups.end()).size(), 15U);
  EXPECT_THAT(groups.front(), ElementsAre(0, 1, 2, 3));
}

TEST(DeviceGroups, OfManyDevicesAreRunsOfEqualUnits)
{
  const auto groups = device_groups(4, 14);
  EXPECT_EQ(groups.size(), 10U);
  EXPECT_EQ(std::set(groups.begin(), groups.end()).size(), 10U);
  for (const std::size_t devices : {7, 11, 64, 1000}) {
    for (const std::size_t most : {1, 2, 3, 10, 64}) {
      const auto found = device_groups(devices, most);
      EXPECT_LE(found.size(), most);
      EXPECT_EQ(found.front().size(), devices);
      EXPECT_EQ(std::set(found.begin(), found.end()).size(), found.size());
      for (const auto& group : found) {
        ASSERT_FALSE(group.empty());
        EXPECT_EQ(group.back() - group.front() + 1, group.size());
        EXPECT_LT(group.back(), devices);
      }
    }
  }
  EXPECT_EQ(device_groups(64, 3),
            (std::vector<std::vector<std::size_t>>{device_groups(64, 1).front(), device_groups(32, 1).front(),
                                                   device_groups(64, 3).back()}));
  EXPECT_EQ(device_groups(64, 3).back().front(), 32U);
}

}  // namespace
}  // namespace isobar::allocators::placements_test
