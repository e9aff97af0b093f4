#include "core/check/checked_step.hpp"
#include "core/check/residence_checker.hpp"

#include "core/costs/nominal_rates.hpp"
#include "core/errors.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/sync_groups.hpp"
#include "core/plan/transfer_rules.hpp"
#include "core/program/player.hpp"
#include "core/program/walk.hpp"
#include "core/spmd/reform_time.hpp"
#include "schedules/lowering/schedule.hpp"
#include "schedules/orders/schedule.hpp"
#include "tests/support/divisions.hpp"
#include "tests/support/editable_program.hpp"
#include "tests/support/every_algorithm.hpp"
#include "tests/support/machines.hpp"
#include "tests/support/shard_grids.hpp"
#include "tests/support/shards.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

// The plan checker's own play of a step, against that of the plan's Program.
namespace isobar::schedules::checked_steps_test {
namespace {

using testing_support::EditableProgram;

double uniform(std::mt19937_64& random, double low, double high)
{
  return std::uniform_real_distribution<double>(low, high)(random);
}

/// Endpoints in nodes. Those of a node share its bus, those of all nodes a backbone. Or none share anything.
class Nodes : public Network {
 public:
  Nodes(std::mt19937_64& random, std::size_t endpoints) : are_shared_(random() % 2 == 0)
  {
    constexpr std::size_t nodes = 3;
    for (std::size_t i = 0; i < endpoints; ++i) node_of_.push_back(random() % nodes);
    for (std::size_t i = 0; i <= nodes; ++i) names_.push_back(fmt::format("link{}", i));
    for (std::size_t i = 0; i <= nodes; ++i) {
      links_.push_back({names_[i], BytesPerSecond(uniform(random, 5e6, 5e8)), 1, random() % 4 == 0});
    }
    for (std::size_t i = 0; i < endpoints * endpoints; ++i) {
      latencies_.emplace_back(random() % 5 == 0 ? 0 : uniform(random, 1e-6, 0.2));
    }
  }

  std::vector<SharedLink> on_way(std::size_t from, std::size_t to) const
  {
    const std::size_t a = node_of_[from];
    const std::size_t b = node_of_[to];
    if (a == b) return {links_[a]};
    return {links_[a], links_.back(), links_[b]};
  }
  Path path(std::size_t from, std::size_t to) const override
  {
    double bandwidth = 1e12;
    for (const auto& link : on_way(from, to)) bandwidth = std::min(bandwidth, link.bandwidth.value);
    return {latencies_[from * node_of_.size() + to], BytesPerSecond(bandwidth)};
  }
  std::vector<std::string> links(std::size_t, std::size_t) const override { return {}; }
  std::vector<SharedLink> shared_links(std::size_t from, std::size_t to) const override
  {
    return are_shared_ ? on_way(from, to) : std::vector<SharedLink>();
  }

