#include "allocators/exact/path_relaxation.hpp"

#include "core/certificates/certificate_checker.hpp"
#include "tests/allocators/exact/brute_force.hpp"
#include "tests/allocators/exact/step_turns.hpp"
#include "tests/support/instances.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

namespace isobar::allocators::path_relaxation_test {
namespace {

using namespace testing_support;  // NOLINT: a test file

constexpr double infinity = std::numeric_limits<double>::infinity();

/// A random problem with a random limit and random multipliers.
struct Instance {
  Instance(std::mt19937_64& random, int number)
      : workload(random_chain(random, 1 + random() % 5)),
        cluster(cluster_of(random, number)),
        cost(workload, cluster),
        microbatches(1 + random() % 5),
        most_groups(number % 5 == 0 ? 2 : 12)
  {
    std::uniform_real_distribution<double> unit(0, 1);
    limit = number % 4 == 0 ? infinity : 0.3 + 2.5 * unit(random);
    for (std::size_t i = 0; i < 20; ++i) noise.push_back(random() % 4 == 0 ? 0 : unit(random));
  }

  static Cluster cluster_of(std::mt19937_64& random, int number)
  {
    const double memory = number % 3 == 0 ? 1e9 : 60 * std::pow(0.5, static_cast<double>(random() % 3));
    if (number % 2 == 0) return random_cluster(random, 1 + random() % 4, memory);
    return random_sites(random, 1 + random() % 2, 1 + random() % 2, memory);
  }

  std::vector<double> multipliers(const StageTables& tables) const
  {
    return {noise.begin(), noise.begin() + static_cast<std::ptrdiff_t>(tables.kinds())};
  }

  Workload workload;
  Cluster cluster;
  CostModel cost;
  std::uint64_t microbatches;
  std::size_t most_groups;
  double limit = 0;
  std::vector<double> noise;
};

/// Calls visit(goal, instance, tables, relaxation, multipliers) for every goal of many instances.
template <typename Visit>
void for_each_relaxation(int instances, const Visit& visit)
{
  std::mt19937_64 random(51);
  for (int number = 0; number < instances; ++number) {
    const Instance instance(random, number);
    for (const Goal& goal : all_goals(instance.microbatches)) {
      const StageTables tables(
          instance.cost, goal, instance.most_groups, [] {}, number % 3 == 0 ? 1 : 8);
      PathRelaxation relaxation(tables, [] {});
      relaxation.set_limit(instance.limit);
      visit(instance, tables, relaxation, instance.multipliers(tables));
      if (testing::Test::HasFailure()) {
        FAIL() << "instance " << number << ", " << name_of(goal.objective) << ", " << name_of(goal.communication)
               << ", " << text_of(goal.schedule);
      }
    }
  }
}

/// Calls visit(stages, sum) for every placement within the limit, with the sum that the goal's beta weighs.
template <typename Visit>
void for_each_within(const Instance& instance, const Goal& goal, const Visit& visit)
{
  for_each_placement(instance.cost.layers(), instance.cost.devices(), true, [&](const auto& stages) {
    if (!memory_holds(instance.cost, stages, goal)) return;
    if (goal.objective == Objective::Step) {
      const Turns turns = turns_of(instance.cost, stages, goal);
      if (turns.largest <= instance.limit) visit(stages, turns.alone);
      return;
    }
    const auto evaluation = instance.cost.evaluate(stages, goal);
    if (evaluation.bottleneck.value <= instance.limit) visit(stages, evaluation.sum.value);
  });
}

TEST(PathRelaxation, IsNeverAboveAPlacementWithinItsLimit)
{
  std::size_t compared = 0;
  for_each_relaxation(300, [&](const Instance& instance, const StageTables& tables, PathRelaxation& relaxation,
                               const std::vector<double>& multipliers) {
    const double value = relaxation.solve(multipliers);
    double least = infinity;
    for_each_within(instance, tables.goal(), [&](const auto& stages, double sum_of_costs) {
      double sum = tables.weights().beta * sum_of_costs;
      for (const auto& stage : stages) sum += multipliers[tables.kind_of(stage.device)];
      least = std::min(least, sum);
    });
    if (least < infinity) ++compared;
    EXPECT_LE(value, least * (1 + 1e-9));
  });
  EXPECT_GT(compared, 3000U);
}

/// The least of all sequences of stages, by trying them all from the end; with or without the limit on runs.
class Sequences {
 public:
  Sequences(const StageTables& tables, double limit, const std::vector<double>& multipliers, bool with_runs)
      : tables_(tables),
        limit_(limit * (1 + 1e-12)),
        most_cost_(tables.limits_turns() ? infinity : limit_),
        multipliers_(multipliers),
        with_runs_(with_runs),
        outputs_(tables.all_outputs()),
        gradients_(tables.all_gradients())
  {
    if (tables.goal().communication == Communication::Played) tables.transfers_within(limit_, outputs_, gradients_);
  }

