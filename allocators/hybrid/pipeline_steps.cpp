#include "allocators/hybrid/pipeline_steps.hpp"

#include "allocators/bounds/comparisons.hpp"
#include "core/costs/step_recurrence.hpp"
#include "core/model/workload.hpp"
#include "core/plan/sharding.hpp"
#include "core/plan/tied_copies.hpp"
#include "core/program/collective.hpp"
#include "core/program/player.hpp"
#include "core/program/round_time.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace isobar::allocators {

namespace {

constexpr double bytes_of_a_value = 4;  // gradients and parameters are sent in float32

/// A device of a pipeline, with neighbouring stages of the plan.
struct Place {
  StagePlacement layers;
  std::size_t first_stage = 0;
  std::size_t last_stage = 0;
};

/// What the devices do after their passes, in the order of time.
struct DeviceTimes {
  Seconds free;  // the end of its last pass, then of its last update
  Seconds last_sync;
  Seconds last_gather;
};

class Step {
 public:
  Step(const Plan& plan, const CostModel& cost, const std::unordered_map<std::string, std::size_t>& index_of_device)
      : plan_(plan),
        cost_(cost),
        index_of_device_(index_of_device),
        replicas_(plan.stages.front().replicas.size()),
        sharded_(replicas_ > 1 ? plan.sync.sharded : Sharding::None),
        devices_(cost.devices()),
        gradients_at_(plan.stages.size() * replicas_),
        syncs_at_(gradients_at_.size())
  {
  }

  std::optional<PipelineStep> step()
  {
    if (!find_pipelines() || is_too_long()) return std::nullopt;
    PipelineStep result;
    result.fits = fits();
    const auto& devices = cost_.cluster().devices;
    const bool is_slowed =
        std::any_of(devices.begin(), devices.end(), [](const Device& each) { return each.interference > 1; });
    const bool is_whole = !needs_tied_copies(cost_.workload(), plan_);  // else devices add up a matrix that they share
    result.is_exact = is_whole && !is_slowed && (sharded_ == Sharding::None || sharded_ == Sharding::Optimizer);
    if (!result.fits) return result;
    pass();
    if (replicas_ > 1) add_up_gradients();
    share_facts();
    update();
    if (replicas_ > 1 && (sharded_ == Sharding::Optimizer || sharded_ == Sharding::Gradients)) gather_parameters();
    for (const std::size_t device : ranks_) {
      const DeviceTimes& times = devices_[device];
      result.step = std::max({result.step, times.free, times.last_sync, times.last_gather});
    }
    return result;
  }

 private:
  std::size_t device_of(std::size_t stage, std::size_t replica) const
  {
    return device_of_[stage * replicas_ + replica];
  }

  /// Finds the devices of each pipeline; false if the plan is of another kind.
  bool find_pipelines()
  {
    if (!chain_schedule(plan_.goal.schedule)) return false;
    std::vector<bool> is_used(cost_.devices(), false);
    pipelines_.resize(replicas_);
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      const Stage& stage = plan_.stages[s];
      if (stage.replicas.size() != replicas_) return false;
      for (std::size_t r = 0; r < replicas_; ++r) {
        const Replica& replica = stage.replicas[r];
        const bool is_alike = replica.microbatches == plan_.stages.front().replicas[r].microbatches;
        if (replica.shards.size() > 1 || !is_alike) return false;
        const std::size_t device = index_of_device_.at(replica.shards.front().device);
        device_of_.push_back(device);
        auto& pipeline = pipelines_[r];
        if (!pipeline.empty() && pipeline.back().layers.device == device) {
          pipeline.back().layers.last_layer = stage.last_layer;
          pipeline.back().last_stage = s;
          continue;
        }
        if (is_used[device]) return false;
        is_used[device] = true;
        ranks_.push_back(device);
        pipeline.push_back({{device, stage.first_layer, stage.last_layer}, s, s});
      }
    }
    return true;
  }

  std::uint64_t microbatches_of(std::size_t replica) const
  {
    const std::uint64_t own = plan_.stages.front().replicas[replica].microbatches;
    return own > 0 ? own : plan_.goal.microbatches;
  }

  /// Whether a player might refuse the step for its length.
  bool is_too_long() const
  {
    constexpr std::uint64_t per_device = 8;  // transfers of a micro-batch, at both ends
    std::uint64_t instructions = 8 * device_of_.size();
    for (std::size_t r = 0; r < replicas_; ++r) {
      instructions += microbatches_of(r) * (2 * plan_.stages.size() + per_device * pipelines_[r].size());
    }
    return instructions > most_played_instructions;
  }

