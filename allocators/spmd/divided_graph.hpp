#pragma once

#include "allocators/spmd/strategy.hpp"
#include "core/model/workload.hpp"
#include "core/spmd/operator_time.hpp"
#include "core/spmd/pieces.hpp"
#include "core/spmd/reform_time.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

namespace isobar::allocators::spmd {

/// The devices that divide a graph, in the order of their collectives.
struct SpmdDevices {
  std::vector<DeviceRates> rates;
  std::vector<Bytes> memory;
  DeviceGroup group;
  double interference = 1;  ///< Device::interference, the largest
  /// How long the devices at all positions of several replicas add up gradients across them, at once.
  struct Across {
    Seconds latency;
    BytesPerSecond bandwidth;  ///< of the gradients of a device
  };
  std::optional<Across> across = {};

  std::size_t count() const { return rates.size(); }
};

/// The shares with which devices divide every operator: the same of all, or in proportion to their FLOPs per second.
std::vector<double> even_shares(const SpmdDevices& devices);
std::vector<double> shares_by_speed(const SpmdDevices& devices);

/// The run of operators that the devices of a pipeline's group compute, and how micro-batches pass it.
///
/// What other groups make arrives, and what they read leaves, as slices of the samples. Data, and whatever else has no
/// inputs and is no parameter, is made by each group that reads it.
struct GroupRun {
  std::size_t begin = 0;    ///< operator
  std::size_t end = 0;      ///< after the last one
  std::uint64_t waves = 1;  ///< that follow each other in a step; costs are those of one
  std::uint64_t held = 1;   ///< micro-batches whose activations are kept at once
};

/// The tensors that are made before an operator, and read by it or later; no data and no parameters.
std::vector<std::size_t> crossing_tensors(const OperatorGraph& graph, std::size_t cut);

/// A graph that devices divide by their shares, in a step of some micro-batches: what its operators and reforms cost.
///
/// Devices with equal rates, memory and shares are of one kind. The first of a kind has the largest pieces, since the
/// largest remainder gives the first of equal devices one unit more; it stands for all.
class DividedGraph {
 public:
  struct Kind {
    std::size_t first = 0;  ///< device
    std::size_t count = 0;
  };
  /// What an operator takes of a device of a kind with a share of r: about fixed + r · per_share.
  struct LinearLoad {
    Load fixed, per_share;
  };

  /// `graph` is that of all samples of a step, or of a wave of a group, of which each of `microbatches` has an equal
  /// part. Keeps references to the workload and the devices. No run: all operators, and no pipeline.
  DividedGraph(const OperatorGraph& graph, Rules rules, const Workload& workload, const SpmdDevices& devices,
               std::vector<double> shares, std::uint64_t microbatches, const std::optional<GroupRun>& run = {});
  DividedGraph(const DividedGraph&) = delete;
  DividedGraph& operator=(const DividedGraph&) = delete;

  /// The graph of a micro-batch.
  const OperatorGraph& graph() const { return graph_; }
  const SpmdDevices& devices() const { return *devices_; }
  const std::vector<double>& shares() const { return pieces_.shares(); }
  std::uint64_t microbatches() const { return microbatches_; }
  const std::vector<Kind>& kinds() const { return kinds_; }
  std::size_t kind_of(std::size_t device) const { return kind_of_[device]; }

  const GroupRun& run() const { return run_; }

  /// Of this division, with limited memory. It refers to this object. Its tensors are those of the graph.
  StrategyProblem problem() const;
  /// The operator that a node of the problem is; none of what arrives, which is the first node.
  std::optional<std::size_t> operator_of(std::size_t node) const { return operators_[node]; }
  LinearLoad linear_load(std::size_t node, const Signature& signature, std::size_t kind) const;

 private:
  ReformCost reform_cost(std::size_t tensor, Form from, Form to) const;
  Seconds time_of(ReformKind kind, std::size_t tensor, Form from, Form to) const;
  /// Bytes that a micro-batch keeps of an operator; `part_of` gives the part of a tensor in a form.
  template <typename PartOf>
  Bytes kept(std::size_t index, const Signature& signature, PartOf part_of) const;
  Load load(std::size_t index, const Signature& signature, std::size_t device) const;
  void list_operators();

  OperatorGraph graph_;
  Rules rules_;
  const Workload* workload_;
  const SpmdDevices* devices_;
  std::uint64_t microbatches_;
  GroupRun run_;
  std::vector<std::size_t> arriving_;                  // tensors: one, or none
  std::vector<std::optional<std::size_t>> operators_;  // of each node
  Pieces pieces_;
  std::vector<Kind> kinds_;
  std::vector<std::size_t> kind_of_;                  // of each device
  std::vector<std::vector<std::size_t>> kept_first_;  // of each operator, the tensors that none before it keeps
  std::vector<std::size_t> keepers_;                  // of each tensor, how many operators keep it
  using Collective = std::tuple<Opcode, std::vector<Bytes>, std::vector<Bytes>>;
  mutable std::map<Collective, Seconds> times_;
};

}  // namespace isobar::allocators::spmd
