#include "allocators/spmd/strategy_search.hpp"
#include "allocators/spmd/strategy_bound.hpp"
#include "tests/allocators/spmd/all_strategies.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace isobar::allocators::spmd::strategy_search_test {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr std::array<CostFormula, 4> formulas = {CostFormula::Paper, CostFormula::Code, CostFormula::Symmetric,
                                                 CostFormula::None};

ParityProfile profile_of(std::uint64_t devices)
{
  return {
      devices, FlopsPerSecond(1e9), BytesPerSecond(1e8), BytesPerSecond(5e7), BytesPerSecond(1e8), BytesPerSecond(2e8)};
}

/// The published graph of a small T-MoE.
StrategyProblem t_moe(std::uint64_t layers)
{
  MoeSizes sizes;
  sizes.layers = layers;
  sizes.hidden = 64;
  sizes.heads = 4;
  sizes.intermediate = 256;
  sizes.sequence = 32;
  sizes.experts = 4;
  sizes.capacity_factor = 1.25;
  sizes.parity = true;
  return make_problem(make_operator_graph(sizes, 16, 4), Rules::Published, profile_of(2));
}

/// BERT-SGMoE on `devices`, with as many experts.
StrategyProblem bert(std::uint64_t devices, std::uint64_t layers)
{
  MoeSizes sizes;
  sizes.trunk = Trunk::Bert;
  sizes.layers = layers;
  sizes.hidden = 768;
  sizes.heads = 12;
  sizes.intermediate = 3072;
  sizes.sequence = 128;
  sizes.experts = devices;
  sizes.top_k = 2;
  sizes.capacity_factor = 1.25;
  sizes.rounds_up = true;
  sizes.vocabulary = devices * (33278 / devices + 1);
  sizes.parity = true;
  const ParityProfile profile{devices,
                              FlopsPerSecond(4.1e12),
                              BytesPerSecond(1.22e9),
                              BytesPerSecond(6.1e8),
                              BytesPerSecond(1.13e9),
                              BytesPerSecond(1.07e10)};
  return make_problem(make_operator_graph(sizes, 32 * devices, 4), Rules::Published, profile);
}

std::map<std::string, std::uint64_t> collectives_of(const Strategy& strategy)
{
  std::map<std::string, std::uint64_t> counts;
  for (const auto& [kind, count] : reforms_of(strategy, Rules::Published)) counts[std::string(name_of(kind))] = count;
  return counts;
}

TEST(StrategySearch, FindsThePublishedCostsOfASmallTMoe)
{
  const StrategyProblem problem = t_moe(2);
  const auto cost = [&](CostFormula formula) { return find_strategy(problem, formula).value().cost.value; };
  EXPECT_NEAR(cost(CostFormula::Paper), 0.153583616, 5e-10);
  EXPECT_NEAR(cost(CostFormula::Code), 0.475754976, 5e-10);
  EXPECT_NEAR(cost(CostFormula::Symmetric), 0.464198560, 5e-10);
  EXPECT_NEAR(cost(CostFormula::None), 0.482685760, 5e-10);
}

TEST(StrategySearch, FindsThePublishedCollectivesOfASmallTMoe)
{
  const StrategyProblem problem = t_moe(2);
  const Strategy code = find_strategy(problem, CostFormula::Code).value();
  EXPECT_THAT(collectives_of(code),
              ElementsAre(Pair("all_gather", 13), Pair("all_to_all", 2), Pair("replicate", 8), Pair("slice", 1)));
  EXPECT_EQ(code.stages.size(), 13U);
  const auto none = collectives_of(find_strategy(problem, CostFormula::None).value());
  EXPECT_EQ(none.at("all_to_all"), 2U);
  EXPECT_EQ(none.at("replicate"), 21U);
  EXPECT_EQ(none.count("all_gather") + none.count("all_reduce") + none.count("reduce_scatter"), 0U);
}

