#include "core/compute/as_trained.hpp"

#include "core/compute/layer_memory.hpp"
#include "core/compute/layer_time.hpp"
#include "core/compute/measurements.hpp"
#include "core/compute/pricing.hpp"
#include "core/compute/transformer.hpp"
#include "core/costs/exchange_times.hpp"
#include "core/costs/layer_times.hpp"
#include "core/costs/shard_collective_times.hpp"
#include "core/errors.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/plan/sharding.hpp"
#include "core/plan/system_rules.hpp"
#include "core/plan/tied_copies.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace isobar::compute {

namespace {

/// How many times longer products take beside gathers inside a node: both together take 1.21 times the longer of them
/// on an A100 (results/fidelity/collectives/README.md), and a fifth of the gather is lost.
constexpr double beside_gathers = 1.25;

/// What a layer takes on a device of its stage, for one micro-batch.
struct LayerCost {
  Seconds forward;
  Seconds backward;
  Seconds backward_weight;
  Seconds update;
  PassParts parts;
  double exchanged_fraction = 1;   ///< Split::exchanged_fraction
  double dispatched_fraction = 1;  ///< Experts::exchanged_fraction

  Seconds both() const { return forward + backward; }
};

class Training {
 public:
  Training(const Plan& plan, const Workload& workload, const Cluster& cluster, const Framework& framework,
           Workload& own, Cluster& own_cluster)
      : plan_(plan),
        given_(workload),
        cluster_(cluster),
        framework_(framework),
        measurements_(measurements_of(workload)),
        own_(own),
        own_cluster_(own_cluster),
        pipeline_stage_(pipeline_stages(plan)),
        fill_(plan.samples ? static_cast<double>(*plan.samples) /
                                 (static_cast<double>(plan.goal.microbatches) * samples_of_microbatch(workload))
                           : 1)
  {
    for (std::size_t i = 0; i < cluster.devices.size(); ++i) index_of_.emplace(cluster.devices[i].name, i);
  }

  std::vector<PassParts> apply()
  {
    std::vector<PassParts> parts(plan_.stages.size());
    prepare_types();
    for (std::size_t index = 0; index < plan_.stages.size(); ++index) {
      const Stage& stage = plan_.stages[index];
      for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
        std::map<std::string, const LayerCost*> costs;  // by type of device
        for_each_device(stage, [&](std::size_t device) {
          const std::string& type = cluster_.devices[device].type;
          if (!costs.contains(type)) costs.emplace(type, &known_cost(index, layer, type));
        });
        for (const auto& [type, cost] : costs) take_times(type, layer, stage, *cost);
        const std::string& first = cluster_.devices[first_device_of(index)].type;
        set_exchanges(layer, stage, *costs.at(first));
        const auto slowest =
            std::ranges::max_element(costs, {}, [](const auto& entry) { return entry.second->both(); });
        parts[index] += slowest->second->parts;
        set_memory(index, layer);
      }
      add_transfers(index, parts[index]);
    }
    const bool gathers =
        framework_.overlaps_gathers && plan_.sync.sharded == Sharding::Parameters && has_replicas(plan_);
    if (gathers) {
      for (const auto& name : devices_of(plan_)) own_cluster_.devices[index_of_.at(name)].interference = beside_gathers;
    }
    own_.memory_model = MemoryModel::System;
    own_.state = state_of(framework_, given_);
    own_.state->gathered = size_of(plan_.sync.gathered);
    own_.workspace = framework_.memory.context + block_gradients();
    own_.prices = nullptr;
    return parts;
  }

 private:
  template <typename Visit>
  void for_each_device(const Stage& stage, Visit visit) const
  {
    for (const auto& replica : stage.replicas) {
      for (const auto& shard : replica.shards) visit(index_of_.at(shard.device));
    }
  }

  std::size_t first_device_of(std::size_t stage) const
  {
    return index_of_.at(plan_.stages[stage].replicas.front().shards.front().device);
  }

  LayerDivision division_of(const Stage& stage) const
  {
    return {stage.replicas.front().shards.size(), stage.grid.form == ShardGrid::Form::Sequence};
  }

