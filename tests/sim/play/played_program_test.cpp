#include "core/program/player.hpp"

#include "core/base/child_process.hpp"
#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/sync_groups.hpp"
#include "core/program/walk.hpp"
#include "core/steps/planned_step.hpp"
#include "schedules/lowering/schedule.hpp"
#include "schedules/orders/schedule.hpp"
#include "sim/play/simulation.hpp"
#include "tests/support/full_mesh.hpp"
#include "tests/support/random_orders.hpp"
#include "tests/support/shard_grids.hpp"
#include "tests/support/shards.hpp"
#include "tests/support/shared_nodes.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

// The player (core/program/player.hpp) and the simulator play the same times where no other job uses the links.
namespace isobar::sim::played_program_test {
namespace {

/// Relative. SimGrid takes times within 1e-13 s for equal (network_settings).
constexpr double tolerance = 1e-9;
constexpr double tolerance_of_shared = 1e-6;  // where links are shared
/// SimGrid gives equal flows unequal rates now and then, in one plan of a thousand.
constexpr double tolerance_of_unequal_rates = 1e-4;
constexpr std::uint64_t steps = 3;

/// Times as simulated, compared with the same times as played.
struct Comparison {
  double distance = 0;    // the largest difference, relative to the step
  std::size_t times = 0;  // the number of times that are not 0

  void add(Seconds simulated, Seconds played, Seconds step)
  {
    ensure(step > Seconds(0), "a step takes time");
    distance = std::max(distance, std::abs((simulated - played) / step));
    if (played > Seconds(0)) ++times;
  }
};

/// Simulates and plays a program: its steps, and the computations of each rank in each of them.
Comparison compare(const Platform& platform, const Program& program, const Plan& plan, const Workload& workload)
{
  const Cluster& cluster = platform.cluster();
  const auto played = play_program(program, nominal_rates(plan, cluster), steps);
  EventList trace;
  const auto report = simulate(platform, program, rank_hosts(plan, cluster), steps, &trace);
  std::vector<std::vector<PlayedRank>> simulated(steps, std::vector<PlayedRank>(program.ranks()));
  for (const auto& event : trace.events) {
    if (!is_computation(event.instruction.opcode)) continue;
    PlayedRank& rank = simulated.at(event.step).at(event.rank);
    if (event.position == 0) rank.begin = event.begin;
    rank.end = event.end;
    rank.busy += event.end - event.begin;
  }
  Comparison comparison;
  for (std::size_t i = 0; i < steps; ++i) {
    const PlayedPeriod& step = played.periods.at(i);
    comparison.add(report.step_times.at(i), step.step_time, step.step_time);
    for (std::size_t rank = 0; rank < program.ranks(); ++rank) {
      comparison.add(simulated[i][rank].begin, step.ranks.at(rank).begin, step.end);
      comparison.add(simulated[i][rank].end, step.ranks[rank].end, step.end);
      comparison.add(simulated[i][rank].busy, step.ranks[rank].busy, step.end);
    }
  }
  // The checker's own player plays one step, beside which no transfer of the next one is under way.
  const Seconds one = play_program(program, nominal_rates(plan, cluster)).periods.front().step_time;
  const auto add = [&](const std::vector<std::vector<StagePass>>& passes) {
    comparison.add(Seconds(play_step(plan, workload, cluster, passes)), one, one);
  };
  if (workload.layers.empty()) return comparison;  // a program of no plan
  add(passes_of(program));
  if (is_chain(plan)) add(passes_of_chain(plan));
  return comparison;
}

/// A comparison that runs in a process of its own.
struct Case {
  std::string name;
  std::function<Comparison()> compare;
};

/// The network of a platform: each pair of hosts has its own links, or they share them.
enum class Links { Own, Shared };

void expect_equal_times(const std::vector<Case>& cases, Links links = Links::Own)
{
  std::vector<std::function<std::string()>> work;
  for (const auto& each : cases) {
    work.emplace_back([&each] {
      const Comparison comparison = each.compare();
      return fmt::format("{:.17g} {}", comparison.distance, comparison.times);
    });
  }
  const auto results = run_in_children(work, 2, Seconds(60));
  std::size_t unequal = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].name);
    if (results[i].failure) {
      ADD_FAILURE() << results[i].failure->text;
      continue;
    }
    Comparison comparison;
    std::istringstream text(results[i].output);
    EXPECT_TRUE(text >> comparison.distance >> comparison.times) << results[i].output;
    if (links == Links::Shared && comparison.distance >= tolerance_of_shared) {
      ++unequal;
      EXPECT_LT(comparison.distance, tolerance_of_unequal_rates);
    } else {
      EXPECT_LT(comparison.distance, links == Links::Own ? tolerance : tolerance_of_shared);
    }
    EXPECT_GE(comparison.times, 3 * steps);  // at least the time of each step, and a rank's end and busy time
  }
  EXPECT_LE(unequal, cases.size() / 1000);
}