/// The problem in which each operator has a strategy's option alone; none if operators are missing in its stages.
std::optional<StrategyProblem> fixed_to(const StrategyProblem& problem, const Strategy& strategy)
{
  StrategyProblem fixed = problem;
  std::size_t next = 0;
  for (const auto& stage : strategy.stages) {
    if (stage.first != next || stage.options.size() != stage.last - stage.first + 1) return std::nullopt;
    for (const auto option : stage.options) {
      auto& options = fixed.nodes[next++].options;
      options = {options[option]};
    }
  }
  if (next != problem.nodes.size()) return std::nullopt;
  return fixed;
}

/// A graph of up to 8 operators with random signatures, on devices of one or two kinds.
StrategyProblem random_problem(std::uint64_t seed)
{
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  const auto seconds = [&](std::uint64_t limit) { return Seconds(static_cast<double>(below(limit)) * 1e-4); };
  const std::vector<Form> made = {full, gather(0), gather(1), reduce};
  StrategyProblem problem;
  problem.rules = below(2) == 0 ? Rules::Published : Rules::Corrected;
  const std::size_t kinds = 1 + below(2);
  std::vector<Bytes> sizes;
  const std::size_t nodes = 2 + below(7);
  for (std::size_t i = 0; i < nodes; ++i) {
    StrategyNode& node = problem.nodes.emplace_back();
    const bool is_source = i == 0 || below(4) == 0;
    const bool is_parameter = is_source && below(2) == 0;
    if (!is_source) {
      for (std::uint64_t inputs = 1 + below(2); inputs > 0; --inputs) {
        const std::size_t near = std::min<std::size_t>(sizes.size(), 4);
        node.inputs.push_back(sizes.size() - 1 - below(near));
      }
    }
    const std::size_t outputs = i + 1 == nodes ? 0 : below(8) == 0 ? 2 : 1;
    for (std::uint64_t signatures = 1 + below(3); signatures > 0; --signatures) {
      StrategyNode::Option option;
      for (std::size_t k = 0; k < node.inputs.size(); ++k) option.signature.inputs.push_back(made[below(4)]);
      for (std::size_t k = 0; k < outputs; ++k) {
        option.signature.outputs.push_back(is_source && below(2) == 0 ? replicate : made[below(4)]);
      }
      for (std::size_t kind = 0; kind < kinds; ++kind) {
        Load& load = option.loads.emplace_back();
        load.memory = Bytes(static_cast<double>(below(10)));
        if (is_parameter) load.update = seconds(10);
        if (is_source) continue;
        load.forward = seconds(50);
        load.backward = (1.0 + static_cast<double>(below(2))) * load.forward;
      }
      node.options.push_back(std::move(option));
    }
    for (std::size_t k = 0; k < outputs; ++k) {
      node.outputs.push_back(sizes.size());
      sizes.emplace_back(static_cast<double>(1000 * below(200)));
      problem.is_parameter.push_back(is_parameter);
    }
  }
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    problem.memory.emplace_back(static_cast<double>(nodes * (3 + below(4))));
  }
  problem.reform_cost = [sizes, kinds, rules = problem.rules](std::size_t tensor, Form from, Form to) {
    const ParityProfile profile = profile_of(2);
    const Reform* reform = reform_between(from, to, rules);
    ReformCost cost{profile.time_of(reform->forward, sizes[tensor]), profile.time_of(reform->backward, sizes[tensor])};
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      cost.memory.emplace_back(std::floor(sizes[tensor].value / 5e4) * static_cast<double>(kind + 1));
    }
    return cost;
  };
  return problem;
}

/// With backward compute of twice the forward one, as the formulas of HiDup have it, and no limit of memory.
StrategyProblem as_published(StrategyProblem problem)
{
  problem.memory.clear();
  for (auto& node : problem.nodes) {
    for (auto& option : node.options) {
      for (auto& load : option.loads) load.backward = 2 * load.forward;
    }
  }
  problem.is_parameter.assign(problem.is_parameter.size(), false);
  return problem;
}

