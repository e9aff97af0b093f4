#include "allocators/mix/job_grouping.hpp"

#include "allocators/mix/shared_round.hpp"
#include "core/base/pcg64.hpp"
#include "core/errors.hpp"
#include "core/jobs/grouping_checker.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace isobar::allocators::job_grouping_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

JobProfile job_of(std::uint64_t steps, double compute, double network, std::size_t devices = 1)
{
  JobProfile job;
  job.steps = steps;
  job.devices = devices;
  job.step = {Seconds(compute + network), {Seconds(0), Seconds(compute), Seconds(network)}};
  return job;
}

/// Jobs named j0, j1, … with 1 to 20 steps.
std::vector<JobProfile> drawn_jobs(Pcg64& random, std::size_t count, std::size_t device_numbers = 1)
{
  std::vector<JobProfile> jobs;
  for (std::size_t i = 0; i < count; ++i) {
    jobs.push_back(job_of(1 + random.below(20), 0.1 + random.uniform(), 0.1 + random.uniform(),
                          device_numbers > 1 ? 1 + random.below(static_cast<std::uint32_t>(device_numbers)) : 1));
    jobs.back().name = "j" + std::to_string(i);
    jobs.back().step.busy[0] = Seconds(0.5 * random.uniform());
    jobs.back().step.alone += jobs.back().step.busy[0];
    jobs.back().resident = Bytes(1 + random.below(4));
    jobs.back().activations = Bytes(random.below(3));
  }
  return jobs;
}

bool may_share(const std::vector<JobProfile>& jobs, const GroupingGoal& goal)
{
  Bytes resident;
  Bytes activations;
  for (const auto& job : jobs) {
    if (job.devices != jobs.front().devices) return false;
    resident += job.resident;
    activations = std::max(activations, job.activations);
  }
  return jobs.size() == 1 || !goal.memory || resident + activations <= *goal.memory;
}

Seconds round_of(const std::vector<JobProfile>& jobs)
{
  std::vector<JobStepTimes> steps;
  for (const auto& job : jobs) steps.push_back(job.step);
  return shared_round_time(steps, RoundForm::Overlap);
}

using Groups = std::vector<std::vector<JobProfile>>;

/// Calls `see` with all groupings.
void try_all(const std::vector<JobProfile>& jobs, const GroupingGoal& goal, std::size_t next, Groups& groups,
             const std::function<void(const Groups&)>& see)
{
  if (next == jobs.size()) return see(groups);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].size() == most_jobs_of(goal.size)) continue;
    groups[i].push_back(jobs[next]);
    if (may_share(groups[i], goal)) try_all(jobs, goal, next + 1, groups, see);
    groups[i].pop_back();
  }
  groups.push_back({jobs[next]});
  try_all(jobs, goal, next + 1, groups, see);
  groups.pop_back();
}

/// The least total; of pairs at once, the least longest round and then the least sum.
std::pair<double, double> best_of_all(const std::vector<JobProfile>& jobs, const GroupingGoal& goal)
{
  std::pair<double, double> best(1e18, 1e18);
  Groups groups;
  try_all(jobs, goal, 0, groups, [&](const Groups& found) {
    Seconds longest;
    Seconds total;
    for (const auto& group : found) {
      if (goal.at_once && group.size() != 2) return;
      longest = std::max(longest, round_of(group));
      total += goal.at_once ? round_of(group) : group_time(group);
    }
    best = std::min(best, std::pair(goal.at_once ? longest.value : 0.0, total.value));
  });
  return best;
}

TEST(GroupTime, IsThatOfRoundsUntilTheFirstEndsAndThenOfTheOthers)
{
  const auto a = job_of(10, 1, 0.5);
  const auto b = job_of(4, 0.5, 2);
  EXPECT_DOUBLE_EQ(group_time({a}).value, 15);
  EXPECT_DOUBLE_EQ(group_time({a, b}).value, 4 * 2.5 + 6 * 1.5);
  EXPECT_DOUBLE_EQ(group_time({a, b, job_of(5, 1, 1)}).value, 4 * 3.5 + 1 * 2 + 5 * 1.5);
}

