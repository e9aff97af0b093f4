#include "tests/predictions/random_case.hpp"

#include "allocators/hybrid/pipelines.hpp"
#include "core/check/residence_checker.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/plan/sync_groups.hpp"
#include "core/plan/tied_copies.hpp"
#include "core/plan/transfer_rules.hpp"
#include "core/program/walk.hpp"
#include "schedules/lowering/schedule.hpp"
#include "schedules/orders/interleaved.hpp"
#include "schedules/orders/schedule.hpp"
#include "tests/support/divisions.hpp"
#include "tests/support/every_algorithm.hpp"
#include "tests/support/experts.hpp"
#include "tests/support/full_mesh.hpp"
#include "tests/support/instances.hpp"
#include "tests/support/random_orders.hpp"
#include "tests/support/shard_grids.hpp"
#include "tests/support/shards.hpp"
#include "tests/support/simulated.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

namespace isobar::predictions {

namespace {

using namespace testing_support;  // NOLINT: a test file
using sim::names;

/// Makes the case of a seed.
class Maker {
 public:
  explicit Maker(std::uint64_t seed) : random_(seed) {}

  RandomCase chain()
  {
    constexpr std::array chosen = {ChainSchedule::Sequential, ChainSchedule::GPipe,
                                   ChainSchedule::OneForwardOneBackward};
    const std::size_t devices = 1 + below(5);
    Workload workload = random_training(devices + below(6));
    const Plan plan = of_goal(choice_of(chosen.at(below(3))), 1 + below(10));
    RandomCase made = on_platform({.devices = devices, .has_data_server = coin()}, std::move(workload), plan);
    for (const auto& [device, first, last] : random_placement(random_, made.workload.layers.size(), devices)) {
      made.plan.stages.push_back(stage_on(made.on.cluster.devices[device].name, first, last));
    }
    return made;
  }

  RandomCase schedule()
  {
    using schedules::Folding;
    std::vector<schedules::Schedule> all = schedules::schedules();
    std::erase_if(all, [](const auto& each) { return each.folding == Folding::DividedEnds; });
    const auto& chosen = all[below(all.size())];
    const std::size_t devices = 1 + below(4);
    const Folding folding = chosen.folding == Folding::Any ? Folding::OneEach : chosen.folding;
    const std::size_t chunks = folding == Folding::V ? 2 : folding == Folding::RoundRobin ? 2 + below(2) : 1;
    const std::size_t stages = chunks * devices;
    const std::size_t layers = stages + below(6);
    RandomCase made = on_platform({.devices = devices, .has_data_server = coin(), .has_interference = coin()},
                                  random_training(layers), of_goal({std::string(chosen.name)}, 1 + below(10)));
    const std::vector<std::string> order = shuffled_names(devices);
    for (std::size_t i = 0; i < stages; ++i) {
      const std::string& device = order[schedules::rank_of_stage(folding, i, devices)];
      made.plan.stages.push_back(stage_on(device, layers * i / stages, layers * (i + 1) / stages - 1));
    }
    auto& choice = made.plan.goal.schedule;
    if (chosen.takes_orders) choice.orders = random_orders(random_, order, made.plan.goal.microbatches);
    if (chosen.takes("warm_up") && coin()) {
      std::vector<std::uint64_t> warm_up(devices);
      for (auto& forwards : warm_up) forwards = below(made.plan.goal.microbatches + 1);
      std::sort(warm_up.rbegin(), warm_up.rend());
      choice.numbers["warm_up"] = warm_up;
    }
    if (chosen.takes("group") && coin()) add_group(made.plan.goal, devices);
    return made;
  }

