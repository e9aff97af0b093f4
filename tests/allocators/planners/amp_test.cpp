#include "allocators/planners/amp.hpp"

#include "allocators/registry.hpp"
#include "core/certificates/certificate_checker.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/shards.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace isobar::allocators::amp_test {
namespace {

using namespace testing_support;  // NOLINT: a test file
using testing::ElementsAre;
using testing::UnorderedElementsAre;

SearchLimits with_shape(std::optional<std::uint64_t> pipeline, std::optional<std::uint64_t> replicas = {},
                        std::optional<std::uint64_t> tensor = {})
{
  SearchLimits limits;
  limits.grid = {pipeline, replicas, tensor};
  return limits;
}

Plan amp(const Workload& workload, const Cluster& devices, const Goal& goal, const SearchLimits& limits = {})
{
  return allocate("amp", workload, devices, goal, limits);
}

using Shape = std::tuple<std::size_t, std::size_t, std::size_t>;

Shape shape_of(const Plan& plan)
{
  const auto& replicas = plan.stages.front().replicas;
  return {pipeline_stages(plan).back() + 1, replicas.size(), replicas.front().shards.size()};
}

std::vector<Shape> shapes(const Workload& workload, const Cluster& devices, const Goal& goal,
                          const SearchLimits& limits = {})
{
  const ChainView view = chain_view(workload);
  std::vector<Shape> result;
  for (const auto& plan : propose_by_amp({workload, view, devices, goal, limits}).plans) {
    result.push_back(shape_of(plan));
  }
  return result;
}

std::string fault_of(const Workload& workload, const Cluster& devices, const Goal& goal)
{
  try {
    amp(workload, devices, goal);
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "";
}

TEST(Amp, TriesEveryShapeOfAllDevices)
{
  EXPECT_THAT(shapes(chain(std::vector<double>(12, 1.0)), cluster(std::vector<double>(12, 1.0)), goal_under("1f1b", 8)),
              UnorderedElementsAre(Shape{3, 4, 1}, Shape{6, 2, 1}, Shape{12, 1, 1}));
  EXPECT_THAT(shapes(divisible(4), cluster(std::vector<double>(4, 1.0)), goal_under("1f1b", 4)),
              UnorderedElementsAre(Shape{1, 4, 1}, Shape{1, 2, 2}, Shape{1, 1, 4}, Shape{2, 2, 1}, Shape{2, 1, 2},
                                   Shape{4, 1, 1}));
  EXPECT_THAT(shapes(divisible(4), cluster(std::vector<double>(4, 1.0)), goal_under("1f1b", 4), with_shape({}, 1, 2)),
              UnorderedElementsAre(Shape{2, 1, 2}));
}

TEST(Amp, ProposesTheTenBestEstimatesOfMore)
{
  EXPECT_EQ(shapes(divisible(16), cluster(std::vector<double>(16, 1.0)), goal_under("1f1b", 16)).size(), 10U);
}

TEST(Amp, CutsLayersByTheSpeedOfEachStage)
{
  // Two of eight equal layers on the device of speed 1 and six on that of speed 3 take 6 s each.
  const Plan plan = amp(chain(std::vector<double>(8, 1.0)), cluster({1, 3}), goal_under("1f1b", 64), with_shape(2));
  ASSERT_EQ(plan.stages.size(), 2U);
  EXPECT_EQ(plan.stages[0].last_layer, 1U);
  EXPECT_DOUBLE_EQ(plan.objective->value, 63 * 6 + 2 * 6);
  // The slowest replica counts: of three layers of 3 s and nine of 1 s.
  const Plan replicas =
      amp(chain(std::vector<double>(12, 1.0)), cluster({1, 3, 3, 3}), goal_under("1f1b", 64), with_shape(2, 2));
  EXPECT_THAT(pipeline_stages(replicas), ElementsAre(0, 1));
  EXPECT_EQ(replicas.stages[0].last_layer, 2U);
  EXPECT_EQ(replicas.stages[0].replicas[0].microbatches, 32U);
}

TEST(Amp, CountsTheSlowestLinkOfTheGradientsRing)
{
  // Of the ring over four devices only the link between the second and the third is slow, and it is not the last one.
  Workload workload = chain(std::vector<double>(4, 1.0), 100);
  Cluster devices = cluster(std::vector<double>(4, 1.0));
  std::vector<Path> paths(25, {Seconds(0), BytesPerSecond(1e9)});
  paths[1 * 5 + 2] = {Seconds(0), BytesPerSecond(1)};
  devices.network = std::make_shared<MatrixNetwork>(5, std::move(paths));
  EXPECT_EQ(shapes(workload, devices, goal_under("1f1b", 64)).back(), Shape(1, 4, 1));
}

TEST(Amp, DividesLayersWhereReplicasDoNotFit)
{
  // A device has room for half of the layers with what four micro-batches keep, or for a pipeline of two.
  const Workload workload = divisible(2);
  const Cluster one = cluster({1});
  const CostModel cost(workload, one);
  const double whole = cost.memory(0, 1, 1).value;
  const auto at = [&](double memory) {
    const Cluster devices = cluster(std::vector<double>(4, 1.0), {Seconds(0), BytesPerSecond(1e30)}, memory);
    return shapes(workload, devices, goal_under("1f1b", 4));
  };
  EXPECT_THAT(at(whole), testing::Contains(Shape{1, 4, 1}));
  EXPECT_THAT(at(0.9 * whole), UnorderedElementsAre(Shape{1, 2, 2}, Shape{1, 1, 4}, Shape{2, 2, 1}, Shape{2, 1, 2}));
  EXPECT_THAT(at(0.35 * whole), UnorderedElementsAre(Shape{1, 1, 4}, Shape{2, 1, 2}));
}

TEST(Amp, MakesPlansThatPassTheCheckersOnRandomTypes)
{
  std::mt19937_64 random(6);
  std::set<Shape> found;
  std::size_t infeasible = 0;
  for (int instance = 0; instance < 150; ++instance) {
    Workload workload = random_chain(random, 2 + random() % 9);
    if (instance % 3 == 0) add_splits(random, workload);
    if (instance % 2 == 0) workload.memory_model = MemoryModel::Training;
    const Cluster devices = random_types(random, 2 + random() % 2, 3 + random() % 6,
                                         instance % 2 == 0 ? 1e9 : 20 + static_cast<double>(random() % 40));
    const char* schedule = instance % 5 == 0 ? "gpipe" : instance % 5 == 1 ? "zero-bubble-h1" : "1f1b";
    const Goal goal = goal_under(schedule, 12);
    const Plan plan = amp(workload, devices, goal);
    if (plan.stages.empty()) {
      ++infeasible;
      EXPECT_EQ(plan.outcome, Outcome::Infeasible);
      EXPECT_FALSE(plan.reason.empty());
      continue;
    }
    found.insert(shape_of(plan));
    EXPECT_EQ(plan.stages.back().last_layer + 1, workload.layers.size());
    EXPECT_EQ(devices_of(plan).size(), devices.devices.size());
    EXPECT_THAT(faults_of_certificate(plan, workload, devices), testing::IsEmpty());
    Plan again = amp(workload, devices, goal);
    again.search_time = plan.search_time;
    EXPECT_EQ(plan_to_json(plan), plan_to_json(again));
  }
  EXPECT_GT(found.size(), 10U);
  EXPECT_GT(infeasible, 5U);
}

TEST(Amp, ChoosesAWarmUpForEachDevice)
{
  const Workload workload = chain(std::vector<double>(8, 1.0), 0, 0, 1);
  const Cluster devices = cluster(std::vector<double>(4, 1.0), {Seconds(20), BytesPerSecond(1e9)});
  const Plan plan = amp(workload, devices, goal_under("1f1b(warm_up=auto)", 24), with_shape(2, 2));
  EXPECT_LT(*plan.objective, *amp(workload, devices, goal_under("1f1b", 24), with_shape(2, 2)).objective);
  EXPECT_EQ(plan.goal.schedule.numbers.at("warm_up").size(), 4U);
}

TEST(Amp, SaysWhyThereIsNone)
{
  const Workload workload = chain({1, 1, 1}, 10);
  EXPECT_EQ(amp(workload, cluster(std::vector<double>(5, 1.0)), goal_under("1f1b", 8)).reason,
            "there is no such grid of all 5 devices: 5 stages need as many layers that can be cut apart, and there are "
            "3");
  EXPECT_EQ(amp(workload, cluster(std::vector<double>(3, 1.0)), goal_under("1f1b", 8), with_shape(1)).reason,
            "there is no such grid of all 3 devices: layer layer0 cannot be divided; a gpt or llama needs unit: "
            "operator");
  EXPECT_EQ(amp(workload, cluster(std::vector<double>(3, 1.0)), goal_under("1f1b", 8), with_shape(1, 3, 1)).reason,
            "there is no such grid of all 3 devices: 3 replicas do not divide 8 micro-batches");
  EXPECT_EQ(amp(workload, cluster(std::vector<double>(3, 1.0)), goal_under("1f1b", 8), with_shape(1, 2, 1)).reason,
            "there is no such grid of all 3 devices: pipeline x replicas x shards are not as many");
  EXPECT_EQ(amp(workload, cluster({1, 1}, {Seconds(0), BytesPerSecond(1e30)}, 100), goal_under("1f1b", 8)).reason,
            "no grid of all 2 devices fits in memory; 2 x 1 x 1: evenly cut, layers 1..2 need 160 B and a device there "
            "has 100 B");
  EXPECT_EQ(fault_of(workload, cluster({1, 1}), goal_under("interleaved")),
            "schedule: interleaved gives a device several stages; allocator amp takes 1f1b, gpipe, sequential, "
            "zero-bubble-h1, zero-bubble-h2");
  EXPECT_EQ(fault_of(workload, cluster({1, 1}), goal_under("greedy")),
            "schedule: greedy makes orders for one placement of a chain; allocator amp takes the other schedules");
}

TEST(Amp, StopsAtTheBudgetWithTheBestSoFar)
{
  SearchLimits limits;
  limits.budget = 2;
  const Plan plan =
      amp(chain(std::vector<double>(12, 1.0), 1, 0, 5),
          cluster(std::vector<double>(12, 1.0), {Seconds(1), BytesPerSecond(10)}), goal_under("1f1b", 24), limits);
  EXPECT_EQ(plan.outcome, Outcome::TimedOut);
  EXPECT_LE(std::get<0>(shape_of(plan)), 2U);
  limits.budget = 100;
  EXPECT_NE(amp(chain({1, 1}), cluster({1, 1}), goal_under("1f1b", 24), limits).outcome, Outcome::TimedOut);
  limits.time_limit = Seconds(0);
  const Plan none = amp(chain({1, 1}), cluster({1, 1}), goal_under("1f1b", 24), limits);
  EXPECT_EQ(none.outcome, Outcome::TimedOut);
  EXPECT_EQ(none.reason, "the limits ended the search before it found a plan");
}

}  // namespace
}  // namespace isobar::allocators::amp_test