  /// What the software of a pipeline adds to the passes of a stage of the plan: the host's time, and receiving where
  /// that is a device's work.
  void add_transfers(std::size_t index, PassParts& parts)
  {
    if (pipeline_stage_.back() == 0) return;
    const auto& stages = plan_.stages;
    const bool is_first = index == 0 || pipeline_stage_[index] != pipeline_stage_[index - 1];
    const bool is_last = index + 1 == stages.size() || pipeline_stage_[index] != pipeline_stage_[index + 1];
    const auto receive = [&](std::size_t other, Bytes size) {
      const Path path = cluster_.path(first_device_of(other), first_device_of(index));
      const std::size_t shards = stages[index].replicas.front().shards.size();
      if (!plan_.transfers.sliced || shards != stages[other].replicas.front().shards.size()) {
        return path.transfer_time(size);
      }
      return path.transfer_time(size / static_cast<double>(shards)) + rebuild_time(index, size);
    };
    if (is_first) {
      Seconds time = framework_.pipeline_host;
      parts.launch += time;
      if (framework_.serial_transfers && index > 0) {
        const Seconds arrival = receive(index - 1, given_.layers[stages[index].first_layer - 1].output);
        parts.pipeline += arrival;
        time += arrival;
      }
      add_to(index, stages[index].first_layer, &ShardTimes::forward, time);
    }
    if (is_last && framework_.serial_transfers && index + 1 < stages.size()) {
      const Seconds arrival = receive(index + 1, given_.layers[stages[index].last_layer].gradient);
      parts.pipeline += arrival;
      add_to(index, stages[index].last_layer, &ShardTimes::backward, arrival);
    }
  }

  /// An activation that arrived in slices takes a copy from the host and a gather among the shards, which takes half of
  /// an all-reduce.
  Seconds rebuild_time(std::size_t stage, Bytes size) const
  {
    if (framework_.rebuild == 0) return {};
    const auto sum = shard_collective_times(plan_, stage, plan_.stages[stage].last_layer, given_, cluster_).forward;
    return Seconds(size.value / 1e9 * framework_.rebuild) + 0.5 * sum;
  }

  /// Adds a time to a pass of a layer, on all devices of its stage.
  void add_to(std::size_t stage, std::size_t layer, Seconds ShardTimes::*pass, Seconds time)
  {
    const auto shards = static_cast<double>(plan_.stages[stage].replicas.front().shards.size());
    for (auto& [type, layers] : own_.times) {
      layers[layer].*pass += shards * time;
      for (auto& [count, each] : layers[layer].of_shards) each.*pass += time;
    }
  }

  /// Layers of a kind take the same in all stages on the same devices.
  const LayerCost& known_cost(std::size_t stage, std::size_t layer, const std::string& type)
  {
    const Layer& given = given_.layers[layer];
    const LayerTimes times = times_on(given_, layer, cluster_.devices[first_device_of(stage)]);
    const Key key{first_device_of(stage),
                  plan_.stages[stage].replicas.front().shards.size(),
                  times.forward.value,
                  times.backward.value,
                  given.parameters,
                  given.experts ? given.experts->parameters : 0,
                  given.gradient.value,
                  is_recomputed(given_, layer),
                  recomputed_operators(given_, layer).bits(),
                  type};
    const auto found = costs_.find(key);
    return found != costs_.end() ? found->second : costs_.emplace(key, cost_of(stage, layer, type)).first->second;
  }