  /// Stages of replicas of one to `most_shards` shards.
  RandomCase replicas(std::size_t most_shards)
  {
    constexpr std::array orders = {"sequential", "gpipe", "1f1b", "zero-bubble-h1", "zero-bubble-h2"};
    const std::size_t devices = 2 + below(4 + most_shards);
    Plan plan = of_goal(schedule_from_text(orders.at(below(orders.size()))), 6 * (1 + below(2)));
    const std::uint64_t all = plan.goal.microbatches;
    const std::vector<std::vector<std::uint64_t>> divisions = {
        {0}, {all / 2, all / 2}, {all / 2, all / 2}, {all / 3, all - all / 3}, {all / 6, all / 3, all / 2}};
    std::vector<std::string> left = shuffled_names(devices);
    while (!left.empty()) {
      const auto& division = divisions[below(divisions.size())];
      const std::size_t shards = 1 + below(most_shards);
      if (division.size() * shards > left.size()) continue;
      const bool has_room = division.size() * most_unlike_shards <= left.size();
      const bool is_unlike = most_shards > 1 && has_room && coin();
      plan.stages.push_back(is_unlike ? stage_of_unlike_replicas(random_, division, left)
                                      : random_stage(random_, division, shards, left));
    }
    const std::size_t stages = plan.stages.size();
    const std::size_t layers = stages + below(6);
    for (std::size_t i = 0; i < stages; ++i) {
      plan.stages[i].first_layer = layers * i / stages;
      plan.stages[i].last_layer = layers * (i + 1) / stages - 1;
    }
    Workload workload = random_training(layers);
    add_splits(random_, workload);
    plan.stages = by_layers(plan.stages);
    RandomCase made = on_platform({.devices = devices, .has_data_server = coin(), .has_interference = coin()},
                                  std::move(workload), std::move(plan));
    add_sync(made);
    add_transfer_rules(made.plan);
    return made;
  }

  RandomCase unlike_cuts()
  {
    constexpr std::array orders = {"sequential", "gpipe", "1f1b"};
    const std::size_t pipelines = 2 + below(2);
    const std::size_t devices = pipelines + below(5);
    const std::size_t layers = 3 + below(5);
    Plan plan = of_goal(schedule_from_text(orders.at(below(3))), pipelines * (1 + below(4)));
    RandomCase made = on_platform({.devices = devices, .has_data_server = coin()}, random_training(layers), plan);
    std::vector<std::size_t> of_pipeline(pipelines, 1);
    for (std::size_t i = pipelines; i < devices; ++i) ++of_pipeline[below(pipelines)];
    std::vector<allocators::Pipeline> chosen;
    std::size_t first_device = 0;
    for (const std::size_t count : of_pipeline) {
      allocators::Pipeline& pipeline =
          chosen.emplace_back(allocators::Pipeline{made.plan.goal.microbatches / pipelines, {}});
      for (const auto& [device, first, last] : random_placement(random_, layers, count)) {
        pipeline.stages.push_back({{first_device + device}, first, last});
      }
      first_device += count;
    }
    if (coin() && chosen.front().microbatches > 1) {
      --chosen.front().microbatches;
      ++chosen.back().microbatches;
    }
    const CostModel cost(made.workload, made.on.cluster);
    made.plan.stages = allocators::stages_of(chosen, chain_view(made.workload), cost, 1 + below(2));
    add_sync(made);
    return made;
  }

  RandomCase grids()
  {
    constexpr std::array orders = {"gpipe", "1f1b", "zero-bubble-h1"};
    const auto all = small_rows_and_grids();
    const ShardGrid& grid = all[below(all.size())];
    const bool is_small = grid.blocks() <= 4;
    const std::size_t stages = is_small ? 1 + below(2) : 1;
    const std::vector<std::uint64_t> replicas =
        coin() ? std::vector<std::uint64_t>{0} : std::vector<std::uint64_t>{2, 2};
    const std::size_t devices = stages * replicas.size() * grid.blocks();
    Plan plan = of_goal(schedule_from_text(orders.at(below(3))), 4);
    std::vector<std::string> left = shuffled_names(devices);
    for (std::size_t i = 0; i < stages; ++i) {
      plan.stages.push_back(stage_of_grids(6 * i / stages, 6 * (i + 1) / stages - 1, grid, replicas, left));
    }
    plan.stages = by_layers(plan.stages);
    RandomCase made = on_platform({.devices = devices}, gpt_for_grids(coin() ? "clip_norm: 1\n" : ""), std::move(plan));
    if (replicas.size() > 1) made.plan.sync.sharded = static_cast<Sharding>(below(3));
    return made;
  }

