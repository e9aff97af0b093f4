#include "allocators/spmd/spmd_plan.hpp"

#include "allocators/spmd/share_search.hpp"
#include "allocators/spmd/strategy_search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace isobar::allocators::spmd::spmd_plan_test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

MoeSizes sizes_of(Trunk trunk, std::uint64_t layers, std::uint64_t experts)
{
  MoeSizes sizes;
  sizes.trunk = trunk;
  sizes.layers = layers;
  sizes.hidden = 768;
  sizes.heads = 12;
  sizes.intermediate = 3072;
  sizes.sequence = 128;
  sizes.experts = experts;
  sizes.top_k = 2;
  sizes.capacity_factor = 1.25;
  sizes.rounds_up = true;
  sizes.vocabulary = 33280;
  return sizes;
}

Workload adam_workload(std::uint64_t samples)
{
  Workload workload;
  workload.micro_batch = samples;
  workload.optimizer = Optimizer::Adam;
  return workload;
}

/// Devices of these speeds in TFLOP/s, with links of 15 µs and 12 GB/s.
Cluster cluster_of(const std::vector<double>& speeds, double gigabytes = 1000)
{
  Cluster cluster;
  for (const double speed : speeds) {
    Device& device = cluster.devices.emplace_back();
    device.speed = FlopsPerSecond(speed * 1e12);
    device.memory = Bytes(gigabytes * 1e9);
  }
  cluster.network = MatrixNetwork::uniform(speeds.size(), {Seconds(15e-6), BytesPerSecond(12e9)});
  return cluster;
}

std::vector<std::size_t> all_of(const Cluster& cluster)
{
  std::vector<std::size_t> devices(cluster.devices.size());
  std::iota(devices.begin(), devices.end(), std::size_t{0});
  return devices;
}

/// The cost of a plan by its forms alone, on devices without launches and memory traffic: shares no code with the
/// search but the sizes of pieces, and the times of operators and collectives.
class PlainCost {
 public:
  /// `across`: the time of a sum across replicas of some bytes.
  PlainCost(const OperatorGraph& whole, const Cluster& cluster, const SpmdPlan& plan,
            std::function<double(double)> across = {})
      : graph_(over_part_of_samples(whole, plan.microbatches)),
        cluster_(cluster),
        plan_(plan),
        across_(std::move(across)),
        pieces_(graph_, plan.shares)
  {
    group_.transfer = [&cluster](std::size_t from, std::size_t to, Bytes size) {
      const Path path = cluster.path(from, to);
      return TransferTimes{path.latency, path.data_time(size)};
    };
  }

