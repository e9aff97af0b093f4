#pragma once

#include "core/costs/cost_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

/// The exact search of Piper's model, an oracle for allocators on devices of one type (Tarnawski, Narayanan,
/// Phanishayee, Piper: Multidimensional Planner for DNN Parallelization, NeurIPS 2021).
namespace isobar::testing_support {

/// A stage of neighbouring layers on `replicas` x `shards` devices.
struct PiperStage {
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive
  std::size_t replicas = 1;
  std::size_t shards = 1;  ///< devices of a replica

  std::size_t devices() const { return replicas * shards; }
  bool operator==(const PiperStage&) const = default;
};

/// What Piper knows of a chain of layers and of `devices` equal devices with equal links.
struct PiperModel {
  std::size_t layers = 0;
  std::size_t devices = 0;
  std::vector<std::size_t> shards = {1};  ///< numbers of shards that a stage may have
  /// Seconds that a stage needs for each micro-batch of the step: all of its replicas together take that many.
  std::function<double(const PiperStage&)> load;
  /// Whether a stage fits, with the activations of so many micro-batches on each device.
  std::function<bool(const PiperStage&, std::size_t in_flight)> fits;
};

/// The micro-batches whose activations a replica holds: all replicas from its stage on have one each in flight.
inline std::size_t piper_in_flight(std::size_t replicas_behind, std::size_t replicas)
{
  return (replicas_behind + replicas + replicas - 1) / replicas;
}

/// A pipeline and the largest load of its stages: the time per micro-batch of a step with many of them.
struct PiperPlan {
  double time_per_microbatch = 0;
  std::vector<PiperStage> stages;
};

/// Finds the pipeline with the least largest load, on at most all devices. None if nothing fits.
///
/// Exact for the model, which knows no sum of stages: only long steps are as short as it says. Dynamic program over
/// (first layer, devices behind, replicas behind), from the last stage to the first; of equal loads the first found
/// stays. O(layers² devices² numbers of shards x divisors) time: for tests with a few dozen layers and devices.
inline std::optional<PiperPlan> best_by_piper(const PiperModel& model)
{
  constexpr double never = std::numeric_limits<double>::infinity();
  struct Tail {
    double load = never;
    PiperStage stage;
    std::size_t devices_behind = 0;
    std::size_t replicas_behind = 0;
  };
  using State = std::tuple<std::size_t, std::size_t, std::size_t>;  // first layer, devices and replicas from there on
  std::map<State, Tail> tails;
  tails[{model.layers, 0, 0}].load = 0;
  for (std::size_t end = model.layers; end > 0; --end) {
    for (std::size_t used = 0; used < model.devices; ++used) {
      for (std::size_t behind = 0; behind <= used; ++behind) {
        const auto tail = tails.find({end, used, behind});
        if (tail == tails.end()) continue;
        const double after = tail->second.load;
        for (std::size_t first = end; first-- > 0;) {
          for (const std::size_t shards : model.shards) {
            for (std::size_t replicas = 1; used + replicas * shards <= model.devices; ++replicas) {
              const PiperStage stage{first, end - 1, replicas, shards};
              if (!model.fits(stage, piper_in_flight(behind, replicas))) continue;
              Tail& here = tails[{first, used + stage.devices(), behind + replicas}];
              const double load = std::max(after, model.load(stage));
              if (load < here.load) here = {load, stage, used, behind};
            }
          }
        }
      }
    }
  }
  const Tail* best = nullptr;
  State state;
  for (const auto& [key, tail] : tails) {
    if (std::get<0>(key) > 0 || tail.load == never || (best != nullptr && tail.load >= best->load)) continue;
    best = &tail;
    state = key;
  }
  if (best == nullptr) return std::nullopt;
  PiperPlan plan{best->load, {}};
  while (std::get<0>(state) < model.layers) {
    const Tail& tail = tails.at(state);
    plan.stages.push_back(tail.stage);
    state = {tail.stage.last_layer + 1, tail.devices_behind, tail.replicas_behind};
  }
  return plan;
}

/// The model of a chain on equal devices, one of which is `device`, with a device for each replica, for steps of so
/// many micro-batches: a replica computes, sends and receives one after the other, and adds up its gradients once a
/// step in a ring. All pairs of devices have the path from device 0 to device 1. Memory is that of 1f1b
/// (CostModel::memory). Keeps a reference to `cost`, which is of the chain.
inline PiperModel piper_model_of(const CostModel& cost, std::uint64_t microbatches, std::size_t device = 0)
{
  PiperModel model;
  model.layers = cost.layers();
  model.devices = cost.devices();
  model.load = [&cost, microbatches, device](const PiperStage& stage) {
    const auto replicas = static_cast<double>(stage.replicas);
    double each = cost.compute_time(device, stage.first_layer, stage.last_layer).value;
    double sync = 0;
    if (cost.devices() > 1) {
      const auto moved = [&](std::size_t layer) {
        return (cost.output_transfer(0, 1, layer).data + cost.gradient_transfer(0, 1, layer).data).value;
      };
      if (stage.first_layer > 0) each += moved(stage.first_layer);
      if (stage.last_layer + 1 < cost.layers()) each += moved(stage.last_layer + 1);
      double parameters = 0;
      for (std::size_t i = stage.first_layer; i <= stage.last_layer; ++i) {
        parameters += static_cast<double>(cost.workload().layers[i].parameters);
      }
      const Path path = cost.cluster().path(0, 1);
      sync = 2 * (replicas - 1) * path.transfer_time(Bytes(4 * parameters / replicas)).value;
    }
    return each / replicas + sync / static_cast<double>(microbatches);
  };
  model.fits = [&cost, microbatches, device](const PiperStage& stage, std::size_t in_flight) {
    const std::uint64_t own = (microbatches + stage.replicas - 1) / stage.replicas;
    return cost.memory(stage.first_layer, stage.last_layer, std::min<std::uint64_t>(in_flight, own)) <=
           cost.cluster().devices[device].memory;
  };
  return model;
}

}  // namespace isobar::testing_support
