// Compiled as C++17: LEMON 1.3.1 calls members of std::allocator that C++20 has no more.
#define LEMON_ONLY_TEMPLATES
#include "allocators/mix/matching.hpp"

#include <lemon/matching.h>
#include <lemon/smart_graph.h>

namespace isobar::allocators {

Matching maximum_weight_matching(std::size_t vertices, const std::vector<MatchingEdge>& edges)
{
  using Graph = lemon::SmartGraph;
  using Weights = Graph::EdgeMap<std::int64_t>;
  using Algorithm = lemon::MaxWeightedMatching<Graph, Weights>;
  static_assert(Algorithm::dualScale == 4, "the duals of Matching are four times the linear program's");

  Graph graph;
  graph.reserveNode(static_cast<int>(vertices));
  graph.reserveEdge(static_cast<int>(edges.size()));
  for (std::size_t i = 0; i < vertices; ++i) graph.addNode();
  const auto node = [](std::size_t vertex) { return Graph::nodeFromId(static_cast<int>(vertex)); };
  const auto vertex = [](Graph::Node of) { return static_cast<std::size_t>(Graph::id(of)); };
  Weights weights(graph);
  for (const auto& edge : edges) weights[graph.addEdge(node(edge.first), node(edge.second))] = edge.weight;

  Algorithm algorithm(graph, weights);
  algorithm.run();

  Matching matching;
  matching.weight = algorithm.matchingWeight();
  for (std::size_t i = 0; i < vertices; ++i) {
    const Graph::Node mate = algorithm.mate(node(i));
    matching.mates.push_back(mate == lemon::INVALID ? Matching::unmatched : vertex(mate));
    matching.duals.push_back(algorithm.nodeValue(node(i)));
  }
  for (int i = 0; i < algorithm.blossomNum(); ++i) {
    Matching::OddSet set;
    set.dual = algorithm.blossomValue(i);
    for (Algorithm::BlossomIt of(algorithm, i); of != lemon::INVALID; ++of) set.vertices.push_back(vertex(of));
    if (set.dual != 0) matching.odd_sets.push_back(set);
  }
  return matching;
}

LargestMatching largest_matching(std::size_t vertices, const std::vector<MatchingEdge>& edges)
{
  using Graph = lemon::SmartGraph;
  using Algorithm = lemon::MaxMatching<Graph>;
  Graph graph;
  graph.reserveNode(static_cast<int>(vertices));
  graph.reserveEdge(static_cast<int>(edges.size()));
  for (std::size_t i = 0; i < vertices; ++i) graph.addNode();
  const auto node = [](std::size_t vertex) { return Graph::nodeFromId(static_cast<int>(vertex)); };
  for (const auto& edge : edges) graph.addEdge(node(edge.first), node(edge.second));

  Algorithm algorithm(graph);
  algorithm.run();

  LargestMatching matching;
  for (std::size_t i = 0; i < vertices; ++i) {
    const Graph::Node mate = algorithm.mate(node(i));
    matching.mates.push_back(mate == lemon::INVALID ? Matching::unmatched : static_cast<std::size_t>(Graph::id(mate)));
    if (algorithm.status(node(i)) == Algorithm::ODD) matching.barrier.push_back(i);
  }
  return matching;
}

}  // namespace isobar::allocators