  double cost()
  {
    const auto k = static_cast<double>(plan_.microbatches);
    std::vector<std::vector<Form>> forms(graph_.tensors.size());
    double time = 0, owed = 0, owed_backward = 0;
    struct Backward {
      double alone = 0, before_next = 0, conjugates = 0, gradients = 0;
    };
    std::vector<Backward> passes;  // with the bytes that a device stores of each part
    for (std::size_t part = 0; part < plan_.cuts.size(); ++part) {
      const std::size_t end = part + 1 < plan_.cuts.size() ? plan_.cuts[part + 1] : graph_.operators.size();
      std::vector<double> f(plan_.shares.size(), 0), fb = f;
      double c = 0, cb = 0, p = 0, pb = 0, stored = 0;
      for (std::size_t i = plan_.cuts[part]; i < end; ++i) {
        const Operator& node = graph_.operators[i];
        const Signature& signature = plan_.signatures[i];
        for (std::size_t j = 0; j < node.inputs.size(); ++j) {
          auto& has = forms[node.inputs[j]];
          const Form needed = signature.inputs[j];
          if (std::find(has.begin(), has.end(), needed) != has.end()) continue;
          EXPECT_EQ(has.size(), 1U) << node.name;
          const bool is_parameter = graph_.is_parameter(node.inputs[j]);
          EXPECT_TRUE(is_parameter || graph_.tensors[node.inputs[j]].producer < plan_.cuts[part]) << node.name;
          const Reform* reform = reform_between(has.front(), needed, Rules::Corrected);
          EXPECT_NE(reform, nullptr) << node.name;
          if (reform == nullptr) return 0;
          (is_parameter ? p : c) += time_of(reform->forward, node.inputs[j], has.front(), needed);
          if (graph_.has_gradient(node.inputs[j])) {
            (is_parameter ? pb : cb) +=
                time_of(reform->backward, node.inputs[j], gradient_form(needed), gradient_form(has.front()));
          }
          has.push_back(needed);
        }
        for (std::size_t j = 0; j < node.outputs.size(); ++j) forms[node.outputs[j]] = {signature.outputs[j]};
        double update = 0;
        for (std::size_t device = 0; device < f.size(); ++device) {
          const double rate = cluster_.devices[device].speed.value;
          const double piece = pieces_.part(node, signature, device);
          f[device] += piece * node.forward.value / rate;
          fb[device] += piece * node.backward.value / rate;
          if (node.kind != OperatorKind::Parameter) continue;
          update = std::max(update, 12 * piece * elements_of(graph_.tensors[node.outputs[0]]) / rate);
        }
        if (node.kind == OperatorKind::Parameter) {
          double largest = 0;
          for (std::size_t device = 0; device < f.size(); ++device) {
            largest = std::max(largest, pieces_.size(node.outputs[0], signature.outputs[0], device).value);
          }
          stored += largest;
        }
        time += update;
      }
      const double longest = *std::max_element(f.begin(), f.end());
      const double longest_backward = *std::max_element(fb.begin(), fb.end());
      if (plan_.microbatches == 1) {
        passes.push_back({pb > 0 ? cb : 0, (pb > 0 ? 0 : cb) + std::max(owed_backward, pb), pb, stored});
        time += std::max(owed, p) + c + std::max(owed_backward, pb) + cb;
      } else {
        passes.push_back(
            {(k - 1) * std::max(longest_backward, cb), std::max(owed_backward, pb + cb), pb > 0 ? pb + cb : 0, stored});
        time += std::max(owed, p + c) + std::max(owed_backward, pb + cb) +
                (k - 1) * (std::max(longest, c) + std::max(longest_backward, cb));
      }
      owed = longest;
      owed_backward = longest_backward;
    }
    if (!across_) return time + owed + owed_backward;
    double now = owed_backward;
    double lane = 0;
    for (auto pass = passes.rbegin(); pass != passes.rend(); ++pass) {
      now += pass->alone;
      if (pass->gradients > 0) lane = std::max(lane, now + pass->conjugates) + across_(pass->gradients);
      now += pass->before_next;
    }
    return time + owed + owed_backward + std::max(0.0, lane - now);
  }

 private:
  double time_of(ReformKind kind, std::size_t tensor, Form from, Form to) const
  {
    const auto opcode = opcode_of(kind);
    if (!opcode) return 0;
    return collective_time(*opcode, sizes_of_ends(*opcode, pieces_, tensor, from), group_,
                           results_of_ends(*opcode, pieces_, tensor, from, to))
        .value;
  }

  OperatorGraph graph_;
  const Cluster& cluster_;
  const SpmdPlan& plan_;
  std::function<double(double)> across_;
  Pieces pieces_;
  DeviceGroup group_;
};

TEST(SpmdPlan, CostsWhatItsFormsCost)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Bert, 2, 4), 32, 4);
  const Workload workload = adam_workload(32);
  for (const auto& speeds : {std::vector<double>{12, 12, 12, 12}, std::vector<double>{12, 4, 12}}) {
    const Cluster cluster = cluster_of(speeds);
    for (const std::uint64_t k : {1, 2, 4}) {
      SpmdOptions options;
      options.microbatches = {k};
      const SpmdPlan plan = find_spmd_plan(graph, workload, cluster, all_of(cluster), options).value();
      EXPECT_EQ(plan.microbatches, k);
      EXPECT_NEAR(plan.cost.value, PlainCost(graph, cluster, plan).cost(), 1e-9 * plan.cost.value);
      EXPECT_LE(plan.bound, plan.cost);
      EXPECT_GT(plan.bound, 0.5 * plan.cost);
    }
    for (const auto baseline : {Baseline::DpEv, Baseline::DpCp, Baseline::ExpertParallel}) {
      const SpmdPlan plan = baseline_plan(baseline, graph, workload, cluster, all_of(cluster));
      EXPECT_NEAR(plan.cost.value, PlainCost(graph, cluster, plan).cost(), 1e-9 * plan.cost.value);
    }
  }
}

