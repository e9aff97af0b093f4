// Compiled as C++17: LEMON 1.3.1 calls members of std::allocator that C++20 has no more.
#define LEMON_ONLY_TEMPLATES
#include "allocators/mix/matching.hpp"

#include <lemon/matching.h>
#include <lemon/smart_graph.h>

#include <algorithm>
#include <utility>

namespace isobar::allocators {

namespace {

/// Graphs with more edges are matched on some of them first.
constexpr std::size_t many_edges = 100'000;
constexpr std::size_t first_edges = 16;  // of each vertex
constexpr std::size_t more_edges = 8;    // of each vertex, in a round of pricing

Matching matching_of_all(std::size_t vertices, const std::vector<MatchingEdge>& edges)
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

/// Takes the edges with the largest `worth` of each vertex, up to `most` of them, in the order of the edges.
void take(std::size_t vertices, const std::vector<MatchingEdge>& edges,
          std::vector<std::pair<std::int64_t, std::size_t>> worth, std::size_t most, std::vector<bool>& is_taken)
{
  std::stable_sort(worth.begin(), worth.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::size_t> count(vertices);
  for (const auto& [value, edge] : worth) {
    std::size_t& first = count[edges[edge].first];
    std::size_t& second = count[edges[edge].second];
    if (first >= most && second >= most) continue;
    ++first;
    ++second;
    is_taken[edge] = true;
  }
}

/// For each edge that the duals do not cover, by how much.
std::vector<std::pair<std::int64_t, std::size_t>> uncovered(std::size_t vertices,
                                                            const std::vector<MatchingEdge>& edges,
                                                            const Matching& matching)
{
  std::vector<std::vector<std::size_t>> sets_of(vertices);  // ascending
  for (std::size_t i = 0; i < matching.odd_sets.size(); ++i) {
    for (const std::size_t vertex : matching.odd_sets[i].vertices) sets_of[vertex].push_back(i);
  }
  std::vector<std::pair<std::int64_t, std::size_t>> found;
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const auto& [first, second, weight] = edges[i];
    std::int64_t lack = 4 * weight - matching.duals[first] - matching.duals[second];
    if (lack <= 0) continue;
    const auto& others = sets_of[second];
    for (const std::size_t set : sets_of[first]) {
      if (std::binary_search(others.begin(), others.end(), set)) lack -= matching.odd_sets[set].dual;
    }
    if (lack > 0) found.emplace_back(lack, i);
  }
  return found;
}

}  // namespace

Matching maximum_weight_matching(std::size_t vertices, const std::vector<MatchingEdge>& edges)
{
  if (edges.size() <= many_edges) return matching_of_all(vertices, edges);
  std::vector<std::pair<std::int64_t, std::size_t>> worth;
  for (std::size_t i = 0; i < edges.size(); ++i) worth.emplace_back(edges[i].weight, i);
  std::vector<bool> is_taken(edges.size());
  take(vertices, edges, std::move(worth), first_edges, is_taken);
  while (true) {
    std::vector<MatchingEdge> taken;
    for (std::size_t i = 0; i < edges.size(); ++i) {
      if (is_taken[i]) taken.push_back(edges[i]);
    }
    Matching matching = matching_of_all(vertices, taken);
    auto lacking = uncovered(vertices, edges, matching);
    if (lacking.empty()) return matching;
    take(vertices, edges, std::move(lacking), more_edges, is_taken);
  }
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