void add_network(PlatformFile& file, std::mt19937_64& random, std::size_t devices, bool has_data_server, Links links,
                 const std::string& attributes_of_own = "")
{
  if (links == Links::Shared) return shared_nodes(file, random, devices, has_data_server);
  full_mesh(file, random, devices, has_data_server, attributes_of_own);
}

// --- schedules ---------------------------------------------------------------------------------------------------

/// A random chain under a schedule. Every other seed has a data server, every other pair of seeds gradient clipping,
/// and every other four of them the schedule's numbers.
Comparison compare_chain(const schedules::Schedule& schedule, unsigned seed, Links links)
{
  using schedules::Folding;
  std::mt19937_64 random(seed);
  const std::size_t devices = 1 + random() % 5;
  const Folding folding = schedule.folding == Folding::Any ? Folding::OneEach : schedule.folding;
  std::size_t chunks = 1;
  if (folding == Folding::V) chunks = 2;
  if (folding == Folding::RoundRobin) chunks = 2 + random() % 2;
  const std::size_t stages = chunks * devices;

  PlatformFile file;
  // Two stages of a device may send to the same device at once. A FATPIPE gives each of them its whole bandwidth.
  add_network(file, random, devices, seed % 2 == 0, links, chunks == 1 ? "" : "sharing_policy=\"FATPIPE\"");
  const Platform platform = file.load();
  const std::size_t layers = stages + random() % 6;
  Workload workload = random_workload(random, layers);
  if (seed / 2 % 2 == 0) workload.training.clip_norm = 1.0;

  Plan plan;
  plan.goal.schedule = {std::string(schedule.name)};
  plan.goal.microbatches = 1 + random() % 10;
  plan.data_server = platform.cluster().data_server;
  std::vector<std::string> order = names(devices);
  std::shuffle(order.begin(), order.end(), random);
  for (std::size_t i = 0; i < stages; ++i) {
    const std::string& device = order[schedules::rank_of_stage(folding, i, devices)];
    plan.stages.push_back(stage_on(device, layers * i / stages, layers * (i + 1) / stages - 1));
  }
  if (schedule.takes_orders)
    plan.goal.schedule.orders = testing_support::random_orders(random, order, plan.goal.microbatches);
  if (schedule.takes("warm_up") && seed / 4 % 2 == 0) {
    std::vector<std::uint64_t> warm_up(devices);
    for (auto& forwards : warm_up) forwards = random() % (plan.goal.microbatches + 1);
    std::sort(warm_up.rbegin(), warm_up.rend());
    plan.goal.schedule.numbers["warm_up"] = warm_up;
  }
  if (schedule.takes("group") && seed / 4 % 2 == 0 && plan.goal.microbatches >= devices) {
    plan.goal.schedule.numbers["group"] = {plan.goal.microbatches};  // one
  }
  return compare(platform, *schedules::make_program(plan, workload, platform.cluster()), plan, workload);
}