TEST(SpmdPlan, OfReplicasCostsTheSumsOfGradientsThatOutlastTheBackwardPass)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Bert, 2, 4), 16, 4);
  const Workload workload = adam_workload(32);
  const Cluster cluster = cluster_of({12, 4, 12, 4});
  const auto across = [](double bytes) { return 2 * (15e-6 + bytes / 2 / 12e9); };
  for (const std::uint64_t k : {1, 2, 4}) {
    SpmdOptions options;
    options.microbatches = {k};
    options.shares = ShareRule::Speed;
    const SpmdPlan plan = find_spmd_plan(graph, workload, cluster, Replicas{{0, 1}, {2, 3}}, options).value();
    EXPECT_THAT(plan.shares, ElementsAre(0.75, 0.25));
    const double alone = PlainCost(graph, cluster, plan).cost();
    EXPECT_NEAR(plan.cost.value, PlainCost(graph, cluster, plan, across).cost(), 1e-8 * plan.cost.value);
    EXPECT_GT(plan.cost.value, 1.001 * alone);
    // The strategy that is best for one replica costs no less.
    const std::vector<std::size_t> first = {0, 1};
    const SpmdPlan single = find_spmd_plan(graph, workload, cluster, first, options).value();
    EXPECT_LE(single.cost.value, alone * (1 + 1e-9));
    EXPECT_LE(plan.cost.value, PlainCost(graph, cluster, single, across).cost() * (1 + 1e-8));
  }
}

/// Two nodes of two devices: links of 100 GB/s within them, and network cards that all flows between them share.
class TwoNodes : public Network {
 public:
  explicit TwoNodes(double card) : card_(card) {}

  Path path(std::size_t from, std::size_t to) const override
  {
    return {Seconds(15e-6), BytesPerSecond(from / 2 == to / 2 ? 100e9 : card_)};
  }
  std::vector<std::string> links(std::size_t, std::size_t) const override { return {}; }
  std::vector<SharedLink> shared_links(std::size_t from, std::size_t to) const override
  {
    if (from / 2 == to / 2) return {};
    return {{from < 2 ? "first up" : "second up", BytesPerSecond(card_)}};
  }

 private:
  double card_;
};

TEST(SpmdPlan, OfReplicasSharesTheCardsOfNodesAmongAllPositions)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Plain, 2, 4), 16, 4);
  const Workload workload = adam_workload(32);
  Cluster shared = cluster_of({12, 12, 12, 12});
  shared.network = std::make_shared<TwoNodes>(10e9);
  Cluster half = shared;
  std::vector<Path> paths;
  for (std::size_t i = 0; i < 16; ++i) {
    const bool is_near = i / 4 / 2 == i % 4 / 2;
    paths.push_back({Seconds(15e-6), BytesPerSecond(is_near ? 100e9 : 5e9)});
  }
  half.network = std::make_shared<MatrixNetwork>(4, paths);
  const Replicas nodes = {{0, 1}, {2, 3}};
  const SpmdPlan plan = find_spmd_plan(graph, workload, shared, nodes).value();
  EXPECT_NEAR(plan.cost.value, find_spmd_plan(graph, workload, half, nodes).value().cost.value, 1e-9 * plan.cost.value);
}

