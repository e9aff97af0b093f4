#include "core/certificates/certificate_checker.hpp"

#include "tests/allocators/exact/brute_force.hpp"
#include "tests/support/instances.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace isobar::certificate_checker_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::ElementsAre;
using testing::IsEmpty;

constexpr double infinity = std::numeric_limits<double>::infinity();

/// A plan that claims a bound; its stages do not matter.
Plan claim(const Goal& goal, double bound, Certificate certificate)
{
  Plan plan;
  plan.goal = goal;
  plan.stages = {stage_on("d0", 0, 0)};
  plan.objective_bound = Seconds(bound);
  plan.certificate = std::move(certificate);
  return plan;
}

double proven_by(const Goal& goal, const Certificate& certificate, const Workload& workload, const Cluster& cluster)
{
  const auto check = check_certificate(claim(goal, 0, certificate), workload, cluster);
  EXPECT_THAT(check.faults, IsEmpty());
  return check.proven.value;
}

Certificate path(std::vector<Certificate::Rung> rungs, std::vector<std::size_t> groups = {}, std::size_t levels = 1)
{
  return {CertificateKind::Path, std::move(groups), levels, std::move(rungs)};
}

Goal goal_of(Objective objective, Communication communication, std::uint64_t microbatches = 1)
{
  return {objective, communication, choice_of(ChainSchedule::OneForwardOneBackward), microbatches};
}

/// Two layers of 3 FLOP, which take 1 s on d0 and 0.5 s on d1.
struct TwoByTwo {
  Workload workload = chain({1, 1}, 0, 10);
  Cluster devices = cluster({3, 6}, {Seconds(1), BytesPerSecond(1)});
};

TEST(PathCertificate, BoundsTheBottleneckBelowWhichNoDeviceCountSuffices)
{
  const TwoByTwo problem;
  const Goal goal = goal_of(Objective::Bottleneck, Communication::None);
  // Within 0.9 s each layer takes d1 once, so d1 twice: 2 > 1. Within 1 s d1 alone does both.
  EXPECT_EQ(proven_by(goal, path({{Seconds(0.9), {0, 1}}}), problem.workload, problem.devices), 0.9);
  EXPECT_EQ(proven_by(goal, path({{Seconds(1), {0, 1}}}), problem.workload, problem.devices), 0);
  EXPECT_EQ(proven_by(goal, path({{Seconds(0.9), {1, 0}}}), problem.workload, problem.devices), 0);
  // Within 0.4 s no layer fits anywhere.
  EXPECT_EQ(proven_by(goal, path({{Seconds(0.4), {0, 0}}}), problem.workload, problem.devices), 0.4);
}

TEST(PathCertificate, BoundsTheSumByTheFastestDevice)
{
  const TwoByTwo problem;
  const Goal goal = goal_of(Objective::Sequential, Communication::None);
  EXPECT_NEAR(proven_by(goal, path({{{}, {0, 0}}}), problem.workload, problem.devices), 1, 1e-9);
}

TEST(PathCertificate, TakesTheLeastOverItsRungs)
{
  const TwoByTwo problem;
  const Goal goal = goal_of(Objective::Pipeline, Communication::None, 2);
  // Largest at most 0.9: d1 twice, 1 + 2 x 1 - 1 = 2. Above: 0.9 + 1.
  const auto certificate = path({{Seconds(0.9), {0, 1}}, {{}, {0, 0}}});
  EXPECT_NEAR(proven_by(goal, certificate, problem.workload, problem.devices), 1.9, 1e-9);
  // Without the second rung: above 0.9 the objective is above 2 x 0.9.
  EXPECT_NEAR(proven_by(goal, path({{Seconds(0.9), {0, 1}}}), problem.workload, problem.devices), 1.8, 1e-9);
}

TEST(PathCertificate, CountsTransfersToTheNearestOtherDeviceOfAGroup)
{
  TwoByTwo problem;
  for (auto& device : problem.devices.devices) device.memory = Bytes(15);  // one layer each
  const Goal goal = goal_of(Objective::Sequential, Communication::Serial);
  // One group: d1 twice, (0.5 + 1) + (0.5 + 1). With u = (0, 0.5) every pair costs 3.5. In two groups d1 cannot follow
  // itself, and 3.5 needs no multipliers.
  EXPECT_NEAR(proven_by(goal, path({{{}, {0, 0}}}), problem.workload, problem.devices), 3, 1e-9);
  EXPECT_NEAR(proven_by(goal, path({{{}, {0, 0.5}}}), problem.workload, problem.devices), 3.5, 1e-9);
  EXPECT_NEAR(proven_by(goal, path({{{}, {0, 0}}}, {0, 1}), problem.workload, problem.devices), 3.5, 1e-9);
}

