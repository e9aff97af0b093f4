#include "allocators/mix/cluster_schedule.hpp"

#include "allocators/mix/gangs.hpp"
#include "core/base/pcg64.hpp"
#include "core/jobs/job_trace.hpp"
#include "core/jobs/measured_models.hpp"
#include "results/cluster_metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace isobar::allocators::cluster_schedule_test {
namespace {

using testing::ElementsAre;

const std::vector<std::size_t> eight_by_eight(8, 8);

Job job_of(std::size_t devices, double arrival, double seconds, double start_cost = 0)
{
  Job job;
  job.devices = devices;
  job.arrival = Seconds(arrival);
  job.steps = seconds;
  job.step = {Seconds(1), {Seconds(0), Seconds(1), Seconds(0)}};
  job.start_cost = Seconds(start_cost);
  return job;
}

ScheduleRules rules_of(Policy policy)
{
  ScheduleRules rules;
  rules.policy = policy;
  rules.step_factor = 1;
  return rules;
}

std::vector<double> ends_of(const std::vector<Job>& jobs, const std::vector<std::size_t>& nodes,
                            const ScheduleRules& rules)
{
  std::vector<double> ends;
  for (const auto& run : schedule_jobs(jobs, nodes, rules).jobs) ends.push_back(run.end.value);
  return ends;
}

results::ClusterMetrics metrics_of(const std::string& trace, const ScheduleRules& rules, bool at_once = false)
{
  auto jobs = read_job_trace(std::string(ISOBAR_SOURCE_DIR) + "/workloads/jobs/" + trace, {}).jobs;
  if (at_once) {
    for (Job& job : jobs) job.arrival = Seconds(0);
  }
  return results::cluster_metrics(jobs, schedule_jobs(jobs, eight_by_eight, rules), 64, rules.step_factor,
                                  shares_devices(rules.policy));
}

void expect_times(const results::ClusterMetrics& metrics, double mean, double makespan, double p99, double tolerance)
{
  EXPECT_NEAR(metrics.mean_jct.value, mean, tolerance);
  EXPECT_NEAR(metrics.makespan.value, makespan, tolerance);
  EXPECT_NEAR(metrics.p99_jct.value, p99, tolerance);
}

ScheduleRules published(Policy policy, Semantics semantics)
{
  ScheduleRules rules;
  rules.policy = policy;
  rules.semantics = semantics;
  return rules;
}

TEST(Gangs, TakeTheFirstNodeWithRoomAndWholeNodesBeyondThat)
{
  FreeDevices free({2, 4, 4, 4});
  EXPECT_THAT(free.take(3).value(), ElementsAre(2, 3, 4));
  EXPECT_THAT(free.take(2).value(), ElementsAre(0, 1));
  EXPECT_THAT(free.take(6).value(), ElementsAre(6, 7, 8, 9, 10, 11, 12, 13));
  EXPECT_EQ(free.take(2), std::nullopt);
  EXPECT_THAT(free.take(1).value(), ElementsAre(5));
  EXPECT_EQ(free.take(1), std::nullopt);
}

TEST(ClusterSchedule, ReproducesThePublishedSimulatorToTheLastDigit)
{
  // Its --schedule shortest, shortest-gpu and dlas-gpu.
  const auto srtf = published(Policy::Srtf, Semantics::Published);
  expect_times(metrics_of("trace3.csv", srtf), 193'081.796, 8'174'135.280, 4'538'890.607, 5e-4);
  expect_times(metrics_of("trace3.csv", srtf, true), 844'394.780, 7'261'795.828, 6'363'099.549, 5e-4);
  const auto srsf = published(Policy::Srsf, Semantics::Published);
  expect_times(metrics_of("trace3.csv", srsf), 185'021.880, 8'174'135.280, 4'189'699.177, 5e-4);
  expect_times(metrics_of("trace3.csv", srsf, true), 798'057.683, 6'907'790.403, 6'228'160.594, 5e-4);
  const auto tiresias = published(Policy::Tiresias, Semantics::Published);
  expect_times(metrics_of("trace3.csv", tiresias), 347'213.248, 8'174'226.280, 4'983'397.254, 5e-4);
  expect_times(metrics_of("trace3.csv", tiresias, true), 2'213'110.128, 6'761'641.420, 6'739'568.999, 5e-4);
}

TEST(ClusterSchedule, ChargesAStartOnceByDefault)
{
  expect_times(metrics_of("trace3.csv", published(Policy::Srtf, Semantics::Corrected)), 190'927.4, 8'173'911.7,
               4'509'718.0, 0.05);
}

TEST(ClusterSchedule, QueuesByArrivalWithAndWithoutBackfill)
{
  EXPECT_NEAR(metrics_of("trace3.csv", published(Policy::Fifo, Semantics::Corrected)).mean_jct.value, 1'054'145, 0.5);
  EXPECT_NEAR(metrics_of("trace3.csv", published(Policy::Backfill, Semantics::Corrected)).mean_jct.value, 520'638, 0.5);
}

TEST(ClusterSchedule, ComesWithinTwoPercentOfTheMeasuredTestbed)
{
  auto rules = published(Policy::Srtf, Semantics::Corrected);
  rules.round = Seconds(360);
  const auto ratios = [&] {
    const auto metrics = metrics_of("cluster_trace.csv", rules);
    return std::vector<double>{metrics.mean_jct.value / 249'140.177, metrics.makespan.value / 4'156'633.263,
                               metrics.p99_jct.value / 2'723'588.793};
  };
  const auto near = [](double ratio) { return testing::DoubleNear(ratio, 5e-4); };
  EXPECT_THAT(ratios(), ElementsAre(near(0.991), near(0.980), near(1.002)));
  rules.charges_moves = true;
  EXPECT_THAT(ratios(), ElementsAre(near(0.998), near(0.992), near(0.999)));
  rules.charges_moves = false;
  rules.step_factor = 1;
  EXPECT_THAT(ratios(), ElementsAre(near(0.958), near(0.963), near(0.991)));
}

TEST(ClusterSchedule, LetsTheHeadOfTheQueueBlockOrLaterJobsPass)
{
  const std::vector<Job> jobs = {job_of(1, 0, 10), job_of(2, 1, 5), job_of(1, 2, 3)};
  EXPECT_THAT(ends_of(jobs, {2}, rules_of(Policy::Fifo)), ElementsAre(10, 15, 18));
  EXPECT_THAT(ends_of(jobs, {2}, rules_of(Policy::Backfill)), ElementsAre(10, 15, 5));
}

TEST(ClusterSchedule, PreemptsForTheShortestRemainingTimeAndPaysAgainToResume)
{
  const std::vector<Job> jobs = {job_of(1, 0, 10, 1), job_of(1, 4, 2, 1)};
  const auto run = schedule_jobs(jobs, {1}, rules_of(Policy::Srtf));
  EXPECT_EQ(run.jobs[1].end, Seconds(7));
  EXPECT_EQ(run.jobs[0].end, Seconds(15));  // 1 + 3 until 4, then from 7: 1 + 7
  EXPECT_EQ(run.jobs[0].starts, 2U);
  EXPECT_EQ(run.jobs[0].waiting, Seconds(3));
  EXPECT_EQ(run.jobs[0].longest_wait, Seconds(3));
  EXPECT_EQ(run.jobs[1].first_start, Seconds(4));
  EXPECT_EQ(run.device_time, Seconds(15));
  EXPECT_EQ(run.decisions, 4U);
}

TEST(ClusterSchedule, ChargesAtEveryEventInThePublishedSemantics)
{
  auto rules = rules_of(Policy::Srtf);
  rules.semantics = Semantics::Published;
  // The first job makes 4 - 1 steps until the second one arrives elsewhere, and is not charged in its last interval.
  EXPECT_THAT(ends_of({job_of(1, 0, 10, 1), job_of(1, 4, 20, 1)}, {2}, rules), ElementsAre(11, 25));
  EXPECT_THAT(ends_of({job_of(1, 0, 10, 1)}, {2}, rules), ElementsAre(10));
}

TEST(ClusterSchedule, WeighsTheDevicesOfAJobByItsService)
{
  const std::vector<Job> jobs = {job_of(4, 0, 3), job_of(1, 0, 10)};
  EXPECT_THAT(ends_of(jobs, {4}, rules_of(Policy::Srtf)), ElementsAre(3, 13));
  EXPECT_THAT(ends_of(jobs, {4}, rules_of(Policy::Srsf)), ElementsAre(13, 10));
}

TEST(ClusterSchedule, DemotesJobsByTheirAttainedService)
{
  // The first job enters the second queue at 3,250 device-seconds, and the second job runs until it does.
  const std::vector<Job> jobs = {job_of(1, 0, 4000), job_of(1, 100, 4000)};
  EXPECT_THAT(ends_of(jobs, {1}, rules_of(Policy::Tiresias)), ElementsAre(8000, 7250));
  // Both end in the queue in which the first one is preempted no more.
  EXPECT_THAT(ends_of({job_of(1, 0, 3000), job_of(1, 100, 10)}, {1}, rules_of(Policy::Tiresias)),
              ElementsAre(3000, 3010));
}

TEST(ClusterSchedule, EntersAQueueAtItsEndInThePublishedSemantics)
{
  auto rules = rules_of(Policy::Tiresias);
  rules.semantics = Semantics::Published;
  // The first job waits in the second queue when the second one enters it at 6,500.
  EXPECT_THAT(ends_of({job_of(1, 0, 4000), job_of(1, 100, 4000)}, {1}, rules), ElementsAre(7250, 8000));
  // 3,250 device-seconds of three devices take 1,083 1/3 s.
  const std::vector<Job> jobs = {job_of(3, 0, 1200), job_of(3, 100, 10)};
  EXPECT_THAT(ends_of(jobs, {3}, rules), ElementsAre(1210, 1094));
}

TEST(ClusterSchedule, DecidesAtMultiplesOfARoundOnly)
{
  auto rules = rules_of(Policy::Srtf);
  rules.round = Seconds(10);
  EXPECT_THAT(ends_of({job_of(1, 0, 12), job_of(1, 3, 5)}, {1}, rules), ElementsAre(12, 25));
}

TEST(ClusterSchedule, ChargesMovesToOtherNodesWhereAsked)
{
  // The longest job is placed last; when the others end, it gets the first node.
  const std::vector<Job> jobs = {job_of(2, 0, 10, 1), job_of(2, 0, 20, 1)};
  auto rules = rules_of(Policy::Srtf);
  EXPECT_THAT(ends_of(jobs, {2, 2}, rules), ElementsAre(11, 21));
  rules.charges_moves = true;
  EXPECT_THAT(ends_of(jobs, {2, 2}, rules), ElementsAre(11, 22));
}

TEST(ClusterSchedule, SharesDevicesByRoundsOnlyWhileJobsAskForMoreThanThereAre)
{
  Job computes = job_of(1, 0, 10);
  Job sends = computes;
  sends.step.busy = {Seconds(0), Seconds(0), Seconds(1)};
  for (const Policy policy : {Policy::Muri, Policy::Crossover}) {
    EXPECT_THAT(ends_of({computes, sends}, {2}, rules_of(policy)), ElementsAre(10, 10));
    EXPECT_THAT(ends_of({computes, sends}, {1}, rules_of(policy)), ElementsAre(10, 10));
    EXPECT_THAT(ends_of({computes, computes}, {1}, rules_of(policy)), ElementsAre(10, 20));
  }
  // A round of both takes 1.5 s, until the shorter one has ended.
  sends.step = {Seconds(1), {Seconds(0), Seconds(0.5), Seconds(0.5)}};
  sends.steps = 4;
  EXPECT_THAT(ends_of({computes, sends}, {1}, rules_of(Policy::Crossover)), ElementsAre(12, 6));
  EXPECT_EQ(schedule_jobs({computes, sends}, {1}, rules_of(Policy::Crossover)).shared_starts, 2U);
}

TEST(ClusterSchedule, RefusesJobsThatNeverFit)
{
  EXPECT_EQ(fault_of_gang(64, eight_by_eight), "");
  EXPECT_EQ(fault_of_gang(65, eight_by_eight), "needs 65 devices of 64");
  EXPECT_THROW(schedule_jobs({job_of(3, 0, 1)}, {2}, rules_of(Policy::Srtf)), std::logic_error);
}

/// Fails where a device has two holders, a gang is not whole, or a job is held twice or before it arrives.
void expect_legal(Seconds now, const std::vector<Holding>& holdings, const std::vector<Job>& jobs,
                  const std::vector<std::size_t>& nodes)
{
  std::vector<std::size_t> node_of;
  for (std::size_t node = 0; node < nodes.size(); ++node) node_of.insert(node_of.end(), nodes[node], node);
  const std::size_t largest = *std::max_element(nodes.begin(), nodes.end());
  std::set<std::size_t> devices;
  std::set<std::size_t> held;
  for (const auto& holding : holdings) {
    std::set<std::size_t> of_nodes;
    for (const std::size_t device : holding.devices) {
      EXPECT_TRUE(devices.insert(device).second) << "device " << device << " twice";
      of_nodes.insert(node_of.at(device));
    }
    ASSERT_FALSE(holding.jobs.empty());
    for (const std::size_t i : holding.jobs) {
      EXPECT_TRUE(held.insert(i).second) << "job " << i << " twice";
      EXPECT_LE(jobs[i].arrival, now);
      EXPECT_EQ(jobs[i].devices, jobs[holding.jobs.front()].devices);
    }
    const std::size_t wanted = jobs[holding.jobs.front()].devices;
    if (wanted <= largest) {
      EXPECT_EQ(holding.devices.size(), wanted);
      EXPECT_EQ(of_nodes.size(), 1U);
    } else {
      EXPECT_GE(holding.devices.size(), wanted);
      for (const std::size_t node : of_nodes) {
        EXPECT_EQ(std::count_if(holding.devices.begin(), holding.devices.end(),
                                [&](std::size_t device) { return node_of[device] == node; }),
                  static_cast<std::ptrdiff_t>(nodes[node]));
      }
    }
  }
}

std::vector<Job> random_jobs(Pcg64& random, std::size_t count, std::size_t devices)
{
  std::vector<Job> jobs;
  double arrival = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& models = measured_models();
    Job& job = jobs.emplace_back();
    job.model = models[random.below(static_cast<std::uint32_t>(models.size()))];
    job.devices = std::min<std::size_t>(devices, std::size_t{1} << random.below(6));
    if (random.below(4) != 0) arrival += random.uniform() * 600;
    job.arrival = Seconds(arrival);
    job.steps = 1 + random.below(20'000);
    job.step = measured_step(job.model, job.devices);
    job.start_cost = measured_start_cost(job.model, job.devices).value();
  }
  return jobs;
}

TEST(ClusterSchedule, UsesNoDeviceTwiceKeepsGangsWholeAndEndsEveryJob)
{
  Pcg64 random(11);
  for (std::size_t round = 0; round < 210; ++round) {
    std::vector<std::size_t> nodes;
    for (std::uint32_t i = 0; i < 1 + round % 5; ++i) nodes.push_back(1 + random.below(8));
    const auto all = std::accumulate(nodes.begin(), nodes.end(), std::size_t{0});
    const auto jobs = random_jobs(random, 3 + round % 40, all);
    auto rules = rules_of(static_cast<Policy>(round % policy_names().size()));
    rules.step_factor = 1 + 0.1 * random.uniform();
    if (random.below(3) == 0) rules.round = Seconds(60);
    if (!rules.round && random.below(3) == 0) rules.semantics = Semantics::Published;
    rules.charges_moves = random.below(2) == 0;
    rules.groups_by_service = random.below(2) == 0;
    if (random.below(2) == 0) rules.form = RoundForm::Slots;
    rules.largest_group = 2 + random.below(3);
    const auto run = schedule_jobs(jobs, nodes, rules, [&](Seconds now, const std::vector<Holding>& holdings) {
      expect_legal(now, holdings, jobs, nodes);
    });
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      const double alone = (jobs[i].step.alone * rules.step_factor * jobs[i].steps).value;
      EXPECT_GE((run.jobs[i].end - jobs[i].arrival).value, alone * (1 - 1e-9));
      EXPECT_GE(run.jobs[i].starts, 1U);
    }
    const auto metrics = results::cluster_metrics(jobs, run, all, rules.step_factor, shares_devices(rules.policy));
    EXPECT_LE(metrics.bounds.mean_jct.value, metrics.mean_jct.value * (1 + 1e-9));
    EXPECT_LE(metrics.bounds.p99_jct.value, metrics.p99_jct.value * (1 + 1e-9));
    EXPECT_LE(metrics.bounds.makespan.value, metrics.makespan.value * (1 + 1e-9));
    EXPECT_LE(metrics.devices_busy_fraction, 1 + 1e-9);
    EXPECT_LE(metrics.jain_index, 1 + 1e-9);
  }
}

/// The first job that waits longer than the jobs before it run after its arrival; none where nobody does.
std::optional<std::size_t> starving_job(const std::vector<Job>& jobs, const ClusterRun& run)
{
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    Seconds ahead;
    for (std::size_t i = 0; i < j; ++i) {
      ahead += std::max(Seconds(0), run.jobs[i].end - std::max(run.jobs[i].first_start, jobs[j].arrival));
    }
    if (run.jobs[j].longest_wait > ahead + Seconds(1e-6)) return j;
  }
  return std::nullopt;
}

TEST(ClusterSchedule, LetsNoJobWaitLongerThanTheJobsAheadRunUnderFifo)
{
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Pcg64 random(seed);
    const auto jobs = random_jobs(random, 40, 64);
    const auto run = schedule_jobs(jobs, eight_by_eight, rules_of(Policy::Fifo));
    EXPECT_EQ(starving_job(jobs, run), std::nullopt) << "seed " << seed;
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      EXPECT_EQ(run.jobs[j].starts, 1U);
      if (j > 0) {
        EXPECT_LE(run.jobs[j - 1].first_start, run.jobs[j].first_start);
      }
    }
  }
}

TEST(ClusterSchedule, LetsShortJobsStarveALongOneUnderSrtf)
{
  std::vector<Job> jobs = {job_of(8, 0, 10), job_of(8, 0, 100)};
  for (int i = 1; i < 50; ++i) jobs.push_back(job_of(8, 9.0 * i, 10));
  const auto run = schedule_jobs(jobs, {8}, rules_of(Policy::Srtf));
  EXPECT_EQ(starving_job(jobs, run), 1U);
  EXPECT_EQ(starving_job(jobs, schedule_jobs(jobs, {8}, rules_of(Policy::Fifo))), std::nullopt);
}

TEST(ClusterSchedule, IsTheSameTwice)
{
  const auto rules = published(Policy::Crossover, Semantics::Corrected);
  EXPECT_EQ(metrics_of("cluster_trace.csv", rules).mean_jct, metrics_of("cluster_trace.csv", rules).mean_jct);
}

}  // namespace
}  // namespace isobar::allocators::cluster_schedule_test