TEST(JobGrouping, OfPairsIsTheBestOfAllAndItsCertificateHolds)
{
  Pcg64 random(11);
  std::size_t with_odd_sets = 0;
  for (std::size_t round = 0; round < 60; ++round) {
    const auto jobs = drawn_jobs(random, 2 + round % 9, 1 + round % 2);
    const GroupingGoal goal{GroupSize::Pairs, false, round % 3 == 0 ? std::optional(Bytes(6)) : std::nullopt};
    const auto grouping = choose_groups(jobs, goal).value();
    EXPECT_NEAR(grouping.total.value, best_of_all(jobs, goal).second, 1e-9);
    EXPECT_THAT(faults_of(grouping), IsEmpty());
    EXPECT_LE(grouping.bound.value, grouping.total.value);
    EXPECT_NEAR(grouping.bound.value, grouping.total.value, 1e-7);
    for (const auto& proof : grouping.proofs) with_odd_sets += proof.odd_sets.empty() ? 0 : 1;
  }
  EXPECT_GT(with_odd_sets, 0U);
}

TEST(JobGrouping, OfTwelveJobsInPairsIsTheBestOfAll)
{
  Pcg64 random(12);
  for (int round = 0; round < 3; ++round) {
    const auto jobs = drawn_jobs(random, 12);
    for (const bool at_once : {false, true}) {
      const GroupingGoal goal{GroupSize::Pairs, at_once};
      EXPECT_NEAR(choose_groups(jobs, goal)->total.value, best_of_all(jobs, goal).second, 1e-9);
    }
  }
}

TEST(JobGrouping, OfPairsAtOnceHasTheLeastLongestRoundAndThenTheLeastSum)
{
  Pcg64 random(13);
  std::size_t impossible = 0;
  for (std::size_t round = 0; round < 60; ++round) {
    const auto jobs = drawn_jobs(random, 2 + 2 * (round % 4));
    const GroupingGoal goal{GroupSize::Pairs, true, round % 3 == 0 ? std::optional(Bytes(7)) : std::nullopt};
    const auto grouping = choose_groups(jobs, goal);
    const auto [longest, total] = best_of_all(jobs, goal);
    ASSERT_EQ(grouping.has_value(), longest < 1e18);
    if (!grouping) {
      ++impossible;
      continue;
    }
    EXPECT_NEAR(grouping->longest.value, longest, 1e-9);
    EXPECT_NEAR(grouping->total.value, total, 1e-9);
    EXPECT_THAT(faults_of(*grouping), IsEmpty());
  }
  EXPECT_GT(impossible, 0U);
  EXPECT_EQ(choose_groups(drawn_jobs(random, 3), {GroupSize::Pairs, true}), std::nullopt);
}

TEST(JobGrouping, OfUpToFourIsNoBetterThanItsBoundAndNoWorseThanPairs)
{
  Pcg64 random(14);
  for (std::size_t round = 0; round < 30; ++round) {
    const auto jobs = drawn_jobs(random, 3 + round % 6);
    Seconds of_pairs(1e18);
    for (const auto size : {GroupSize::Pairs, GroupSize::Triples, GroupSize::Auto}) {
      const GroupingGoal goal{size};
      const auto grouping = choose_groups(jobs, goal).value();
      const double best = best_of_all(jobs, goal).second;
      EXPECT_LE(grouping.bound.value, best + 1e-9);
      EXPECT_GE(grouping.total.value, best - 1e-9);
      EXPECT_LE(grouping.total.value, of_pairs.value + 1e-9);
      EXPECT_THAT(faults_of(grouping), IsEmpty());
      if (size == GroupSize::Pairs) of_pairs = grouping.total;
      EXPECT_EQ(grouping.baselines.size(), 4U);
      for (const auto& baseline : grouping.baselines) EXPECT_GE(baseline.total.value, grouping.bound.value - 1e-9);
    }
  }
}