  LayerCost cost_of(std::size_t stage, std::size_t layer, const std::string& type) const
  {
    LayerDivision division = division_of(plan_.stages[stage]);
    ShardCollectiveTimes collectives;
    if (division.shards > 1) collectives = shard_collective_times(plan_, stage, layer, given_, cluster_);
    division.forward_collectives = collectives.forward;
    division.backward_collectives = collectives.backward;
    const auto exchange =
        exchange_times(plan_, stage, block_of(given_, layer).first, given_, cluster_, GridAxis::Context);
    division.forward_exchange = exchange.forward;
    division.backward_exchange = exchange.backward;
    const double part =
        framework_.dispatches_once_a_node ? dispatched_once_a_node(plan_, stage, layer, given_, cluster_) : 1;
    const auto of_experts = exchange_times(plan_, stage, layer, given_, cluster_, GridAxis::Experts, part);
    division.forward_dispatch = of_experts.forward;
    division.backward_dispatch = of_experts.backward;
    if (const auto* profile = measurements_.layers_of(type)) return measured_cost(*profile, stage, layer, division);
    const DeviceConstants device = measurements_.constants_of(type);
    const auto time =
        layer_time(given_, layer, device, framework_, division, measurements_.operators_of(type, given_.dtype));
    LayerCost cost;
    cost.forward = fill_ * time.forward.total();
    cost.backward = fill_ * time.backward.total();
    cost.backward_weight = fill_ * time.backward_weight;
    for (const auto* pass : {&time.forward, &time.backward}) {
      cost.parts.products += fill_ * pass->products;
      cost.parts.attention += fill_ * pass->attention;
      cost.parts.memory_bound += fill_ * pass->memory_bound;
      cost.parts.launch += fill_ * (pass->starts + pass->launch);
    }
    // Collectives are played after the passes that hide them.
    cost.forward = std::max(cost.forward - time.hidden_forward, Seconds(0));
    cost.backward = std::max(cost.backward - time.hidden_backward, Seconds(0));
    cost.parts.tensor = collectives.forward + collectives.backward - time.hidden_forward - time.hidden_backward;
    if (attention_widths(given_, layer)) cost.parts.tensor += exchange.forward + exchange.backward;
    cost.parts.tensor += of_experts.forward + of_experts.backward;
    cost.dispatched_fraction = part;
    add_repeated_collectives(repeated_part(layer, division) * collectives.forward, cost);
    const double parameters = parameters_of_shard(given_, layer, division.shards, framework_);
    // Replicas that divide updates zero and clip all gradients nevertheless, and have copies of all weights.
    cost.update =
        update_time(parameters, device, framework_) +
        updated_by(plan_, stage, layer) * (gradient_time(parameters, device, framework_) +
                                           weight_copy_time(given_, layer, division.shards, device, framework_));
    return cost;
  }

  /// How many replicas update the parameters of a layer, each a part of them: by the mean, if those of its experts have
  /// other replicas.
  double updated_by(const Plan& plan, std::size_t stage, std::size_t index) const
  {
    if (plan.sync.sharded == Sharding::None) return 1;
    const std::size_t replicas = plan.stages[stage].replicas.size();
    const Layer& layer = given_.layers[index];
    const bool has_others = given_.experts.divides() && layer.experts && layer.parameters > 0;
    if (!has_others) return static_cast<double>(replicas);
    const double part =
        divided_part(static_cast<double>(layer.parameters), static_cast<double>(layer.experts->parameters), replicas,
                     copies_of_experts(given_.experts, replicas));
    return 1 / part;
  }

  /// The part of the collectives of a layer's forward pass that recomputation repeats: a sum of its outputs with the
  /// last product; where shards divide the sequence, half with the first and half with the last.
  double repeated_part(std::size_t layer, const LayerDivision& division) const
  {
    if (is_recomputed(given_, layer)) return 1;
    BlockOperators again = recomputed_operators(given_, layer);
    again &= operators_of(given_, layer);
    const auto has = [&](BlockOperator which) { return again.has(which); };
    const bool has_first = has(BlockOperator::Qkv) || has(BlockOperator::Up) || has(BlockOperator::SharedExperts);
    const bool has_last =
        has(BlockOperator::Projection) || has(BlockOperator::Down) || has(BlockOperator::SharedExperts);
    if (division.divides_sequence) return 0.5 * (static_cast<int>(has_first) + static_cast<int>(has_last));
    return has_last ? 1 : 0;
  }

  /// Recomputation repeats collectives of the forward pass, of which a block has two.
  void add_repeated_collectives(Seconds forward, LayerCost& cost) const
  {
    const Seconds again = framework_.recomputed_collectives / 2.0 * forward;
    cost.backward += again;
    cost.parts.tensor += again;
  }

  /// The part of the bytes of a layer's collectives that take no longer than its passes, which were measured with them;
  /// 1 if all of them do, or if the shards are no nearest neighbours, as those of a measurement are.
  double exchanged_fraction(std::size_t stage, std::size_t layer, const SailorTimes& measured,
                            const LayerDivision& division) const
  {
    const bool fits =
        division.forward_collectives <= measured.forward && division.backward_collectives <= measured.backward;
    if (fits || !are_nearest(plan_.stages[stage])) return 1;
    Workload starts_alone = given_;
    starts_alone.layers[layer].split->exchanged_fraction = 0;
    const auto starts = shard_collective_times(plan_, stage, layer, starts_alone, cluster_);
    const auto part = [](Seconds pass, Seconds all, Seconds start) {
      return all > pass ? std::max((pass - start) / (all - start), 0.0) : 1;
    };
    return std::min(part(measured.forward, division.forward_collectives, starts.forward),
                    part(measured.backward, division.backward_collectives, starts.backward));
  }

