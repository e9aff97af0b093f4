#include "results/cluster_metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace isobar::results::cluster_metrics_test {
namespace {

Job job_of(std::string name, double arrival, double seconds, std::size_t devices = 1)
{
  Job job;
  job.name = std::move(name);
  job.devices = devices;
  job.arrival = Seconds(arrival);
  job.steps = seconds;
  job.step = {Seconds(1), {Seconds(0.25), Seconds(0.5), Seconds(0)}};
  return job;
}

JobRun run_of(double start, double end, double waiting)
{
  return {Seconds(start), Seconds(end), Seconds(waiting), Seconds(waiting), 1};
}

/// Two jobs one after the other on one device.
const std::vector<Job> two_jobs = {job_of("a", 0, 6), job_of("b", 2, 2)};
ClusterRun one_after_the_other()
{
  ClusterRun run;
  run.jobs = {run_of(0, 6, 0), run_of(6, 8, 4)};
  run.device_time = Seconds(8);
  return run;
}

TEST(ClusterMetrics, AreThoseOfTwoJobsByHand)
{
  const auto metrics = cluster_metrics(two_jobs, one_after_the_other(), 1, 1, false);
  EXPECT_EQ(metrics.mean_jct, Seconds(6));
  EXPECT_EQ(metrics.median_jct, Seconds(6));
  EXPECT_EQ(metrics.makespan, Seconds(8));
  EXPECT_EQ(metrics.mean_waiting, Seconds(2));
  EXPECT_EQ(metrics.longest_wait, Seconds(4));
  EXPECT_EQ(metrics.longest_waiting_job, "b");
  EXPECT_EQ(metrics.mean_slowdown, 2);
  EXPECT_EQ(metrics.largest_slowdown, 3);
  // Speeds 1 and 1/3.
  EXPECT_NEAR(metrics.jain_index, std::pow(4.0 / 3, 2) / (2 * (1 + 1.0 / 9)), 1e-12);
  // Each job is with 10/6 jobs on average: on 1/N of a device it takes that many times as long.
  EXPECT_NEAR(metrics.mean_fairness_ratio, (1 / (10.0 / 6) + 3 / (10.0 / 6)) / 2, 1e-12);
  EXPECT_NEAR(metrics.largest_fairness_ratio, 3 / (10.0 / 6), 1e-12);
  EXPECT_EQ(metrics.devices_busy_fraction, 1);
  EXPECT_EQ(metrics.busy_fraction[0], 0.25);
  EXPECT_EQ(metrics.busy_fraction[1], 0.5);
  EXPECT_EQ(metrics.busy_fraction[2], 0);
}

TEST(ClusterMetrics, BoundTimesByTheBestOrderOnAMachineAsFastAsAll)
{
  // b, the shorter one, preempts a: 8 and 2 seconds.
  const auto exclusive = cluster_metrics(two_jobs, one_after_the_other(), 1, 1, false).bounds;
  EXPECT_EQ(exclusive.mean_jct, Seconds(5));
  EXPECT_EQ(exclusive.makespan, Seconds(8));
  EXPECT_EQ(exclusive.p99_jct, Seconds(6));
  // Jobs that share devices are bound by their compute, half of it, and by their times alone.
  const auto shared = cluster_metrics(two_jobs, one_after_the_other(), 1, 1, true).bounds;
  EXPECT_EQ(shared.mean_jct, Seconds(4));
  EXPECT_EQ(shared.makespan, Seconds(6));
  EXPECT_EQ(cluster_metrics(two_jobs, one_after_the_other(), 1, 1.25, true).bounds.mean_jct, Seconds(5));
}

TEST(ClusterMetrics, TakeTheElementAt99PercentRoundedDown)
{
  std::vector<Job> jobs;
  ClusterRun run;
  for (int i = 1; i <= 200; ++i) {
    jobs.push_back(job_of("j", 0, 1));
    run.jobs.push_back(run_of(0, i, 0));
  }
  const auto metrics = cluster_metrics(jobs, run, 200, 1, false);
  EXPECT_EQ(metrics.p99_jct, Seconds(199));
  EXPECT_EQ(metrics.median_jct, Seconds(101));
}

TEST(ClusterMetrics, ArePrintedForPeopleAndForMachines)
{
  const auto metrics = cluster_metrics(two_jobs, one_after_the_other(), 1, 1, false);
  EXPECT_EQ(cluster_metrics_to_text(metrics),
            "seconds      mean  median  p99  makespan\n"
            "-----------  ----  ------  ---  --------\n"
            "completion    6.0     6.0  6.0       8.0\n"
            "lower bound   5.0          6.0       8.0\n"
            "\n"
            "waiting: 2.0 s on average; longest at a stretch 4.0 s (job b)\n"
            "slowdown: 2.00 on average, at most 3.00\n"
            "finish-time fairness: 1.200 on average, at most 1.80; Jain index 0.800\n"
            "busy: devices 100.0 %, input 25.0 %, compute 50.0 %, network 0.0 %\n");
  EXPECT_THAT(cluster_metrics_to_json(metrics), testing::HasSubstr("\"mean_jct_s\": 6.0,"));
  EXPECT_EQ(cluster_jobs_to_csv(two_jobs, one_after_the_other(), 1),
            "job,model,devices,arrival_s,first_start_s,end_s,jct_s,alone_s,waiting_s,longest_wait_s,starts\n"
            "a,,1,0,0,6,6,6,0,0,1\n"
            "b,,1,2,6,8,6,2,4,4,1\n");
}

}  // namespace
}  // namespace isobar::results::cluster_metrics_test
