#include "allocators/sky/sky_dynamic.hpp"
#include "allocators/registry.hpp"

#include "tests/support/instances.hpp"
#include "tests/support/sky.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <random>
#include <sstream>

namespace isobar::allocators::sky_dynamic_test {

namespace {

using namespace testing_support;  // NOLINT: a test file

struct Row {
  bool is_fixed = false;
  std::size_t nodes = 0;
  std::size_t encoders = 0;
  std::string counts;
  double sum = 0;
  double max = 0;
};

std::vector<Row> reference_rows()
{
  std::ifstream file(ISOBAR_SOURCE_DIR "/tests/instances/sky_dynamic.csv");
  std::vector<Row> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.front() == '#' || line.front() == 'm') continue;
    Row row;
    std::istringstream text(line);
    std::string field;
    std::getline(text, field, ',');
    row.is_fixed = field == "1";
    std::getline(text, field, ',');
    row.nodes = std::stoul(field);
    std::getline(text, field, ',');
    row.encoders = std::stoul(field);
    std::getline(text, row.counts, ',');
    if (row.counts != "infeasible") {
      std::getline(text, field, ',');
      row.sum = std::stod(field);
      std::getline(text, field, ',');
      row.max = std::stod(field);
    }
    rows.push_back(row);
  }
  return rows;
}

std::string counts_of(const Placement& placement, std::size_t devices)
{
  if (placement.outcome == Outcome::Infeasible) return "infeasible";
  std::vector<std::size_t> counts(devices);
  for (const auto& stage : placement.stages) counts[stage.device] = stage.last_layer - stage.first_layer + 1;
  std::string text;
  for (const auto count : counts) text += (text.empty() ? "" : " ") + std::to_string(count);
  return text;
}

Goal bottleneck_goal()
{
  Goal goal = Goal::with_defaults(Objective::Bottleneck);
  goal.communication = Communication::None;
  return goal;
}

}  // namespace

TEST(SkyDynamic, CountsTheBufferOfRecomputationOncePerDevice)
{
  // Each layer keeps 0 of its 10 bytes; one at a time has them back.
  const Workload workload = with_recomputation(chain({1, 1, 1, 1}, 0, 10), {0, 1, 2, 3});
  const Goal goal = bottleneck_goal();
  for (const std::string allocator : {"sky-dynamic", "sky-dynamic-fixed"}) {
    EXPECT_EQ(
        allocate(allocator, workload, cluster({1, 1}, {Seconds(0), BytesPerSecond(1)}, 11), goal, {}).stages.size(),
        2u);
    EXPECT_TRUE(
        allocate(allocator, workload, cluster({1, 1}, {Seconds(0), BytesPerSecond(1)}, 9), goal, {}).stages.empty());
  }
}

TEST(SkyDynamic, GivesThePublishedCounts)
{
  const auto rows = reference_rows();
  ASSERT_EQ(rows.size(), 32U);
  for (const Row& row : rows) {
    const Cluster cluster = sky_cluster(row.nodes - 1);
    const Workload workload = sky_bert(row.encoders);
    const CostModel cost(workload, cluster);
    const Problem problem{cost, bottleneck_goal(), {}};
    const Placement placement = row.is_fixed ? place_by_sky_dynamic_fixed(problem) : place_by_sky_dynamic(problem);
    ASSERT_EQ(counts_of(placement, row.nodes - 1), row.counts) << "N=" << row.nodes << " E=" << row.encoders;
    if (placement.outcome == Outcome::Infeasible) continue;
    // Time of forward and backward, 6 FLOPs for each multiply-add, back in multiply-adds x slowness.
    const auto evaluation = cost.evaluate(placement.stages, problem.goal);
    EXPECT_NEAR(evaluation.sum.value * 9.3e12 / 6, row.sum, 1e-8 * row.sum);
    EXPECT_NEAR(evaluation.bottleneck.value * 9.3e12 / 6, row.max, 1e-8 * row.max);
  }
}

