#include "results/explanation.hpp"

#include "core/certificates/certificate_checker.hpp"
#include "tests/support/instances.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <random>

namespace isobar::results::explanation_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::ElementsAre;
using testing::IsEmpty;

Goal goal_of(Objective objective, Communication communication, std::uint64_t microbatches = 1)
{
  return {objective, communication, choice_of(ChainSchedule::OneForwardOneBackward), microbatches};
}

/// Five layers of 3 FLOP: d0 (3 FLOP/s) takes three of them in 3 s, d1 (1 FLOP/s) two in 6 s, d2 is idle. One byte
/// goes each way between them.
struct ThreeAndTwo {
  Workload workload = chain({1, 1, 1, 1, 1}, 0, 10, 1);
  Cluster devices;
  std::vector<StagePlacement> stages = {{0, 0, 2}, {1, 3, 4}};

  explicit ThreeAndTwo(double bandwidth) : devices(cluster({3, 1, 1}, {Seconds(0), BytesPerSecond(bandwidth)}))
  {
    workload.layers.back().output = workload.layers.back().gradient = Bytes(0);
  }
  Plan plan(const Goal& goal) const { return plan_of(stages, CostModel(workload, devices), goal); }
  Explanation explained(const Plan& plan) const { return explain(plan, workload, devices); }
  Explanation explained(const Goal& goal) const { return explained(plan(goal)); }
};

template <typename Entry>
std::vector<std::string> names_of(const std::vector<Entry>& entries)
{
  std::vector<std::string> names;
  for (const auto& entry : entries) names.push_back(entry.name);
  return names;
}

TEST(Explain, AddsUpSharesAndTriesTheSamePlacementWithOnePartFaster)
{
  // Serial, 0.5 s per transfer: stages of 3.5 and 6.5 s; pipeline with M = 4: 3 x 6.5 + 10 = 29.5 s.
  const ThreeAndTwo problem(2);
  const auto explanation = problem.explained(goal_of(Objective::Pipeline, Communication::Serial, 4));
  EXPECT_EQ(explanation.bottleneck->stage, 1U);
  EXPECT_EQ(explanation.bottleneck->device, "d1");
  EXPECT_FALSE(explanation.bottleneck->is_transfer);
  EXPECT_DOUBLE_EQ(explanation.bottleneck->cost.value, 6.5);
  EXPECT_DOUBLE_EQ(explanation.bottleneck->send.value, 0.5);
  EXPECT_THAT(explanation.bottleneck->links, ElementsAre("1-0"));
  EXPECT_EQ(explanation.bottleneck->near, 0U);
  EXPECT_THAT(names_of(explanation.devices), ElementsAre("d1", "d0"));
  EXPECT_DOUBLE_EQ(explanation.devices[0].time.value, 24);
  EXPECT_DOUBLE_EQ(explanation.devices[0].fraction, 24 / 29.5);
  EXPECT_DOUBLE_EQ(explanation.devices[1].time.value, 3);
  EXPECT_THAT(names_of(explanation.links), ElementsAre("1-0", "0-1"));
  EXPECT_DOUBLE_EQ(explanation.links[0].time.value, 2);
  EXPECT_DOUBLE_EQ(explanation.links[1].time.value, 0.5);
  EXPECT_THAT(names_of(explanation.faster_devices), ElementsAre("d1", "d0"));
  EXPECT_NEAR(explanation.faster_devices[0].saves.value, 4 * (6 - 6 / 1.1), 1e-9);
  EXPECT_NEAR(explanation.faster_devices[1].saves.value, 3 - 3 / 1.1, 1e-9);
  EXPECT_THAT(names_of(explanation.faster_links), ElementsAre("1-0", "0-1"));
  EXPECT_NEAR(explanation.faster_links[0].saves.value, 4 * (0.5 - 0.5 / 1.1), 1e-9);
  EXPECT_NEAR(explanation.faster_links[1].saves.value, 0.5 - 0.5 / 1.1, 1e-9);
  EXPECT_DOUBLE_EQ(explanation.gap.value, 29.5);  // the plan claims no bound
  EXPECT_EQ(explanation.devices_used, 2U);
  EXPECT_THAT(explanation.prices, IsEmpty());
}