  double least()
  {
    std::vector<std::size_t> run(tables_.kinds(), 0);
    put_before(tables_.layers(), 0, 0, tables_.kinds(), 0, 0, run);
    return least_;
  }

 private:
  /// Puts stages before those from `end` on, whose first is on kind `next` with this compute and these activations to
  /// send.
  void put_before(std::size_t end, std::size_t stages, double sum, std::size_t next, double compute, double sent,
                  const std::vector<std::size_t>& run)
  {
    for (std::size_t kind = 0; kind < tables_.kinds(); ++kind) {
      const std::size_t group = tables_.group_of(kind);
      const bool is_last = next == tables_.kinds();
      const bool continues_run = !is_last && tables_.group_of(next) == group;
      double total = sum + multipliers_[kind];
      if (!is_last) {
        const double cost = tables_.stage_cost(compute, sent + gradients_[tables_.transfer_index(next, end) + group]);
        if (!(cost <= most_cost_)) continue;
        total += tables_.weights().beta * cost;
      }
      std::vector<std::size_t> new_run = continues_run ? run : std::vector<std::size_t>(tables_.kinds(), 0);
      const bool is_counted = with_runs_ && tables_.groups() > 1;
      if (++new_run[kind] > tables_.devices_of(kind).size() && is_counted) continue;
      const double output = is_last ? 0 : outputs_[tables_.transfer_index(kind, end) + tables_.group_of(next)];
      for (std::size_t first = 0; first < end; ++first) {
        if (!tables_.fits(tables_.level_of(stages), kind, first, end)) continue;
        const double own = tables_.compute(kind, first, end);
        if (tables_.turn(tables_.level_of(stages), kind, first, end) > limit_) continue;
        if (first > 0) {
          put_before(first, stages + 1, total, kind, own, output, new_run);
          continue;
        }
        const double cost = tables_.stage_cost(own, output);
        const double input = tables_.input_cost(kind);
        if (cost <= most_cost_ && tables_.input_turn(kind) <= limit_) {
          least_ = std::min(least_, total + tables_.weights().beta * (cost + input));
        }
      }
    }
  }