  /// True if the shards of a stage's first replica, which are of one type with those of all others, reach each other as
  /// fast as one of them reaches any device. O(devices).
  bool are_nearest(const Stage& stage) const
  {
    const std::size_t first = index_of_.at(stage.replicas.front().shards.front().device);
    bool are_alike = true;
    for_each_device(stage, [&](std::size_t device) {
      are_alike = are_alike && cluster_.devices[device].type == cluster_.devices[first].type;
    });
    if (!are_alike) return false;
    BytesPerSecond fastest;
    for (std::size_t other = 0; other < cluster_.devices.size(); ++other) {
      if (other != first) fastest = std::max(fastest, cluster_.path(first, other).bandwidth);
    }
    return std::ranges::all_of(stage.replicas.front().shards, [&](const Shard& shard) {
      const std::size_t other = index_of_.at(shard.device);
      return other == first || cluster_.path(first, other).bandwidth >= fastest;
    });
  }

  /// The collectives among shards are in measured times, and the plan plays them again: no longer than these, where
  /// the shards are as near to each other as devices can be.
  LayerCost measured_cost(const SailorProfile& profile, std::size_t stage, std::size_t layer,
                          LayerDivision division) const
  {
    const auto run = in_training(profile, given_.micro_batch, division.shards, framework_);
    const SailorTimes measured = times_of_layer(profile, run, given_, layer);
    const std::size_t last = given_.layers.size() - 1;
    if (recomputed_operators(given_, layer).any()) {
      throw InputError(profile.name,
                       "has times of whole blocks, and attention: recomputed or recompute_operators repeats a part of "
                       "them; leave it out");
    }
    if (given_.context.divides()) {
      throw InputError(profile.name, "has times of whole sequences, and the plan's context divides them");
    }
    LayerCost cost;
    cost.exchanged_fraction = exchanged_fraction(stage, layer, measured, division);
    if (cost.exchanged_fraction < 1) {
      Workload exchanged = given_;
      exchanged.layers[layer].split->exchanged_fraction = cost.exchanged_fraction;
      const auto collectives = shard_collective_times(plan_, stage, layer, exchanged, cluster_);
      division.forward_collectives = collectives.forward;
      division.backward_collectives = collectives.backward;
    }
    const auto without = [](Seconds all, Seconds collectives) { return std::max(all - collectives, Seconds(0)); };
    cost.forward = fill_ * without(measured.forward, division.forward_collectives);
    cost.backward = fill_ * without(measured.backward, division.backward_collectives);
    cost.backward_weight = 0.5 * cost.backward;
    if (is_recomputed(given_, layer)) cost.backward += cost.forward;
    cost.parts.products = cost.both();
    cost.parts.tensor = division.forward_collectives + division.backward_collectives;
    if (is_recomputed(given_, layer)) add_repeated_collectives(division.forward_collectives, cost);
    double all = 0;
    for (std::size_t i = 0; i <= last; ++i) all += parameters_of_shard(given_, i, division.shards, framework_);
    cost.update = parameters_of_shard(given_, layer, division.shards, framework_) / all * run.update;
    return cost;
  }

  void prepare_types()
  {
    own_.times.clear();
    for (const auto& name : devices_of(plan_)) {
      own_.times[cluster_.devices[index_of_.at(name)].type].resize(given_.layers.size());
    }
  }

  void take_times(const std::string& type, std::size_t layer, const Stage& stage, const LayerCost& cost)
  {
    const std::size_t shards = stage.replicas.front().shards.size();
    const auto count = static_cast<double>(shards);
    const ShardTimes of_shard{cost.forward, cost.backward, cost.backward_weight};
    own_.times.at(type)[layer] = {{count * cost.forward, count * cost.backward, count * cost.backward_weight},
                                  count * cost.update,
                                  {{shards, of_shard}}};
  }

  void set_exchanges(std::size_t index, const Stage& stage, const LayerCost& cost)
  {
    Layer& layer = own_.layers[index];
    const std::size_t shards = stage.replicas.front().shards.size();
    if (layer.split) layer.split->exchanged_fraction = cost.exchanged_fraction;
    if (layer.experts) layer.experts->exchanged_fraction = cost.dispatched_fraction;
    // Training software computes gradients of what all shards have in each of them alike, and adds up nothing, unless
    // shards divide the sequence.
    if (shards > 1 && stage.grid.form == ShardGrid::Form::OneD) {
      const std::uint64_t all = layer.parameters + (shards - 1) * shared_parameters(layer);
      layer.parameters = all / layer.split->units * layer.split->units;  // equal parts
      layer.split->parameters = layer.parameters;
    }
  }