TEST(SpmdPlan, OfReplicasHasTheTimesAndTheMemoryOfTheLeastDevices)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Plain, 1, 0), 8, 4);
  const Workload workload = adam_workload(8);
  SpmdOptions options;
  options.shares = ShareRule::Even;
  const Replicas replicas = {{0, 1}, {2, 3}};
  const Cluster cluster = cluster_of({12, 12, 12, 6});
  const Cluster least = cluster_of({12, 6, 12, 6});
  const SpmdPlan plan = find_spmd_plan(graph, workload, cluster, replicas, options).value();
  EXPECT_EQ(plan.cost, find_spmd_plan(graph, workload, least, replicas, options).value().cost);
  for (const std::size_t device : {0, 1, 2, 3}) {
    Cluster tight = cluster;
    tight.devices[device].memory = Bytes(1e6);
    EXPECT_FALSE(find_spmd_plan(graph, workload, tight, replicas, options)) << device;
  }
}

TEST(SpmdPlan, IsTheBestOfItsNumbersOfMicrobatchesThatDivideTheSamples)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Plain, 2, 4), 12, 4);
  const Workload workload = adam_workload(12);
  const Cluster cluster = cluster_of({12, 12, 12});
  SpmdOptions options;
  options.microbatches = {1, 2, 4, 8};
  const SpmdPlan best = find_spmd_plan(graph, workload, cluster, all_of(cluster), options).value();
  Seconds least(1e9);
  for (const std::uint64_t k : {1, 2, 4}) {
    options.microbatches = {k};
    least = std::min(least, find_spmd_plan(graph, workload, cluster, all_of(cluster), options).value().cost);
  }
  EXPECT_EQ(best.cost, least);
}

TEST(SpmdPlan, OfEqualDevicesHasEvenSharesAndIsNotSlowerThanDataParallelism)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Bert, 4, 4), 32, 4);
  const Workload workload = adam_workload(32);
  const Cluster cluster = cluster_of({12, 12, 12, 12});
  const SpmdPlan plan = find_spmd_plan(graph, workload, cluster, all_of(cluster)).value();
  EXPECT_THAT(plan.shares, Each(0.25));
  EXPECT_EQ(plan.signatures.size(), graph.operators.size());
  EXPECT_LE(plan.cost, baseline_plan(Baseline::DpEv, graph, workload, cluster, all_of(cluster)).cost);
}

TEST(SpmdPlan, DataParallelismDividesTheSamplesAndEndsAPartWithEachLayer)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Bert, 2, 4), 32, 4);
  const Cluster cluster = cluster_of({12, 4});
  const SpmdPlan even = baseline_plan(Baseline::DpEv, graph, adam_workload(32), cluster, all_of(cluster));
  EXPECT_THAT(even.shares, ElementsAre(0.5, 0.5));
  EXPECT_EQ(even.cuts.size(), 4U);
  const SpmdPlan by_speed = baseline_plan(Baseline::DpCp, graph, adam_workload(32), cluster, all_of(cluster));
  EXPECT_THAT(by_speed.shares, ElementsAre(0.75, 0.25));
  EXPECT_LT(by_speed.cost, even.cost);
  for (std::size_t i = 0; i < graph.operators.size(); ++i) {
    const Operator& node = graph.operators[i];
    if (node.kind == OperatorKind::Parameter) {
      EXPECT_EQ(even.signatures[i].outputs[0], replicate) << node.name;
    } else if (node.kind == OperatorKind::Linear) {
      EXPECT_EQ(even.signatures[i].inputs[0], gather(0)) << node.name;
    }
  }
}