TEST(PlayProgram, TakesTheStepsOfTheSimulatorUnderEverySchedule)
{
  std::vector<Case> cases;
  for (const auto& schedule : schedules::schedules()) {
    if (schedule.folding == schedules::Folding::DividedEnds) continue;
    for (unsigned seed = 1; seed <= 32; ++seed) {
      cases.push_back({fmt::format("{}, seed {}", schedule.name, seed),
                       [&schedule, seed] { return compare_chain(schedule, seed, Links::Own); }});
    }
  }
  expect_equal_times(cases);
}

/// Stages with one to three replicas each, of one or several shards, which divide the micro-batches in different ways,
/// so that some pipelines are chains and some are not. Gradients and activations of a pair of devices may travel at
/// once, hence the FATPIPE.
Comparison compare_replicas(const std::string& schedule, Algorithm algorithm, std::size_t most_shards, unsigned seed,
                            Links links)
{
  std::mt19937_64 random(seed);
  const std::size_t devices = 2 + random() % (5 + most_shards);
  PlatformFile file;
  add_network(file, random, devices, seed % 2 == 0, links, "sharing_policy=\"FATPIPE\"");
  const Platform platform = file.load();
  Plan plan;
  plan.goal.schedule = schedule_from_text(schedule);
  plan.goal.microbatches = 6 * (1 + random() % 2);
  plan.sync.algorithm = algorithm;
  plan.data_server = platform.cluster().data_server;
  const std::uint64_t all = plan.goal.microbatches;
  const std::vector<std::vector<std::uint64_t>> divisions = {
      {0}, {all / 2, all / 2}, {all / 2, all / 2}, {all / 3, all - all / 3}, {all / 6, all / 3, all / 2}};
  std::vector<std::string> names_left = names(devices);
  std::shuffle(names_left.begin(), names_left.end(), random);
  while (!names_left.empty()) {
    const auto& division = divisions[random() % divisions.size()];
    const std::size_t shards = 1 + random() % most_shards;
    if (division.size() * shards > names_left.size()) continue;
    const bool has_room = division.size() * testing_support::most_unlike_shards <= names_left.size();
    const bool is_unlike = most_shards > 1 && has_room && random() % 2 == 0;
    plan.stages.push_back(is_unlike ? testing_support::stage_of_unlike_replicas(random, division, names_left)
                                    : testing_support::random_stage(random, division, shards, names_left));
  }
  const std::size_t stages = plan.stages.size();
  const std::size_t layers = stages + random() % 6;
  for (std::size_t i = 0; i < stages; ++i) {
    plan.stages[i].first_layer = layers * i / stages;
    plan.stages[i].last_layer = layers * (i + 1) / stages - 1;
  }
  const bool take_alike = std::all_of(plan.stages.begin(), plan.stages.end(), [](const Stage& stage) {
    return !why_not_divided({.sharded = Sharding::Parameters}, stage, {});
  });
  const bool are_alike = std::all_of(plan.stages.begin(), plan.stages.end(), are_divided_alike);
  plan.sync.sharded = !are_alike                    ? Sharding::None
                      : take_alike && seed % 2 == 0 ? Sharding::Parameters
                                                    : static_cast<Sharding>(seed % 3);
  Workload workload = random_workload(random, layers);
  testing_support::add_splits(random, workload);
  plan.stages = testing_support::by_layers(plan.stages);
  if (seed / 2 % 2 == 0) workload.training.clip_norm = 1.0;
  // Replicas that order their passes differently would wait for each other's parameters forever.
  if (are_alike && deadlock_of(*schedules::make_program(plan, workload, platform.cluster())))
    plan.sync.sharded = Sharding::Gradients;
  return compare(platform, *schedules::make_program(plan, workload, platform.cluster()), plan, workload);
}