  const StageTables& tables_;
  double limit_;
  double most_cost_;
  const std::vector<double>& multipliers_;
  bool with_runs_;
  std::vector<double> outputs_;
  std::vector<double> gradients_;
  double least_ = infinity;
};

TEST(PathRelaxation, IsTheLeastOfAllSequencesWhoseRunsUseDevicesOnce)
{
  std::size_t runs_matter = 0;
  for_each_relaxation(200, [&](const Instance&, const StageTables& tables, PathRelaxation& relaxation,
                               const std::vector<double>& multipliers) {
    const double value = relaxation.solve(multipliers);
    const double least = Sequences(tables, relaxation.limit(), multipliers, true).least();
    const double without_runs = Sequences(tables, relaxation.limit(), multipliers, false).least();
    EXPECT_GE(value, without_runs * (1 - 1e-9));
    if (value > without_runs * (1 + 1e-6)) ++runs_matter;
    if (std::isinf(least)) {
      EXPECT_EQ(value, least);
    } else {
      EXPECT_NEAR(value, least, 1e-9 * least);
    }
  });
  EXPECT_GT(runs_matter, 100U);
}

TEST(PathRelaxation, CountsUsesThatMultipliersPayFor)
{
  for_each_relaxation(100, [&](const Instance&, const StageTables& tables, PathRelaxation& relaxation,
                               std::vector<double> multipliers) {
    const double value = relaxation.solve(multipliers);
    if (std::isinf(value)) return;
    std::vector<std::uint32_t> uses;
    relaxation.count_uses(uses);
    EXPECT_GE(std::accumulate(uses.begin(), uses.end(), 0U), 1U);
    // The sequence still exists when prices change: the least is no more expensive.
    for (std::size_t kind = 0; kind < tables.kinds(); ++kind) {
      multipliers[kind] += 0.1;
      EXPECT_LE(relaxation.solve(multipliers), value + 0.1 * uses[kind] + 1e-9);
      multipliers[kind] -= 0.1;
    }
    // Without multipliers, the sequence costs the rest.
    double charged = 0;
    for (std::size_t kind = 0; kind < tables.kinds(); ++kind) charged += uses[kind] * multipliers[kind];
    EXPECT_LE(relaxation.solve(std::vector<double>(tables.kinds(), 0)), value - charged + 1e-9);
  });
}

TEST(PathRelaxation, HasALeastCompletionThatIsNeverAboveAnyCompletion)
{
  std::size_t compared = 0;
  for_each_relaxation(150, [&](const Instance& instance, const StageTables& tables, PathRelaxation& relaxation,
                               const std::vector<double>& multipliers) {
    relaxation.solve(multipliers);
    for_each_within(instance, tables.goal(), [&](const auto& stages, double) {
      const double beta = tables.weights().beta;
      double before = 0;  // earlier stages and their multipliers, without the input
      for (std::size_t i = 0; i < stages.size(); ++i) {
        const auto& [device, first, last] = stages[i];
        const std::size_t kind = tables.kind_of(device);
        const double compute = tables.compute(kind, first, last + 1);
        const double sent =
            i + 1 < stages.size() ? tables.output(kind, tables.kind_of(stages[i + 1].device), last + 1) : 0;
        const double back = i > 0 ? tables.gradient(kind, tables.kind_of(stages[i - 1].device), first) : 0;
        before += beta * tables.stage_cost(compute, sent + back);
        const double input = beta * tables.input_cost(tables.kind_of(stages.front().device));
        const std::size_t placed = stages.size() - i;
        const std::size_t room = relaxation.rooms().room_left(tables, tables.group_of(kind), [&](std::size_t other) {
          return std::any_of(stages.begin() + static_cast<std::ptrdiff_t>(i), stages.end(),
                             [&](const auto& stage) { return stage.device == other; });
        });
        const double least = relaxation.least_completion(placed, first, kind, compute, sent, room);
        EXPECT_LE(least, (before + input) * (1 + 1e-9));
        EXPECT_LE(relaxation.least_completion(placed, first, kind, compute, sent), least);
        ++compared;
        before += multipliers[kind];
      }
    });
  });
  EXPECT_GT(compared, 100'000U);
}

TEST(PathRelaxation, ProvesNoMoreThanTheVerifier)
{
  std::size_t compared = 0;
  for_each_relaxation(300, [&](const Instance& instance, const StageTables& tables, PathRelaxation& relaxation,
                               const std::vector<double>& multipliers) {
    const double value = relaxation.solve(multipliers);
    Plan plan;
    plan.goal = tables.goal();
    plan.stages = {stage_on("d0", 0, 0)};
    plan.objective_bound = Seconds(0);
    plan.certificate = {CertificateKind::Path, tables.groups_of_devices(), tables.levels(), {{}}};
    auto& rung = plan.certificate.rungs.front();
    if (instance.limit < infinity) rung.limit = Seconds(instance.limit);
    for (std::size_t i = 0; i < tables.devices(); ++i) rung.multipliers.push_back(multipliers[tables.kind_of(i)]);
    const double all = std::accumulate(rung.multipliers.begin(), rung.multipliers.end(), 0.0);
    const auto& [alpha, beta] = tables.weights();
    const double above = (alpha + beta) * instance.limit;
    const double gained = value == infinity ? infinity : value - all - 1e-9 * (value + all);
    const double claimed = beta == 0 ? (gained > 0 ? above : 0) : std::max(0.0, std::min(gained, above));
    const auto check = check_certificate(plan, instance.workload, instance.cluster);
    EXPECT_TRUE(check.faults.empty());
    EXPECT_GE(check.proven.value, claimed * (1 - 1e-9));
    if (claimed > 0) ++compared;
  });
  EXPECT_GT(compared, 1000U);
}

}  // namespace
}  // namespace isobar::allocators::path_relaxation_test