  RandomCase operators()
  {
    const std::vector<std::vector<double>> all_shares = {{1}, equal_shares(2), {0.25, 0.75}, {1.0 / 6, 1.0 / 3, 0.5}};
    const auto workloads = moes_by_operators(coin() ? "clip_norm: 1\n" : "");
    const Workload& workload = workloads[below(workloads.size())];
    const auto graph = *operator_graph_of(workload);
    const std::size_t groups = 1 + below(2);
    const std::size_t replicas = 1 + below(2);
    std::vector<std::vector<double>> shares(groups);
    std::size_t devices = 0;
    for (auto& each : shares) {
      each = all_shares[groups == 1 ? 1 + below(3) : below(4)];
      devices += replicas * each.size();
    }
    const auto division = random_division(graph, spmd::Rules::Corrected, random_, groups);
    Plan plan = plan_of_groups(graph, division, shares, coin() ? "1f1b" : "duplex", 1 + below(4), replicas);
    if (coin()) add_random_buckets(plan, workload, random_);
    return on_platform({.devices = devices, .has_interference = coin()}, workload, std::move(plan));
  }

  /// One to four devices, each with layers of which some live in its machine.
  RandomCase tiers()
  {
    const std::size_t devices = 1 + below(4);
    const std::size_t layers = 3 * devices + below(4);
    Workload workload = random_training(layers, false);
    std::vector<std::size_t> inner;
    for (std::size_t i = 1; i + 1 < layers; ++i) inner.push_back(i);
    workload = with_recomputation(workload, inner);
    Plan plan = of_goal(choice_of(ChainSchedule::GPipe), 1 + below(4));
    RandomCase made = on_platform({.devices = devices, .has_machines = true}, std::move(workload), std::move(plan));
    const std::vector<std::string> order = shuffled_names(devices);
    do {
      made.plan.stages.clear();
      for (std::size_t i = 0; i < devices; ++i) {
        add_tiered_stages(made.plan, order[i], layers * i / devices, layers * (i + 1) / devices, layers);
      }
    } while (!has_program(made.plan, made.workload, made.on.cluster));
    return made;
  }