TEST(PathCertificate, DistinguishesMicroBatchesInFlightByLevel)
{
  // Three layers of 10 bytes; under 1f1b with M = 4 a stage with n stages after it holds 10 (n + 1) bytes per layer.
  const Workload workload = chain({1, 1, 1}, 0, 10);
  const Cluster devices = cluster({3, 3, 3}, {Seconds(0), BytesPerSecond(1)}, 15);
  const Goal goal = goal_of(Objective::Sequential, Communication::None, 4);
  EXPECT_NEAR(proven_by(goal, path({{{}, {0, 0, 0}}}), workload, devices), 3, 1e-9);
  EXPECT_EQ(proven_by(goal, path({{{}, {0, 0, 0}}}, {}, 2), workload, devices), infinity);
}

/// Multipliers as a linear program would give them, roughly: by speed, with noise.
Certificate random_path(std::mt19937_64& random, const Workload& workload, const Cluster& cluster, double scale)
{
  std::uniform_real_distribution<double> unit(0, 1);
  Certificate certificate = path({});
  const std::size_t devices = cluster.devices.size();
  if (unit(random) < 0.7) {
    const std::size_t groups = 1 + random() % devices;
    for (std::size_t i = 0; i < devices; ++i) certificate.groups.push_back(i < groups ? i : random() % groups);
  }
  certificate.levels = 1 + random() % 4;
  const std::size_t rungs = 1 + random() % 4;
  double limit = 0;
  for (std::size_t r = 0; r < rungs; ++r) {
    limit += 1e-3 + scale * unit(random) * 0.7;
    Certificate::Rung rung;
    if (r + 1 < rungs || unit(random) < 0.5) rung.limit = Seconds(limit);
    for (const auto& device : cluster.devices) {
      rung.multipliers.push_back(random() % 4 == 0 ? 0
                                                   : limit * unit(random) * device.speed_at(workload.dtype).value / 4);
    }
    certificate.rungs.push_back(std::move(rung));
  }
  return certificate;
}

TEST(PathCertificate, UsesEachDeviceOnceInARunWithinAGroup)
{
  // Four layers, one a device; d0 to d2 are one place, d3 is far away.
  const Workload workload = chain({1, 1, 1, 1}, 0, 10, 1);
  Cluster devices = cluster({3, 3, 3, 3}, {Seconds(0), BytesPerSecond(1e9)}, 15);
  std::vector<Path> paths(25, {Seconds(0), BytesPerSecond(1e9)});
  for (std::size_t i = 0; i < 3; ++i) paths[i * 5 + 3] = paths[15 + i] = {Seconds(5), BytesPerSecond(1e9)};
  devices.network = std::make_shared<MatrixNetwork>(5, std::move(paths));
  const Goal goal = goal_of(Objective::Sequential, Communication::Serial);
  const auto proven = [&](std::vector<double> multipliers, std::vector<std::size_t> groups) {
    return proven_by(goal, path({{{}, std::move(multipliers)}}, std::move(groups)), workload, devices);
  };
  EXPECT_NEAR(proven({0, 0, 0, 0}, {}), 4, 1e-6);
  EXPECT_NEAR(proven({0, 0, 0, 0}, {0, 0, 0, 1}), 14, 1e-6);
  EXPECT_NEAR(proven({0, 0.1, 0, 0}, {0, 0, 0, 1}), 14, 1e-6);  // d1 is a kind of its own
}

