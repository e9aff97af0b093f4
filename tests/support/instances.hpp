#pragma once

#include "core/cluster/cluster.hpp"
#include "core/costs/cost_model.hpp"
#include "core/costs/step_recurrence.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace isobar::testing_support {

/// A device with a speed (FLOP/s) and memory (bytes).
inline Device device(std::string name, double speed, double memory)
{
  Device result;
  result.name = std::move(name);
  result.speed = FlopsPerSecond(speed);
  result.memory = Bytes(memory);
  return result;
}

/// A chain of layers with the given forward work; backward is twice that. Each layer has `parameters` parameters, keeps
/// `activations` bytes, and sends `output` bytes forward and as many back.
inline Workload chain(const std::vector<double>& forward, std::uint64_t parameters = 0, double activations = 0,
                      double output = 0)
{
  Workload workload;
  workload.name = "chain";
  for (std::size_t i = 0; i < forward.size(); ++i) {
    Layer layer;
    layer.name = "layer" + std::to_string(i);
    layer.forward = Flops(forward[i]);
    layer.backward = Flops(2 * forward[i]);
    layer.parameters = parameters;
    layer.activations = Bytes(activations);
    layer.output = layer.gradient = Bytes(output);
    if (i > 0) layer.inputs = {i - 1};
    workload.layers.push_back(std::move(layer));
  }
  return workload;
}

/// A goal of objective step under a schedule with its numbers.
inline Goal goal_under(const std::string& schedule, std::uint64_t microbatches = 8)
{
  Goal goal;
  goal.schedule = schedule_from_text(schedule);
  goal.microbatches = microbatches;
  return goal;
}

/// Devices with the given speeds and plenty of memory, with the same path between any two.
inline Cluster cluster(const std::vector<double>& speeds, Path path = {Seconds(0), BytesPerSecond(1e30)},
                       double memory = 1e15)
{
  Cluster result;
  result.name = "cluster";
  for (std::size_t i = 0; i < speeds.size(); ++i) {
    result.devices.push_back(device("d" + std::to_string(i), speeds[i], memory));
  }
  result.network = MatrixNetwork::uniform(speeds.size() + 1, path);
  return result;
}

/// A random cluster: unequal speeds and memory, a different path for each pair, sometimes a data server.
inline Cluster random_cluster(std::mt19937_64& random, std::size_t devices, double memory)
{
  std::uniform_real_distribution<double> unit(0, 1);
  Cluster result;
  result.name = "random";
  for (std::size_t i = 0; i < devices; ++i) {
    result.devices.push_back(device("d" + std::to_string(i), 1 + 3 * unit(random), memory * (0.5 + unit(random))));
  }
  std::vector<Path> paths;
  for (std::size_t i = 0; i < (devices + 1) * (devices + 1); ++i) {
    paths.push_back({Seconds(0.2 * unit(random)), BytesPerSecond(0.5 + 4 * unit(random))});
  }
  result.network = std::make_shared<MatrixNetwork>(devices + 1, std::move(paths));
  if (unit(random) < 0.3) result.data_server = "server";
  return result;
}

/// A random cluster of sites: devices of two speeds and memories, equal paths within a site and between two sites.
inline Cluster random_sites(std::mt19937_64& random, std::size_t sites, std::size_t devices_per_site, double memory)
{
  std::uniform_real_distribution<double> unit(0, 1);
  Cluster result;
  result.name = "sites";
  const std::size_t devices = sites * devices_per_site;
  const double speeds[] = {1 + 3 * unit(random), 1 + 3 * unit(random)};
  const double memories[] = {memory * (0.5 + unit(random)), memory * (0.5 + unit(random))};
  for (std::size_t i = 0; i < devices; ++i) {
    const std::size_t type = random() % 2;
    result.devices.push_back(device("d" + std::to_string(i), speeds[type], memories[type]));
    result.devices.back().site = "site" + std::to_string(i / devices_per_site);
  }
  std::vector<Path> between;
  for (std::size_t i = 0; i < (sites + 1) * (sites + 1); ++i) {
    between.push_back({Seconds(0.3 * unit(random)), BytesPerSecond(0.3 + 2 * unit(random))});
  }
  const Path within{Seconds(0.01 * unit(random)), BytesPerSecond(2 + 8 * unit(random))};
  std::vector<Path> paths;
  for (std::size_t i = 0; i <= devices; ++i) {
    for (std::size_t j = 0; j <= devices; ++j) {
      const std::size_t from = i / devices_per_site;
      const std::size_t to = j / devices_per_site;
      paths.push_back(from == to ? within : between[from * (sites + 1) + to]);
    }
  }
  result.network = std::make_shared<MatrixNetwork>(devices + 1, std::move(paths));
  if (unit(random) < 0.3) result.data_server = "server";
  return result;
}

