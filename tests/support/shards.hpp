#pragma once

#include "core/model/workload.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/plan.hpp"
#include "tests/support/instances.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

/// Stages whose layers several devices divide.
namespace isobar::testing_support {

/// Lets each layer be divided: a random part of its parameters and activations, in 4 to 10 units. The last one gathers.
inline void add_splits(std::mt19937_64& random, Workload& workload)
{
  for (auto& layer : workload.layers) {
    const std::uint64_t units = 4 + random() % 7;
    layer.split = Split{.name = "units", .units = units};
    layer.split->parameters = (layer.parameters - random() % (layer.parameters / 2 + 1)) / units * units;
    layer.split->activations = static_cast<double>(1 + random() % 4) / 4 * layer.activations;
  }
  workload.layers.back().split->gathered = Bytes(static_cast<double>(1 + random() % 1000));
}

/// A chain of so many layers that can be divided in 8 units.
inline Workload divisible(std::size_t layers)
{
  Workload workload = chain(std::vector<double>(layers, 8), 80, 80, 1);
  for (auto& layer : workload.layers) {
    layer.split = Split{.name = "heads", .units = 8, .parameters = layer.parameters};
  }
  workload.layers.back().split->gathered = Bytes(1);
  return workload;
}

/// Shares of so many shards, multiples of an eighth, equal or not.
inline std::vector<double> random_shares(std::mt19937_64& random, std::size_t shards)
{
  std::vector<double> shares(shards, 1.0 / static_cast<double>(shards));
  if (shards > 1 && random() % 2 == 0) {
    std::fill(shares.begin(), shares.end(), 0.125);
    shares[random() % shards] += 1 - 0.125 * static_cast<double>(shards);
  }
  return shares;
}

/// A replica that takes so many micro-batches, on the next of the devices, which it removes.
inline Replica replica_on(std::vector<std::string>& devices, std::uint64_t microbatches,
                          const std::vector<double>& shares)
{
  Replica replica{microbatches, {}};
  for (const double share : shares) {
    replica.shards.push_back({devices.back(), share});
    devices.pop_back();
  }
  return replica;
}

/// A stage whose replicas take so many micro-batches each, on the next of the devices, which it removes.
inline Stage random_stage(std::mt19937_64& random, const std::vector<std::uint64_t>& microbatches, std::size_t shards,
                          std::vector<std::string>& devices)
{
  Stage stage;
  const auto shares = random_shares(random, shards);
  for (const std::uint64_t count : microbatches) stage.replicas.push_back(replica_on(devices, count, shares));
  return stage;
}

inline constexpr std::size_t most_unlike_shards = 3;

/// The same with 1 to 3 shards in each replica.
inline Stage stage_of_unlike_replicas(std::mt19937_64& random, const std::vector<std::uint64_t>& microbatches,
                                      std::vector<std::string>& devices)
{
  Stage stage;
  for (const std::uint64_t count : microbatches) {
    stage.replicas.push_back(replica_on(devices, count, random_shares(random, 1 + random() % most_unlike_shards)));
  }
  return stage;
}

/// The stages with several shards cut at each layer.
inline std::vector<Stage> by_layers(const std::vector<Stage>& stages)
{
  std::vector<Stage> parts;
  for (const auto& stage : stages) {
    if (!has_shards({stage})) {
      parts.push_back(stage);
      continue;
    }
    for (std::size_t layer = stage.first_layer; layer <= stage.last_layer; ++layer) {
      parts.push_back({layer, layer, stage.replicas, stage.grid});
    }
  }
  return parts;
}

}  // namespace isobar::testing_support
