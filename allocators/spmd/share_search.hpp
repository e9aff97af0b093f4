#pragma once

#include "allocators/spmd/divided_graph.hpp"

#include <optional>
#include <vector>

namespace isobar::allocators::spmd {

/// Finds the shares with which a strategy takes the least time, by a linear program.
///
/// Minimizes formula Duplex over the shares r of the kinds of devices: each of its maxima is a variable, not below its
/// two times; compute of a kind is fixed + r · per_share (DividedGraph::linear_load), not below that of any kind. An
/// AllGather in a ring takes what its longest flow takes, a whole tensor but the slice of the receiver; an AllToAll
/// 1/n of the slice of a sender for each other device. All other collectives, and those of other algorithms, take what
/// they take now. Memory of a kind is fixed + r · per_share, too. Devices of a kind have the same share, which may be
/// 0.
///
/// The shares are real numbers: pieces are rounded, so the caller computes the cost again.
///
/// Source: Zhang et al., HAP: SPMD DNN Training on Heterogeneous GPU Clusters with Automated Program Synthesis,
/// EuroSys 2024, section 5; the phases are ours.
/// @returns the share of each device; none if no shares fit in memory, and without a solver (linear_program.hpp).
std::optional<std::vector<double>> best_shares(const DividedGraph& divided, const StrategyProblem& problem,
                                               const std::vector<StrategyStage>& stages);

}  // namespace isobar::allocators::spmd
