#pragma once

#include "allocators/share_rule.hpp"
#include "allocators/spmd/divided_graph.hpp"
#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/program/program.hpp"
#include "core/spmd/operator_graph.hpp"
#include "core/spmd/signature.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace isobar::allocators::spmd {

struct SpmdOptions {
  /// Numbers of micro-batches to try; those that do not divide the samples are left out.
  std::vector<std::uint64_t> microbatches = {1, 2, 4};
  Rules rules = Rules::Corrected;
  Algorithm algorithm = Algorithm::Ring;  ///< of collectives
  std::uint64_t most_labels = 100'000;    ///< of a search with limits of memory
  ShareRule shares = ShareRule::Best;     ///< of unequal devices
  std::vector<DeviceRates> rates = {};    ///< of each device; empty: operator_rates_of
};

/// How devices divide every operator of a graph.
struct SpmdPlan {
  std::vector<std::size_t> cuts;      ///< the first operator of each part
  std::vector<Signature> signatures;  ///< of each operator; of a parameter, the form in which it is stored
  std::vector<double> shares;         ///< of each device; they sum to 1
  std::uint64_t microbatches = 1;
  Seconds cost;                     ///< of a step, by formula Duplex; of a group of a pipeline, of a wave
  std::vector<Seconds> part_costs;  ///< of each part, as far as the cost is a sum over parts
  Seconds bound;  ///< no strategy with these shares, and a number of micro-batches that was tried, takes less
  std::vector<Bytes> memory;  ///< that each device needs
  bool fits = true;           ///< in the memory of each device
  bool is_exact = false;      ///< no strategy with these shares and micro-batches that fits costs less
  SearchCounts counts = {};   ///< of all searches
  std::uint64_t turns = 0;    ///< of strategies and shares, until the cost fell no more

  double gap_fraction() const { return (cost - bound) / cost; }
};

/// Devices that divide a graph: of each replica those by position, as many as of the others. Each replica computes
/// other samples.
using Replicas = std::vector<std::vector<std::size_t>>;

/// Finds parts, signatures, micro-batches and shares of least cost (docs/spmd.md).
///
/// `graph`: of the samples of a step, with the sizes of `workload`'s dtype. `devices`: in the cluster, in the order of
/// their collectives. For each number of micro-batches, find_strategy with formula Duplex: exact for the shares. If
/// that strategy does not fit in memory, a search with limits, which is exact, too. Where that keeps too many labels,
/// searches with prices of memory, halved in between those with which a strategy fits and those with which none does;
/// the best of these strategies stays. Equal devices have even shares. Unequal ones have those of the rule; to find the
/// best, strategies and shares take turns, from
/// shares in proportion to speed and from even ones: the least strategy for the shares, then the best shares for it
/// (best_shares), until the cost falls no more. The best pair stays; that is a local optimum.
///
/// Of several replicas, the graph is that of the samples of one. It is searched at the slowest rates and the smallest
/// memory of each position, with the network of the slowest replica. After the backward pass of a part, the devices at
/// each position add up the gradients that they store (ReplicaLane): those at all positions at once, so that their
/// rings share the links between replicas.
///
/// With a `run`, the graph is that of a wave's samples, and the plan is for those of its operators that the run has;
/// all others have no signature. It has no bound.
///
/// Deterministic. Without a solver of linear programs, shares are those of one of the two beginnings.
///
/// Source: HiDup, section 4, and HAP, section 5; the costs are ours.
/// @returns no plan if no strategy fits in memory with the shares that were tried.
/// @throws Interrupted
std::optional<SpmdPlan> find_spmd_plan(const OperatorGraph& graph, const Workload& workload, const Cluster& cluster,
                                       const Replicas& replicas, const SpmdOptions& options = {},
                                       const std::optional<GroupRun>& run = {});
/// The same, without replicas and for all operators.
std::optional<SpmdPlan> find_spmd_plan(const OperatorGraph& graph, const Workload& workload, const Cluster& cluster,
                                       const std::vector<std::size_t>& devices, const SpmdOptions& options = {});

/// Strategies without a search.
enum class Baseline : std::uint8_t {
  DpEv,           ///< data parallelism: even slices of the samples, all parameters on each device
  DpCp,           ///< slices in proportion to the devices' speeds
  ExpertParallel  ///< as DpEv, but devices divide experts, to which samples go by an AllToAll, and back by another
};

/// The plan of a baseline: one micro-batch, and a part for each layer, so that gradients of a layer are added up while
/// the layer before computes its own; experts are a part. It has no bound, and may not fit.
SpmdPlan baseline_plan(Baseline baseline, const OperatorGraph& graph, const Workload& workload, const Cluster& cluster,
                       const std::vector<std::size_t>& devices, const SpmdOptions& options = {});

}  // namespace isobar::allocators::spmd