TEST(PathCertificate, NeverProvesMoreThanTheBestOfAllPlacements)
{
  std::mt19937_64 random(41);
  double tightest = 0;
  for (int instance = 0; instance < 400; ++instance) {
    const Workload workload = random_chain(random, 1 + random() % 6);
    const double memory = instance % 3 == 0 ? 1e9 : 60 * std::pow(0.5, static_cast<double>(random() % 4));
    const Cluster cluster = instance % 2 == 0 ? random_cluster(random, 1 + random() % 4, memory)
                                              : random_sites(random, 2, 1 + random() % 2, memory);
    const CostModel cost(workload, cluster);
    const auto goals = all_goals(1 + random() % 5);
    const auto least = least_objectives(cost, goals, true);
    for (std::size_t i = 0; i < goals.size(); ++i) {
      const double scale = std::isinf(least[i]) ? 1 : least[i] / static_cast<double>(goals[i].microbatches);
      const double proven = proven_by(goals[i], random_path(random, workload, cluster, scale), workload, cluster);
      ASSERT_LE(proven, least[i] * (1 + 1e-9)) << "instance " << instance << ", goal " << i;
      if (cost.devices() > 1 && cost.layers() > 2 && !std::isinf(proven)) {
        tightest = std::max(tightest, proven / least[i]);
      }
    }
  }
  EXPECT_GT(tightest, 0.99);
}

TEST(SearchCertificate, HoldsAtTheOptimumAndNotAbove)
{
  std::mt19937_64 random(42);
  std::size_t refuted = 0;
  for (int instance = 0; instance < 150; ++instance) {
    const Workload workload = random_chain(random, 1 + random() % 6);
    const double memory = instance % 3 == 0 ? 1e9 : 60 * std::pow(0.5, static_cast<double>(random() % 4));
    const Cluster cluster = instance % 2 == 0 ? random_cluster(random, 1 + random() % 4, memory)
                                              : random_sites(random, 2, 1 + random() % 2, memory);
    const CostModel cost(workload, cluster);
    const auto goals = all_goals(1 + random() % 5);
    const auto least = least_objectives(cost, goals, true);
    for (std::size_t i = 0; i < goals.size(); ++i) {
      if (std::isinf(least[i])) continue;
      Certificate certificate =
          random_path(random, workload, cluster, least[i] / static_cast<double>(goals[i].microbatches));
      certificate.kind = CertificateKind::Search;
      certificate.rungs.back().limit.reset();
      EXPECT_THAT(faults_of_certificate(claim(goals[i], least[i], certificate), workload, cluster), IsEmpty());
      const auto faults = faults_of_certificate(claim(goals[i], least[i] * 1.01, certificate), workload, cluster);
      EXPECT_EQ(faults.size(), least[i] > 0 ? 1U : 0U);
      if (!faults.empty()) ++refuted;
    }
  }
  EXPECT_GT(refuted, 1000U);
}

TEST(SearchCertificate, ProvesNoMoreThanItsLastRungReaches)
{
  const TwoByTwo problem;
  const Goal goal = goal_of(Objective::Bottleneck, Communication::None);
  const Certificate certificate{CertificateKind::Search, {}, 1, {{Seconds(0.9), {0, 1}}}};
  EXPECT_THAT(faults_of_certificate(claim(goal, 0.9, certificate), problem.workload, problem.devices), IsEmpty());
  EXPECT_THAT(faults_of_certificate(claim(goal, 1, certificate), problem.workload, problem.devices),
              ElementsAre("objective_bound_s: claims 1; it is 0.9 by the certificate search"));
}

Certificate phase_flow(double limit)
{
  return {CertificateKind::PhaseFlow, {}, 1, {{Seconds(limit), {}}}};
}

/// A chain that repeats some random layers between some others.
Workload repeating_chain(std::mt19937_64& random, std::size_t period, std::size_t times, std::size_t others)
{
  Workload workload = random_chain(random, period + others);
  const std::vector<Layer> layers = std::move(workload.layers);
  const std::size_t before = random() % (others + 1);
  workload.layers.assign(layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(before));
  for (std::size_t i = 0; i < times * period; ++i) workload.layers.push_back(layers[before + i % period]);
  workload.layers.insert(workload.layers.end(), layers.begin() + static_cast<std::ptrdiff_t>(before + period),
                         layers.end());
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    workload.layers[i].inputs = i == 0 ? std::vector<std::size_t>{} : std::vector<std::size_t>{i - 1};
    workload.layers[i].output = workload.layers[i].gradient = Bytes(0);
  }
  return workload;
}

