#include "schedules/rounds/played_round.hpp"
#include "sim/play/simulation.hpp"
#include "tests/schedules/rounds/sample_rounds.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// Rounds of steps at several sites, as the simulator plays them.
namespace isobar::sim::rounds_test {
namespace {

using schedules::testing_support::pipeline_on;

constexpr double step_time = 2;
constexpr std::uint64_t parameters = 250'000;  // 1 MB in float32
constexpr double bandwidth = 1e6;
constexpr double latency = 0.02;

/// Sites of one device each with a link of their own to each other one, or with a trunk that all of them share.
Platform sites(std::size_t number, bool have_trunk)
{
  PlatformFile file;
  for (std::size_t i = 0; i < number; ++i) file.device(fmt::format("d{}", i), "1f");
  if (have_trunk) file.link("trunk", "1MBps", "20ms");
  for (std::size_t from = 0; from < number; ++from) {
    for (std::size_t to = 0; to < number; ++to) {
      if (from == to) continue;
      const std::string link = have_trunk ? "trunk" : fmt::format("{}to{}", from, to);
      if (!have_trunk) file.link(link, "1MBps", "20ms");
      file.route(fmt::format("d{}", from), fmt::format("d{}", to), {link});
    }
  }
  return file.load();
}

struct Rounds {
  Workload workload;
  OuterPlan plan;
};

/// Workers whose step takes `step_time`, and whose outer updates take none to speak of.
Rounds rounds_of(std::size_t workers, std::uint64_t steps)
{
  Rounds rounds;
  rounds.workload = isobar::testing_support::chain({step_time / 3}, parameters);
  rounds.workload.layers.front().update = Flops(0);
  rounds.plan.outer.steps = steps;
  for (std::size_t k = 0; k < workers; ++k) {
    rounds.plan.workers.push_back(
        {fmt::format("site{}", k), steps, pipeline_on({fmt::format("d{}", k)}, {0}, "1f1b", 1)});
  }
  return rounds;
}

/// What encoding and updating take at the speed of 1 FLOP/s.
constexpr double outer_work = 12.0 * parameters;

double simulated_round(const Platform& platform, const Rounds& rounds, std::vector<LinkUse>* links = nullptr)
{
  const std::vector<Workload> workloads(rounds.plan.workers.size(), rounds.workload);
  const auto built =
      schedules::build_round({rounds.plan, rounds.workload, workloads, platform.cluster()}, schedules::RoundSteps::All);
  std::vector<RankHost> hosts;
  for (const auto& device : built.devices) hosts.push_back({device});
  const auto report = simulate(platform, *built.program, hosts, schedules::rounds_to_play, nullptr);
  if (links != nullptr) *links = report.links;
  return report.step_times.back().value;
}

double predicted_round(const Platform& platform, const Rounds& rounds)
{
  const std::vector<Workload> workloads(rounds.plan.workers.size(), rounds.workload);
  return schedules::play_round({rounds.plan, rounds.workload, workloads, platform.cluster()})
      .predicted.round_time.value;
}

/// 2 (K-1) (latency + B / (K bandwidth)).
double sync_alone(std::size_t workers)
{
  const auto ends = static_cast<double>(workers);
  return 2 * (ends - 1) * (latency + 4 * parameters / ends / bandwidth);
}

TEST(SimulatedRound, WithoutDelayIsItsStepsAndTheSyncAlone)
{
  const Platform platform = sites(4, false);
  const Rounds rounds = rounds_of(4, 5);
  const double expected = 5 * step_time + sync_alone(4) + outer_work;
  EXPECT_NEAR(simulated_round(platform, rounds), expected, 1e-6 * expected);
}

TEST(SimulatedRound, WithDelayIsWhatStepsDoNotHide)
{
  const Platform platform = sites(3, false);
  Rounds rounds = rounds_of(3, 5);
  rounds.plan.outer.delay = 1;
  rounds.workload.layers.front().parameters = 1'000'000;
  const double sync = 4 * (latency + 4e6 / 3 / bandwidth);
  ASSERT_GT(sync, step_time);
  const double expected = 5 * step_time + (sync - step_time) + 12e6;
  EXPECT_NEAR(simulated_round(platform, rounds), expected, 1e-6 * expected);
}

TEST(SimulatedRound, SendsOverEachLinkOfTheRingToTheByte)
{
  const Platform platform = sites(4, false);
  std::vector<LinkUse> links;
  simulated_round(platform, rounds_of(4, 2), &links);
  ASSERT_EQ(links.size(), 4U);
  for (const auto& link : links) {
    EXPECT_EQ(link.bytes.value, schedules::rounds_to_play * 2 * 3 * 250'000.0) << link.name;
  }
}

TEST(SimulatedRound, IsLongerOnATrunkThatAllShareAndIsThePredictedOne)
{
  const Platform platform = sites(3, true);
  const Rounds rounds = rounds_of(3, 5);
  const double alone = 5 * step_time + sync_alone(3) + outer_work;
  const double simulated = simulated_round(platform, rounds);
  // Three flows share the trunk, each of 4/3 of the bytes.
  EXPECT_GT(simulated, alone + 2);
  EXPECT_NEAR(simulated, predicted_round(platform, rounds), 1e-6 * simulated);
}

}  // namespace
}  // namespace isobar::sim::rounds_test
