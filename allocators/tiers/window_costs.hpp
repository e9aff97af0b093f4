#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/player.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace isobar::allocators {

/// How the layers of one device share it with its machine: those that are not resident pass through a window.
struct WindowShape {
  std::vector<bool> is_resident;  ///< by layer
  std::size_t parameter_slots = 0;
  std::size_t gradient_slots = 0;
  UpdateOverlap overlap = UpdateOverlap::Step;
  Copies copies = Copies::Lean;
  bool stores_activations = false;  ///< of all layers but the first and the last; see TierLanes
  std::size_t spilled = 0;          ///< the number of last layers that pass with the optimizer's state on the disk

  std::size_t windowed() const;
  bool is_on_device() const { return windowed() == 0 && !stores_activations; }
};

/// What a shape needs of each tier.
struct WindowMemory {
  Bytes device;
  Bytes host;
  Bytes disk;
};

/// The costs of windows of a workload on one device, all micro-batches through a layer before the next one. Layers that
/// pass recompute their activations. Keeps references.
class WindowCosts {
 public:
  /// `system`: whose measured constants count, if the cluster has them. Requires a device with a machine.
  WindowCosts(const Workload& workload, const Cluster& cluster, std::size_t device, std::uint64_t microbatches,
              const std::string& system);

  std::size_t layers() const { return forward_.size(); }
  const Device& device() const { return device_; }
  const Machine& machine() const { return machine_; }
  Bytes parameter_bytes(std::size_t layer) const { return parameters_[layer]; }
  Bytes activation_bytes(std::size_t layer) const { return activations_[layer]; }  ///< of a micro-batch
  double microbatches() const { return microbatches_; }
  double forward(std::size_t layer) const { return forward_[layer]; }    ///< s, of all micro-batches
  double backward(std::size_t layer) const { return backward_[layer]; }  ///< the same
  double update_time(std::size_t layer) const;                           ///< s, while the device computes nothing
  double busy_update_time(std::size_t layer) const;                      ///< s, while it computes
  const MachineRates& rates() const { return rates_; }

  /// A step, without other devices that share links and the machine, and as if reads and writes did not share the disk.
  /// O(layers), times the micro-batches where activations are stored; three times that for updates that run into the
  /// next step.
  Seconds step_of(const WindowShape& shape) const;
  /// The most that a step may hold. Where activations are stored, fast copies may leave less.
  WindowMemory memory_of(const WindowShape& shape) const;
  /// Whether the device, or it and the machine, may hold a shape with this number of resident layers between the first
  /// and the last, whichever they are; false only if they hold none. O(1).
  bool device_may_hold(std::size_t resident) const;
  bool may_fit(std::size_t resident) const;
  /// The bytes of a place for parameters and of one for gradients, for the largest layer that passes.
  std::pair<Bytes, Bytes> places_of(const WindowShape& shape) const;
  /// The stages of a shape, one for each layer; a single one where all are resident.
  std::vector<Stage> stages_of(const WindowShape& shape) const;

 private:
  bool may_fit(std::size_t resident, bool stores_activations) const;
  Bytes least_on_device(std::size_t resident, bool stores_activations) const;

  const Workload& workload_;
  const Cluster& cluster_;
  const Device& device_;
  const Machine& machine_;
  double microbatches_;
  MeasuredSystem measured_;
  MachineRates rates_;
  std::vector<double> forward_, backward_;  // s
  std::vector<double> device_updates_;      // s
  std::vector<double> machine_updates_;     // FLOP
  std::vector<Bytes> parameters_, gradients_, states_;
  std::vector<Bytes> activations_;  // of a micro-batch
  // What a number of layers between the first and the last, those with the least, have in all.
  std::vector<Bytes> least_kept_, least_parameters_, least_passing_;
  std::vector<Bytes> workspaces_;
  std::vector<Bytes> input_gradients_;  // of a micro-batch
  Bytes inner_activations_;             // of all layers between the first and the last, of all micro-batches
  Bytes buffers_;
};

}  // namespace isobar::allocators