TEST(PhaseFlowCertificate, HoldsBelowTheOptimumAndNotAtIt)
{
  std::mt19937_64 random(44);
  std::size_t proven = 0;
  for (int instance = 0; instance < 400; ++instance) {
    const Workload workload = repeating_chain(random, 1 + random() % 3, 2 + random() % 2, random() % 3);
    const double memory = instance % 3 == 0 ? 1e9 : 60 * std::pow(0.5, static_cast<double>(random() % 4));
    const Cluster cluster = random_cluster(random, 1 + random() % 4, memory);
    const auto schedule = instance % 2 == 0 ? ChainSchedule::GPipe : ChainSchedule::OneForwardOneBackward;
    const Goal goal{Objective::Bottleneck, Communication::None, choice_of(schedule), 1 + random() % 3};
    const double least = least_objectives(CostModel(workload, cluster), {goal}, true).front();
    const bool is_feasible = !std::isinf(least);
    const double limit = is_feasible ? least : 10;
    const auto faults = faults_of_certificate(claim(goal, limit, phase_flow(limit)), workload, cluster);
    EXPECT_TRUE(!is_feasible || least == 0 || faults.size() == 1) << "instance " << instance;
    if (faults_of_certificate(claim(goal, 0, phase_flow(limit * (1 - 1e-9))), workload, cluster).empty()) ++proven;
  }
  EXPECT_GT(proven, 250U);  // cuts are distinguished only by phase, so not all optima can be proven
}

TEST(FractionalCertificate, CountsTheBusiestDeviceUnderAScheduleWithoutARecurrence)
{
  const TwoByTwo problem;
  const Goal goal{Objective::Step, Communication::Played, {"zero-bubble-h1"}, 4};
  EXPECT_NEAR(proven_by(goal, {.kind = CertificateKind::Fractional}, problem.workload, problem.devices), 4 * 6.0 / 9,
              1e-9);
}

TEST(PathCertificate, IsRefusedUnderAScheduleWithoutARecurrence)
{
  const TwoByTwo problem;
  const Goal goal{Objective::Step, Communication::Played, {"1f1b", {{"warm_up", {0}}}}, 4};
  EXPECT_THAT(faults_of_certificate(claim(goal, 1, path({{Seconds(1), {0, 0}}})), problem.workload, problem.devices),
              ElementsAre("certificate.kind: claims path, which is for stages on a device each under sequential, gpipe "
                          "or 1f1b; it is load, fractional or none under 1f1b(warm_up=0)"));
}

TEST(PhaseFlowCertificate, IsOnlyForBottlenecksWithoutTransfers)
{
  const TwoByTwo problem;
  EXPECT_THAT(
      faults_of_certificate(claim(goal_of(Objective::Bottleneck, Communication::Serial), 0, phase_flow(0.9)),
                            problem.workload, problem.devices),
      ElementsAre("certificate.kind: claims phase-flow; it is only for objective bottleneck without communication"));
  const Workload buffered = chain({1, 1, 1}, 0, 10, 100);
  const Goal goal = goal_of(Objective::Bottleneck, Communication::None);
  EXPECT_THAT(faults_of_certificate(claim(goal, 0, phase_flow(0.9)), buffered, problem.devices),
              ElementsAre("certificate.kind: claims phase-flow; it is only for memory that grows with every layer"));
  EXPECT_THAT(faults_of_certificate(claim(goal, 0.9, phase_flow(0.9)), problem.workload, problem.devices), IsEmpty());
  EXPECT_THAT(faults_of_certificate(claim(goal, 1, phase_flow(0.9)), problem.workload, problem.devices),
              ElementsAre("objective_bound_s: claims 1; it is 0.9 by the certificate phase-flow"));
  EXPECT_THAT(faults_of_certificate(claim(goal, 1, phase_flow(1)), problem.workload, problem.devices),
              ElementsAre("certificate.limit_s: claims 1; it is not proven, since a flow over the phases covers all "
                          "layers within it"));
}

TEST(FractionalCertificate, IsTheClosedFormWithoutMemoryLimits)
{
  const Workload workload = chain(std::vector<double>(100, 1));
  const Cluster devices = cluster({2, 4, 1});
  const Certificate certificate{CertificateKind::Fractional};
  const auto bound = [&](Objective objective, std::uint64_t microbatches) {
    return proven_by(goal_of(objective, Communication::None, microbatches), certificate, workload, devices);
  };
  EXPECT_NEAR(bound(Objective::Bottleneck, 1), 300.0 / 7, 1e-9);
  EXPECT_NEAR(bound(Objective::Sequential, 1), 75, 1e-9);
  EXPECT_NEAR(bound(Objective::Pipeline, 4), 250, 1e-9);
}

