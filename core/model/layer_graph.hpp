#pragma once

#include "core/model/workload.hpp"

#include <cstddef>
#include <vector>

namespace isobar {

/// The bytes that cross each cut; entry k is for the cut before layer k (0..layers).
///
/// A layer's output crosses a cut once, however many layers after the cut read it; so does its gradient. Entry 0 is the
/// workload's input (output) and 0 (gradient); the last entry is 0.
struct Boundaries {
  std::vector<Bytes> output;    ///< forward
  std::vector<Bytes> gradient;  ///< back
};
/// The bytes that cross each cut of a workload. O(layers + edges).
Boundaries boundaries_of(const Workload& workload);

/// The layers before which the graph can be cut so that only one tensor crosses, ascending: those after its
/// articulation points (Boost.Graph). For a chain: 1, 2, …, layers-1. O(layers + edges).
std::vector<std::size_t> chain_cuts(const Workload& workload);

/// A workload as a chain: each layer stands for the layers between two neighbouring cuts of the original.
struct ChainView {
  Workload workload;                     ///< the chain; equal to the original if that can be cut before each layer
  std::vector<std::size_t> first_layer;  ///< in the original, of each chain layer; then the original's layer count
};
ChainView chain_view(const Workload& workload);
/// The same, cut only before layers that `first_layers`, ascending, names.
ChainView chain_view(const Workload& workload, const std::vector<std::size_t>& first_layers);

/// True if every layer reads exactly the previous one.
bool is_chain(const Workload& workload);

}  // namespace isobar