 private:
  bool are_shared_;
  std::vector<std::size_t> node_of_;
  std::vector<std::string> names_;
  std::vector<SharedLink> links_;
  std::vector<Seconds> latencies_;
};

/// Devices d0, d1, … of unequal speeds in two sites, some of which slow down beside collectives.
Cluster random_devices(std::mt19937_64& random, std::size_t devices)
{
  Cluster cluster;
  const bool interferes = random() % 3 == 0;
  for (std::size_t i = 0; i < devices; ++i) {
    Device& device = cluster.devices.emplace_back();
    device.name = fmt::format("d{}", i);
    device.speed = FlopsPerSecond(uniform(random, 5e8, 5e9));
    device.memory = Bytes(1e15);
    device.site = fmt::format("s{}", i % 2);
    if (interferes && random() % 2 == 0) device.interference = uniform(random, 1, 3);
    if (random() % 2 == 0) device.collective_start = Seconds(uniform(random, 0, 0.1));
  }
  if (random() % 2 == 0) cluster.data_server = "data";
  cluster.network = std::make_shared<Nodes>(random, devices + 1);
  return cluster;
}

std::vector<std::string> names_of(const Cluster& cluster)
{
  std::vector<std::string> names;
  for (const auto& device : cluster.devices) names.push_back(device.name);
  return names;
}

Bytes random_bytes(std::mt19937_64& random)
{
  return Bytes(static_cast<double>(random() % (random() % 5 == 0 ? 3 : 100'000'000)));
}

Workload random_workload(std::mt19937_64& random, std::size_t layers)
{
  Workload workload;
  workload.input = random_bytes(random);
  workload.optimizer = Optimizer::Adam;
  for (std::size_t i = 0; i < layers; ++i) {
    Layer& layer = workload.layers.emplace_back();
    layer.forward = Flops(random() % 8 == 0 ? 0 : uniform(random, 0, 2e9));
    layer.backward = Flops(uniform(random, 0, 4e9));
    layer.backward_weight = layer.backward * uniform(random, 0, 0.9);
    layer.output = random_bytes(random);
    layer.gradient = random_bytes(random);
    layer.parameters = random() % 500'000'000;
    if (random() % 4 == 0) layer.update = Flops(uniform(random, 0, 1e9));
    if (i > 0) layer.inputs = {i - 1};
  }
  if (random() % 2 == 0) workload.training.clip_norm = 1.0;
  testing_support::add_splits(random, workload);
  return workload;
}

/// Gives the stages of a plan equal parts of the layers.
void cut_layers(Plan& plan, std::size_t layers)
{
  const std::size_t stages = plan.stages.size();
  for (std::size_t i = 0; i < stages; ++i) {
    plan.stages[i].first_layer = layers * i / stages;
    plan.stages[i].last_layer = layers * (i + 1) / stages - 1;
  }
}

Seconds step_of(const Plan& plan, const Cluster& cluster, const Program& program)
{
  return play_program(program, nominal_rates(plan, cluster), counted_step(plan).played())
      .periods[counted_step(plan).before]
      .step_time;
}

/// A plan and what it is for.
struct Case {
  Plan plan;
  Workload workload;
  Cluster cluster;
};

/// How much the two plays of a case's step differ, relative to it.
double difference(const Case& each)
{
  const auto program = make_program(each.plan, each.workload, each.cluster);
  const double played = step_of(each.plan, each.cluster, *program).value;
  const double checked = play_step(each.plan, each.workload, each.cluster, passes_of(*program));
  return std::abs(checked - played) / played;
}

/// Whether a case has a Program that ends.
bool can_be_made(const Case& each)
{
  try {
    return !deadlock_of(*make_program(each.plan, each.workload, each.cluster));
  } catch (const InputError&) {
    return false;
  }
}

/// Stages of one to three replicas that divide the micro-batches in different ways, of up to `most_shards` shards,
/// which in some stages differ between replicas.
Case with_replicas(std::mt19937_64& random, std::size_t most_shards)
{
  Case each;
  each.cluster = random_devices(random, 2 + random() % (4 + most_shards));
  Plan& plan = each.plan;
  static const std::vector<std::string> schedules = {"sequential", "gpipe", "1f1b", "zero-bubble-h1", "zero-bubble-h2"};
  plan.goal.schedule = schedule_from_text(schedules[random() % schedules.size()]);
  plan.goal.microbatches = 6 * (1 + random() % 2);
  plan.data_server = each.cluster.data_server;
  plan.sync.algorithm = every_algorithm()[random() % every_algorithm().size()];
  plan.sync.summed = random() % 2 == 0 ? DType::Float32 : DType::BFloat16;
  const std::uint64_t all = plan.goal.microbatches;
  const std::vector<std::vector<std::uint64_t>> divisions = {
      {0}, {all / 2, all / 2}, {all / 2, all / 2}, {all / 3, all - all / 3}, {all / 6, all / 3, all / 2}};
  auto left = names_of(each.cluster);
  std::shuffle(left.begin(), left.end(), random);
  while (!left.empty()) {
    const auto& division = divisions[random() % divisions.size()];
    const std::size_t shards = 1 + random() % most_shards;
    if (division.size() * shards > left.size()) continue;
    const bool has_room = division.size() * testing_support::most_unlike_shards <= left.size();
    const bool is_unlike = most_shards > 1 && has_room && random() % 2 == 0;
    plan.stages.push_back(is_unlike ? testing_support::stage_of_unlike_replicas(random, division, left)
                                    : testing_support::random_stage(random, division, shards, left));
  }
  for (Stage& stage : plan.stages) {
    for (Replica& replica : stage.replicas) {
      for (Shard& shard : replica.shards) {
        shard.site = each.cluster.devices[each.cluster.device_index(shard.device).value()].site;
      }
    }
  }
  cut_layers(plan, plan.stages.size() + random() % 6);
  each.workload = random_workload(random, plan.stages.back().last_layer + 1);
  plan.stages = testing_support::by_layers(plan.stages);
  if (random() % 2 == 0) plan.sync.bucket = Bytes(uniform(random, 0, 4e9));
  return each;
}

/// Lets the replicas of a case divide state, if they can.
void divide_state(Case& each, std::mt19937_64& random)
{
  Plan& plan = each.plan;
  plan.sync.bucket = {};
  std::vector<Sharding> possible;
  for (const Sharding sharded : {Sharding::Optimizer, Sharding::Gradients, Sharding::Parameters}) {
    Sync sync = plan.sync;
    sync.sharded = sharded;
    const bool can = std::all_of(plan.stages.begin(), plan.stages.end(),
                                 [&](const Stage& stage) { return !why_not_divided(sync, stage, sites_of(stage, 0)); });
    if (can) possible.push_back(sharded);
  }
  if (possible.empty()) return;
  plan.sync.sharded = possible[random() % possible.size()];
  // Of training software, the second of two steps counts. Some lets passes wait for what they gather.
  if (random() % 2 == 0) plan.system = TrainingSystem{"some"};
  if (plan.system && random() % 2 == 0) plan.system->changed.emplace().overlaps_gathers = false;
  if (plan.sync.sharded == Sharding::Parameters) {
    if (random() % 2 == 0) plan.sync.gathered = DType::BFloat16;
    plan.sync.each_microbatch = random() % 2 == 0;
  }
  // Replicas that order their passes differently would wait for each other's parameters forever.
  if (!deadlock_of(*make_program(plan, each.workload, each.cluster))) return;
  plan.sync.sharded = Sharding::Gradients;
  plan.sync.each_microbatch = false;
  plan.sync.gathered = DType::Float32;
}

void expect_equal_steps(unsigned seeds, const std::function<Case(std::mt19937_64& random)>& make)
{
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    std::mt19937_64 random(seed);
    EXPECT_LT(difference(make(random)), 1e-9) << "seed " << seed;
  }
}

TEST(CheckedSteps, AreThoseOfProgramsWithReplicas)
{
  expect_equal_steps(300, [](std::mt19937_64& random) { return with_replicas(random, 1); });
}

TEST(CheckedSteps, AreThoseOfProgramsWithShards)
{
  expect_equal_steps(300, [](std::mt19937_64& random) { return with_replicas(random, 3); });
}

TEST(CheckedSteps, AreThoseOfProgramsWhoseReplicasDivideState)
{
  for (const std::size_t most_shards : {1U, 3U}) {
    expect_equal_steps(300, [&](std::mt19937_64& random) {
      Case each = with_replicas(random, most_shards);
      divide_state(each, random);
      return each;
    });
  }
}

/// One or two stages of one or two replicas, each a grid of devices or a divided sequence.
Case with_grids(std::mt19937_64& random)
{
  static const auto grids = testing_support::small_rows_and_grids();
  const ShardGrid& grid = grids[random() % grids.size()];
  const std::size_t stages = 1 + random() % 2;
  const auto replicas = random() % 2 == 0 ? std::vector<std::uint64_t>{0} : std::vector<std::uint64_t>{2, 2};
  Case each;
  each.cluster = random_devices(random, stages * replicas.size() * grid.blocks());
  each.workload = testing_support::gpt_for_grids(random() % 2 == 0 ? "" : "dtype: bf16\n");
  Plan& plan = each.plan;
  static const std::vector<std::string> schedules = {"gpipe", "1f1b", "zero-bubble-h1"};
  plan.goal.schedule = schedule_from_text(schedules[random() % schedules.size()]);
  plan.goal.microbatches = 4;
  plan.data_server = each.cluster.data_server;
  plan.sync.sharded = static_cast<Sharding>(random() % 4);
  if (random() % 2 == 0) plan.system = TrainingSystem{"some"};
  auto left = names_of(each.cluster);
  for (std::size_t i = 0; i < stages; ++i) {
    const std::size_t first = 6 * i / stages;
    plan.stages.push_back(testing_support::stage_of_grids(first, 6 * (i + 1) / stages - 1, grid, replicas, left));
  }
  plan.stages = testing_support::by_layers(plan.stages);
  return each;
}

TEST(CheckedSteps, AreThoseOfProgramsWithGridsOfShards)
{
  expect_equal_steps(100, with_grids);
}

/// A device with several stages, or several devices that divide the same stages.
Case with_several_stages(std::mt19937_64& random)
{
  static const std::vector<std::string> schedules = {"dualpipe-v", "interleaved", "v-half", "v-min", "zero-bubble-v"};
  Case each;
  Plan& plan = each.plan;
  const std::string name = schedules[random() % schedules.size()];
  plan.goal.schedule = {name};
  const std::size_t chunks = name == "interleaved" ? 2 + random() % 2 : 2;
  const std::size_t teams = 2 * (1 + random() % 2);
  const std::size_t shards = name == "interleaved" ? 1 + random() % 2 : 1;
  plan.goal.microbatches = teams * (1 + random() % 3);
  if (name == "interleaved" && random() % 2 == 0) {  // of one or all groups of as many as devices
    plan.goal.schedule.numbers["group"] = {random() % 2 == 0 ? plan.goal.microbatches : teams};
  }
  each.cluster = random_devices(random, teams * shards);
  plan.data_server = each.cluster.data_server;
  const Folding folding = find_schedule(name)->folding;
  std::vector<Replica> replicas(teams);
  auto left = names_of(each.cluster);
  for (Replica& replica : replicas) {
    replica = testing_support::replica_on(left, 0, testing_support::random_shares(random, shards));
  }
  for (std::size_t i = 0; i < chunks * teams; ++i) {
    plan.stages.push_back({i, i, {replicas[rank_of_stage(folding, i, teams)]}});
  }
  cut_layers(plan, plan.stages.size() + (shards == 1 ? random() % 6 : 0));
  each.workload = random_workload(random, plan.stages.back().last_layer + 1);
  return each;
}

TEST(CheckedSteps, AreThoseOfProgramsWithSeveralStagesOnADevice)
{
  expect_equal_steps(100, with_several_stages);
}

TEST(CheckedSteps, AreThoseOfProgramsWhoseTransfersFollowRules)
{
  std::size_t blocking = 0;
  std::size_t sliced = 0;
  expect_equal_steps(600, [&](std::mt19937_64& random) {
    Case each = random() % 3 == 0 ? with_several_stages(random) : with_replicas(random, 1 + random() % 3);
    if (random() % 2 == 0) divide_state(each, random);
    each.plan.transfers.sliced = random() % 2 == 0;
    each.plan.transfers.blocking = true;
    // Replicas that wait for each other's parameters may also wait for each other's transfers.
    if (fault_of_transfers(each.plan) || deadlock_of(*make_program(each.plan, each.workload, each.cluster))) {
      each.plan.transfers.blocking = false;
    }
    blocking += each.plan.transfers.blocking ? 1 : 0;
    sliced += each.plan.transfers.sliced ? 1 : 0;
    return each;
  });
  EXPECT_GT(blocking, 100U);
  EXPECT_GT(sliced, 100U);
}

/// One to three groups of one or two replicas of devices that divide the operators of a mixture of experts.
Case with_divided_operators(std::mt19937_64& random)
{
  static const std::vector<std::string> options = {"", "clip_norm: 1\n", "by_index: true\n"};
  static const std::vector<std::string> schedules = {"duplex", "sequential", "1f1b", "gpipe"};
  static const std::vector<std::vector<double>> all_shares = {
      {1}, {0.5, 0.5}, {0.25, 0.75}, {0.25, 0.25, 0.25, 0.25}, {0.5, 0.0, 0.5}, {1.0 / 6, 1.0 / 3, 0.5}};
  Case each;
  const auto workloads = testing_support::moes_by_operators(options[random() % options.size()]);
  each.workload = workloads[random() % workloads.size()];
  std::vector<std::vector<double>> shares(1 + random() % 3);
  std::size_t devices = 0;
  const std::size_t replicas = 1 + random() % 2;
  for (auto& group : shares) {
    group = all_shares[random() % all_shares.size()];
    devices += replicas * group.size();
  }
  const auto graph = *operator_graph_of(each.workload);
  const auto division = testing_support::random_division(graph, spmd::Rules::Corrected, random, shares.size());
  each.plan = testing_support::plan_of_groups(graph, division, shares, schedules[random() % schedules.size()],
                                              1 + random() % 7, replicas);
  if (random() % 2 == 0) testing_support::add_random_buckets(each.plan, each.workload, random);
  each.cluster = random_devices(random, devices);
  for (auto& device : each.cluster.devices) device.speed = FlopsPerSecond(uniform(random, 1e6, 1e7));
  each.plan.sync.algorithm = random() % 2 == 0 ? Algorithm::Ring : Algorithm::Tree;
  return each;
}

TEST(CheckedSteps, AreThoseOfProgramsThatDivideOperators)
{
  expect_equal_steps(600, with_divided_operators);
}

/// Where a part of a device lives; `common` is what all of its parts share.
Residence random_residence(std::mt19937_64& random, const Residence& common)
{
  Residence residence = common;
  residence.parameters = random() % 2 == 0 ? Tier::Host : Tier::Device;
  residence.gradients = random() % 2 == 0 ? Tier::Host : Tier::Device;
  residence.activations = random() % 2 == 0 ? Tier::Host : Tier::Device;
  residence.optimizer = static_cast<Tier>(random() % 3);
  const bool is_moved = residence.parameters == Tier::Host || residence.gradients == Tier::Host;
  if (is_moved && residence.optimizer == Tier::Device) residence.optimizer = Tier::Host;
  if (residence.parameters == Tier::Device) {
    residence.parameter_slots = 0;
    residence.copies = Copies::Lean;
  }
  if (residence.gradients == Tier::Device) residence.gradient_slots = 0;
  if (residence.optimizer == Tier::Device) residence.overlap = UpdateOverlap::Step;
  return residence;
}

/// One to three devices in machines, some of which they share, each with a run of layers that pass through it.
Case with_machines(std::mt19937_64& random)
{
  Case each;
  const std::size_t devices = 1 + random() % 3;
  std::vector<testing_support::MachineNumbers> numbers(devices);
  for (auto& machine : numbers) {
    machine.device_speed = uniform(random, 0.5, 3);
    machine.in = uniform(random, 50, 500);
    machine.out = uniform(random, 50, 500);
    machine.latency = random() % 2 == 0 ? 0 : uniform(random, 0, 0.5);
    machine.update_speed = uniform(random, 100, 1000);
    machine.busy_update_speed = random() % 2 == 0 ? machine.update_speed : machine.update_speed / 2;
    machine.disk = {"nvme", Bytes(1e15), BytesPerSecond(uniform(random, 50, 500)),
                    BytesPerSecond(uniform(random, 50, 500))};
  }
  each.cluster = testing_support::cluster_with_machines(numbers);
  each.cluster.network = std::make_shared<Nodes>(random, devices + 1);
  for (auto& device : each.cluster.devices) {
    MachineLink& machine = *device.machine;
    if (random() % 3 == 0) machine.machine = 0;
    // Copies meet on a bus, those of both directions too.
    const SharedLink bus{"bus", BytesPerSecond(500), 1, random() % 4 == 0};
    if (random() % 2 == 0) machine.in_links = {bus};
    if (random() % 2 == 0) machine.out_links = {bus};
  }
  for (auto& machine : each.cluster.machines) machine.cores = 1 + random() % 2;
  if (random() % 2 == 0) each.cluster.data_server = "data";
  std::vector<testing_support::PassingLayer> layers(devices * (2 + random() % 4));
  for (auto& layer : layers) {
    layer = {uniform(random, 0, 2), uniform(random, 0, 4), random() % 300, static_cast<double>(random() % 100)};
  }
  each.workload = testing_support::workload_of_layers(layers);
  each.workload.input = Bytes(static_cast<double>(random() % 1'000'000));
  for (auto& layer : each.workload.layers) layer.output = layer.gradient = random_bytes(random) * 0.01;
  if (random() % 3 == 0) each.workload.training.clip_norm = 1.0;
  Plan& plan = each.plan;
  static const std::vector<std::string> schedules = {"gpipe", "gpipe", "1f1b", "sequential"};
  plan.goal.schedule = schedule_from_text(schedules[random() % schedules.size()]);
  plan.goal.microbatches = 2 * (1 + random() % 3);
  plan.recompute = each.workload.recompute;
  plan.data_server = each.cluster.data_server;
  // The last two devices may be replicas.
  const bool has_replicas = devices > 1 && random() % 2 == 0;
  const std::size_t teams = has_replicas ? devices - 1 : devices;
  const auto overlap = static_cast<UpdateOverlap>(random() % 4);
  const auto copies = static_cast<Copies>(random() % 3);
  for (std::size_t team = 0; team < teams; ++team) {
    const Residence common{
        .parameter_slots = 1 + random() % 3, .gradient_slots = 1 + random() % 3, .overlap = overlap, .copies = copies};
    for (std::size_t i = layers.size() * team / teams; i < layers.size() * (team + 1) / teams; ++i) {
      Stage& stage = plan.stages.emplace_back(stage_on(fmt::format("gpu{}", team), i, i));
      if (random() % 4 > 0) stage.residence = random_residence(random, common);
      if (!has_replicas || team + 1 < teams) continue;
      const std::uint64_t half = plan.goal.microbatches / 2;
      stage.replicas = {{half, {Shard{fmt::format("gpu{}", team)}}}, {half, {Shard{fmt::format("gpu{}", team + 1)}}}};
    }
  }
  return each;
}

/// The first of random cases with machines that can be.
Case possible_with_machines(std::mt19937_64& random)
{
  while (true) {
    Case each = with_machines(random);
    if (uses_machines(each.plan) && !fault_of_residences(each.plan) && can_be_made(each)) return each;
  }
}

TEST(CheckedSteps, AreThoseOfProgramsThatUseMachines)
{
  std::size_t overlapping = 0;
  expect_equal_steps(400, [&](std::mt19937_64& random) {
    Case each = possible_with_machines(random);
    overlapping += counted_step(each.plan).overlaps() ? 1 : 0;
    return each;
  });
  EXPECT_GT(overlapping, 50U);
}

// --- what is caught --------------------------------------------------------------------------------------------------

/// Whether the checker takes a step for that of a case.
bool is_accepted(Case each, Seconds step)
{
  const auto program = make_program(each.plan, each.workload, each.cluster);
  each.plan.predicted = Predicted{step, {}, {}};
  return checked_step(each.plan, each.workload, each.cluster, passes_of(*program)) == step.value;
}

/// Equal devices, between any two of which 1e8 bytes take a second.
Cluster equal_devices(std::size_t devices)
{
  Cluster cluster;
  for (std::size_t i = 0; i < devices; ++i) {
    Device& device = cluster.devices.emplace_back();
    device.name = fmt::format("d{}", i);
    device.speed = FlopsPerSecond(1e9);
    device.collective_start = Seconds(0.1);
    device.interference = 1.5;
  }
  cluster.network = MatrixNetwork::uniform(devices + 1, {Seconds(1e-3), BytesPerSecond(1e8)});
  return cluster;
}

/// Two stages of two replicas of `shards` devices, each of which divides a layer.
Case two_stages(std::size_t shards)
{
  Case each;
  each.cluster = equal_devices(4 * shards);
  each.workload = testing_support::chain({1e9, 1.5e9}, 40'000'000, 0, 2e7);
  for (auto& layer : each.workload.layers) layer.split = Split{.name = "units", .units = 8, .parameters = 32'000'000};
  each.plan.goal.microbatches = 8;
  auto left = names_of(each.cluster);
  for (std::size_t i = 0; i < 2; ++i) {
    Stage& stage = each.plan.stages.emplace_back();
    stage.first_layer = stage.last_layer = i;
    const std::vector<double> shares(shards, 1.0 / static_cast<double>(shards));
    for (int k = 0; k < 2; ++k) stage.replicas.push_back(testing_support::replica_on(left, 4, shares));
  }
  return each;
}

/// Lets the instructions of lanes that begin with one name no longer wait for lanes that begin with another one.
void drop_waits(EditableProgram& program, const std::string& of, const std::string& on)
{
  for (auto& rank : program.listing) {
    for (std::size_t lane = 0; lane < rank.lanes.size(); ++lane) {
      if (!rank.lanes[lane].name.starts_with(of)) continue;
      for (Instruction& instruction : rank.instructions[lane]) {
        Waits kept;
        for (const Wait& wait : instruction.waits) {
          if (!rank.lanes[wait.lane].name.starts_with(on)) kept.add(wait);
        }
        instruction.waits = kept;
      }
    }
  }
}

/// Plays a case's program without these waits: the checker must accept the step with them, and refuse the one without.
void expect_caught(const Case& each, const std::string& of, const std::string& on)
{
  const auto program = make_program(each.plan, each.workload, each.cluster);
  const Seconds right = step_of(each.plan, each.cluster, *program);
  EXPECT_TRUE(is_accepted(each, right));
  EditableProgram wrong(*program);
  drop_waits(wrong, of, on);
  const Seconds other = step_of(each.plan, each.cluster, wrong);
  EXPECT_LT(other, right * 0.999) << "nothing waits there";
  EXPECT_FALSE(is_accepted(each, other));
}

TEST(CheckedSteps, RefusePassesThatDoNotWaitForOtherShards)
{
  const Case each = two_stages(2);
  expect_caught(each, "send activation", "sum activations");
  expect_caught(each, "sum gradients", "compute");
  expect_caught(each, "sum shared gradients", "compute");
}

TEST(CheckedSteps, RefuseSumsOverReplicasBeforeTheLastPass)
{
  expect_caught(two_stages(1), "sync gradients", "compute");
  expect_caught(two_stages(2), "sync gradients", "sum shared gradients");
  Case each = two_stages(1);
  each.plan.sync.sharded = Sharding::Parameters;
  each.plan.sync.each_microbatch = true;
  expect_caught(each, "sync gradients", "compute");
  each = two_stages(2);
  each.plan.sync.sharded = Sharding::Parameters;
  each.plan.sync.each_microbatch = true;
  expect_caught(each, "sum shared gradients", "sync gradients");
}

TEST(CheckedSteps, RefuseGathersThatAreForgotten)
{
  Case each = two_stages(1);
  each.plan.sync.sharded = Sharding::Parameters;
  expect_caught(each, "compute", "gather for forwards");
  expect_caught(each, "compute", "gather for backwards");
  expect_caught(each, "gather for backwards", "compute");
  each.plan.sync.sharded = Sharding::Gradients;
  expect_caught(each, "gather parameters", "compute");
}

TEST(CheckedSteps, RefuseTransfersThatDoNotBlock)
{
  Case each = two_stages(1);
  each.plan.transfers.blocking = true;
  expect_caught(each, "compute", "send");
}

/// Likewise of random plans, wherever these waits make a difference.
void expect_caught(Case (*make)(std::mt19937_64& random), const std::string& of, const std::string& on)
{
  std::size_t caught = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const Case each = make(random);
    const auto program = make_program(each.plan, each.workload, each.cluster);
    EditableProgram wrong(*program);
    drop_waits(wrong, of, on);
    const Seconds right = step_of(each.plan, each.cluster, *program);
    const Seconds other = step_of(each.plan, each.cluster, wrong);
    if (other > right * 0.99) continue;
    ++caught;
    EXPECT_FALSE(is_accepted(each, other)) << "seed " << seed;
  }
  EXPECT_GT(caught, 0U) << of << " on " << on;
}

