#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"

#include <cstddef>
#include <optional>
#include <random>
#include <string>
#include <vector>

/// Devices that are in machines, and models of layers that pass through them.
namespace isobar::testing_support {

/// What a device and its machine have. Parameters take 16 bytes on the device and 4 on their way; an update 12 FLOP.
struct MachineNumbers {
  double device_speed = 1;  ///< FLOP/s
  double device_memory = 1e12;
  double host_memory = 1e12;
  double in = 100;          ///< B/s
  double out = 100;         ///< B/s
  double latency = 0;       ///< s
  double update_speed = 1;  ///< FLOP/s
  double busy_update_speed = 1;
  std::optional<Disk> disk = {};
};

/// Devices "gpu0", "gpu1", … in a machine each, "node0", "node1", …, and links of equal times between the devices.
inline Cluster cluster_with_machines(const std::vector<MachineNumbers>& all, const Path& link = {})
{
  Cluster cluster;
  cluster.name = "machines";
  for (const auto& numbers : all) {
    const std::string number = std::to_string(cluster.devices.size());
    Device device;
    device.name = "gpu" + number;
    device.speed = FlopsPerSecond(numbers.device_speed);
    device.memory = Bytes(numbers.device_memory);
    device.machine = MachineLink{cluster.machines.size(),
                                 {Seconds(numbers.latency), BytesPerSecond(numbers.in)},
                                 {Seconds(numbers.latency), BytesPerSecond(numbers.out)}};
    cluster.devices.push_back(device);
    cluster.machines.push_back({"node" + number, Bytes(numbers.host_memory), FlopsPerSecond(numbers.update_speed),
                                FlopsPerSecond(numbers.busy_update_speed), numbers.disk});
  }
  cluster.network = MatrixNetwork::uniform(all.size(), link);
  return cluster;
}

/// One device, "gpu0", in the machine "node0".
inline Cluster cluster_with_machine(const MachineNumbers& numbers)
{
  return cluster_with_machines({numbers});
}

/// What a layer needs for a micro-batch.
struct PassingLayer {
  double forward = 1;   ///< FLOP
  double backward = 2;  ///< FLOP
  std::uint64_t parameters = 100;
  double activations = 0;  ///< bytes
};

/// A chain of layers, trained with adam in float32, of which all but the first and the last recompute their
/// activations.
inline Workload workload_of_layers(const std::vector<PassingLayer>& layers)
{
  Workload workload;
  workload.name = "layers";
  workload.optimizer = Optimizer::Adam;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Layer layer;
    layer.name = "layer" + std::to_string(i);
    layer.forward = Flops(layers[i].forward);
    layer.backward = Flops(layers[i].backward);
    layer.parameters = layers[i].parameters;
    layer.activations = Bytes(layers[i].activations);
    if (i > 0) layer.inputs = {i - 1};
    workload.layers.push_back(layer);
    if (i > 0 && i + 1 < layers.size()) workload.recompute.push_back(i);
  }
  return workload;
}

}  // namespace isobar::testing_support