TEST(JobGrouping, LeavesJobsAloneThatGainNothingOrDoNotFit)
{
  const auto computes = job_of(10, 1, 0);
  EXPECT_EQ(choose_groups({computes, computes}, {GroupSize::Auto})->groups.size(), 2U);
  auto large = job_of(10, 1, 1);
  large.resident = Bytes(5);
  EXPECT_EQ(choose_groups({large, large}, {GroupSize::Pairs, false, Bytes(9)})->groups.size(), 2U);
  EXPECT_EQ(choose_groups({large, large}, {GroupSize::Pairs, false, Bytes(10)})->groups.size(), 1U);
  large.activations = Bytes(1);
  EXPECT_EQ(choose_groups({large, large}, {GroupSize::Pairs, false, Bytes(10)})->groups.size(), 2U);
  EXPECT_EQ(choose_groups({job_of(1, 1, 1, 2), job_of(1, 1, 1, 4)}, {GroupSize::Pairs})->groups.size(), 2U);
}

TEST(JobGrouping, OfLongAndShortJobsHasWholeWeightsThatDoNotOverflow)
{
  std::vector<JobProfile> jobs;
  for (std::size_t i = 0; i < 40; ++i) {
    const double scale = i % 2 == 0 ? 1e3 : 1e-3;
    jobs.push_back(job_of(1'000'000'000, scale * (1 + static_cast<double>(i)), scale * 7));
    jobs.back().name = "j" + std::to_string(i);
  }
  for (const bool at_once : {false, true}) {
    const auto grouping = choose_groups(jobs, {GroupSize::Pairs, at_once}).value();
    EXPECT_THAT(faults_of(grouping), IsEmpty());
    EXPECT_GT(grouping.proofs.front().unit, Seconds(1e-9));
    EXPECT_LT(grouping.proofs.front().weight, 1ull << 53);
  }
}

TEST(JobGrouping, SavesMoreThanItsBaselines)
{
  Pcg64 random(15);
  std::vector<JobProfile> jobs;
  for (std::size_t i = 0; i < 64; ++i) jobs.push_back(job_of(100, random.uniform(), random.uniform()));
  for (const auto size : {GroupSize::Pairs, GroupSize::Auto}) {
    const auto grouping = choose_groups(jobs, {size}).value();
    for (const auto& [rule, total, longest] : grouping.baselines) {
      // Repeated matching is not exact for groups above two.
      EXPECT_GE(total.value, grouping.total.value * (size == GroupSize::Pairs ? 1 - 1e-12 : 0.99)) << rule;
    }
    const double most_saved = grouping.serial.value - grouping.bound.value;
    EXPECT_GT((grouping.serial.value - grouping.total.value) / most_saved, 0.9);
  }
}

/// Three jobs of which a pair shares and one is left, so that an odd set proves it.
Grouping proven_grouping()
{
  std::vector<JobProfile> jobs = {job_of(10, 1, 1), job_of(10, 1.1, 1.1), job_of(10, 1.2, 1.2)};
  for (std::size_t i = 0; i < jobs.size(); ++i) jobs[i].name = "j" + std::to_string(i);
  return choose_groups(jobs, {GroupSize::Pairs}).value();
}

TEST(GroupingChecker, RefusesAnyChangedNumber)
{
  const auto right = proven_grouping();
  ASSERT_THAT(faults_of(right), IsEmpty());
  ASSERT_EQ(right.proofs.front().odd_sets.size(), 1U);
  using Change = std::function<void(Grouping&)>;
  const std::vector<Change> changes = {
      [](Grouping& g) { g.total *= 0.999; },
      [](Grouping& g) { g.total *= 1.001; },
      [](Grouping& g) { g.serial *= 1.001; },
      [](Grouping& g) { g.longest *= 0.999; },
      [](Grouping& g) { g.bound *= 1.001; },
      [](Grouping& g) { g.groups[0].round *= 1.001; },
      [](Grouping& g) { g.groups[0].time *= 0.999; },
      [](Grouping& g) { g.groups[0].jobs.pop_back(); },
      [](Grouping& g) { g.groups.pop_back(); },
      [](Grouping& g) { g.groups.push_back(g.groups.front()); },
      [](Grouping& g) {
        g.memory = Bytes(0);
        g.jobs[1].resident = Bytes(1);
        g.jobs[2].resident = Bytes(1);
      },
      [](Grouping& g) { g.proofs[0].unit *= 1.001; },
      [](Grouping& g) { g.proofs[0].unit *= 0.999; },
      [](Grouping& g) { g.proofs[0].unit = Seconds(0); },
      [](Grouping& g) { g.proofs[0].bonus += 1'000'000; },
      [](Grouping& g) { ++g.proofs[0].weight; },
      [](Grouping& g) { --g.proofs[0].weight; },
      [](Grouping& g) { ++g.proofs[0].duals[0]; },
      [](Grouping& g) { --g.proofs[0].duals[2]; },
      [](Grouping& g) { ++g.proofs[0].odd_sets[0].dual; },
      [](Grouping& g) { g.proofs[0].odd_sets[0].jobs.pop_back(); },
      [](Grouping& g) { g.proofs[0].odd_sets[0].jobs[0] = g.proofs[0].odd_sets[0].jobs[1]; },
      [](Grouping& g) { g.proofs[0].odd_sets.clear(); },
      [](Grouping& g) { g.proofs[0].duals.pop_back(); },
      [](Grouping& g) { g.proofs[0].devices = 2; },
      [](Grouping& g) { g.proofs.push_back(g.proofs[0]); },
      [](Grouping& g) { g.proofs.clear(); },
      [](Grouping& g) { g.size = GroupSize::Triples; },
      [](Grouping& g) { g.baselines[0].total = g.bound * 0.99; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    auto wrong = right;
    changes[i](wrong);
    EXPECT_FALSE(faults_of(wrong).empty()) << "change " << i;
  }
}

TEST(GroupingChecker, SaysWhatIsFalse)
{
  const auto fault_of = [](const std::function<void(Grouping&)>& change) {
    auto wrong = proven_grouping();
    change(wrong);
    const auto faults = faults_of(wrong);
    return faults.empty() ? "" : faults.front();
  };
  EXPECT_EQ(fault_of([](Grouping& g) { g.groups.pop_back(); }), "groups: j1 is in none");
  EXPECT_EQ(fault_of([](Grouping& g) { g.total = Seconds(1); }), "total_s: claims 1; it is 44");
  EXPECT_EQ(fault_of([](Grouping& g) { g.groups[1].jobs.push_back(0); }), "groups[1].jobs: 3; pairs has at most 2");
  EXPECT_THAT(fault_of([](Grouping& g) { ++g.proofs[0].weight; }),
              HasSubstr("certificates[0].duals: sum to 88000000000; four times the weight is 88000000004"));
  EXPECT_THAT(fault_of([](Grouping& g) {
                g.proofs[0].odd_sets.clear();
                g.proofs[0].duals = {g.proofs[0].weight * 4, 0, 0};
              }),
              HasSubstr("certificates[0].duals: those of j1 and j2 cover 0 of the "));
  EXPECT_THAT(fault_of([](Grouping& g) { g.bound = g.total * 1.01; }), HasSubstr("bound_s: claims "));
}

TEST(GroupingChecker, RefusesABarrierThatRulesOutNothing)
{
  // One job shares well with each of three that do not with each other: without it, each of them is alone.
  std::vector<JobProfile> jobs = {job_of(1, 0.1, 0), job_of(1, 1, 0), job_of(1, 1, 0), job_of(1, 1, 0)};
  for (std::size_t i = 0; i < jobs.size(); ++i) jobs[i].name = "j" + std::to_string(i);
  auto grouping = choose_groups(jobs, {GroupSize::Pairs, true}).value();
  ASSERT_THAT(faults_of(grouping), IsEmpty());
  EXPECT_THAT(grouping.proofs.front().barrier, ElementsAre(0));
  grouping.proofs.front().barrier.clear();
  EXPECT_THAT(
      faults_of(grouping),
      ElementsAre("certificates[0].barrier: leaves 0 odd components, not more than its 0 jobs: a shorter longest "
                  "round is not ruled out"));
}

}  // namespace
}  // namespace isobar::allocators::job_grouping_test