TEST(CheckedSteps, RefuseDividedOperatorsThatDoNotWaitForReforms)
{
  expect_caught(with_divided_operators, "compute", spmd::reform_lane);
  expect_caught(with_divided_operators, spmd::reform_lane, "compute");
  expect_caught(with_divided_operators, spmd::replica_lane, "compute");
  expect_caught(with_divided_operators, "send", "compute");
  expect_caught(with_divided_operators, "compute", "receive");
}

TEST(CheckedSteps, RefuseCopiesAndUpdatesThatDoNotWait)
{
  expect_caught(possible_with_machines, "compute", "copy in");
  expect_caught(possible_with_machines, "copy in", "compute");
  expect_caught(possible_with_machines, "copy out", "compute");
  expect_caught(possible_with_machines, "compute", "copy out");
  expect_caught(possible_with_machines, "host update", "copy out");
  expect_caught(possible_with_machines, "host update", "disk read");
  expect_caught(possible_with_machines, "compute", "host update");
}

TEST(CheckedSteps, RefuseWhatAWrongPlayerGives)
{
  const Case each = two_stages(2);
  const auto program = make_program(each.plan, each.workload, each.cluster);
  const PlayerRates rates = nominal_rates(each.plan, each.cluster);
  const auto step_with = [&](PlayerRates changed) { return play_program(*program, changed).periods.front().step_time; };
  EXPECT_TRUE(is_accepted(each, step_with(rates)));
  PlayerRates wrong = rates;
  wrong.interference.clear();
  EXPECT_FALSE(is_accepted(each, step_with(wrong)));
  wrong = rates;
  wrong.collective_starts.clear();
  EXPECT_FALSE(is_accepted(each, step_with(wrong)));
  wrong = rates;
  wrong.transfer = [&](std::size_t from, std::size_t to, Bytes size) {
    return TransferTimes{Seconds(0), rates.transfer(from, to, size).data};
  };
  EXPECT_FALSE(is_accepted(each, step_with(wrong)));
}

}  // namespace
}  // namespace isobar::schedules::checked_steps_test
