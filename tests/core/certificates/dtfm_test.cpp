#include "core/certificates/certificate_checker.hpp"
#include "core/check/dtfm_cost.hpp"
#include "core/check/plan_checker.hpp"
#include "tests/support/dtfm_cases.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace isobar::dtfm_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Two sites of two devices, two stages of two replicas. An exchange takes 2 x (1 + 8/2) = 10 s within a site and
/// 2 x (3 + 8/2) = 14 s between them, a pass 1 + 6 = 7 s or 3 + 6 = 9 s.
struct TwoSites {
  TwoSites()
  {
    std::vector<Path> paths;
    for (std::size_t i = 0; i < 25; ++i) {
      paths.push_back({Seconds(i / 5 / 2 == i % 5 / 2 ? 1 : 3), BytesPerSecond(1)});
    }
    devices.network = std::make_shared<MatrixNetwork>(5, std::move(paths));
  }

  /// A plan of these devices in turn, two for each stage.
  Plan plan(const std::vector<std::string>& names, double cost) const
  {
    Plan plan;
    plan.goal = dtfm_goal(4);
    for (std::size_t i = 0; i < 2; ++i) {
      plan.stages.push_back({i, i, {{2, {{names[2 * i]}}}, {2, {{names[2 * i + 1]}}}}});
    }
    plan.objective = Seconds(cost);
    plan.objective_bound = Seconds(cost);
    plan.certificate.kind = CertificateKind::DtFm;
    return plan;
  }

  std::vector<std::string> faults(const Plan& plan) const { return faults_of_certificate(plan, workload, devices); }

  Workload workload = chain({1, 1}, 2, 0, 3);  // 8 bytes of gradients and 2 x 3 bytes of passes
  Cluster devices = cluster({1, 1, 1, 1});
};

TEST(DtFmCost, IsTheLongestSyncAndTwiceTheSlowestPasses)
{
  const TwoSites sites;
  EXPECT_DOUBLE_EQ(dtfm_cost(sites.plan({"d0", "d1", "d2", "d3"}, 0), sites.workload, sites.devices), 10 + 2 * 9);
  EXPECT_DOUBLE_EQ(dtfm_cost(sites.plan({"d0", "d2", "d1", "d3"}, 0), sites.workload, sites.devices), 14 + 2 * 7);
  EXPECT_DOUBLE_EQ(dtfm_cost(sites.plan({"d0", "d2", "d3", "d1"}, 0), sites.workload, sites.devices), 14 + 2 * 9);
}

TEST(DtFmCost, CountsTheLargestStageAndTheLargestTransfer)
{
  TwoSites sites;
  sites.workload.layers[1].parameters = 4;       // an exchange takes 4 s more, each way
  sites.workload.layers[0].gradient = Bytes(4);  // a pass takes 2 s more
  EXPECT_DOUBLE_EQ(dtfm_cost(sites.plan({"d0", "d1", "d2", "d3"}, 0), sites.workload, sites.devices), 18 + 2 * 11);
}

TEST(DtFmCost, IsDefinedForEqualStagesOfSingleDevicesOnly)
{
  const TwoSites sites;
  constexpr auto rule =
      "; objective dtfm is for stages with as many replicas, each of one device and as many micro-batches";
  Plan plan = sites.plan({"d0", "d1", "d2", "d3"}, 28);
  EXPECT_EQ(fault_of_dtfm_stages(plan), std::nullopt);
  plan.stages[1].replicas.pop_back();
  EXPECT_EQ(fault_of_dtfm_stages(plan), std::string("stages[1]: 1 replica, and the first stage has 2") + rule);
  plan = sites.plan({"d0", "d1", "d2", "d3"}, 28);
  plan.stages[1].replicas[1].microbatches = 1;
  EXPECT_EQ(fault_of_dtfm_stages(plan), std::string("stages[1].replicas[1].microbatches: 1 of 4") + rule);
  plan = sites.plan({"d0", "d1", "d2", "d1"}, 28);
  EXPECT_EQ(fault_of_dtfm_stages(plan), std::string("stages[1]: device d1 has a stage already") + rule);
  plan = sites.plan({"d0", "d1", "d2", "d3"}, 28);
  plan.stages[0].replicas[0].shards.push_back({"d4"});
  EXPECT_EQ(fault_of_dtfm_stages(plan), std::string("stages[0].replicas[0]: 2 shards") + rule);
  EXPECT_THAT(faults_of(plan, sites.workload, sites.devices), testing::Contains(HasSubstr(rule)));
}

