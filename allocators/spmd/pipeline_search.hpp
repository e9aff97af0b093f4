#pragma once

#include "allocators/spmd/spmd_plan.hpp"
#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/spmd/operator_graph.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace isobar::allocators::spmd {

/// How groups of devices divide the operators of a graph: each those of a run, one after the other.
struct SpmdPipeline {
  struct Group {
    std::vector<std::size_t> devices;
    std::vector<double> shares;
    std::size_t end_part = 0;  ///< after its last one
  };

  std::vector<Group> groups;          ///< in the order of the operators
  std::vector<std::size_t> cuts;      ///< the first operator of each part
  std::vector<Signature> signatures;  ///< of each operator
  Seconds cost;                       ///< of a step, as pipeline_cost has it
};

/// Where a group may end and the next one begin, ascending: before operators to which exactly one tensor comes from
/// those before, as slices of the samples, and no parameter; nor are data read on both sides, since a plan has one form
/// of them, but for a mask, which has one anyway. O(operators²).
std::vector<std::size_t> pipeline_cuts(const OperatorGraph& graph);

/// The waves in which a step's micro-batches pass a pipeline: of two each, of which one computes while the other one's
/// collectives run.
constexpr std::uint64_t micro_batches_of_wave(std::uint64_t microbatches)
{
  return microbatches < 2 ? microbatches : 2;
}
constexpr std::uint64_t waves_of(std::uint64_t microbatches)
{
  return (microbatches + 1) / 2;
}

/// Finds where groups of devices begin, and how each divides its operators.
///
/// `groups`: devices in the order of their collectives, one group for each run of operators. Several orders of the
/// groups are tried: the fastest first; and from the fastest on, always the one to which the way from the last is the
/// widest. For each order:
/// 1. The best strategy of each group for the whole graph gives each operator an estimated time: its part of what its
///    stage costs, by work.
/// 2. A dynamic program over cuts takes the least of (waves - 1) · longest + sum, over the groups' times of a wave,
///    forward and backward, and the transfers between them. It keeps pairs (sum, longest) of which none is better in
///    both. O(groups · cuts² · pairs).
/// 3. find_spmd_plan finds each group's strategy for its run. A group keeps the activations of as many waves as there
///    are groups from it on. Its time over the estimated one scales the estimates, and 2 is repeated, until the cuts
///    are known ones, or 6 times. Runs that do not fit in a group's memory, and longer ones, are left out.
/// The best that was found stays; other cuts may be better. Deterministic.
///
/// @returns no plan if none was found that fits. @throws Interrupted
std::optional<SpmdPipeline> find_spmd_pipeline(const Workload& workload, const Cluster& cluster,
                                               const std::vector<std::vector<std::size_t>>& groups,
                                               std::uint64_t microbatches, const SpmdOptions& options);

}  // namespace isobar::allocators::spmd