TEST(PlayProgram, TakesTheStepsOfTheSimulatorWithReplicasAndShards)
{
  std::vector<Case> cases;
  for (const std::string schedule : {"sequential", "gpipe", "1f1b", "zero-bubble-h1", "zero-bubble-h2"}) {
    for (const Algorithm algorithm : {Algorithm::Ring, Algorithm::Tree}) {
      for (unsigned seed = 1; seed <= 16; ++seed) {
        for (const std::size_t most_shards : {1U, 3U}) {
          cases.push_back(
              {fmt::format("{}, {}, up to {} shards, seed {}", schedule, name_of(algorithm), most_shards, seed),
               [=] { return compare_replicas(schedule, algorithm, most_shards, seed, Links::Own); }});
        }
      }
    }
  }
  expect_equal_times(cases);
}

/// One or two stages of one or two replicas, each a grid of devices.
Comparison compare_grids(const std::string& schedule, const ShardGrid& grid, unsigned seed, Links links)
{
  std::mt19937_64 random(seed);
  const std::size_t stages = 1 + seed % 2;
  const std::vector<std::uint64_t> replicas =
      seed / 2 % 2 == 0 ? std::vector<std::uint64_t>{0} : std::vector<std::uint64_t>{2, 2};
  const std::size_t devices = stages * replicas.size() * grid.blocks();
  PlatformFile file;
  add_network(file, random, devices, false, links, "sharing_policy=\"FATPIPE\"");
  const Platform platform = file.load();
  const Workload workload = testing_support::gpt_for_grids();
  Plan plan;
  plan.goal.schedule = schedule_from_text(schedule);
  plan.goal.microbatches = 4;
  plan.sync.sharded = static_cast<Sharding>(seed % 3);
  auto names_left = names(devices);
  for (std::size_t i = 0; i < stages; ++i) {
    const std::size_t first = 6 * i / stages;
    plan.stages.push_back(testing_support::stage_of_grids(first, 6 * (i + 1) / stages - 1, grid, replicas, names_left));
  }
  plan.stages = testing_support::by_layers(plan.stages);
  return compare(platform, *schedules::make_program(plan, workload, platform.cluster()), plan, workload);
}

TEST(PlayProgram, TakesTheStepsOfTheSimulatorWithGridsOfShards)
{
  std::vector<Case> cases;
  for (const std::string schedule : {"gpipe", "1f1b", "zero-bubble-h1"}) {
    for (const auto& grid : testing_support::small_rows_and_grids()) {
      for (unsigned seed = 1; seed <= 4; ++seed) {
        cases.push_back({fmt::format("{}, {}, seed {}", schedule, text_of(grid), seed),
                         [=] { return compare_grids(schedule, grid, seed, Links::Own); }});
      }
    }
  }
  expect_equal_times(cases);
}

// --- collectives -------------------------------------------------------------------------------------------------

/// Collectives of random sizes, one after the other. Each rank computes before each of them.
Comparison compare_collectives(Opcode opcode, Algorithm algorithm, std::size_t ranks, std::size_t seed, Links links)
{
  std::mt19937_64 random(seed);
  PlatformFile file;
  add_network(file, random, ranks, false, links);
  const Platform platform = file.load();
  std::vector<std::size_t> ends(ranks);
  std::iota(ends.begin(), ends.end(), std::size_t{0});
  std::shuffle(ends.begin(), ends.end(), random);
  const bool is_sum = opcode == Opcode::AllReduce || opcode == Opcode::ReduceScatter;
  ListedProgram program(ranks);
  for (std::uint64_t i = 0; i < 8; ++i) {
    for (const std::size_t rank : ends) {
      const double work = random() % 4 == 0 ? 0 : std::uniform_real_distribution<double>(0, 2e9)(random);
      program.compute(rank, Seconds((work) / 1e9), Wait{program.sync_lane(rank, ends, algorithm), 0, i});
    }
    program.collective(opcode, ends, random_bytes(random), after_compute(i + 1), algorithm);
    if (is_sum) continue;  // all its ends have as much data
    for (const std::size_t rank : ends) {
      program.instruction(rank, program.sync_lane(rank, ends, algorithm), i).size = random_bytes(random);
    }
  }
  return compare(platform, program, one_layer_per_device(names(ranks), ChainSchedule::GPipe, 1), {});
}