TEST(DtFmCertificate, ProvesTheLeastSyncAndPassesWithoutRungs)
{
  const TwoSites sites;
  Plan plan = sites.plan({"d0", "d1", "d2", "d3"}, 28);
  plan.objective_bound = Seconds(10 + 2 * 7);
  const auto check = check_certificate(plan, sites.workload, sites.devices);
  EXPECT_THAT(check.faults, IsEmpty());
  EXPECT_DOUBLE_EQ(check.proven.value, 24);
  plan.objective_bound = Seconds(24.1);
  EXPECT_THAT(sites.faults(plan), ElementsAre("objective_bound_s: claims 24.1; it is 24 by the certificate dtfm"));
}

TEST(DtFmCertificate, ProvesTheOptimumByARung)
{
  const TwoSites sites;
  Plan plan = sites.plan({"d0", "d1", "d2", "d3"}, 28);
  plan.certificate.groups = {0, 0, 1, 1};
  plan.certificate.rungs = {{Seconds(10), {0, 0}}};
  EXPECT_THAT(sites.faults(plan), IsEmpty());
  plan.certificate.rungs = {{{}, {0, 0}}};  // all in one
  EXPECT_THAT(sites.faults(plan), IsEmpty());
}

TEST(DtFmCertificate, RefutesWhatAPlacementAchieves)
{
  const TwoSites sites;
  Plan plan = sites.plan({"d0", "d1", "d2", "d3"}, 28);
  plan.certificate.groups = {0, 0, 1, 1};
  plan.certificate.rungs = {{{}, {0, 0}}};
  plan.objective_bound = Seconds(28.5);
  EXPECT_THAT(sites.faults(plan), ElementsAre("objective_bound_s: claims 28.5; it is at most 28, which a placement "
                                              "achieves"));
  plan.certificate.rungs = {{{}, {3, 3}}};  // with multipliers that change nothing
  plan.objective_bound = Seconds(28.000001);
  EXPECT_THAT(sites.faults(plan), ElementsAre(HasSubstr("28, which a placement achieves")));
}

TEST(DtFmCertificate, ProvesLessAboveALimitThatIsTooLow)
{
  const TwoSites sites;
  Plan plan = sites.plan({"d0", "d1", "d2", "d3"}, 28);
  plan.certificate.groups = {0, 0, 1, 1};
  plan.certificate.rungs = {{Seconds(9), {0, 0}}};  // no stage syncs within it
  EXPECT_THAT(sites.faults(plan), ElementsAre("objective_bound_s: claims 28; it is 24 by the certificate dtfm"));
}