TEST(Explain, ReportsATransferAsBottleneckAndAnotherStageThatIsAsSlow)
{
  // Transfers of 10 s and compute of 3 and 6 s: both stages take 10 s, so no single part helps.
  const ThreeAndTwo problem(0.1);
  const auto explanation = problem.explained(goal_of(Objective::Bottleneck, Communication::Overlapped));
  EXPECT_EQ(explanation.bottleneck->stage, 0U);
  EXPECT_TRUE(explanation.bottleneck->is_transfer);
  EXPECT_THAT(explanation.bottleneck->links, ElementsAre("0-1"));
  EXPECT_EQ(explanation.bottleneck->near, 1U);
  EXPECT_THAT(explanation.devices, IsEmpty());
  for (const auto& relaxation : explanation.faster_links) EXPECT_EQ(relaxation.saves.value, 0);
  for (const auto& relaxation : explanation.faster_devices) EXPECT_EQ(relaxation.saves.value, 0);
}

TEST(Explain, ListsNoLinksWhereTransfersDoNotCount)
{
  const ThreeAndTwo problem(0.1);
  for (const auto objective : {Objective::Sequential, Objective::Bottleneck, Objective::Pipeline}) {
    const auto explanation = problem.explained(goal_of(objective, Communication::None));
    EXPECT_FALSE(explanation.bottleneck->is_transfer);
    EXPECT_THAT(explanation.bottleneck->links, IsEmpty());
    EXPECT_THAT(explanation.links, IsEmpty());
    EXPECT_THAT(explanation.faster_links, IsEmpty());
  }
}

TEST(Explain, SumsThePartsOfAStepToItsTime)
{
  // Forwards of 1 and 2 s, backwards of 2 and 4 s, transfers of 0.25 s of latency and 0.5 s of bytes. M = 2 under 1f1b:
  // the first forward, a transfer, all of d1, a transfer, the last backward.
  ThreeAndTwo problem(2);
  problem.devices.network = MatrixNetwork::uniform(4, {Seconds(0.25), BytesPerSecond(2)});
  const Goal goal = {Objective::Step, Communication::Played, choice_of(ChainSchedule::OneForwardOneBackward), 2};
  const Plan plan = problem.plan(goal);
  const auto explanation = problem.explained(plan);
  ASSERT_TRUE(explanation.step);
  double sum = 0;
  for (const auto& part : explanation.step->parts) sum += part.time.value;
  EXPECT_DOUBLE_EQ(sum, plan.objective->value);
  EXPECT_DOUBLE_EQ(sum, 1 + 0.75 + 2 * 6 + 0.75 + 2);
  const auto& largest = explanation.step->parts.front();
  EXPECT_EQ(largest.kind, Explanation::PathPart::Kind::Compute);
  EXPECT_EQ(largest.stage, 1U);
  EXPECT_DOUBLE_EQ(largest.fraction, 12 / 16.5);
  EXPECT_DOUBLE_EQ(explanation.step->saved_without_latency.value, 0.5);
  EXPECT_THAT(names_of(explanation.devices), ElementsAre("d1", "d0"));
  EXPECT_THAT(names_of(explanation.links), ElementsAre("0-1", "1-0"));
  EXPECT_DOUBLE_EQ(explanation.links[0].time.value, 0.75);
  EXPECT_NEAR(explanation.faster_devices[0].saves.value, 12 - 12 / 1.1, 1e-9);
  EXPECT_NEAR(explanation.faster_links[0].saves.value, 0.5 - 0.5 / 1.1, 1e-9);
}