TEST(StrategySearch, FindsTheLeastCostOfAllStrategiesOfRandomGraphs)
{
  std::size_t with_strategy = 0;
  for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
    const StrategyProblem problem = as_published(random_problem(seed));
    const auto least = plain::AllStrategies(problem).least_costs().published;
    with_strategy += std::isfinite(least[0]) ? 1 : 0;
    for (const auto formula : formulas) {
      const auto strategy = find_strategy(problem, formula);
      const double expected = least[static_cast<std::size_t>(formula)];
      ASSERT_EQ(strategy.has_value(), std::isfinite(expected)) << "seed " << seed;
      if (!strategy) continue;
      ASSERT_NEAR(strategy->cost.value, expected, 1e-12) << "seed " << seed << " " << name_of(formula);
      const auto fixed = fixed_to(problem, *strategy);
      ASSERT_TRUE(fixed) << "seed " << seed;
      const auto again = plain::AllStrategies(*fixed).least_costs().published;
      ASSERT_NEAR(again[static_cast<std::size_t>(formula)], expected, 1e-12) << "seed " << seed;
    }
  }
  EXPECT_GE(with_strategy, 1000U);
}

/// Lets replicas add up the gradients of those of a problem's parameters that the next operator reads.
void add_replicas(StrategyProblem& problem, std::uint64_t seed)
{
  std::mt19937_64 random(seed);
  problem.has_replicas = true;
  for (std::size_t i = 0; i + 1 < problem.nodes.size(); ++i) {
    StrategyNode& node = problem.nodes[i];
    if (node.outputs.size() != 1 || !problem.is_parameter[node.outputs.front()]) continue;
    const auto& read = problem.nodes[i + 1].inputs;
    if (std::find(read.begin(), read.end(), node.outputs.front()) == read.end()) continue;
    for (auto& option : node.options) {
      for (auto& load : option.loads) load.across = Seconds(static_cast<double>(random() % 100) * 1e-4);
    }
  }
}

TEST(StrategySearch, FindsTheLeastDuplexCostOfAllStrategiesWithAndWithoutLimitsOfMemory)
{
  std::size_t with_strategy = 0;
  std::size_t made_slower = 0;
  std::size_t left_without = 0;
  for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
    StrategyProblem problem = random_problem(seed);
    problem.interference = 1 + 0.2 * static_cast<double>(seed % 4);
    if (seed % 2 == 0) add_replicas(problem, seed);
    const auto least = plain::AllStrategies(problem).least_costs();
    with_strategy += std::isfinite(least.limited.at(2)) ? 1 : 0;
    made_slower += least.limited.at(2) > least.unlimited.at(2) + 1e-12 ? 1 : 0;
    left_without += !std::isfinite(least.limited.at(2)) && std::isfinite(least.unlimited.at(2)) ? 1 : 0;
    for (const std::uint64_t k : {1, 2, 4}) {
      problem.microbatches = k;
      for (const bool is_limited : {true, false}) {
        StrategyProblem its = problem;
        if (!is_limited) its.memory.clear();
        const double expected = (is_limited ? least.limited : least.unlimited).at(k);
        const auto strategy = find_strategy(its, CostFormula::Duplex);
        ASSERT_EQ(strategy.has_value(), std::isfinite(expected)) << "seed " << seed << " k " << k;
        if (!strategy) continue;
        ASSERT_NEAR(strategy->cost.value, expected, 1e-12) << "seed " << seed << " k " << k;
        const auto fixed = fixed_to(its, *strategy);
        ASSERT_TRUE(fixed) << "seed " << seed;
        const auto again = plain::AllStrategies(*fixed).least_costs();
        ASSERT_NEAR((is_limited ? again.limited : again.unlimited).at(k), expected, 1e-12) << "seed " << seed;
        const StrategyCost cost = cost_of(its, CostFormula::Duplex, strategy->stages);
        ASSERT_NEAR(cost.time.value, expected, 1e-12) << "seed " << seed;
        for (std::size_t kind = 0; kind < its.memory.size(); ++kind) {
          ASSERT_LE(cost.memory[kind], its.memory[kind]) << "seed " << seed;
        }
      }
    }
  }
  EXPECT_GE(with_strategy, 1000U);
  EXPECT_GE(made_slower, 100U);
  EXPECT_GE(left_without, 50U);
}

