#include "core/plan/step_recurrence.hpp"

#include "core/base/child_process.hpp"
#include "core/plan/schedule_choice.hpp"
#include "core/program/player.hpp"
#include "schedules/lowering/schedule.hpp"
#include "sim/platform/platform.hpp"
#include "sim/play/simulation.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace isobar::sim {
namespace {

/// Devices d0, d1, … and perhaps a data server, with a separate link for each ordered pair.
std::string full_mesh(std::mt19937_64& random, std::size_t devices, bool has_data_server)
{
  const auto uniform = [&random](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  // Up to ten times the duration of a layer.
  const auto latency_ms = [&] {
    constexpr std::array most = {0.0, 100.0, 2000.0, 20000.0};
    return uniform(0, most.at(random() % most.size()));
  };
  std::string hosts;
  std::string links;
  std::string routes;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < devices; ++i) {
    names.push_back(fmt::format("d{}", i));
    hosts += fmt::format("<host id=\"d{}\" speed=\"{}Gf\"><prop id=\"memory\" value=\"64 GiB\"/></host>\n", i,
                         uniform(0.5, 5));
  }
  if (has_data_server) {
    names.emplace_back("data");
    hosts += "<host id=\"data\" speed=\"1Gf\"><prop id=\"role\" value=\"data-server\"/></host>\n";
  }
  for (const auto& from : names) {
    for (const auto& to : names) {
      if (from == to) continue;
      links += fmt::format("<link id=\"{0}-{1}\" bandwidth=\"{2}MBps\" latency=\"{3}ms\"/>\n", from, to,
                           uniform(5, 500), latency_ms());
      routes += fmt::format("<route src=\"{0}\" dst=\"{1}\" symmetrical=\"NO\"><link_ctn id=\"{0}-{1}\"/></route>\n",
                            from, to);
    }
  }
  return fmt::format(
      "<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
      "<platform version=\"4.1\">\n<zone id=\"world\" routing=\"Full\">\n{}{}{}</zone>\n</platform>\n",
      hosts, links, routes);
}

Workload random_workload(std::mt19937_64& random, std::size_t layers)
{
  const auto uniform = [&random](double high) { return std::uniform_real_distribution<double>(0, high)(random); };
  const auto bytes = [&] { return Bytes(static_cast<double>(random() % 5 == 0 ? 0 : random() % 100'000'000)); };
  Workload workload;
  workload.input = bytes();
  for (std::size_t i = 0; i < layers; ++i) {
    Layer layer;
    layer.forward = Flops(random() % 8 == 0 ? 0 : uniform(2e9));
    layer.backward = Flops(uniform(4e9));
    layer.output = bytes();
    layer.gradient = bytes();
    layer.parameters = random() % 500'000'000;
    if (i > 0) layer.inputs = {i - 1};
    workload.layers.push_back(layer);
  }
  return workload;
}

/// A random plan for a random platform, on which no two transfers share a link.
struct Example {
  Platform platform;
  Workload workload;
  Plan plan;
  std::vector<StagePlacement> placement;
};

Example random_example(unsigned seed)
{
  std::mt19937_64 random(seed);
  const std::size_t devices = 1 + random() % 6;
  const testing_support::TemporaryFolder folder;
  Example example{Platform::load(folder.write("mesh.xml", full_mesh(random, devices, random() % 2 == 0))), {}, {}, {}};
  const Cluster& cluster = example.platform.cluster();
  const std::size_t layers = devices + random() % 6;
  example.workload = random_workload(random, layers);

  Plan& plan = example.plan;
  plan.goal.schedule = choice_of(
      std::array{ChainSchedule::Sequential, ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}[seed % 3]);
  plan.goal.microbatches = 1 + random() % 16;
  for (std::size_t i = 0; i < devices; ++i) {
    example.placement.push_back({(i + seed) % devices, layers * i / devices, layers * (i + 1) / devices - 1});
    const auto& [device, first, last] = example.placement.back();
    plan.stages.push_back({{{cluster.devices[device].name, 1}}, first, last});
  }
  plan.data_server = cluster.data_server;
  return example;
}

/// Ratio of the simulated step time to the recurrence's, for a random placement.
double simulated_over_recurrence(unsigned seed)
{
  const Example example = random_example(seed);
  const Cluster& cluster = example.platform.cluster();
  const auto program = schedules::make_program(example.plan, example.workload);
  const auto ranks = rank_hosts(example.plan, example.workload, cluster);
  const auto report = simulate(example.platform, *program, ranks, 1, nullptr);
  const CostModel cost(example.workload, cluster);
  return report.step_times.at(0) / step_time_by_recurrence(cost, example.placement, example.plan.goal);
}

/// The largest difference between a simulated step and the same step as played, of four in a row, relative to it.
double distance_from_player(unsigned seed)
{
  constexpr std::uint64_t steps = 4;
  const Example example = random_example(seed);
  const Cluster& cluster = example.platform.cluster();
  const auto program = schedules::make_program(example.plan, example.workload);
  const auto ranks = rank_hosts(example.plan, example.workload, cluster);
  PlayerRates rates;
  std::vector<std::size_t> endpoints;
  for (const auto& rank : ranks) {
    rates.speeds.push_back(rank.speed);
    endpoints.push_back(cluster.device_index(rank.host).value_or(cluster.data_server_index()));
  }
  rates.transfer = [&](std::size_t from, std::size_t to, Bytes size) {
    const Path path = cluster.path(endpoints[from], endpoints[to]);
    return TransferTimes{path.latency, path.data_time(size)};
  };
  const auto played = play_program(*program, rates, steps);
  const auto report = simulate(example.platform, *program, ranks, steps, nullptr);
  double worst = 0;
  for (std::size_t i = 0; i < steps; ++i) {
    worst = std::max(worst, std::abs(report.step_times.at(i) / played.periods.at(i).step_time - 1));
  }
  return worst;
}

}  // namespace

TEST(StepRecurrence, IsTheSimulatedStepWhereNoTwoTransfersShareALink)
{
  std::vector<std::function<std::string()>> cases;
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    cases.emplace_back([seed] { return fmt::format("{:.17g}", simulated_over_recurrence(seed)); });
  }
  const auto results = run_in_children(cases, 2, Seconds(60));
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_NEAR(std::stod(results[i].output_or_throw()), 1, 1e-6) << "seed " << i + 1;
  }
}

TEST(ProgramPlayer, PlaysStepsAsTheSimulatorWhereNoTwoTransfersShareALink)
{
  std::vector<std::function<std::string()>> cases;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    cases.emplace_back([seed] { return fmt::format("{:.17g}", distance_from_player(seed)); });
  }
  const auto results = run_in_children(cases, 2, Seconds(60));
  for (std::size_t i = 0; i < results.size(); ++i) {
    EXPECT_LT(std::stod(results[i].output_or_throw()), 1e-6) << "seed " << i + 1;
  }
}

}  // namespace isobar::sim
