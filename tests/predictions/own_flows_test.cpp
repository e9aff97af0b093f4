#include "core/base/child_process.hpp"
#include "tests/predictions/predicted.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <sstream>
#include <string>
#include <vector>

// Steps in which the flows of the plan itself share links.
namespace isobar::predictions::own_flows_test {
namespace {

constexpr double exact = 1e-6;  // relative

struct Steps {
  double predicted = 0;
  double simulated = 0;
};

/// Of work in a process of its own.
Steps steps_of(const std::function<Steps()>& work)
{
  const std::string text = run_in_child(
                               [&] {
                                 const Steps steps = work();
                                 return fmt::format("{:.17g} {:.17g}", steps.predicted, steps.simulated);
                               },
                               Seconds(120))
                               .output_or_throw();
  Steps steps;
  std::istringstream(text) >> steps.predicted >> steps.simulated;
  return steps;
}

Steps steps_of(Plan plan, const Workload& workload, const sim::Platform& platform)
{
  predict(plan, workload, platform.cluster());
  EXPECT_EQ(faults_of_claims(plan, workload, platform.cluster()), std::vector<std::string>{});
  return {plan.predicted.value().step_time.value, simulated_step(plan, workload, platform.cluster(), platform).value};
}

/// Replicas of one layer on each of so many hosts of a cluster of 10 Gb/s and 10 us, which sum gradients of 100 MB.
Steps steps_of_sum(Algorithm algorithm, std::size_t hosts)
{
  return steps_of([=] {
    const auto platform = sim::Platform::from_text(
        fmt::format(
            "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
            "<platform version=\"4.1\"><cluster id=\"x\" prefix=\"n\" suffix=\"\" radical=\"0-{}\" speed=\"1Tf\" "
            "bw=\"10Gbps\" lat=\"10us\"><prop id=\"memory\" value=\"16 GiB\"/></cluster></platform>\n",
            hosts - 1),
        "cluster");
    Workload workload = testing_support::chain({1e9}, 25'000'000);
    Plan plan;
    plan.goal.microbatches = hosts;
    plan.sync.algorithm = algorithm;
    Stage& stage = plan.stages.emplace_back();
    for (std::size_t i = 0; i < hosts; ++i) stage.replicas.push_back({1, {{fmt::format("n{}", i)}}});
    return steps_of(plan, workload, platform);
  });
}

// A pass forward and back takes 3 ms, an update 25 us x the operations of a parameter; 100 MB take 80 ms over a link.
constexpr double passes = 3e-3;
constexpr double least_update = 25e-6;
constexpr double most_update = 500e-6;

TEST(OwnFlows, OfADirectSumShareTheirHostsLinks)
{
  for (const std::size_t hosts : {2U, 4U, 8U}) {
    const Steps steps = steps_of_sum(Algorithm::Direct, hosts);
    EXPECT_NEAR(steps.predicted, steps.simulated, exact * steps.simulated) << hosts;
    // Each of two rounds sends (n-1)/n of the gradients out of a host.
    const double sum = 2 * (0.08 * static_cast<double>(hosts - 1) / static_cast<double>(hosts));
    EXPECT_GT(steps.simulated, passes + sum + least_update) << hosts;
    EXPECT_LT(steps.simulated, passes + sum + most_update) << hosts;
  }
}

TEST(OwnFlows, OfASumByAServerShareItsLink)
{
  for (const std::size_t hosts : {2U, 4U, 8U}) {
    const Steps steps = steps_of_sum(Algorithm::Server, hosts);
    EXPECT_NEAR(steps.predicted, steps.simulated, exact * steps.simulated) << hosts;
    const double sum = 2 * 0.08 * static_cast<double>(hosts - 1);
    EXPECT_GT(steps.simulated, passes + sum + least_update) << hosts;
    EXPECT_LT(steps.simulated, passes + sum + most_update) << hosts;
  }
}

/// A chain of two hosts, 100 ms apart.
Steps steps_of_two_hosts(const std::function<void(Workload&)>& train)
{
  return steps_of([&] {
    sim::PlatformFile file;
    sim::two_hosts(file, "1GBps", "100ms");
    Workload workload = sim::equal_layers(2, Bytes(1000), Bytes(1000));
    train(workload);
    Plan plan = sim::one_layer_per_device({"a", "b"}, ChainSchedule::OneForwardOneBackward, 4);
    return steps_of(plan, workload, file.load());
  });
}

TEST(OwnFlows, OfWhatStagesAgreeOnCountInAChainsStep)
{
  const Steps plain = steps_of_two_hosts([](Workload&) {});
  EXPECT_NEAR(plain.predicted, plain.simulated, exact * plain.simulated);
  const Steps clipped = steps_of_two_hosts([](Workload& workload) { workload.training.clip_norm = 1; });
  const Steps scaled = steps_of_two_hosts([](Workload& workload) { workload.dtype = DType::Float16; });
  for (const Steps& steps : {clipped, scaled}) {
    EXPECT_NEAR(steps.predicted, steps.simulated, exact * steps.simulated);
    // A ring of two passes two messages one after the other.
    EXPECT_NEAR(steps.simulated, plain.simulated + 0.2, exact * plain.simulated);
  }
}

TEST(OwnFlows, OfManyReplicasShareTheTrunkBetweenTheirStages)
{
  constexpr std::size_t replicas = 8;
  const Steps steps = steps_of([] {
    sim::PlatformFile file;
    file.link("trunk there", "100MBps", "1ms");
    file.link("trunk back", "100MBps", "1ms");
    file.link("site", "1GBps", "0s");
    Plan plan;
    plan.goal.microbatches = 2 * replicas;
    plan.stages = {{0, 0, {}}, {1, 1, {}}};
    for (std::size_t i = 0; i < replicas; ++i) {
      for (const std::size_t stage : {0U, 1U}) {
        const std::string name = fmt::format("s{}d{}", stage, i);
        file.device(name, "1Gf");
        plan.stages[stage].replicas.push_back({2, {{name}}});
      }
    }
    for (std::size_t i = 0; i < replicas; ++i) {
      for (std::size_t j = 0; j < replicas; ++j) {
        file.route(fmt::format("s0d{}", i), fmt::format("s1d{}", j), {"trunk there"});
        file.route(fmt::format("s1d{}", i), fmt::format("s0d{}", j), {"trunk back"});
        for (const std::size_t stage : {0U, 1U}) {
          if (i != j) file.route(fmt::format("s{}d{}", stage, i), fmt::format("s{}d{}", stage, j), {"site"});
        }
      }
    }
    // A micro-batch computes 1 s and 2 s on a stage, and takes 0.5 s over the trunk.
    return steps_of(plan, sim::equal_layers(2, Bytes(5e7), Bytes(5e7)), file.load());
  });
  EXPECT_NEAR(steps.predicted, steps.simulated, exact * steps.simulated);
  // A forward comes before 16 outputs on the trunk; then a micro-batch passes the second stage, the trunk and the
  // first.
  EXPECT_GT(steps.simulated, 1 + 16 * 0.5 + 3 + 0.5 + 2);
}

}  // namespace
}  // namespace isobar::predictions::own_flows_test