TEST(SkyDynamic, StartsFromRelativeSlownessAndMultiplyAdds)
{
  const Cluster cluster = sky_cluster(3);
  const Workload workload = sky_bert(1);
  const CostModel cost(workload, cluster);
  const SkyInputs inputs = sky_inputs(cost, bottleneck_goal());
  const auto factors = sky_factors(3);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_DOUBLE_EQ(inputs.slowness[i], factors[i].slowness / factors[2].slowness);
  }
  EXPECT_EQ(inputs.multiply_adds[1], 18253611008);
  EXPECT_EQ(inputs.layer_memory[1], 432.09375 * 0x1p20);
}

TEST(SkyDynamic, NeverTakesALayerFromTheFirstDeviceInPhaseTwo)
{
  std::mt19937_64 random(7);
  for (int instance = 0; instance < 300; ++instance) {
    const std::size_t devices = 2 + random() % 6;
    const std::size_t layers = devices + random() % 20;
    const Workload workload = random_chain(random, layers);
    const Cluster cluster = random_cluster(random, devices, 1e9);  // memory never binds: phase 1 leaves the even counts
    const CostModel cost(workload, cluster);
    const Placement placement = place_by_sky_dynamic({cost, bottleneck_goal(), {}});
    ASSERT_EQ(placement.outcome, Outcome::Feasible);
    ASSERT_EQ(placement.stages.size(), devices);  // each keeps a layer
    std::size_t even_end = 0;
    for (std::size_t j = 0; j + 1 < devices; ++j) {
      even_end += layers / devices + (j < layers % devices ? 1 : 0);
      EXPECT_GE(placement.stages[j].last_layer + 1, even_end) << "boundary " << j << " moved left";
    }
  }
}

TEST(SkyDynamicFixed, ShedsALayerToTheRight)
{
  // Two layers each; the first device is ten times slower, and only the fixed index lets it shed a layer.
  const Workload workload = chain({10, 10, 10, 10, 10, 10});
  const Cluster platform = cluster({1, 10, 10});
  const CostModel cost(workload, platform);
  const Problem problem{cost, bottleneck_goal(), {}};
  EXPECT_EQ(counts_of(place_by_sky_dynamic(problem), 3), "2 3 1");
  EXPECT_EQ(counts_of(place_by_sky_dynamic_fixed(problem), 3), "1 4 1");
}

TEST(SkyDynamic, NeedsEveryDeviceToHoldALayer)
{
  const Workload workload = sky_bert(1);
  Cluster cluster = sky_cluster(3);
  cluster.devices[1].memory = Bytes(1000);
  const CostModel cost(workload, cluster);
  const Placement placement = place_by_sky_dynamic({cost, bottleneck_goal(), {}});
  EXPECT_EQ(placement.outcome, Outcome::Infeasible);
  EXPECT_EQ(
      placement.reason,
      "device node-2 has 1000 B and the smallest layer, 5, needs 410 KiB: this allocator gives every device a layer; "
      "it may fit without the device (--without) or with allocator chain-dp");
}

TEST(SkyDynamic, NamesTheOverfullDeviceWhenPhaseOneFails)
{
  const Workload workload = sky_bert(80);
  const Cluster cluster = sky_cluster(3);
  const CostModel cost(workload, cluster);
  const Placement placement = place_by_sky_dynamic({cost, bottleneck_goal(), {}});
  EXPECT_EQ(placement.outcome, Outcome::Infeasible);
  EXPECT_EQ(placement.reason,
            "device node-3: layers 62..242 need 68.1 GiB and it has 6.68 GiB where phase 1 stops; 61.4 GiB more "
            "memory there may be enough");
  EXPECT_TRUE(placement.stages.empty());
}

TEST(SkyDynamic, StopsAtItsBudgetOfSweeps)
{
  const Workload workload = sky_bert(24);
  const Cluster cluster = sky_cluster(15);
  const CostModel cost(workload, cluster);
  SearchLimits limits;
  limits.budget = 2;
  const Placement placement = place_by_sky_dynamic({cost, bottleneck_goal(), limits});
  EXPECT_EQ(placement.outcome, Outcome::TimedOut);
  EXPECT_NE(counts_of(placement, 15), "6 6 6 5 4 4 5 5 6 6 6 5 4 6 1");
  limits.budget = 5;  // four that move something and one that does not
  EXPECT_EQ(place_by_sky_dynamic({cost, bottleneck_goal(), limits}).outcome, Outcome::Feasible);
}

}  // namespace isobar::allocators::sky_dynamic_test
