#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace isobar::allocators {

/// An edge between two vertices, with what a matching gains by it. At most 2^50.
struct MatchingEdge {
  std::size_t first = 0;
  std::size_t second = 0;
  std::int64_t weight = 0;
};

/// A matching, and why none has more weight: dual values, four times those of the linear program, so that they are
/// whole numbers. `duals[u] + duals[v]` + the duals of the odd sets that hold both is at least four times the weight of
/// each edge, none is negative, and their sum, an odd set counted (size - 1) / 2 times, is four times `weight`.
struct Matching {
  static constexpr std::size_t unmatched = std::numeric_limits<std::size_t>::max();
  struct OddSet {
    std::vector<std::size_t> vertices;
    std::int64_t dual = 0;
  };
  std::vector<std::size_t> mates;  ///< of each vertex, or `unmatched`
  std::int64_t weight = 0;
  std::vector<std::int64_t> duals;  ///< of each vertex
  std::vector<OddSet> odd_sets;
};

/// A matching of the largest weight in a graph with the vertices 0 ... vertices - 1, at most one edge for a pair.
/// Deterministic. LEMON's algorithm of O(V E log V). Graphs of more than 100,000 edges are matched on the heaviest of
/// each vertex; edges that the duals do not cover are added until there are none. Complete graphs of 400 vertices take
/// about 0.03 s, those of 1,000 about 0.06 s with weights drawn evenly (tests/bench/cluster_bench.cpp).
Matching maximum_weight_matching(std::size_t vertices, const std::vector<MatchingEdge>& edges);

/// A matching with the most edges, and why none has more: without the vertices of the barrier, the graph has as many
/// components of odd size as the barrier has vertices, and one more for each vertex without a mate.
struct LargestMatching {
  std::vector<std::size_t> mates;  ///< of each vertex, or Matching::unmatched
  std::vector<std::size_t> barrier;
};

/// A matching with the most edges, whatever their weights. Deterministic. LEMON's algorithm of O(V E α(V)).
LargestMatching largest_matching(std::size_t vertices, const std::vector<MatchingEdge>& edges);

/// What is wrong with a matching or with its proof; "" when nothing is. Shares no code with the algorithm.
/// O(E · nesting of the odd sets).
std::string fault_of_matching(std::size_t vertices, const std::vector<MatchingEdge>& edges, const Matching& matching);

}  // namespace isobar::allocators
