#pragma once

#include "allocators/hybrid/shapes.hpp"
#include "allocators/search_clock.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar::allocators {

/// Shapes that together are a plan.
struct ShapedPlan {
  std::vector<Shape> shapes;
  ShapeEstimate estimate;
};

/// Any sets of shapes, or those of one shape with as many shards in each stage, whose copies take as many
/// micro-batches.
enum class SearchedShapes { Any, Uniform };

/// Searches sets of shapes for the least estimated step, by simulated annealing from several starts: equal pipelines
/// over all kinds, pipelines of a kind or a site each, and one long pipeline. A move shifts a cut, exchanges, adds,
/// leaves out or divides stages, makes more or fewer copies, or joins or cuts pipelines. Each of `moves` moves takes a
/// unit from the clock. `heat`: of the first move, in steps; it falls to 0. The hotter, the more the plans differ.
/// @returns the best plans, each shapes only once, at most `most`; none if nothing fits. Deterministic for a seed
/// without a time limit.
std::vector<ShapedPlan> search_shapes(const ShapeCosts& costs, SearchedShapes searched, std::size_t most_replicas,
                                      std::uint64_t seed, std::uint64_t moves, double heat, std::size_t most,
                                      SearchClock& clock);

/// How replicas and stages of shapes are laid out over the devices of a kind, in the order of the file.
enum class Layout {
  StagesApart,   ///< the replicas of a stage next to each other
  ReplicasApart  ///< the stages of a pipeline next to each other
};

/// The pipelines of shapes, on devices.
std::vector<Pipeline> pipelines_of(const ShapedPlan& plan, const std::vector<DeviceKind>& kinds, Layout layout);

}  // namespace isobar::allocators