TEST(FractionalCertificate, RefutesAnObjectiveBelowWhatItProves)
{
  const TwoByTwo problem;
  const Goal goal = goal_of(Objective::Bottleneck, Communication::None);
  const Certificate fractional{CertificateKind::Fractional};
  const double proven = proven_by(goal, fractional, problem.workload, problem.devices);
  ASSERT_GT(proven, 0);
  Plan plan = claim(goal, proven / 2, fractional);
  plan.objective = Seconds(proven);
  EXPECT_THAT(faults_of_certificate(plan, problem.workload, problem.devices), IsEmpty());
  plan.objective = Seconds(proven * 0.75);
  EXPECT_THAT(
      faults_of_certificate(plan, problem.workload, problem.devices),
      ElementsAre(fmt::format("objective_s: claims {:.9g}; the certificate fractional proves that none is below "
                              "{:.9g}",
                              proven * 0.75, proven)));
}

TEST(FractionalCertificate, NeverProvesMoreThanTheBestOfAllPlacements)
{
  std::mt19937_64 random(43);
  for (int instance = 0; instance < 300; ++instance) {
    const Workload workload = random_chain(random, 1 + random() % 6);
    const double memory = instance % 3 == 0 ? 1e9 : 60 * std::pow(0.5, static_cast<double>(random() % 4));
    const Cluster cluster = random_cluster(random, 1 + random() % 4, memory);
    const auto goals = all_goals(1 + random() % 5);
    const auto least = least_objectives(CostModel(workload, cluster), goals, true);
    for (std::size_t i = 0; i < goals.size(); ++i) {
      const double proven = proven_by(goals[i], {CertificateKind::Fractional}, workload, cluster);
      ASSERT_LE(proven, least[i] * (1 + 1e-9)) << "instance " << instance << ", goal " << i;
    }
  }
}

TEST(Certificate, OfNothingProvesZero)
{
  const TwoByTwo problem;
  const Goal goal = goal_of(Objective::Sequential, Communication::None);
  EXPECT_THAT(faults_of_certificate(claim(goal, 0.1, {}), problem.workload, problem.devices),
              ElementsAre("objective_bound_s: claims 0.1; it is 0 by the certificate none"));
  EXPECT_THAT(faults_of_certificate(claim(goal, std::nan(""), {}), problem.workload, problem.devices),
              ElementsAre("objective_bound_s: claims nan; it is 0 by the certificate none"));
}

TEST(Certificate, IsRefusedIfMalformed)
{
  const TwoByTwo problem;
  const auto faults = [&](const Certificate& certificate) {
    const Goal goal = goal_of(Objective::Pipeline, Communication::Serial, 4);
    return faults_of_certificate(claim(goal, 0, certificate), problem.workload, problem.devices);
  };
  EXPECT_THAT(faults(path({})), ElementsAre("certificate.rungs: claims 0; it is at least 1"));
  EXPECT_THAT(faults(path({{{}, {1}}})),
              ElementsAre("certificate.rungs[0].multipliers: claims 1; it is 2, one for each device"));
  EXPECT_THAT(faults(path({{{}, {1, -1}}})),
              ElementsAre("certificate.rungs[0].multipliers[1]: claims -1; it is a number, 0 or more"));
  EXPECT_THAT(faults(path({{{}, {1, std::nan("")}}})),
              ElementsAre("certificate.rungs[0].multipliers[1]: claims nan; it is a number, 0 or more"));
  EXPECT_THAT(faults(path({{{}, {1, infinity}}})),
              ElementsAre("certificate.rungs[0].multipliers[1]: claims inf; it is a number, 0 or more"));
  EXPECT_THAT(faults(path({{Seconds(2), {1, 1}}, {Seconds(1), {1, 1}}})),
              ElementsAre("certificate.rungs[1].limit_s: claims 1; it is above 2, since rungs ascend"));
  EXPECT_THAT(faults(path({{{}, {1, 1}}, {Seconds(1), {1, 1}}})),
              ElementsAre("certificate.rungs[0].limit_s: claims none; it is a number, since a rung follows"));
  EXPECT_THAT(faults(path({{{}, {1, 1}}}, {0})),
              ElementsAre("certificate.groups: claims 1; it is 2, one for each device"));
  EXPECT_THAT(faults(path({{{}, {1, 1}}}, {0, 2})),
              ElementsAre("certificate.groups[1]: claims 2; it is below 2, the number of devices"));
  EXPECT_THAT(faults(path({{{}, {1, 1}}}, {1, 1})),
              ElementsAre("certificate.groups: claims 2 groups; it is fewer, since no device is in group 0"));
  EXPECT_THAT(faults(path({{{}, {1, 1}}}, {}, 0)), ElementsAre("certificate.levels: claims 0; it is at least 1"));
}