TEST(Explain, NamesTheDeviceThatHoldsAsManyMicroBatchesAsItMay)
{
  ThreeAndTwo problem(1e9);
  problem.devices.network = MatrixNetwork::uniform(4, {Seconds(20), BytesPerSecond(1e9)});
  const auto explanation =
      problem.explained({Objective::Step, Communication::Played, choice_of(ChainSchedule::OneForwardOneBackward), 6});
  ASSERT_TRUE(explanation.step);
  ASSERT_EQ(explanation.step->full.size(), 1U);
  EXPECT_EQ(explanation.step->full[0].device, "d0");
  EXPECT_EQ(explanation.step->full[0].in_flight, 2U);
  EXPECT_GT(explanation.step->full[0].idle, Seconds(10));
  EXPECT_GT(explanation.step->full[0].saved_by_one_more, Seconds(10));
  EXPECT_EQ(explanation.step->parts.front().kind, Explanation::PathPart::Kind::Latency);
}

TEST(Explain, LeavesFreeTransfersOutOfTheStep)
{
  const ThreeAndTwo problem(0.1);
  const auto explanation =
      problem.explained({Objective::Step, Communication::None, choice_of(ChainSchedule::OneForwardOneBackward), 4});
  ASSERT_TRUE(explanation.step);
  for (const auto& part : explanation.step->parts) EXPECT_EQ(part.kind, Explanation::PathPart::Kind::Compute);
  EXPECT_THAT(explanation.links, IsEmpty());
  EXPECT_EQ(explanation.step->saved_without_latency, Seconds(0));
}

TEST(Explain, ReportsTheInputAsBottleneck)
{
  ThreeAndTwo problem(2);
  problem.devices.data_server = "server";
  problem.devices.network = MatrixNetwork::uniform(4, {Seconds(1), BytesPerSecond(2)});
  problem.workload.input = Bytes(100);
  const auto explanation = problem.explained(goal_of(Objective::Bottleneck, Communication::Overlapped));
  EXPECT_EQ(explanation.bottleneck->stage, std::nullopt);
  EXPECT_EQ(explanation.bottleneck->device, "server");
  EXPECT_TRUE(explanation.bottleneck->is_transfer);
  EXPECT_THAT(names_of(explanation.faster_links), ElementsAre("3-0"));
  EXPECT_NEAR(explanation.faster_links[0].saves.value, 50 - 50 / 1.1, 1e-9);  // the second of latency stays
  EXPECT_THAT(explanation.faster_devices, IsEmpty());
}

TEST(Explain, CallsMemoryFullWhereNoLayerOfANeighbourFits)
{
  // Without buffers: 10 bytes per layer, so 30 on d0 and 20 on d1.
  ThreeAndTwo problem(2);
  for (auto& layer : problem.workload.layers) layer.output = layer.gradient = Bytes(0);
  problem.devices.devices[0].memory = Bytes(39);
  problem.devices.devices[1].memory = Bytes(30);
  const auto explanation = problem.explained(goal_of(Objective::Pipeline, Communication::None));
  ASSERT_EQ(explanation.full.size(), 1U);
  EXPECT_EQ(explanation.full[0].device, "d0");
  EXPECT_DOUBLE_EQ(explanation.full[0].used.value, 30);
  EXPECT_DOUBLE_EQ(explanation.full[0].has.value, 39);
}

