#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"

#include <algorithm>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace isobar::testing_support {

/// The random factors of one of Sky's workers: its slowness and the divisor of its memory.
struct SkyFactors {
  double slowness;
  double memory_divisor;
};

/// The factors of workers 1..count: from the published streams for the first 64, then random ones of the same ranges.
inline std::vector<SkyFactors> sky_factors(std::size_t count)
{
  std::ifstream file(ISOBAR_SOURCE_DIR "/tests/instances/sky_slowdowns.csv");
  std::vector<SkyFactors> factors;
  for (std::string line; std::getline(file, line) && factors.size() <= count;) {
    if (line.empty() || line.front() == '#' || line.front() == 'r') continue;
    std::istringstream row(line);
    double rank = 0;
    double u22 = 0;
    double u32 = 0;
    char comma = 0;
    row >> rank >> comma >> u22 >> comma >> u32;
    factors.push_back({1 + u32, 1 + 2 * u22});
  }
  if (factors.empty()) throw std::runtime_error("tests/instances/sky_slowdowns.csv cannot be read");
  factors.erase(factors.begin());  // rank 0 is the server
  std::mt19937_64 random(64);
  std::uniform_real_distribution<double> unit(0, 1);
  while (factors.size() < count) factors.push_back({1 + unit(random), 1 + 2 * unit(random)});
  return factors;
}

/// Sky's emulated cluster as in platforms/sky64.xml: a star of `workers` devices around a data server; latency 2 ms,
/// the bandwidth of the slower of two links.
inline Cluster sky_cluster(std::size_t workers)
{
  const auto factors = sky_factors(workers);
  Cluster cluster;
  cluster.name = "sky";
  cluster.data_server = "node-0";
  constexpr double bandwidth = 1.25e9;
  std::vector<double> link;
  for (std::size_t i = 0; i < workers; ++i) {
    Device device;
    device.name = "node-" + std::to_string(i + 1);
    device.speed = FlopsPerSecond(9.3e12 / factors[i].slowness);
    device.memory = Bytes(15780.0 / factors[i].memory_divisor * 0x1p20);
    cluster.devices.push_back(std::move(device));
    link.push_back(bandwidth / factors[i].slowness);
  }
  link.push_back(bandwidth);
  std::vector<Path> paths;
  for (const double from : link) {
    for (const double to : link) paths.push_back({Seconds(0.002), BytesPerSecond(std::min(from, to))});
  }
  cluster.network = std::make_shared<MatrixNetwork>(workers + 1, std::move(paths));
  return cluster;
}

/// Sky's BERT, divided into the units that it places (batch 32, sequence 128, hidden 1024): embedding, three units per
/// encoder, pooler and classifier.
inline Workload sky_bert(std::size_t encoders, MemoryModel memory_model = MemoryModel::Sky)
{
  constexpr double MiB = 0x1p20;
  constexpr double mask = 16384;
  constexpr double e = 4194304;  // elements of a hidden state
  constexpr double k = 4096;     // elements of a mask
  struct Unit {
    const char* name;
    double multiply_adds;
    std::uint64_t parameters;
    double outputs;  // elements of every module's output, containers included
    double inputs;
    double sent;  // bytes, without the mask
    bool sends_mask;
  };
  const Unit embedding = {"embedding", 0, 31782912, 6 * e + k, 3 * k, 16 * MiB, true};
  const Unit attention = {"attention", 18253611008, 4200448, 12 * e + k, e + k, 16 * MiB, true};
  const Unit up = {"up", 17179869184, 4198400, 13 * e + k, e + k, 80 * MiB, true};
  const Unit down = {"down", 17179869184, 4197376, 5 * e + k, 5 * e + k, 16 * MiB, true};
  const Unit pooler = {"pooler", 33554432, 1049600, 65536, e + k, 131072, false};
  const Unit classifier = {"classifier", 98304, 3075, 32960, 32768, 384, false};
  std::vector<Unit> units = {embedding};
  for (std::size_t i = 0; i < encoders; ++i) units.insert(units.end(), {attention, up, down});
  units.insert(units.end(), {pooler, classifier});

  Workload workload;
  workload.name = "bert" + std::to_string(encoders);
  workload.micro_batch = 32;
  workload.sequence = 128;
  workload.memory_model = memory_model;
  workload.input = Bytes(96 * 1024.0);
  for (const auto& unit : units) {
    Layer layer;
    layer.name = unit.name;
    layer.forward = Flops(2 * unit.multiply_adds);
    layer.backward = 2 * layer.forward;
    layer.parameters = unit.parameters;
    layer.activations = Bytes(4 * unit.outputs);
    layer.output = Bytes(unit.sent + (unit.sends_mask ? mask : 0));
    layer.gradient = Bytes(unit.sent);
    layer.sky_memory = Bytes(4 * (2 * unit.outputs + 2 * static_cast<double>(unit.parameters) + unit.inputs));
    if (!workload.layers.empty()) layer.inputs = {workload.layers.size() - 1};
    workload.layers.push_back(std::move(layer));
  }
  return workload;
}

}  // namespace isobar::testing_support