  /// Whether each device has memory for the most micro-batches that it holds; necessary only, if replicas divide
  /// gradients or parameters.
  bool fits() const
  {
    const Workload& workload = cost_.workload();
    const ParameterBytes bytes = parameter_bytes(workload);
    const bool divides = sharded_ != Sharding::None && !cost_.memory_ignores_schedule();
    const double divided = divides ? bytes.all() - held_bytes(bytes, sharded_, replicas_) : 0;
    for (std::size_t r = 0; r < replicas_; ++r) {
      for (std::size_t i = 0; i < pipelines_[r].size(); ++i) {
        const Place& place = pipelines_[r][i];
        const std::uint64_t held = microbatches_in_flight(*chain_schedule(plan_.goal.schedule),
                                                          pipelines_[r].size() - 1 - i, microbatches_of(r));
        const auto& [device, first, last] = place.layers;
        const Bytes need = cost_.memory(first, last, held) - Bytes(divided * cost_.parameters(first, last));
        const Bytes memory = cost_.cluster().devices[device].memory;
        if (need > memory * (1 + tolerance)) return false;
      }
    }
    return true;
  }

  double parameters_of(const Stage& stage) const
  {
    double parameters = 0;
    for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
      parameters += static_cast<double>(cost_.workload().layers[layer].parameters);
    }
    return parameters;
  }

  /// Finds when each replica has all gradients of its stages.
  void pass()
  {
    std::map<std::vector<double>, std::vector<Seconds>> known;  // by micro-batches and times
    for (std::size_t r = 0; r < replicas_; ++r) {
      const auto& pipeline = pipelines_[r];
      std::vector<StagePlacement> stages;
      for (const Place& place : pipeline) stages.push_back(place.layers);
      Goal goal = plan_.goal;
      goal.microbatches = microbatches_of(r);
      StepTimes times = step_times(cost_, stages, goal);
      std::vector<double> key = {static_cast<double>(goal.microbatches), times.input.latency.value,
                                 times.input.data.value};
      for (const StageTimes& stage : times.stages) {
        for (const Seconds time : {stage.forward, stage.backward, stage.output.latency, stage.output.data,
                                   stage.gradient.latency, stage.gradient.data}) {
          key.push_back(time.value);
        }
      }
      auto& ends = known[key];
      if (ends.empty()) {
        StepRecurrence recurrence(*chain_schedule(goal.schedule), goal.microbatches);
        recurrence.step_time(times.input, times.stages);
        for (std::size_t i = 0; i < pipeline.size(); ++i) ends.push_back(recurrence.end_of_passes(i));
      }
      for (std::size_t i = 0; i < pipeline.size(); ++i) {
        const auto& [layers, first_stage, last_stage] = pipeline[i];
        Seconds end = devices_[layers.device].free = ends[i];
        // The backward pass of the device's first layers comes last.
        for (std::size_t s = first_stage; s <= last_stage; ++s) {
          gradients_at_[s * replicas_ + r] = end;
          const Stage& stage = plan_.stages[s];
          end -= cost_.backward_time(layers.device, stage.first_layer, stage.last_layer);
        }
      }
    }
  }

  bool have_same_devices(std::size_t stage, std::size_t other) const
  {
    for (std::size_t r = 0; r < replicas_; ++r) {
      if (device_of(stage, r) != device_of(other, r)) return false;
    }
    return true;
  }

  /// The time of a collective among devices, in their order, each with `size`.
  Seconds duration(Opcode opcode, const std::vector<std::size_t>& devices, Bytes size, Algorithm algorithm) const
  {
    if (plan_.goal.has_free_transfers()) return Seconds(0);
    const Cluster& cluster = cost_.cluster();
    std::vector<std::string> sites;
    for (const std::size_t device : devices) sites.push_back(cluster.devices[device].site);
    EndNetwork network;
    network.transfer = [&](std::size_t from, std::size_t to, Bytes bytes) {
      const Path path = cluster.path(devices[from], devices[to]);
      return TransferTimes{path.latency, path.data_time(bytes)};
    };
    network.start = [&](std::size_t end) { return cluster.devices[devices[end]].collective_start; };
    return collective_time(rounds_of(opcode, std::vector(devices.size(), size), algorithm, sites), network);
  }

  std::vector<std::size_t> devices_of(std::size_t stage) const
  {
    const auto begin = device_of_.begin() + static_cast<std::ptrdiff_t>(stage * replicas_);
    return {begin, begin + static_cast<std::ptrdiff_t>(replicas_)};
  }

  /// Adds up gradients in buckets, from the last stage to the first (Sync::bucket).
  void add_up_gradients()
  {
    const Opcode opcode = sharded_ == Sharding::None ? Opcode::AllReduce : Opcode::ReduceScatter;
    for (std::size_t end = plan_.stages.size(); end > 0;) {
      std::size_t begin = end - 1;
      Bytes size(bytes_of_a_value * parameters_of(plan_.stages[begin]));
      while (begin > 0 && size < plan_.sync.bucket && have_same_devices(begin - 1, begin)) {
        size += Bytes(bytes_of_a_value * parameters_of(plan_.stages[--begin]));
      }
      Seconds time;
      for (std::size_t r = 0; r < replicas_; ++r) {
        time = std::max(time, devices_[device_of(begin, r)].last_sync);
        for (std::size_t s = begin; s < end; ++s) time = std::max(time, gradients_at_[s * replicas_ + r]);
      }
      time += duration(opcode, devices_of(begin), size, plan_.sync.algorithm);
      for (std::size_t r = 0; r < replicas_; ++r) {
        devices_[device_of(begin, r)].last_sync = time;
        for (std::size_t s = begin; s < end; ++s) syncs_at_[s * replicas_ + r] = time;
      }
      end = begin;
    }
  }

  /// Lets all devices agree on what clipping and loss scaling need to know.
  void share_facts()
  {
    if (!needs_gradient_sync(cost_.workload()) || ranks_.size() < 2) return;
    Seconds time;
    for (const std::size_t device : ranks_) {
      time = std::max({time, devices_[device].free, devices_[device].last_sync});
    }
    time += duration(Opcode::AllReduce, ranks_, gradient_sync_size, Algorithm::Ring);
    for (Seconds& sync : syncs_at_) sync = std::max(sync, time);
  }

  void update()
  {
    const auto parts = static_cast<double>(sharded_ == Sharding::None ? 1 : replicas_);
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      for (std::size_t r = 0; r < replicas_; ++r) {
        const std::size_t device = device_of(s, r);
        Seconds& free = devices_[device].free;
        free = std::max(free, syncs_at_[s * replicas_ + r]) +
               cost_.update_time(device, plan_.stages[s].first_layer, plan_.stages[s].last_layer) / parts;
        syncs_at_[s * replicas_ + r] = free;  // from when its parameters can be gathered
      }
    }
  }

  void gather_parameters()
  {
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      Seconds time;
      for (std::size_t r = 0; r < replicas_; ++r) {
        time = std::max({time, syncs_at_[s * replicas_ + r], devices_[device_of(s, r)].last_gather});
      }
      const Bytes size(bytes_of_a_value * parameters_of(plan_.stages[s]) / static_cast<double>(replicas_));
      time += duration(Opcode::AllGather, devices_of(s), size, plan_.sync.algorithm);
      for (std::size_t r = 0; r < replicas_; ++r) devices_[device_of(s, r)].last_gather = time;
    }
  }

  const Plan& plan_;
  const CostModel& cost_;
  const std::unordered_map<std::string, std::size_t>& index_of_device_;
  std::size_t replicas_;
  Sharding sharded_;
  std::vector<std::vector<Place>> pipelines_;
  std::vector<std::size_t> device_of_;  // by stage and replica
  std::vector<std::size_t> ranks_;      // devices in the order of their first stages
  std::vector<DeviceTimes> devices_;
  std::vector<Seconds> gradients_at_;  // by stage and replica
  std::vector<Seconds> syncs_at_;      // likewise: what its update waits for
};

}  // namespace

PipelineSteps::PipelineSteps(const CostModel& cost) : cost_(cost)
{
  const auto& devices = cost.cluster().devices;
  for (std::size_t i = 0; i < devices.size(); ++i) index_of_device_.emplace(devices[i].name, i);
}

std::optional<PipelineStep> PipelineSteps::step_of(const Plan& plan) const
{
  return Step(plan, cost_, index_of_device_).step();
}

}  // namespace isobar::allocators