TEST(SpmdPlan, NeedsLessMemoryAndMoreTimeWhereMemoryIsShort)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Plain, 1, 0), 8, 4);
  const Workload workload = adam_workload(8);
  const std::vector<double> speeds = {12, 12, 12, 12};
  const Cluster roomy = cluster_of(speeds);
  const SpmdPlan free = find_spmd_plan(graph, workload, roomy, all_of(roomy)).value();
  EXPECT_TRUE(free.is_exact);
  const Bytes needed = free.memory.front();
  const Cluster tight = cluster_of(speeds, 0.9 * needed.value / 1e9);
  const SpmdPlan exact = find_spmd_plan(graph, workload, tight, all_of(tight)).value();
  EXPECT_TRUE(exact.fits);
  EXPECT_TRUE(exact.is_exact);
  EXPECT_LE(exact.memory.front(), 0.9 * needed);
  EXPECT_GT(exact.cost, free.cost);
  EXPECT_NEAR(exact.cost.value, PlainCost(graph, tight, exact).cost(), 1e-9 * exact.cost.value);
  SpmdOptions options;
  options.most_labels = 100;  // leaves prices of memory
  const SpmdPlan priced = find_spmd_plan(graph, workload, tight, all_of(tight), options).value();
  EXPECT_TRUE(priced.fits);
  EXPECT_FALSE(priced.is_exact);
  EXPECT_GE(priced.cost, exact.cost);
  EXPECT_LE(priced.cost, 1.1 * exact.cost);
  const Cluster tiny = cluster_of(speeds, 0.001);
  EXPECT_FALSE(find_spmd_plan(graph, workload, tiny, all_of(tiny)));
  EXPECT_FALSE(baseline_plan(Baseline::DpEv, graph, workload, tiny, all_of(tiny)).fits);
}

TEST(SpmdPlan, TakesTheRatesOfDevicesInPlaceOfTheCluster)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Plain, 2, 4), 8, 4);
  const Workload workload = adam_workload(8);
  const Cluster cluster = cluster_of({12, 12});
  SpmdOptions options;
  const Seconds without = find_spmd_plan(graph, workload, cluster, all_of(cluster), options).value().cost;
  options.rates = {2, DeviceRates{FlopsPerSecond(12e12), BytesPerSecond(9e11), Seconds(1e-5)}};
  EXPECT_GT(find_spmd_plan(graph, workload, cluster, all_of(cluster), options).value().cost, without);
}

#ifdef ISOBAR_HAS_CBC

TEST(BestShares, AreThoseOfASearchOverAllSharesForOneStrategy)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Plain, 2, 4), 64, 4);
  const Workload workload = adam_workload(64);
  SpmdDevices devices;
  devices.rates = {{FlopsPerSecond(12e12)}, {FlopsPerSecond(4e12)}};
  devices.memory.assign(2, Bytes(1e15));
  devices.group.transfer = [](std::size_t, std::size_t, Bytes size) {
    return TransferTimes{Seconds(1e-5), size / BytesPerSecond(5e9)};
  };
  const auto cost_with = [&](double share, std::uint64_t k, const std::vector<StrategyStage>& stages) {
    const DividedGraph divided(graph, Rules::Corrected, workload, devices, {share, 1 - share}, k);
    return cost_of(divided.problem(), CostFormula::Duplex, stages).time.value;
  };
  for (const std::uint64_t k : {1, 2}) {
    const DividedGraph divided(graph, Rules::Corrected, workload, devices, {0.5, 0.5}, k);
    StrategyProblem problem = divided.problem();
    const auto stages = find_strategy(problem, CostFormula::Duplex).value().stages;
    const double found = cost_with(best_shares(divided, problem, stages).value()[0], k, stages);
    double least = 1e9;
    for (int i = 0; i <= 64; ++i) least = std::min(least, cost_with(i / 64.0, k, stages));
    EXPECT_LE(found, 1.02 * least);
    EXPECT_LT(found, 0.8 * cost_with(0.5, k, stages));
  }
}

TEST(SpmdPlan, OfUnequalDevicesIsNotSlowerThanWithEvenSharesOrSharesBySpeed)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Plain, 2, 4), 64, 4);
  const Workload workload = adam_workload(64);
  const Cluster cluster = cluster_of({12, 4, 12, 4});
  const SpmdPlan plan = find_spmd_plan(graph, workload, cluster, all_of(cluster)).value();
  EXPECT_GE(plan.turns, 2U);
  EXPECT_NEAR(std::accumulate(plan.shares.begin(), plan.shares.end(), 0.0), 1, 1e-12);
  EXPECT_EQ(plan.shares[0], plan.shares[2]);
  EXPECT_GT(plan.shares[0], plan.shares[1]);
  EXPECT_LT(plan.cost, baseline_plan(Baseline::DpCp, graph, workload, cluster, all_of(cluster)).cost);
  EXPECT_LT(plan.cost, baseline_plan(Baseline::DpEv, graph, workload, cluster, all_of(cluster)).cost);
  EXPECT_NEAR(plan.cost.value, PlainCost(graph, cluster, plan).cost(), 1e-9 * plan.cost.value);
}