  /// One or two groups of devices, each with replicas that divide the experts of some of its layers.
  RandomCase experts()
  {
    constexpr std::array orders = {"sequential",    "gpipe",      "1f1b",   "zero-bubble-h1", "interleaved",
                                   "zero-bubble-v", "dualpipe-v", "v-half", "v-min"};
    const auto& schedule = schedules::require_schedule(orders.at(below(orders.size())));
    const std::size_t degree = 2 + below(3);
    const std::size_t replicas = degree * (1 + below(2));
    const std::size_t shards = 1 + below(2);
    const std::size_t groups = 1 + below(2);
    const std::size_t count = schedule.folding == schedules::Folding::OneEach ? groups : 2 * groups;
    const std::size_t layers = count + 1 + below(4);
    Plan plan = of_goal({std::string(schedule.name)}, replicas * (1 + below(5)));
    plan.experts = {degree, coin()};
    const bool overlaps = schedule.takes(overlap_experts_key) && below(4) > 0;
    if (overlaps) plan.goal.schedule.numbers[overlap_experts_key] = {1};
    std::vector<std::string> left = shuffled_names(groups * replicas * shards);
    std::vector<Stage> of_group(groups);
    for (auto& stage : of_group) {
      for (std::size_t i = 0; i < replicas; ++i) {
        stage.replicas.push_back(replica_on(left, plan.goal.microbatches / replicas,
                                            std::vector<double>(shards, 1.0 / static_cast<double>(shards))));
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t group = schedules::rank_of_stage(schedule.folding, i, groups);
      const std::size_t first = layers * i / count;
      for (std::size_t layer = first; layer < layers * (i + 1) / count; ++layer) {
        plan.stages.push_back(of_group[group]);
        plan.stages.back().first_layer = plan.stages.back().last_layer = layer;
      }
      const bool follows_itself = i > 0 && group == schedules::rank_of_stage(schedule.folding, i - 1, groups);
      plan.stages[first].starts_chunk = follows_itself;
    }
    RandomCase made =
        on_platform({.devices = groups * replicas * shards, .has_data_server = coin(), .has_interference = coin()},
                    workload_of_experts(layers, plan.experts, shards, overlaps), std::move(plan));
    add_sync(made);
    add_transfer_rules(made.plan);
    return made;
  }

  /// Stages on a group of devices each, or two on each, of which some layers use the matrix of an earlier one: on other
  /// devices, or on the same.
  RandomCase tied()
  {
    constexpr std::array orders = {"sequential", "gpipe", "1f1b", "zero-bubble-h1", "zero-bubble-h2"};
    const std::size_t groups = 1 + below(3);
    const std::size_t replicas = 1 + below(3);
    const std::size_t shards = 1 + below(2);
    const bool is_folded = groups > 1 && below(3) == 0;
    const bool is_v = is_folded && shards == 1 && coin();
    const std::size_t count = is_folded ? 2 * groups : groups;
    const std::size_t layers = count + 1 + below(4);
    const std::string schedule = is_v ? "zero-bubble-v" : is_folded ? "interleaved(chunks=2)" : orders.at(below(5));
    Plan plan = of_goal(schedule_from_text(schedule), replicas * groups * (1 + below(2)));
    std::vector<std::string> left = shuffled_names(groups * replicas * shards);
    const auto shares = random_shares(random_, shards);
    std::vector<Stage> of_group(groups);
    for (auto& stage : of_group) {
      const bool is_alone = replicas == 1;
      for (std::size_t i = 0; i < replicas; ++i) {
        stage.replicas.push_back(replica_on(left, is_alone ? 0 : plan.goal.microbatches / replicas, shares));
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t group = is_v && i >= groups ? count - 1 - i : i % groups;
      plan.stages.push_back(of_group[group]);
      plan.stages.back().first_layer = layers * i / count;
      plan.stages.back().last_layer = layers * (i + 1) / count - 1;
    }
    Workload workload = random_training(layers);
    if (shards > 1) {
      add_splits(random_, workload);
      plan.stages = by_layers(plan.stages);
    }
    add_ties(workload);
    RandomCase made =
        on_platform({.devices = groups * replicas * shards, .has_data_server = coin(), .has_interference = coin()},
                    std::move(workload), std::move(plan));
    add_sync(made);
    add_transfer_rules(made.plan);
    made.workload = with_tied_copies(made.workload, made.plan);
    return made;
  }

 private:
  /// Lets the last layer use a part of the parameters of an earlier one; sometimes others too, of it or of another one.
  void add_ties(Workload& workload)
  {
    auto& layers = workload.layers;
    const auto tie = [&](std::size_t layer, std::size_t owner) {
      Layer& own = layers[layer];
      std::uint64_t most = layers[owner].parameters;
      std::uint64_t units = 1;
      if (own.split) {
        own.split->units = units = layers[owner].split->units;
        own.split->parameters = own.split->parameters / units * units;
        most = layers[owner].split->parameters;
      }
      own.tied_to = owner;
      own.tied_parameters = below(most / units + 1) * units;
    };
    const std::size_t last = layers.size() - 1;
    tie(last, below(last));
    if (last < 3 || coin()) return;
    const std::size_t other = 1 + below(last - 1);
    if (other == layers[last].tied_to) return;
    tie(other, below(other));
    if (layers[other].tied_to == layers[last].tied_to) layers[other].tied_parameters = layers[last].tied_parameters;
  }

  /// One of whose layers about every second has experts, and of which some recompute unless all keep activations, as a
  /// device has it that divides them with others.
  Workload workload_of_experts(std::size_t layers, const ExpertParallelism& experts, std::size_t shards,
                               bool keeps_activations)
  {
    Workload workload = random_training(layers, false);
    if (shards > 1) add_splits(random_, workload);
    const std::size_t first = below(layers);  // has some
    for (std::size_t i = 0; i < layers; ++i) {
      if (i != first && coin()) continue;
      Layer& layer = workload.layers[i];
      const std::uint64_t units = layer.split ? layer.split->units : 1;
      add_experts(layer, experts.parts(shards) * (1 + below(3)), units * below(1'000'000),
                  Flops(1e6 * static_cast<double>(below(2000))), Bytes(static_cast<double>(below(20'000'000))));
    }
    if (coin()) workload.expert_imbalance.most = 1 + static_cast<double>(below(100)) / 100;
    if (coin() && !experts.are_whole)
      workload.expert_imbalance = {1, static_cast<double>(1 + below(100)) / 100, below(9)};
    if (!keeps_activations && coin()) workload = with_random_recomputation(random_, workload);
    return with_experts(workload, experts);
  }

  std::size_t below(std::size_t bound) { return random_() % bound; }

  /// Draws one of the groups that so many devices can take, if there is one.
  void add_group(Goal& goal, std::size_t devices)
  {
    std::vector<std::uint64_t> possible;
    for (std::uint64_t group = 1; group <= goal.microbatches; ++group) {
      if (!schedules::why_no_group(devices, goal.microbatches, group)) possible.push_back(group);
    }
    if (!possible.empty()) goal.schedule.numbers["group"] = {possible[below(possible.size())]};
  }

  bool coin() { return below(2) == 0; }

  std::vector<std::string> shuffled_names(std::size_t devices)
  {
    std::vector<std::string> result = names(devices);
    std::shuffle(result.begin(), result.end(), random_);
    return result;
  }

  /// A chain of layers that fit on any device, some of which recompute; gradients may be clipped, or losses scaled.
  Workload random_training(std::size_t layers, bool may_recompute = true)
  {
    Workload workload = sim::random_workload(random_, layers);
    for (auto& layer : workload.layers) {
      layer.parameters %= 20'000'000;
      layer.activations = sim::random_bytes(random_);
    }
    if (may_recompute && coin()) workload = with_random_recomputation(random_, workload);
    if (coin()) workload.training.clip_norm = 1.0;
    if (below(4) == 0) workload.dtype = DType::Float16;
    return workload;
  }

  static Plan of_goal(ScheduleChoice choice, std::uint64_t microbatches)
  {
    Plan plan;
    plan.goal.schedule = std::move(choice);
    plan.goal.microbatches = microbatches;
    return plan;
  }

  RandomCase on_platform(const PlatformNeeds& needs, Workload workload, Plan plan)
  {
    RandomCase made = {random_platform(random_, needs), std::move(workload), std::move(plan)};
    made.plan.data_server = made.on.cluster.data_server;
    made.plan.recompute = made.workload.recompute;
    return made;
  }

  /// How replicas add up gradients, and what they divide, as far as their stages allow.
  void add_sync(RandomCase& made)
  {
    Plan& plan = made.plan;
    for (auto& stage : plan.stages) {
      for (auto& replica : stage.replicas) {
        for (auto& shard : replica.shards) {
          const auto index = made.on.cluster.device_index(shard.device).value();
          shard.site = made.on.cluster.devices[index].site;
        }
      }
    }
    const auto algorithms = every_algorithm();
    plan.sync.algorithm = algorithms[below(algorithms.size())];
    constexpr std::array formats = {DType::Float32, DType::Float16, DType::BFloat16};
    plan.sync.summed = formats.at(below(3));
    if (coin()) plan.sync.bucket = Bytes(static_cast<double>(below(200'000'000)));
    const bool are_alike = std::all_of(plan.stages.begin(), plan.stages.end(), are_divided_alike);
    for (std::size_t level = are_alike ? below(4) : 0; level > 0; --level) {
      plan.sync.sharded = static_cast<Sharding>(level);
      const bool divides_parameters = plan.sync.sharded == Sharding::Parameters;
      plan.sync.gathered = divides_parameters ? formats.at(below(3)) : DType::Float32;
      plan.sync.each_microbatch = divides_parameters && coin();
      const bool can = !fault_of_ties(made.workload, plan) && !why_copies_are_not_divided(plan) &&
                       std::none_of(plan.stages.begin(), plan.stages.end(), [&](const Stage& stage) {
                         for (std::size_t shard = 0; shard < stage.replicas.front().shards.size(); ++shard) {
                           if (why_not_divided(plan.sync, stage, sites_of(stage, shard))) return true;
                         }
                         return false;
                       });
      // Replicas that order their passes differently would wait for each other's parameters forever.
      if (can && !deadlock_of(*schedules::make_program(plan, with_tied_copies(made.workload, plan), made.on.cluster)))
        return;
    }
    plan.sync.sharded = Sharding::None;
    plan.sync.gathered = DType::Float32;
    plan.sync.each_microbatch = false;
  }

  void add_transfer_rules(Plan& plan)
  {
    plan.transfers = {.blocking = below(4) == 0, .sliced = below(4) == 0};
    if (fault_of_transfers(plan)) plan.transfers = {};
  }

  /// A stage for each of these layers on a device. Some inner ones live in its machine.
  void add_tiered_stages(Plan& plan, const std::string& device, std::size_t begin, std::size_t end, std::size_t layers)
  {
    Residence residence = random_residence();
    std::vector<std::size_t> passing;
    for (std::size_t layer = begin; layer < end; ++layer) {
      const bool is_inner = layer > 0 && layer + 1 < layers;
      if (is_inner && below(4) > 0) passing.push_back(plan.stages.size());
      plan.stages.push_back(stage_on(device, layer, layer));
    }
    residence.parameter_slots = std::min(residence.parameter_slots, passing.size());
    residence.gradient_slots = std::min(residence.gradient_slots, passing.size());
    for (const std::size_t stage : passing) plan.stages[stage].residence = residence;
  }

  /// False where the backwards of more parts overlap than there are places for gradients.
  static bool has_program(const Plan& plan, const Workload& workload, const Cluster& cluster)
  {
    if (fault_of_residences(plan)) return false;
    try {
      schedules::make_program(plan, workload, cluster);
      return true;
    } catch (const InputError&) {
      return false;
    }
  }

  Residence random_residence()
  {
    while (true) {
      Residence residence;
      residence.optimizer = static_cast<Tier>(1 + below(2));
      residence.parameters = static_cast<Tier>(below(2));
      residence.gradients = static_cast<Tier>(below(2));
      residence.activations = static_cast<Tier>(below(2));
      if (residence.parameters != Tier::Device) residence.parameter_slots = 1 + below(3);
      if (residence.gradients != Tier::Device) residence.gradient_slots = 1 + below(3);
      residence.overlap = static_cast<UpdateOverlap>(below(4));
      residence.copies = static_cast<Copies>(below(3));
      if (!fault_of(residence)) return residence;
    }
  }

  std::mt19937_64 random_;
};

RandomCase made_by(Maker& maker, Kind kind)
{
  switch (kind) {
    case Kind::Chain:
      return maker.chain();
    case Kind::Schedule:
      return maker.schedule();
    case Kind::Replicas:
      return maker.replicas(1);
    case Kind::UnlikeCuts:
      return maker.unlike_cuts();
    case Kind::Shards:
      return maker.replicas(3);
    case Kind::Grids:
      return maker.grids();
    case Kind::Operators:
      return maker.operators();
    case Kind::Tiers:
      return maker.tiers();
    case Kind::Experts:
      return maker.experts();
    case Kind::Tied:
      return maker.tied();
  }
  throw std::logic_error("a kind of plans without a maker");
}

}  // namespace

std::string_view name_of(Kind kind)
{
  constexpr std::array names = {"chain", "schedule",  "replicas", "unlike cuts", "shards",
                                "grids", "operators", "tiers",    "experts",     "tied"};
  return names.at(static_cast<std::size_t>(kind));
}

RandomCase random_case(Kind kind, std::uint64_t seed)
{
  Maker maker(seed);
  return made_by(maker, kind);
}

}  // namespace isobar::predictions