/// A random cluster of that many types, each with its own speed and memory, in any order; equal paths within a node of
/// two devices and between nodes.
inline Cluster random_types(std::mt19937_64& random, std::size_t types, std::size_t devices, double memory)
{
  std::uniform_real_distribution<double> unit(0, 1);
  std::vector<std::pair<double, double>> kinds;  // speed and memory
  for (std::size_t i = 0; i < types; ++i) kinds.emplace_back(1 + 3 * unit(random), memory * (0.5 + unit(random)));
  Cluster result;
  result.name = "types";
  for (std::size_t i = 0; i < devices; ++i) {
    const auto& [speed, bytes] = kinds[i < types ? i : random() % types];
    result.devices.push_back(device("d" + std::to_string(i), speed, bytes));
  }
  const Path within{Seconds(0.01 * unit(random)), BytesPerSecond(2 + 8 * unit(random))};
  const Path between{Seconds(0.3 * unit(random)), BytesPerSecond(0.3 + 2 * unit(random))};
  std::vector<Path> paths;
  for (std::size_t i = 0; i <= devices; ++i) {
    for (std::size_t j = 0; j <= devices; ++j) paths.push_back(i / 2 == j / 2 ? within : between);
  }
  result.network = std::make_shared<MatrixNetwork>(devices + 1, std::move(paths));
  if (unit(random) < 0.3) result.data_server = "server";
  return result;
}

/// A random chain of layers, some without work; work, bytes and parameters of the order of 1.
inline Workload random_chain(std::mt19937_64& random, std::size_t layers)
{
  std::uniform_real_distribution<double> unit(0, 1);
  Workload workload = chain(std::vector<double>(layers, 0));
  for (auto& layer : workload.layers) {
    layer.forward = Flops(unit(random) < 0.1 ? 0 : 0.2 + unit(random));
    layer.backward = layer.forward * (1.5 + unit(random));
    layer.parameters = random() % 4;
    layer.activations = Bytes(3 * unit(random));
    layer.output = Bytes(unit(random));
    layer.gradient = Bytes(unit(random));
    layer.sky_memory = Bytes(1 + 3 * unit(random));
  }
  workload.input = Bytes(unit(random));
  workload.memory_model = unit(random) < 0.5 ? MemoryModel::Training : MemoryModel::Sky;
  return workload;
}

/// Gives the devices of a cluster one of three types, and two of these times of their own for the layers. Layers with
/// the same work have the same.
inline Workload with_own_work(std::mt19937_64& random, Workload workload, Cluster& cluster)
{
  std::uniform_real_distribution<double> unit(0, 1);
  for (auto& device : cluster.devices) {
    device.type = "type " + std::to_string(random() % 3);
    if (unit(random) < 0.5) device.speed = FlopsPerSecond(2);
    if (unit(random) < 0.3) device.pace = 0.5;
  }
  for (const char* type : {"type 0", "type 1"}) {
    std::map<double, std::array<double, 3>> factors;  // by forward work
    const FlopsPerSecond speed(0.5 + unit(random));
    for (const auto& layer : workload.layers) {
      const auto [entry, is_new] = factors.try_emplace(layer.forward.value);
      if (is_new) entry->second = {0.3 + 2 * unit(random), 0.3 + 2 * unit(random), unit(random)};
      const auto [forward, backward, weights] = entry->second;
      workload.times[type].push_back({{forward * layer.forward / speed, backward * layer.backward / speed,
                                       weights * backward * layer.backward / speed},
                                      forward * update_work(workload, layer) / speed});
    }
  }
  return workload;
}