TEST(Explain, ReadsMultipliersAsPricesOfOneMoreDevice)
{
  const ThreeAndTwo problem(2);
  Plan plan = problem.plan(goal_of(Objective::Sequential, Communication::None));
  plan.certificate = {CertificateKind::Path, {}, 1, {{Seconds(8), {0.5, 1, 0}}, {std::nullopt, {0.25, 2, 0}}}};
  plan.objective_bound = Seconds(2.5);
  const auto of_sum = problem.explained(plan);
  ASSERT_EQ(of_sum.prices.size(), 2U);
  EXPECT_EQ(of_sum.prices[0].device, "d1");
  EXPECT_DOUBLE_EQ(of_sum.prices[0].multiplier, 2);  // the largest of its rungs
  EXPECT_DOUBLE_EQ(of_sum.prices[0].saves.value, 2);
  EXPECT_DOUBLE_EQ(of_sum.prices[1].saves.value, 0.5);
  EXPECT_THAT(of_sum.not_worth_using, ElementsAre("d2"));

  plan.objective_bound = Seconds(2);  // a price as large as the bound says nothing
  const auto of_less = problem.explained(plan);
  ASSERT_EQ(of_less.prices.size(), 1U);
  EXPECT_EQ(of_less.prices[0].device, "d0");

  plan.goal.objective = Objective::Bottleneck;
  plan.certificate.rungs = {{Seconds(4), {1, 2, 1}}};
  plan.objective_bound = Seconds(4);
  const auto of_maximum = problem.explained(plan);
  EXPECT_DOUBLE_EQ(of_maximum.prices[0].multiplier, 0.5);
  EXPECT_DOUBLE_EQ(of_maximum.prices[0].saves.value, 4 * 0.5 / 1.5);
  EXPECT_TRUE(of_maximum.prices[2].is_idle);
  EXPECT_THAT(of_maximum.not_worth_using, IsEmpty());
}

/// With one more device like d and the same multipliers, the bound decreases by at most the price of d.
TEST(Explain, PricesOneMoreDeviceAtNoLessThanItTakesOffTheBound)
{
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int round = 0; round < 200; ++round) {
    const Workload workload = random_chain(random, 2 + random() % 6);
    Cluster devices = random_cluster(random, 2 + random() % 3, 40);
    devices.data_server.reset();
    const CostModel cost(workload, devices);
    const Goal goal = {random() % 2 == 0 ? Objective::Sequential : Objective::Pipeline, Communication::None,
                       choice_of(ChainSchedule::Sequential), 1};
    Plan plan = plan_of({{0, 0, workload.layers.size() - 1}}, cost, goal);
    Certificate::Rung low = {plan.predicted->bottleneck * (0.2 + 0.6 * unit(random)), {}};
    Certificate::Rung high = {std::nullopt, {}};
    for (std::size_t i = 0; i < devices.devices.size(); ++i) {
      low.multipliers.push_back(unit(random));
      high.multipliers.push_back(random() % 3 == 0 ? 0 : unit(random));
    }
    plan.certificate = {CertificateKind::Path, {}, 1, {low, high}};
    const double bound = check_certificate(plan, workload, devices).proven.value;
    if (!std::isfinite(bound)) continue;
    plan.objective_bound = Seconds(bound);
    for (const auto& price : explain(plan, workload, devices).prices) {
      Cluster more = devices;
      const std::size_t device = devices.device_index(price.device).value();
      more.devices.push_back(devices.devices[device]);
      more.devices.back().name = "copy";
      Plan claim = plan;
      claim.objective_bound = Seconds(0);
      for (auto& rung : claim.certificate.rungs) rung.multipliers.push_back(rung.multipliers[device]);
      EXPECT_GE(check_certificate(claim, workload, more).proven.value, bound - price.saves.value - 1e-9);
    }
  }
}

TEST(Explain, WritesJsonWithUnitsInItsKeys)
{
  const ThreeAndTwo problem(2);
  const auto json = nlohmann::json::parse(
      explanation_to_json(problem.explained(goal_of(Objective::Pipeline, Communication::Serial, 4))));
  EXPECT_EQ(json["bottleneck"]["binds"], "compute");
  EXPECT_EQ(json["device_shares"][0]["device"], "d1");
  EXPECT_EQ(json["faster_links"][0]["link"], "1-0");
  EXPECT_EQ(json["faster_links"][0]["bandwidth_factor"], 1.1);
  EXPECT_EQ(json["devices_used"], 2);
}

}  // namespace
}  // namespace isobar::results::explanation_test