TEST(StrategyBound, IsNotAboveTheCostOfAnyStrategyOfRandomGraphs)
{
  double closest = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    StrategyProblem problem = random_problem(seed);
    problem.interference = 1 + 0.2 * static_cast<double>(seed % 4);
    const auto least = plain::AllStrategies(problem).least_costs();
    for (const std::uint64_t k : {1, 2, 4}) {
      problem.microbatches = k;
      for (std::size_t kind = 0; kind < problem.kinds(); ++kind) {
        const double bound = lower_bound(problem, kind).value;
        ASSERT_EQ(std::isfinite(bound), std::isfinite(least.unlimited.at(k))) << "seed " << seed;
        if (!std::isfinite(bound)) continue;
        ASSERT_LE(bound, least.unlimited.at(k) * (1 + 1e-12)) << "seed " << seed << " k " << k;
        closest = std::max(closest, bound / std::max(least.unlimited.at(k), 1e-9));
      }
    }
  }
  EXPECT_GE(closest, 0.99);
}

/// Operators that pass on whole tensors.
StrategyProblem chain_of_whole_tensors(std::size_t nodes)
{
  StrategyProblem problem;
  for (std::size_t i = 0; i < nodes; ++i) {
    StrategyNode& node = problem.nodes.emplace_back();
    StrategyNode::Option option;
    option.loads = {{Seconds(1), Seconds(2)}};
    if (i > 0) {
      node.inputs = {i - 1};
      option.signature.inputs = {full};
    }
    if (i + 1 < nodes) {
      node.outputs = {i};
      option.signature.outputs = {full};
      problem.is_parameter.push_back(false);
    }
    node.options = {option};
  }
  return problem;
}

TEST(StrategySearch, PausesWithoutAReformOnlyAfterElevenOperators)
{
  const auto lengths = [](std::size_t nodes) {
    std::vector<std::size_t> counts;
    const Strategy strategy = find_strategy(chain_of_whole_tensors(nodes), CostFormula::Paper).value();
    for (const auto& stage : strategy.stages) {
      counts.push_back(stage.options.size());
    }
    return counts;
  };
  EXPECT_THAT(lengths(11), ElementsAre(11));
  EXPECT_THAT(lengths(25), ElementsAre(11, 11, 3));
}

TEST(StrategySearch, HasNoAnswerWithoutAStrategy)
{
  StrategyProblem problem = chain_of_whole_tensors(2);
  problem.nodes[1].options[0].signature.inputs = {replicate};
  EXPECT_FALSE(find_strategy(problem, CostFormula::Code));
}

TEST(StrategySearch, KeepsLabelsInProportionToLayers)
{
  // The coefficient of determination of a line through labels over layers.
  double n = 0, x = 0, y = 0, xx = 0, xy = 0, yy = 0;
  for (const std::uint64_t layers : {2, 4, 8, 12, 16, 20, 24}) {
    const auto labels = static_cast<double>(find_strategy(t_moe(layers), CostFormula::Code).value().counts.labels);
    const auto l = static_cast<double>(layers);
    n += 1, x += l, y += labels, xx += l * l, xy += l * labels, yy += labels * labels;
  }
  const double correlation = (n * xy - x * y) / std::sqrt((n * xx - x * x) * (n * yy - y * y));
  EXPECT_GE(correlation * correlation, 0.99);
}

TEST(StrategySearch, KeepsAsManyLabelsForManyDevicesAsForFew)
{
  std::vector<std::uint64_t> labels;
  for (const std::uint64_t devices : {2, 4, 8, 16, 32, 64}) {
    labels.push_back(find_strategy(bert(devices, 6), CostFormula::Code).value().counts.labels);
  }
  const auto [least, most] = std::minmax_element(labels.begin(), labels.end());
  EXPECT_LE(static_cast<double>(*most) / static_cast<double>(*least), 1.2);
}

