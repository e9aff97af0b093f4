#pragma once

#include "core/model/workload.hpp"

#include <cstddef>
#include <vector>

namespace isobar {

/// The bytes that cross each cut: entry k speaks of the cut before layer k (0..layers). A layer's output crosses once,
/// however many layers behind the cut read it; the gradient comes back likewise. Entry 0 is the workload's input
/// (forward) and 0 (backward); the last entry is 0. O(layers + edges).
struct Boundaries {
  std::vector<Bytes> output;
  std::vector<Bytes> gradient;
};
Boundaries boundaries_of(const Workload& workload);

/// The layers before which the graph can be cut so that one tensor alone crosses: those behind its articulation points
/// (Boost.Graph), ascending. For a chain: 1, 2, …, layers-1. O(layers + edges).
std::vector<std::size_t> chain_cuts(const Workload& workload);

/// A workload whose graph is a chain: each layer stands for the layers between two neighbouring cuts of the original.
struct ChainView {
  Workload workload;                     ///< the chain; equal to the original when that is one
  std::vector<std::size_t> first_layer;  ///< of each chain layer, in the original; one more entry: its layer count
};
ChainView chain_view(const Workload& workload);

/// True when every layer reads exactly the one before it.
bool is_chain(const Workload& workload);

}  // namespace isobar
