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
#include <tuple>
#include <vector>

namespace isobar::allocators::spmd {

/// The devices that divide a graph, in the order of their collectives.
struct SpmdDevices {
  std::vector<DeviceRates> rates;
  std::vector<Bytes> memory;
  DeviceGroup group;
  double interference = 1;  ///< Device::interference, the largest

  std::size_t count() const { return rates.size(); }
};

/// The shares with which devices divide every operator: the same of all, or in proportion to their FLOPs per second.
std::vector<double> even_shares(const SpmdDevices& devices);
std::vector<double> shares_by_speed(const SpmdDevices& devices);

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

  /// `graph` is that of all samples of a step, of which each of `microbatches` has an equal part. Keeps references to
  /// the workload and the devices.
  DividedGraph(const OperatorGraph& graph, Rules rules, const Workload& workload, const SpmdDevices& devices,
               std::vector<double> shares, std::uint64_t microbatches);
  DividedGraph(const DividedGraph&) = delete;
  DividedGraph& operator=(const DividedGraph&) = delete;

  /// The graph of a micro-batch.
  const OperatorGraph& graph() const { return graph_; }
  const SpmdDevices& devices() const { return *devices_; }
  const std::vector<double>& shares() const { return pieces_.shares(); }
  std::uint64_t microbatches() const { return microbatches_; }
  const std::vector<Kind>& kinds() const { return kinds_; }
  std::size_t kind_of(std::size_t device) const { return kind_of_[device]; }

  /// Of this division, with limited memory. It refers to this object.
  StrategyProblem problem() const;
  LinearLoad linear_load(std::size_t node, const Signature& signature, std::size_t kind) const;

 private:
  Load load(std::size_t node, const Signature& signature, std::size_t device) const;
  ReformCost reform_cost(std::size_t tensor, Form from, Form to) const;
  Seconds time_of(ReformKind kind, std::size_t tensor, Form from, Form to) const;
  /// Bytes that a micro-batch keeps of an operator; `part_of` gives the part of a tensor in a form.
  template <typename PartOf>
  Bytes kept(std::size_t node, const Signature& signature, PartOf part_of) const;

  OperatorGraph graph_;
  Rules rules_;
  const Workload* workload_;
  const SpmdDevices* devices_;
  std::uint64_t microbatches_;
  Pieces pieces_;
  std::vector<Kind> kinds_;
  std::vector<std::size_t> kind_of_;                  // of each device
  std::vector<std::vector<std::size_t>> kept_first_;  // of each operator, the tensors that none before it keeps
  std::vector<std::size_t> keepers_;                  // of each tensor, how many operators keep it
  using Collective = std::tuple<Opcode, std::vector<Bytes>, std::vector<Bytes>>;
  mutable std::map<Collective, Seconds> times_;
};

}  // namespace isobar::allocators::spmd