TEST(Certificate, IsRefusedIfCheckingTakesTooMuch)
{
  const TwoByTwo problem;
  const Goal goal = goal_of(Objective::Pipeline, Communication::Serial, 4);
  for (const auto kind : {CertificateKind::Path, CertificateKind::Search}) {
    std::vector<Certificate::Rung> rungs;
    for (int i = 1; i <= 1000; ++i) rungs.push_back({Seconds(i), {1, 1}});
    const Plan plan = claim(goal, kind == CertificateKind::Search ? 0.1 : 0, {kind, {0, 1}, 1, rungs});
    EXPECT_THAT(check_certificate(plan, problem.workload, problem.devices, 10'000).faults,
                ElementsAre("certificate: needs more than 10000 steps to check; it is not checked"));
    EXPECT_THAT(check_certificate(plan, problem.workload, problem.devices).faults, IsEmpty());
  }
  const Plan flow = claim(goal_of(Objective::Bottleneck, Communication::None), 0.9,
                          {CertificateKind::PhaseFlow, {}, 1, {{Seconds(0.9), {}}}});
  EXPECT_THAT(check_certificate(flow, problem.workload, problem.devices, 10).faults,
              ElementsAre("certificate: needs more than 10 steps to check; it is not checked"));
}

TEST(Certificate, IsRefusedIfItsTablesWouldBeTooLarge)
{
  // Two tables of 401 cuts for each of 600 devices and groups; no memory is allocated for them.
  const Workload workload = chain(std::vector<double>(400, 1), 0, 10);
  const Cluster devices = cluster(std::vector<double>(600, 1), {Seconds(1), BytesPerSecond(1)});
  std::vector<std::size_t> groups(600);
  std::iota(groups.begin(), groups.end(), std::size_t{0});
  const Plan plan = claim(goal_of(Objective::Sequential, Communication::Serial), 0,
                          path({{{}, std::vector<double>(600, 0)}}, groups));
  EXPECT_THAT(faults_of_certificate(plan, workload, devices),
              ElementsAre("certificate: 600 groups at 1 levels over 400 layers make a table of 2.89e+08 numbers; at "
                          "most 2e+08 are checked"));
}

TEST(Certificate, OfASearchThatTimedOutIsCheckedToo)
{
  const TwoByTwo problem;
  const Goal goal = goal_of(Objective::Sequential, Communication::None);
  Plan plan = claim(goal, 1, path({{{}, {0, 0}}}));
  plan.stages.clear();
  plan.outcome = Outcome::TimedOut;
  EXPECT_THAT(faults_of_certificate(plan, problem.workload, problem.devices), IsEmpty());
  plan.objective_bound = Seconds(1e9);
  EXPECT_THAT(faults_of_certificate(plan, problem.workload, problem.devices),
              ElementsAre("objective_bound_s: claims 1e+09; it is 1 by the certificate path"));
}

TEST(Certificate, SurvivesWritingAndReading)
{
  const TwoByTwo problem;
  const CostModel cost(problem.workload, problem.devices);
  Plan plan = plan_of({{1, 0, 1}}, cost, goal_of(Objective::Bottleneck, Communication::None));
  const std::vector<Certificate> certificates = {
      {},
      {CertificateKind::Fractional},
      path({{Seconds(0.1), {0, 1.0 / 3}}, {{}, {1e-300, 2}}}, {1, 0}, 3),
      {CertificateKind::Search, {}, 1, {{{}, {0, 0}}}},
      {CertificateKind::PhaseFlow, {}, 1, {{Seconds(0.7), {}}}},
  };
  for (const auto& certificate : certificates) {
    plan.certificate = certificate;
    EXPECT_EQ(plan_from_json(plan_to_json(plan), "plan.json").certificate, certificate);
  }
}

}  // namespace
}  // namespace isobar::certificate_checker_test