TEST(DtFmCertificate, NamesEveryMalformedField)
{
  const TwoSites sites;
  Plan sound = sites.plan({"d0", "d1", "d2", "d3"}, 28);
  sound.certificate.groups = {0, 0, 1, 1};
  sound.certificate.rungs = {{Seconds(10), {0, 0}}};
  const auto faults = [&](auto change) {
    Plan plan = sound;
    change(plan);
    return sites.faults(plan);
  };
  EXPECT_THAT(faults([](Plan&) {}), IsEmpty());
  EXPECT_THAT(faults([](Plan& plan) {
                plan.certificate.groups = {0, 1, 0, 1};
              }),
              ElementsAre("certificate.groups[2]: claims 0, that of d0; it is another, since the paths of d2 differ"));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.groups.clear(); }),
              ElementsAre("certificate.rungs[0].multipliers: claims 2; it is 1, one for each group"));
  EXPECT_THAT(faults([](Plan& plan) {
                plan.certificate.groups = {0, 0, 1};
              }),
              ElementsAre("certificate.groups: claims 3; it is 4, one for each device"));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.groups[3] = 4; }),
              ElementsAre("certificate.groups[3]: claims 4; it is below 4, the number of devices"));
  EXPECT_THAT(faults([](Plan& plan) {
                plan.certificate.groups = {0, 0, 2, 2};
              }),
              ElementsAre("certificate.groups: claims 3 groups; it is fewer, since no device is in group 1"));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.rungs[0].multipliers.push_back(0); }),
              ElementsAre("certificate.rungs[0].multipliers: claims 3; it is 2, one for each group"));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.rungs[0].multipliers[1] = -1; }),
              ElementsAre("certificate.rungs[0].multipliers[1]: claims -1; it is a number, 0 or more"));
  EXPECT_THAT(
      faults([](Plan& plan) { plan.certificate.rungs[0].multipliers[0] = std::numeric_limits<double>::quiet_NaN(); }),
      ElementsAre("certificate.rungs[0].multipliers[0]: claims nan; it is a number, 0 or more"));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.rungs[0].limit = Seconds(-1); }),
              ElementsAre("certificate.rungs[0].limit_s: claims -1; it is a number, 0 or more"));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.rungs.push_back(plan.certificate.rungs[0]); }),
              ElementsAre("certificate.rungs[1].limit_s: claims 10; it is above 10, since rungs ascend"));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.rungs[0].slots = 2; }),
              ElementsAre("certificate.rungs[0].slots: claims 2; only a path counts them"));
  EXPECT_THAT(faults([](Plan& plan) { plan.certificate.kind = CertificateKind::Fractional; }),
              ElementsAre("certificate.kind: claims fractional; it is dtfm or none for objective dtfm"));
  EXPECT_THAT(faults([](Plan& plan) { plan.goal.objective = Objective::Step; }),
              ElementsAre("certificate.kind: claims dtfm; it is another than dtfm for objective step"));
  EXPECT_THAT(faults([](Plan& plan) { plan.stages.clear(); }),
              ElementsAre("certificate.kind: claims dtfm, which is about the stages of the plan; it has none"));
  EXPECT_THAT(faults([](Plan& plan) { plan.stages[1].last_layer = 7; }),
              ElementsAre("certificate.kind: claims dtfm, and the stages do not fit the workload and the platform"));
}

TEST(DtFmCertificate, IsNotCheckedWhereThatTakesTooManySteps)
{
  const TwoSites sites;
  Plan plan = sites.plan({"d0", "d1", "d2", "d3"}, 28);
  plan.certificate.groups = {0, 0, 1, 1};
  plan.certificate.rungs = {{Seconds(10), {0, 0}}};
  EXPECT_THAT(check_certificate(plan, sites.workload, sites.devices, 20).faults,
              ElementsAre("certificate: needs more than 20 steps to check; it is not checked"));
}

TEST(DtFmCertificate, SurvivesItsFile)
{
  const TwoSites sites;
  Plan plan = sites.plan({"d0", "d1", "d2", "d3"}, 28);
  plan.allocator = "dtfm-exact";
  plan.certificate.groups = {0, 0, 1, 1};
  plan.certificate.rungs = {{Seconds(10), {0.5, 0}}, {{}, {0, 1}}};
  const Plan read = plan_from_json(plan_to_json(plan), "plan.json");
  EXPECT_EQ(read.certificate, plan.certificate);
  EXPECT_EQ(read.goal.objective, Objective::DtFm);
  plan.certificate.rungs.clear();
  plan.certificate.groups.clear();
  EXPECT_EQ(plan_from_json(plan_to_json(plan), "plan.json").certificate, plan.certificate);
}

}  // namespace
}  // namespace isobar::dtfm_test