/// The workload with about half of its layers recomputing, and memory_model training.
inline Workload with_random_recomputation(std::mt19937_64& random, Workload workload)
{
  workload.memory_model = MemoryModel::Training;
  std::vector<std::size_t> layers;
  for (std::size_t i = 0; i < workload.layers.size(); ++i) {
    if (random() % 2 == 0) layers.push_back(i);
  }
  return with_recomputation(workload, layers);
}

/// Every possible goal, for M micro-batches (1 for schedule sequential); those of objective step last.
inline std::vector<Goal> all_goals(std::uint64_t microbatches)
{
  std::vector<Goal> goals;
  for (const auto objective : {Objective::Sequential, Objective::Bottleneck, Objective::Pipeline, Objective::Step}) {
    for (const auto communication :
         {Communication::None, Communication::Overlapped, Communication::Serial, Communication::Played}) {
      if (!are_compatible(objective, communication)) continue;
      for (const auto schedule :
           {ChainSchedule::Sequential, ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}) {
        goals.push_back(
            {objective, communication, choice_of(schedule), schedule == ChainSchedule::Sequential ? 1 : microbatches});
      }
    }
  }
  return goals;
}

/// The plan of a placement with all claims from the cost model; its bound is 0.
inline Plan plan_of(const std::vector<StagePlacement>& stages, const CostModel& cost, const Goal& goal)
{
  Plan plan;
  plan.allocator = "by hand";
  plan.goal = goal;
  plan.platform = {"platform.xml", "0"};
  plan.workload = {"workload.yaml", "0"};
  plan.recompute = cost.workload().recompute;
  plan.data_server = cost.cluster().data_server;
  const auto evaluation = cost.evaluate(stages, goal);
  plan.objective = evaluation.objective;
  plan.objective_bound = Seconds(0);
  plan.step_bound = evaluation.step_bound;
  plan.predicted = Predicted{.step_time = step_time_by_recurrence(cost, stages, goal),
                             .bottleneck = evaluation.bottleneck,
                             .sequential = evaluation.sequential,
                             .pipeline = evaluation.pipeline};
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto& [index, first, last] = stages[i];
    const std::string& name = cost.cluster().devices[index].name;
    plan.stages.push_back(stage_on(name, first, last));
    plan.predicted->peak_memory[name] = cost.memory(
        first, last,
        microbatches_in_flight(require_chain_schedule(goal.schedule), stages.size() - 1 - i, goal.microbatches));
  }
  return plan;
}

/// A random placement of a chain of `layers` on at most `devices` devices, in any order.
inline std::vector<StagePlacement> random_placement(std::mt19937_64& random, std::size_t layers, std::size_t devices)
{
  std::vector<std::size_t> order(devices);
  for (std::size_t i = 0; i < devices; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  const std::size_t stages = 1 + random() % std::min(layers, devices);
  std::vector<std::size_t> cuts(layers - 1);
  for (std::size_t i = 0; i < cuts.size(); ++i) cuts[i] = i + 1;
  std::shuffle(cuts.begin(), cuts.end(), random);
  cuts.resize(stages - 1);
  cuts.push_back(layers);
  std::sort(cuts.begin(), cuts.end());
  std::vector<StagePlacement> placement;
  std::size_t first = 0;
  for (std::size_t i = 0; i < stages; ++i) {
    placement.push_back({order[i], first, cuts[i] - 1});
    first = cuts[i];
  }
  return placement;
}

}  // namespace isobar::testing_support