  /// MemoryConstants::keeps_block_gradients, of the largest block on a shard.
  Bytes block_gradients() const
  {
    if (!framework_.memory.keeps_block_gradients) return {};
    double most = 0;
    for (const Stage& stage : plan_.stages) {
      for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
        const auto [first, last] = block_of(given_, layer);
        double parameters = 0;
        for (std::size_t each = first; first < last && each <= last; ++each) {
          parameters += parameters_of_shard(given_, each, division_of(stage).shards, framework_);
        }
        most = std::max(most, parameters);
      }
    }
    constexpr double bytes_of_16_bits = 2;
    return Bytes(most * bytes_of_16_bits);
  }

  /// Shards have equal parts of what one of them needs, as often as there are shards.
  void set_memory(std::size_t stage, std::size_t layer)
  {
    const LayerDivision division = division_of(plan_.stages[stage]);
    const bool begins_stage = plan_.stages[stage].first_layer == layer &&
                              (stage == 0 || pipeline_stage_[stage] != pipeline_stage_[stage - 1]);
    const auto memory = layer_memory(given_, layer, framework_, division, measurements_.sizes(), begins_stage);
    const auto shards = static_cast<double>(division.shards);
    Layer& own = own_.layers[layer];
    own.activations = memory.kept * shards;
    own.workspace = memory.workspace * shards;
    if (!own.split) return;
    own.split->activations = own.activations;
    own.split->workspace = own.workspace;
  }

  /// Device, shards, times of both passes there, parameters, those of experts, gradient, recomputes, operators
  /// recomputed, device type.
  using Key = std::tuple<std::size_t, std::size_t, double, double, std::uint64_t, std::uint64_t, double, bool,
                         unsigned long, std::string>;

  const Plan& plan_;
  const Workload& given_;
  const Cluster& cluster_;
  const Framework& framework_;
  const Measurements& measurements_;
  Workload& own_;
  Cluster& own_cluster_;
  std::vector<std::size_t> pipeline_stage_;
  double fill_;  // samples of a step over those of its micro-batches, of which the last may be smaller
  std::unordered_map<std::string_view, std::size_t> index_of_;
  std::map<Key, LayerCost> costs_;
};

}  // namespace

PassParts& PassParts::operator+=(const PassParts& more)
{
  products += more.products;
  attention += more.attention;
  memory_bound += more.memory_bound;
  launch += more.launch;
  tensor += more.tensor;
  pipeline += more.pipeline;
  return *this;
}

AsTrained::AsTrained(const Plan& plan, const Workload& workload, const Cluster& cluster)
    : workload_(&workload), cluster_(&cluster)
{
  const Framework* const framework = framework_of(plan);
  const bool has_grid = std::ranges::any_of(plan.stages, [](const Stage& stage) { return stage.grid.is_grid(); });
  const bool has_system =
      framework != nullptr && !plan.stages.empty() && !uses_machines(plan) && !divides_operators(plan) && !has_grid;
  const bool needs_copies = needs_tied_copies(workload, plan);
  if (!has_system && !needs_copies) return;
  std::optional<Workload> with_copies;
  if (needs_copies) with_copies = with_tied_copies(workload, plan);
  const Workload& given = with_copies ? *with_copies : workload;
  own_ = std::make_unique<Own>(Own{given, cluster});
  if (has_system) parts_ = Training(plan, given, cluster, *framework, own_->workload, own_->cluster).apply();
}

Sharding most_divided(const Workload& workload)
{
  if (workload.compute != ComputeModel::Operators) return Sharding::Parameters;
  return framework_of(workload).most_divided;
}

void take_system(Plan& plan, const Workload& workload)
{
  if (workload.compute != ComputeModel::Operators || plan.stages.empty()) return;
  if (uses_machines(plan) || divides_operators(plan)) return;
  const Framework& framework = framework_of(workload);
  take_rules(framework, workload.dtype, plan);
  plan.system = system_beside_rules(framework);
}

}  // namespace isobar::compute
