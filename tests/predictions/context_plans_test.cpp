#include "core/base/child_process.hpp"
#include "core/check/program_checker.hpp"
#include "core/compute/as_trained.hpp"
#include "core/compute/pricing.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "tests/predictions/predicted.hpp"
#include "tests/predictions/random_case.hpp"
#include "tests/support/contexts.hpp"
#include "tests/support/experts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

// Plans whose replicas divide sequences, and some of them experts: what is predicted is what the checker accepts and
// what the simulator takes.
namespace isobar::predictions::context_plans_test {
namespace {

using testing_support::ContextShape;

constexpr double tolerance = 1e-6;  // relative
constexpr std::uint64_t seeds = 150;

/// A random plan of a llama, ready to be priced.
struct ContextCase {
  RandomPlatform on;
  Workload workload;
  Plan plan;
};

ContextCase random_context_case(std::uint64_t seed)
{
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  ContextShape shape;
  shape.context = {2 * (1 + below(2)), static_cast<ContextExchange>(below(3))};
  shape.stages = 1 + below(2);
  shape.groups = 1 + below(2);
  shape.shards = 1 + below(2);
  shape.is_v = below(3) == 0;
  if (shape.shards > 1 && below(2) == 0) shape.form = ShardGrid::Form::Sequence;
  const std::size_t replicas = shape.groups * shape.context.degree;
  for (const std::size_t degree : {2, 4, 8}) {
    if (replicas % degree == 0 && below(3) > 0) shape.experts.degree = degree;
  }
  ContextCase made{random_platform(random, {.devices = shape.devices(), .has_interference = below(3) == 0}), {}, {}};
  auto names = testing_support::names_for(shape);
  std::shuffle(names.begin(), names.end(), random);
  made.workload = testing_support::small_llama(below(3) == 0 ? "clip_norm: 1\n" : "");
  if (below(2) == 0) made.workload = with_recomputation(made.workload, {1, 2, 4});
  made.workload = with_context(made.workload, shape.context);
  shape.experts.are_whole = shape.experts.degree > 1 && below(2) == 0;
  for (const std::size_t layer : {2, 4}) {  // the mlps
    if (shape.experts.divides()) {
      testing_support::add_experts(made.workload.layers[layer], 16, 2816 * (1 + below(1000)), Flops(1e9), Bytes(4e6));
    }
  }
  made.workload.experts = shape.experts;
  divide_experts(made.workload);
  for (auto& device : made.on.cluster.devices) {
    device.type = "A100-SXM4-80GB";
    device.memory = Bytes(1e12);
  }
  compute::price(made.workload, made.on.cluster);
  for (auto& device : made.on.cluster.devices) device.pace = 1 / (1 + static_cast<double>(below(3)) / 4);
  made.plan = testing_support::plan_in_parts(shape, made.workload.layers.size(), 1 + below(3), names);
  constexpr std::array orders = {"gpipe", "1f1b", "zero-bubble-h1"};
  constexpr std::array orders_of_v = {"zero-bubble-v", "dualpipe-v", "v-half"};
  made.plan.goal.schedule.name = (shape.is_v ? orders_of_v : orders).at(below(orders.size()));
  const bool may_overlap = made.plan.experts.divides() && made.workload.recompute.empty();
  const bool overlaps = may_overlap && (made.plan.goal.schedule.name == "1f1b" || shape.is_v) && below(2) == 0;
  if (overlaps) made.plan.goal.schedule = {shape.is_v ? "dualpipe-v" : "1f1b", {{overlap_experts_key, {1}}}};
  for (auto& stage : made.plan.stages) {
    for (auto& replica : stage.replicas) {
      for (auto& shard : replica.shards) {
        shard.site = made.on.cluster.devices[made.on.cluster.device_index(shard.device).value()].site;
      }
    }
  }
  made.plan.recompute = made.workload.recompute;
  if (below(2) == 0) made.plan.sync.sharded = Sharding::Optimizer;
  compute::take_system(made.plan, made.workload);
  if (below(3) == 0) made.plan.transfers.blocking = false;
  return made;
}

/// How much a prediction is off its simulation, relative, and on further lines what the checkers find wrong.
std::string comparison_of(std::uint64_t seed)
{
  ContextCase made = random_context_case(seed);
  const Cluster& cluster = made.on.cluster;
  allocators::price_by_playing(made.plan, made.workload, cluster);
  const compute::AsTrained trained(made.plan, made.workload, cluster);
  const Seconds simulated = simulated_step(made.plan, trained.workload(), trained.cluster(), made.on.platform);
  const double difference = std::abs(made.plan.predicted.value().step_time / simulated - 1);
  auto faults = faults_of(made.plan, made.workload, cluster);
  const auto program = schedules::make_program(made.plan, trained.workload(), trained.cluster());
  for (const auto& fault : faults_of(*program)) faults.push_back(fault);
  for (const auto& fault : faults_of_played(made.plan, trained.workload(), trained.cluster(), *program)) {
    faults.push_back(fault);
  }
  return fmt::format("{:.17g}\n{}", difference, fmt::join(faults, "\n"));
}

TEST(ContextPlans, AreAcceptedByTheCheckersAndTakeTheirSimulatedSteps)
{
  std::vector<std::function<std::string()>> work;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    work.emplace_back([seed] { return comparison_of(seed); });
  }
  const auto results = run_in_children(work, 2, Seconds(60));
  for (std::size_t i = 0; i < results.size(); ++i) {
    SCOPED_TRACE(fmt::format("seed {}", i + 1));
    if (results[i].failure) {
      ADD_FAILURE() << results[i].failure->text;
      continue;
    }
    const std::string& output = results[i].output;
    const std::size_t end = output.find('\n');
    EXPECT_EQ(output.substr(end + 1), "");
    EXPECT_LE(std::stod(output.substr(0, end)), tolerance);
  }
}

TEST(ContextPlans, HoldAllOfTheirParametersAndPartsOfTheirActivations)
{
  const auto peak_of = [](std::size_t degree, Sharding sharded) {
    const ContextShape shape{1, 1, 1, {degree, ContextExchange::AllToAll}};
    Cluster cluster;
    for (const auto& name : testing_support::names_for(shape)) {
      Device& device = cluster.devices.emplace_back();
      device.name = name;
      device.type = "A100-SXM4-80GB";
      device.memory = Bytes(1e12);
    }
    cluster.network = MatrixNetwork::uniform(degree, {Seconds(1e-6), BytesPerSecond(1e11)});
    Workload workload = with_context(testing_support::small_llama(), shape.context);
    compute::price(workload, cluster);
    Plan plan = testing_support::plan_in_parts(shape, workload.layers.size(), 1, testing_support::names_for(shape));
    plan.sync.sharded = sharded;
    compute::take_system(plan, workload);
    allocators::price_by_playing(plan, workload, cluster);
    return plan.predicted->peak_memory.begin()->second.value;
  };
  const Workload whole = testing_support::small_llama();
  double parameters = 0;
  for (const auto& layer : whole.layers) parameters += static_cast<double>(layer.parameters);
  const MemoryConstants& memory = find_framework("megatron-core-0.8")->memory;
  // What does not depend on the parts: twice what four parts hold, less what two hold.
  const double two = peak_of(2, Sharding::None);
  const double four = peak_of(4, Sharding::None);
  const double state = memory.state16.all() * parameters;
  EXPECT_GT(two, four);
  EXPECT_GT(2 * four - two, state);
  EXPECT_LT(2 * four - two, state + memory.context.value + 0.1 * state);
  // Of the optimizer's state each of all parts holds its part.
  const double divided = peak_of(4, Sharding::Optimizer);
  EXPECT_NEAR(four - divided, 0.75 * memory.state16.optimizer * parameters, 1e-6 * four);
}

}  // namespace
}  // namespace isobar::predictions::context_plans_test
