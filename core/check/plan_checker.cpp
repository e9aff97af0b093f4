// The checker's own evaluator: plain sums over the stages, written from docs/costs.md and independent of
// cost_model.cpp, so that an error in one shows against the other. Both share only paths, rates, the bytes of a cut,
// and the constants of an optimizer.

#include "core/check/plan_checker.hpp"

#include "core/check/checked_step.hpp"
#include "core/check/claims.hpp"
#include "core/check/dtfm_cost.hpp"
#include "core/check/residence_checker.hpp"
#include "core/compute/as_trained.hpp"
#include "core/costs/layer_times.hpp"
#include "core/errors.hpp"
#include "core/model/layer_graph.hpp"
#include "core/model/routing.hpp"
#include "core/model/split_text.hpp"
#include "core/plan/operator_plan.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/replica_exchanges.hpp"
#include "core/plan/shard_collectives.hpp"
#include "core/plan/system_rules.hpp"
#include "core/plan/tied_copies.hpp"
#include "core/program/player.hpp"
#include "core/steps/step_player.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace isobar {

namespace {

/// Sums over the layers of one stage.
struct StageFacts {
  std::size_t device = 0;
  double forward_s = 0;
  double backward_s = 0;
  double update_s = 0;
  PlayedTransfer sent_forward;   // activations to the next stage
  PlayedTransfer sent_backward;  // gradients to the previous stage
  double peak_bytes = 0;
};

class Checker {
 public:
  Checker(const Plan& plan, const Workload& workload, const Cluster& cluster)
      : plan_(plan),
        workload_(workload),
        cluster_(cluster),
        reference_(reference_speed(cluster, workload.dtype)),
        number_(numbers_in_file(plan)),
        claims_(plan)
  {
  }

  std::vector<std::string> faults()
  {
    if (plan_.outcome == Outcome::Infeasible || (plan_.outcome == Outcome::TimedOut && plan_.stages.empty())) {
      check_absence();
      return claims_.take();
    }
    check_placement();
    if (!claims_.empty()) return claims_.take();
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
      for (std::size_t replica = 0; replica < devices_[i].size(); ++replica) {
        for (std::size_t k = 0; k < devices_[i][replica].size(); ++k) check_device(i, replica, k);
      }
      check_sync(i);
    }
    if (!is_chain(plan_)) return claims_.take();  // faults_of_played checks the rest
    if (plan_.schedule_bound) fault("schedule_bound_s: a claim of plans whose step is played; leave it out");
    schedule_ = require_chain_schedule(plan_.goal.schedule);
    collect();
    check_memory();
    check_claims();
    return claims_.take();
  }

  std::vector<std::string> placement_faults()
  {
    check_placement();
    return claims_.take();
  }

 private:
  template <typename... Values>
  void fault(fmt::format_string<Values...> text, Values&&... values)
  {
    claims_.fault(text, std::forward<Values>(values)...);
  }

  /// A plan without a placement makes no claims about one. A search that timed out may have proven a bound.
  void check_absence()
  {
    if (plan_.reason.empty()) fault("reason: missing; a plan without stages needs one");
    if (!plan_.stages.empty()) fault("stages: {} in a plan with outcome infeasible; it has none", plan_.stages.size());
    refuse_claim("predicted", plan_.predicted.has_value());
    refuse_claim("objective_s", plan_.objective.has_value());
    refuse_claim("step_bound_s", plan_.step_bound.has_value());
    refuse_claim("schedule_bound_s", plan_.schedule_bound.has_value());
    refuse_claim("simulated", plan_.simulated.has_value());
    refuse_claim("stamp", plan_.stamp.has_value());
    if (plan_.outcome == Outcome::Infeasible) refuse_claim("objective_bound_s", plan_.objective_bound.has_value());
    if (plan_.certificate.kind != CertificateKind::None && !plan_.objective_bound) {
      fault("certificate.kind: claims {}; it is none, since there is no objective_bound_s to prove",
            name_of(plan_.certificate.kind));
    }
    check_data_server();
  }

  void refuse_claim(const char* key, bool is_present)
  {
    if (is_present) fault("{}: a claim of a plan without stages; leave it out or write null", key);
  }

  void check_data_server()
  {
    if (plan_.data_server == cluster_.data_server) return;
    fault("data_server: claims {}; it is {} on platform {}", shown(plan_.data_server.value_or("none")),
          cluster_.data_server.value_or("none"), cluster_.name);
  }