TEST(SpmdPlan, KeepsTheSharesOfARule)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Plain, 2, 4), 64, 4);
  const Workload workload = adam_workload(64);
  const Cluster cluster = cluster_of({12, 4, 12, 4});
  const auto plan_by = [&](ShareRule rule) {
    SpmdOptions options;
    options.shares = rule;
    return find_spmd_plan(graph, workload, cluster, all_of(cluster), options).value();
  };
  const SpmdPlan even = plan_by(ShareRule::Even);
  const SpmdPlan by_speed = plan_by(ShareRule::Speed);
  EXPECT_EQ(even.shares, (std::vector<double>{0.25, 0.25, 0.25, 0.25}));
  EXPECT_EQ(by_speed.shares, (std::vector<double>{0.375, 0.125, 0.375, 0.125}));
  EXPECT_EQ(even.turns + by_speed.turns, 0U);
  const SpmdPlan best = plan_by(ShareRule::Best);
  EXPECT_LE(best.cost, even.cost);
  EXPECT_LE(best.cost, by_speed.cost);
}

TEST(SpmdPlan, GivesNothingToADeviceThatIsTooSlow)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Plain, 1, 0), 8, 4);
  const Workload workload = adam_workload(8);
  const Cluster cluster = cluster_of({12, 12, 0.0001});
  const SpmdPlan plan = find_spmd_plan(graph, workload, cluster, all_of(cluster)).value();
  const Pieces pieces(graph, plan.shares);
  EXPECT_EQ(pieces.part(0, gather(0), 2), 0);
  EXPECT_GT(pieces.part(0, gather(0), 1), 0);
  EXPECT_NEAR(plan.cost.value, PlainCost(graph, cluster, plan).cost(), 1e-9 * plan.cost.value);
}

#endif

std::uint64_t labels_of(std::uint64_t layers, std::size_t count)
{
  const auto graph = make_operator_graph(sizes_of(Trunk::Bert, layers, count), 32 * count, 4);
  const Workload workload = adam_workload(32 * count);
  SpmdDevices devices;
  devices.rates.assign(count, {FlopsPerSecond(12e12)});
  devices.memory.assign(count, Bytes(1e15));
  devices.group.transfer = [](std::size_t, std::size_t, Bytes size) {
    return TransferTimes{Seconds(15e-6), size / BytesPerSecond(12e9)};
  };
  const DividedGraph divided(graph, Rules::Corrected, workload, devices, even_shares(devices), 2);
  StrategyProblem problem = divided.problem();
  problem.memory.clear();
  return find_strategy(problem, CostFormula::Duplex).value().counts.labels;
}

TEST(SpmdPlan, KeepsLabelsInProportionToLayers)
{
  // The coefficient of determination of a line through labels over layers.
  double n = 0, x = 0, y = 0, xx = 0, xy = 0, yy = 0;
  for (const std::uint64_t layers : {2, 4, 8, 12, 16, 20, 24}) {
    const auto labels = static_cast<double>(labels_of(layers, 4));
    const auto l = static_cast<double>(layers);
    n += 1, x += l, y += labels, xx += l * l, xy += l * labels, yy += labels * labels;
  }
  const double correlation = (n * xy - x * y) / std::sqrt((n * xx - x * x) * (n * yy - y * y));
  EXPECT_GE(correlation * correlation, 0.99);
}

TEST(SpmdPlan, KeepsAsManyLabelsForManyDevicesAsForFew)
{
  std::vector<std::uint64_t> labels;
  for (const std::size_t devices : {2, 4, 8, 16, 32, 64}) labels.push_back(labels_of(6, devices));
  const auto [least, most] = std::minmax_element(labels.begin(), labels.end());
  EXPECT_LE(static_cast<double>(*most) / static_cast<double>(*least), 1.2);
}

}  // namespace
}  // namespace isobar::allocators::spmd::spmd_plan_test