TEST(PlayProgram, TakesTheCollectivesOfTheSimulator)
{
  std::vector<Case> cases;
  for (const Opcode opcode :
       {Opcode::AllReduce, Opcode::ReduceScatter, Opcode::AllGather, Opcode::AllToAll, Opcode::Broadcast}) {
    for (const Algorithm algorithm : {Algorithm::Ring, Algorithm::Hierarchical, Algorithm::Tree, Algorithm::Direct}) {
      for (const std::size_t ranks : {2U, 3U, 4U, 5U}) {
        cases.push_back(
            {fmt::format("{} {}, {} ranks", name_of(algorithm), name_of(opcode), ranks),
             [=, seed = cases.size()] { return compare_collectives(opcode, algorithm, ranks, seed, Links::Own); }});
      }
    }
  }
  expect_equal_times(cases);
}

// --- shared links ------------------------------------------------------------------------------------------------

/// Plans and collectives of all kinds on hosts that share links.
std::vector<Case> cases_of_shared_links(unsigned first_seed, unsigned seeds)
{
  std::vector<Case> cases;
  const std::vector<std::string> orders = {"sequential", "gpipe", "1f1b", "zero-bubble-h1"};
  const std::vector<Algorithm> algorithms = {Algorithm::Ring, Algorithm::Tree, Algorithm::Direct, Algorithm::Server};
  const std::vector<Opcode> collectives = {Opcode::AllReduce, Opcode::ReduceScatter, Opcode::AllGather,
                                           Opcode::AllToAll, Opcode::Broadcast};
  const auto grids = testing_support::small_rows_and_grids();
  for (unsigned seed = first_seed; seed < first_seed + seeds; ++seed) {
    for (const auto& schedule : schedules::schedules()) {
      if (schedule.folding == schedules::Folding::DividedEnds) continue;
      cases.push_back({fmt::format("{}, seed {}", schedule.name, seed),
                       [&schedule, seed] { return compare_chain(schedule, seed, Links::Shared); }});
    }
    for (const std::string& schedule : orders) {
      const Algorithm algorithm = algorithms[(seed + cases.size()) % 2];
      for (const std::size_t most_shards : {1U, 3U}) {
        cases.push_back(
            {fmt::format("{}, {}, up to {} shards, seed {}", schedule, name_of(algorithm), most_shards, seed),
             [=] { return compare_replicas(schedule, algorithm, most_shards, seed, Links::Shared); }});
      }
    }
    cases.push_back(
        {fmt::format("{}, seed {}", text_of(grids[seed % grids.size()]), seed),
         [=, grid = grids[seed % grids.size()]] { return compare_grids("1f1b", grid, seed, Links::Shared); }});
    const Opcode opcode = collectives[seed % collectives.size()];
    const Algorithm algorithm = algorithms[seed / 5 % algorithms.size()];
    cases.push_back({fmt::format("{} {}, seed {}", name_of(algorithm), name_of(opcode), seed),
                     [=] { return compare_collectives(opcode, algorithm, 2 + seed % 4, seed, Links::Shared); }});
  }
  return cases;
}

TEST(PlayProgram, TakesTheStepsOfTheSimulatorWhereLinksAreShared)
{
  expect_equal_times(cases_of_shared_links(1, 16), Links::Shared);
}

TEST(PlayProgram, DISABLED_TakesTheStepsOfTheSimulatorInThousandsOfPlansThatShareLinks)
{
  expect_equal_times(cases_of_shared_links(100, 160), Links::Shared);
}

}  // namespace
}  // namespace isobar::sim::played_program_test