  void check_placement()
  {
    std::unordered_map<std::string, std::size_t> index_of;
    for (std::size_t i = 0; i < cluster_.devices.size(); ++i) index_of.emplace(cluster_.devices[i].name, i);
    std::unordered_map<std::string, std::size_t> stage_of_device;
    // With replicas, a device may have neighbouring stages, so that pipelines have their own cuts.
    const bool is_for_chains = chain_schedule(plan_.goal.schedule).has_value() && !has_shared_stages(plan_) &&
                               !uses_machines(plan_) && !divides_operators(plan_);
    std::size_t next_layer = 0;
    if (plan_.stages.empty()) fault("stages: none; a plan that is not infeasible places every layer");
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
      const Stage& stage = plan_.stages[i];
      if (!check_replicas(i)) return;
      auto& devices = devices_.emplace_back();
      for (const auto& replica : stage.replicas) {
        std::vector<std::size_t>& of_replica = devices.emplace_back();
        for (const auto& shard : replica.shards) {
          const std::string& name = shard.device;
          const auto device = index_of.find(name);
          const auto [use, is_new] = stage_of_device.emplace(name, i);
          if (device == index_of.end()) {
            fault("stages[{}]: device {} is not on platform {}", number_[i], shown(name), cluster_.name);
          } else if (!is_new && use->second == i) {
            fault("stages[{}]: device {} has two of its replicas; give each its own", number_[i], shown(name));
          } else if (!is_new && is_for_chains) {
            fault("stages[{}]: device {} runs stage {} already; each device runs one stage", number_[i], shown(name),
                  use->second);
          }
          use->second = i;
          of_replica.push_back(device == index_of.end() ? 0 : device->second);
        }
      }
      if (stage.first_layer > stage.last_layer) {
        fault("stages[{}]: first_layer {} is after last_layer {}", number_[i], stage.first_layer, stage.last_layer);
        return;
      }
      if (stage.first_layer < next_layer) {
        fault("stages[{}]: layer {} is placed twice; each layer has one device", number_[i], stage.first_layer);
        return;
      }
      if (stage.first_layer > next_layer) {
        fault("stages[{}]: layer {} is not placed; the stages must hold every layer in order", number_[i], next_layer);
        return;
      }
      next_layer = stage.last_layer + 1;
    }
    if (!plan_.stages.empty() && next_layer < workload_.layers.size()) {
      fault("layer {} of {} is not placed; the stages must hold every layer in order", next_layer,
            workload_.layers.size());
    } else if (next_layer > workload_.layers.size()) {
      fault("layer {} is placed, but workload {} has {}, 0 to {}", workload_.layers.size(), workload_.name,
            counted(workload_.layers.size(), "layer"), workload_.layers.size() - 1);
    }
    if (plan_.goal.microbatches < 1) fault("microbatches: 0; a step has at least 1");
    if (next_layer <= workload_.layers.size()) check_shards();
    if (next_layer == workload_.layers.size()) check_ties();
    if (next_layer == workload_.layers.size()) check_residences(plan_, workload_, cluster_, number_, claims_);
    check_schedule();
    if (plan_.recompute != workload_.recompute) {
      fault("recompute: lists {}, not the {} that recompute in the given workload",
            counted(plan_.recompute.size(), "layer"), workload_.recompute.size());
    }
    if (plan_.micro_batch && *plan_.micro_batch != workload_.micro_batch) {
      fault("micro_batch: {}, not the {} of the given workload", counted(*plan_.micro_batch, "sample"),
            workload_.micro_batch);
    }
    if (plan_.routing && plan_.routing != routing_of(workload_)) {
      fault("routing: not that of the given workload");
    }
    check_context();
    check_experts();
    check_system();
    check_data_server();
  }

  void check_context()
  {
    if (plan_.context != workload_.context) {
      fault("context: {}, not the {} of the given workload", text_of(plan_.context), text_of(workload_.context));
    } else if (const auto found = fault_of_context(plan_)) {
      fault("context: {}", *found);
    } else if (const auto why_not = why_not_divided(workload_, plan_)) {
      fault("context: {}", *why_not);
    }
  }

  void check_experts()
  {
    if (plan_.experts != workload_.experts) {
      fault("experts: {}, not the {} of the given workload", text_of(plan_.experts), text_of(workload_.experts));
    } else if (const auto found = fault_of_experts(plan_)) {
      fault("experts: {}", *found);
    } else if (const auto why_not = why_experts_are_not_divided(workload_, plan_)) {
      fault("experts: {}", *why_not);
    } else if (const auto overlap = fault_of_overlap(plan_)) {
      fault("schedule: {}", *overlap);
    }
  }

  void check_system()
  {
    const std::uint64_t most = whole_microbatches(plan_) * workload_.micro_batch;
    if (plan_.samples && *plan_.samples > most) {
      fault("samples: {}; the step has {} of {}, so at most {}", *plan_.samples,
            counted(whole_microbatches(plan_), "micro-batch", "es"), workload_.micro_batch, most);
    }
    if (!plan_.system || framework_of(plan_) != nullptr || cluster_.systems.contains(plan_.system->name)) return;
    std::vector<std::string> known = framework_names();
    for (const auto& [name, measured] : cluster_.systems) known.push_back(shown(name));
    fault("system: {} is unknown; write one of {}, or leave it out", in_quotes(plan_.system->name),
          fmt::join(known, ", "));
  }

  /// Checks the replicas of a stage without the cluster; false if nothing else can be checked.
  bool check_replicas(std::size_t index)
  {
    const auto& replicas = plan_.stages[index].replicas;
    if (replicas.empty()) {
      fault("stages[{}]: no replicas; a stage has devices that run it", number_[index]);
      return false;
    }
    const bool takes_samples = divides_operators(plan_.stages[index]);  // each replica, of every micro-batch
    std::uint64_t taken = 0;
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      const auto& [microbatches, shards] = replicas[i];
      if (shards.empty()) {
        fault("stages[{}].replicas[{}].shards: none; a replica has a device that runs it", number_[index], i);
        return false;
      }
      if (shards.size() == 1 && !agree(shards.front().share, 1)) {
        fault("{}.share: {}; the one shard of a replica has share 1", place_of_shard(index, i, 0),
              shards.front().share);
      }
      if (replicas.size() > 1 && microbatches == 0 && !takes_samples) {
        fault("stages[{}].replicas[{}].microbatches: 0; each of several replicas takes some", number_[index], i);
      }
      taken += microbatches;
    }
    if (replicas.size() > 1 && !takes_samples && taken != plan_.goal.microbatches) {
      fault("stages[{}].replicas: take {}, and the step has {}; give each micro-batch to one", number_[index],
            counted(taken, "micro-batch", "es"), plan_.goal.microbatches);
    }
    return true;
  }

  /// Where a plan file has a shard.
  std::string place_of_shard(std::size_t stage, std::size_t replica, std::size_t shard) const
  {
    return is_chain(plan_) ? fmt::format("stages[{}].devices[0]", number_[stage])
                           : fmt::format("stages[{}].replicas[{}].shards[{}]", number_[stage], replica, shard);
  }

  /// Whether a name fits a pattern, in which * stands for any text.
  static bool fits(std::string_view name, std::string_view pattern)
  {
    const std::size_t star = pattern.find('*');
    if (star == std::string_view::npos) return name == pattern;
    if (!name.starts_with(pattern.substr(0, star))) return false;
    const std::string_view rest = pattern.substr(star + 1);
    for (std::size_t begin = star; begin <= name.size(); ++begin) {
      if (fits(name.substr(begin), rest)) return true;
    }
    return false;
  }

  /// What the splits that a stage names say of a layer that has one, if that is wrong.
  static std::optional<std::string> fault_of_splits(const Stage& stage, const Layer& layer)
  {
    if (stage.splits.empty()) return std::nullopt;
    const auto named = std::find_if(stage.splits.begin(), stage.splits.end(),
                                    [&](const NamedSplit& each) { return fits(layer.name, each.layers); });
    if (named == stage.splits.end()) {
      if (stage.grid.form != ShardGrid::Form::OneD) return std::nullopt;  // which is said of all
      return fmt::format("none fits layer {}; add \"{}\": \"{}\"", shown(layer.name), shown(layer.name),
                         layer.split->name);
    }
    const bool is_by_any = named->split == name_of(ShardGrid::Form::OneD);
    if (is_by_any || named->split == layer.split->name) return std::nullopt;
    return fmt::format("{} of layer {}, which shards divide by {}", in_quotes(named->split), shown(layer.name),
                       layer.split->name);
  }

  /// Checks that the layers of stages with several shards can be divided among them.
  void check_shards()
  {
    const bool has_buckets_of_parameters = !plan_.sync.bucket_ends.empty() || !plan_.sync.adds_replicas;
    if (has_buckets_of_parameters && !divides_operators(plan_)) {
      fault("sync: bucket_ends and adds_replicas are for devices that divide operators; leave them out");
    }
    if (divides_operators(plan_)) {
      for (const auto& found : faults_of_operators(plan_, workload_)) fault("{}", found);
      if (plan_.transfers != TransferRules{}) {
        fault("transfers: the shards divide each operator and pass whole results; leave it out");
      }
      return;
    }
    const bool gathers_otherwise = plan_.sync.gathered != DType::Float32 || plan_.sync.each_microbatch;
    if (gathers_otherwise && plan_.sync.sharded != Sharding::Parameters) {
      fault("sync: gather_dtype and each_microbatch are for replicas that divide parameters; leave them out");
    }
    if (const auto found = fault_of_shards(plan_.stages)) {
      fault("stages[{}].{}: {}", number_[found->stage], found->key, found->text);
    }
    bool is_grid_wrong = false;   // the first layer stands for all, which mostly lack the same
    bool is_split_wrong = false;  // likewise
    for (std::size_t i = 0; i < plan_.stages.size(); ++i) {
      const Stage& stage = plan_.stages[i];
      if (!has_shards({stage})) continue;
      std::size_t shards = 0;
      for (const auto& replica : stage.replicas) shards = std::max(shards, replica.shards.size());
      for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
        const std::string& name = workload_.layers[layer].name;
        const auto& split = workload_.layers[layer].split;
        const auto wrong_split =
            split && !is_split_wrong ? fault_of_splits(stage, workload_.layers[layer]) : std::nullopt;
        if (wrong_split) {
          is_split_wrong = true;
          fault("stages[{}].splits: {}", number_[i], *wrong_split);
        } else if (!split) {
          fault("stages[{}]: {} shards of layer {}, which one device computes; give it one shard ({})", i, shards,
                shown(name), why_whole(workload_));
        } else if (!stage.grid.is_grid() && split->units < shards) {
          fault("stages[{}]: {} shards of layer {}, which has {} to divide ({}); give it fewer shards", number_[i],
                shards, shown(name), split->units, units_in_words(workload_, *split));
        } else if (!is_grid_wrong) {
          const auto why_not = why_not_divided(workload_, layer, stage.grid);
          if (!why_not) continue;
          is_grid_wrong = true;
          fault("stages[{}]: {} of layer {}, {}", number_[i], text_of(stage.grid), shown(name), *why_not);
        }
      }
      if (stage.first_layer != stage.last_layer) {
        fault("stages[{}]: {} shards of layers {} to {}; each layer of several shards is a stage", number_[i], shards,
              stage.first_layer, stage.last_layer);
      }
    }
  }

  /// Checks that devices with a layer that uses the matrix of another one have both layers, or can have a copy.
  void check_ties()
  {
    if (const auto found = fault_of_ties(workload_, plan_)) {
      fault("stages[{}]: {}", number_[found->stage], found->text);
      return;
    }
    if (!uses_machines(plan_)) return;
    const auto stage_of = [this](std::size_t layer) {
      const auto& stages = plan_.stages;
      return static_cast<std::size_t>(std::find_if(stages.begin(), stages.end(),
                                                   [layer](const Stage& stage) { return layer <= stage.last_layer; }) -
                                      stages.begin());
    };
    for (std::size_t layer = 0; layer < workload_.layers.size(); ++layer) {
      const auto& tied_to = workload_.layers[layer].tied_to;
      if (!tied_to || stage_of(layer) == stage_of(*tied_to)) continue;
      check_tied_residence(plan_, layer, stage_of(layer), stage_of(*tied_to), number_, claims_);
    }
  }

  /// Checks the schedule's numbers as far as they depend on the plan alone; making its orders checks the rest.
  void check_schedule()
  {
    const Goal& goal = plan_.goal;
    const std::string schedule = shown(text_of(goal.schedule));
    if (!chain_schedule(goal.schedule) && goal.is_formula()) {
      fault("objective: {} under schedule {}; a schedule other than sequential, gpipe and 1f1b has objective step",
            name_of(goal.objective), schedule);
    }
    if (goal.objective == Objective::DtFm && !plan_.stages.empty()) {
      if (const auto found = fault_of_dtfm_stages(plan_)) fault("{}", *found);
    }
    const std::vector<std::string> devices = devices_of(plan_);
    for (const auto& [key, numbers] : goal.schedule.numbers) {
      if (numbers.empty()) {
        fault("schedule.{}: none; a plan has the numbers that an allocator chose", shown(key));
      } else if (key == "warm_up" && numbers.size() != devices.size()) {
        fault("schedule.warm_up: {} for {}; each device has one", counted(numbers.size(), "number"),
              counted(devices.size(), "device"));
      }
    }
    for (const auto& [device, order] : goal.schedule.orders) {
      const bool is_used = std::find(devices.begin(), devices.end(), device) != devices.end();
      if (!is_used) fault("schedule.orders: {} has no stage; leave its order out", shown(device));
    }
  }

  /// Checks what the plan tells an executor about a device.
  void check_device(std::size_t stage, std::size_t replica, std::size_t shard)
  {
    const Shard& claimed = plan_.stages[stage].replicas[replica].shards[shard];
    const Device& device = cluster_.devices[devices_[stage][replica][shard]];
    const double slowdown = reference_ / device.speed_at(workload_.dtype);
    if (claimed.slowdown && !agree(*claimed.slowdown, slowdown)) {
      fault("{}.slowdown: claims {:.9g}; it is {:.9g} on platform {}", place_of_shard(stage, replica, shard),
            *claimed.slowdown, slowdown, cluster_.name);
    }
    if (claimed.memory && !agree(claimed.memory->value, device.memory.value)) {
      fault("{}.memory_bytes: claims {:.9g}; it is {:.9g} on platform {}", place_of_shard(stage, replica, shard),
            claimed.memory->value, device.memory.value, cluster_.name);
    }
    if (claimed.site && *claimed.site != device.site) {
      fault("{}.site: claims {}; it is {} on platform {}", place_of_shard(stage, replica, shard),
            in_quotes(*claimed.site), in_quotes(device.site), cluster_.name);
    }
    if (claimed.type && *claimed.type != device.type) {
      fault("{}.type: claims {}; it is {} on platform {}", place_of_shard(stage, replica, shard),
            in_quotes(*claimed.type), in_quotes(device.type), cluster_.name);
    }
  }

  /// Checks that the replicas of a stage can divide what the plan says, by the sites that the platform gives them.
  void check_sync(std::size_t stage)
  {
    for (std::size_t shard = 0; shard < plan_.stages[stage].replicas.front().shards.size(); ++shard) {
      std::vector<std::string> sites;
      for (const auto& of_replica : devices_[stage]) {
        if (shard < of_replica.size()) sites.push_back(cluster_.devices[of_replica[shard]].site);
      }
      if (const auto why_not = why_not_divided(plan_.sync, plan_.stages[stage], sites)) {
        fault("sync.sharded: {}", *why_not);
        return;
      }
    }
  }

  /// A transfer as its latency and the time that it occupies its lane.
  PlayedTransfer transfer(std::size_t from, std::size_t to, Bytes size) const
  {
    const Path path = cluster_.path(from, to);
    const double latency = path.latency.value;
    const double data = size.value / path.bandwidth.value;
    if (plan_.latency_occupies_lanes()) return {0, latency + data};
    return {latency, data};
  }

  void collect()
  {
    const Boundaries cuts = boundaries_of(workload_);
    const std::size_t stages = plan_.stages.size();
    for (std::size_t i = 0; i < stages; ++i) {
      const Stage& stage = plan_.stages[i];
      StageFacts facts;
      facts.device = devices_[i].front().front();
      double parameters = 0;
      double activations = 0;
      double sky = 0;
      const LayerTimes times = times_on(workload_, stage.first_layer, stage.last_layer, cluster_.devices[facts.device]);
      for (std::size_t k = stage.first_layer; k <= stage.last_layer; ++k) {
        const Layer& layer = workload_.layers[k];
        parameters += static_cast<double>(layer.parameters);
        activations += layer.activations.value;
        sky += layer.sky_memory.value;
      }
      facts.forward_s = times.forward.value;
      facts.backward_s = times.backward.value;
      facts.update_s = times.update.value;
      const std::size_t end = stage.last_layer + 1;
      if (i + 1 < stages)
        facts.sent_forward = transfer(facts.device, devices_[i + 1].front().front(), cuts.output[end]);
      if (i > 0) {
        facts.sent_backward = transfer(facts.device, devices_[i - 1].front().front(), cuts.gradient[stage.first_layer]);
      }
      if (workload_.memory_model == MemoryModel::Sky) {
        facts.peak_bytes = sky;
      } else {
        double held = 1;
        const double microbatches = static_cast<double>(plan_.goal.microbatches);
        if (schedule_ == ChainSchedule::GPipe) held = microbatches;
        if (schedule_ == ChainSchedule::OneForwardOneBackward) {
          held = std::min(microbatches, static_cast<double>(stages - i));
        }
        facts.peak_bytes = parameters * bytes_per_parameter(workload_) + activations * held +
                           cuts.output[stage.first_layer].value + cuts.gradient[stage.first_layer].value +
                           cuts.output[end].value + cuts.gradient[end].value + workload_.workspace.value;
      }
      stages_.push_back(facts);
    }
    if (cluster_.data_server) {
      input_ = transfer(cluster_.devices.size(), devices_.front().front().front(), cuts.output.front());
    }
  }

  void check_memory()
  {
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const Device& device = cluster_.devices[stages_[i].device];
      if (stages_[i].peak_bytes > device.memory.value * (1 + claim_tolerance)) {
        const auto [needs, has] = distinct_texts(stages_[i].peak_bytes / 0x1p30, device.memory.value / 0x1p30, 6);
        fault("stages[{}]: layers {} to {} need {} GiB on device {}, which has {} GiB", i, plan_.stages[i].first_layer,
              plan_.stages[i].last_layer, needs, device.name, has);
      }
    }
  }

  /// s_i of a stage from its compute time and transfers; without communication or overlapped, latencies do not count.
  double stage_cost(double compute, const PlayedTransfer& forward, const PlayedTransfer& backward) const
  {
    if (plan_.goal.communication == Communication::None) return compute;
    if (plan_.goal.communication == Communication::Serial) return compute + forward.total() + backward.total();
    return std::max(compute, forward.data + backward.data);
  }

  void check_claims()
  {
    if (is_by_recurrence() && plan_.goal.microbatches > most_microbatches_by_recurrence) {
      fault("microbatches: {}; a step by recurrence has at most {}", plan_.goal.microbatches,
            most_microbatches_by_recurrence);
      return;
    }
    const double microbatches = static_cast<double>(plan_.goal.microbatches);
    const bool is_free = plan_.goal.has_free_transfers();
    double largest = stage_cost(0, input_, {});
    double sum = largest;
    double alone = input_.total();                 // one micro-batch alone in the pipeline
    double around = is_free ? 0 : input_.total();  // the same, for what counts before this stage
    double busiest_lane = is_free ? 0 : input_.data;
    double earliest_step = 0;
    double slowest_update = 0;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      const StageFacts& stage = stages_[i];
      const PlayedTransfer returned = i + 1 < stages_.size() ? stages_[i + 1].sent_backward : PlayedTransfer{};
      const double compute = stage.forward_s + stage.backward_s;
      const double cost = stage_cost(compute, stage.sent_forward, stage.sent_backward);
      const double transfers = stage.sent_forward.total() + returned.total();
      largest = std::max(largest, cost);
      sum += cost;
      slowest_update = std::max(slowest_update, stage.update_s);
      earliest_step = std::max(earliest_step, around + microbatches * compute);
      busiest_lane = std::max({busiest_lane, stage.forward_s, stage.backward_s});
      if (!is_free) busiest_lane = std::max({busiest_lane, stage.sent_forward.data, returned.data});
      around += compute + (is_free ? 0 : transfers);
      alone += compute + transfers;
    }
    // The last micro-batch on the busiest lane waits there for all others, and must also pass through everything else.
    if (!plan_.latency_occupies_lanes()) {
      earliest_step = std::max(earliest_step, around + (microbatches - 1) * busiest_lane);
    }
    // One micro-batch after the other: the stages' last backwards end one by one, the first stage's at the very end.
    double backward_end = input_.total() + microbatches * (alone - input_.total());
    double last_update_end = 0;
    for (const StageFacts& stage : stages_) {
      backward_end -= stage.sent_backward.total();
      last_update_end = std::max(last_update_end, backward_end + stage.update_s);
      backward_end -= stage.backward_s;
    }
    const double pipelined = (microbatches - 1) * largest + sum;
    const double by_formula = schedule_ == ChainSchedule::Sequential ? last_update_end : pipelined + slowest_update;
    const double step = is_by_recurrence() ? played() : by_formula;
    const bool is_played = plan_.predicted && plan_.predicted->step_time_by == StepTimeBy::Played;
    const std::uint64_t passes = 2 * plan_.goal.microbatches * stages_.size();
    if (is_played && passes > most_played_instructions) {
      fault("predicted.step_time_by: played; a step of {} passes is by recurrence", passes);
      return;
    }
    const double objective = plan_.goal.objective == Objective::Step         ? step
                             : plan_.goal.objective == Objective::DtFm       ? dtfm_cost(plan_, workload_, cluster_)
                             : plan_.goal.objective == Objective::Sequential ? sum
                             : plan_.goal.objective == Objective::Bottleneck ? largest
                                                                             : pipelined;
    claims_.check("objective_s", plan_.objective, objective);
    claims_.check("step_bound_s", plan_.step_bound, earliest_step / cluster_.profile_speedup);
    if (!plan_.predicted) {
      fault("predicted: missing; a plan that is not infeasible predicts its times and memory");
      return;
    }
    claims_.check("predicted.step_time_s", plan_.predicted->step_time, is_played ? played_step() : step);
    if (plan_.predicted->pipeline) claims_.check("predicted.pipeline_s", plan_.predicted->pipeline, pipelined);
    claims_.check("predicted.bottleneck_s", plan_.predicted->bottleneck, largest);
    claims_.check("predicted.sequential_s", plan_.predicted->sequential, alone);
    claims_.check_simulated();
    check_peak_memory();
    claims_.check_objective_bound(objective);
  }

  double played_step() const
  {
    const compute::AsTrained trained(plan_, workload_, cluster_);
    return checked_step(plan_, trained.workload(), trained.cluster(), passes_of_chain(plan_));
  }

  /// Whether steps are those of the recurrence, and not of the formula of older versions.
  bool is_by_recurrence() const { return !plan_.predicted || plan_.predicted->step_time_by != StepTimeBy::Formula; }

  /// The time of a step by playing it.
  double played() const
  {
    const bool is_free = plan_.goal.has_free_transfers();
    std::vector<PlayedStage> stages;
    for (const StageFacts& facts : stages_) {
      PlayedStage stage = {facts.forward_s, facts.backward_s, facts.update_s};
      if (!is_free) {
        stage.output = facts.sent_forward;
        stage.gradient = facts.sent_backward;
      }
      stages.push_back(stage);
    }
    return play_step(schedule_, plan_.goal.microbatches, is_free ? PlayedTransfer{} : input_, stages);
  }

  void check_peak_memory()
  {
    for (const StageFacts& stage : stages_) {
      claims_.check_peak_memory(cluster_.devices[stage.device].name, stage.peak_bytes);
    }
    const std::size_t claimed = plan_.predicted->peak_memory.size();
    if (claimed > stages_.size()) {
      fault("predicted.peak_memory_bytes: {} for {}", counted(claimed, "device"), counted(stages_.size(), "stage"));
    }
  }

  const Plan& plan_;
  const Workload& workload_;
  const Cluster& cluster_;
  FlopsPerSecond reference_;
  std::vector<std::size_t> number_;                             // of each stage in a file
  ChainSchedule schedule_{};                                    // of a chain
  std::vector<std::vector<std::vector<std::size_t>>> devices_;  // of each stage, by replica and shard
  std::vector<StageFacts> stages_;
  PlayedTransfer input_;
  Claims claims_;
};

}  // namespace

std::vector<std::string> faults_of(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  if (!needs_tied_copies(workload, plan)) return Checker(plan, workload, cluster).faults();
  const Workload with_copies = with_tied_copies(workload, plan);
  return Checker(plan, with_copies, cluster).faults();
}

std::vector<std::string> placement_faults_of(const Plan& plan, const Workload& workload)
{
  Cluster named;  // the devices, data server and system that the plan names, in a machine that has a disk
  named.machines.emplace_back().disk.emplace();
  for (const auto& name : devices_of(plan)) {
    Device& device = named.devices.emplace_back();
    device.name = name;
    device.machine.emplace();
  }
  named.data_server = plan.data_server;
  if (plan.system) named.systems.try_emplace(plan.system->name);
  return placement_faults_of(plan, workload, named);
}

std::vector<std::string> placement_faults_of(const Plan& plan, const Workload& workload, const Cluster& cluster)
{
  return Checker(plan, workload, cluster).placement_faults();
}

}  // namespace isobar