TEST(CostFormulas, AddTheTimesOfAStage)
{
  const StageTimes stage{2, 4, 0.5, 3, 2, 1, 1};
  const auto added = [&](CostFormula formula, std::uint64_t k = 2) {
    return accumulated(formula, k, 100, Debts{1, 2}, stage);
  };
  EXPECT_EQ(added(CostFormula::Paper), 100 + 4 + 4);
  EXPECT_EQ(added(CostFormula::Code), 100 + 4 + 4 + 2 + 3 + 4 + 3);
  EXPECT_EQ(added(CostFormula::Symmetric), 100 + 4 + 4 + 3 + 4);
  EXPECT_EQ(added(CostFormula::None), 100 + 1 + 4 + 2 + 4 + 2 + 3 + 4 + 3);
  EXPECT_EQ(added(CostFormula::Duplex, 1), 100 + 0.5 + 1 + 3 + 2 + 2);
  EXPECT_EQ(added(CostFormula::Duplex, 2), 100 + 0.5 + 4 + 3 + 3 + 4);
  EXPECT_EQ(added(CostFormula::Duplex, 4), 100 + 0.5 + 4 + 3 * 3 + 3 + 3 * 4);
  EXPECT_EQ(added(CostFormula::Sum, 4), 100 + 0.5 + 4 * (2 + 4 + 3 + 2) + 1 + 1);
  for (const auto formula : formulas) EXPECT_EQ(cost_formula_from_name(name_of(formula)), formula);
  EXPECT_THAT(cost_formula_names(), ElementsAre("paper", "code", "symmetric", "none"));
}

TEST(CostFormulas, LetReplicasAddUpGradientsBesideTheBackwardPass)
{
  const StageTimes first{1, 2, 0, 0, 0, 0, 0, 3};
  const StageTimes second{1, 4, 0, 0, 0, 0, 0, 5};
  ReplicaLane lane;
  lane.add(2, 0, first, 1);
  EXPECT_EQ(lane.overhang, 3) << "nothing is left of the backward pass";
  lane.add(2, 2, second, 1);
  EXPECT_EQ(lane.overhang, 4) << "5, beside the 4 that are left, and then 3";
  ReplicaLane hidden;
  hidden.add(2, 0, StageTimes{1, 2}, 1);
  hidden.add(2, 2, StageTimes{1, 4, 0, 0, 0, 0, 0, 3.5}, 1);
  EXPECT_EQ(hidden.overhang, 0);
  ReplicaLane after_conjugates;
  after_conjugates.add(2, 0, StageTimes{1, 2}, 1);
  after_conjugates.add(2, 2, StageTimes{1, 4, 0, 0, 0, 0, 1, 3.5}, 1);
  EXPECT_EQ(after_conjugates.overhang, 0.5) << "its gradients come 1 later";
}

TEST(CostFormulas, SlowDownWhatComputesBesideACollective)
{
  EXPECT_EQ(overlapped(2, 3, 1), 3);
  EXPECT_EQ(overlapped(3, 2, 1), 3);
  EXPECT_EQ(overlapped(3, 0, 1.25), 3);
  EXPECT_EQ(overlapped(2, 2.5, 1.25), 2.5) << "both end at once";
  EXPECT_EQ(overlapped(2, 4, 1.25), 4);
  EXPECT_DOUBLE_EQ(overlapped(10, 5, 1.25), 5 + (10 - 5 / 1.25));
  const StageTimes stage{2, 4, 0.5, 3, 2, 1, 1};
  EXPECT_DOUBLE_EQ(accumulated(CostFormula::Duplex, 2, 100, Debts{1, 2}, stage, 1.25),
                   100 + 0.5 + 4 + 3 + 3 + (2 + 4 - 2 / 1.25));
  EXPECT_EQ(accumulated(CostFormula::Sum, 2, 100, Debts{1, 2}, stage, 1.25),
            accumulated(CostFormula::Sum, 2, 100, Debts{1, 2}, stage));
}

}  // namespace
}  // namespace isobar::allocators::spmd::strategy_search_test
