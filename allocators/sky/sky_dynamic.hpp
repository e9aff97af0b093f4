#pragma once

#include "allocators/allocator.hpp"

#include <vector>

namespace isobar::allocators {

/// The inputs of Sky Computing's allocators; devices and layers in the order of the file.
struct SkyInputs {
  /// Relative slowness: the fastest device's speed over each device's (published: benchmark seconds over the least).
  std::vector<double> slowness;
  std::vector<double> device_memory;  ///< bytes
  std::vector<double> multiply_adds;  ///< of each layer's forward pass: half its FLOPs
  /// Bytes of each single layer: Sky's estimate where the workload has it (memory_model: sky). Otherwise the training
  /// memory of a stage of that layer at the head of the longest chain. Sums of layers are then never below what a stage
  /// needs, and a workload that fits tightly may count as infeasible.
  std::vector<double> layer_memory;
  double stage_memory = 0;  ///< bytes of every stage in addition to its layers': the buffer for recomputation
};
SkyInputs sky_inputs(const CostModel& cost, const Goal& goal);

/// Places by Sky Computing's published heuristic. It starts from equal counts and moves boundaries until memory holds
/// (phase 1). Then it moves one layer per device and sweep from slow to fast neighbours, at most 1000 sweeps (phase 2).
///
/// A budget limits the sweeps of phase 2 further. O(sweeps x (L + D)) time, O(L + D) memory. Deterministic.
///
/// The published faults are kept for parity:
/// - Phase 2 reads the load of device j where it should read that of j+1, so the branch that gives a layer to the next
///   device never runs. Boundaries only move right, and an overloaded device sheds layers to its left neighbour only.
/// - The target, floor(mean load), exceeds the balanced optimum; there is no final comparison, so the answer can be
///   worse than even on its own metric.
/// - Phase 1 packs from the left up to the memory limit, whatever the speed.
/// - Every device keeps at least one layer; the order is that of the file; transfers do not count.
/// It ignores the goal's objective and communication; the goal's schedule and M only enter layer_memory.
///
/// Source: hpcaitech/SkyComputing 456c749, `dynamic_allocate`.
Placement place_by_sky_dynamic(const Problem& problem);

/// As place_by_sky_dynamic() with the index fixed, load(j+1): devices can then shed to the right. The other faults
/// remain.
Placement place_by_sky_dynamic_fixed(const Problem& problem);

inline constexpr Allocator sky_dynamic_allocator = {
    .name = "sky-dynamic",
    .problem = "Sky Computing's heuristic: memory first, then loads between neighbours, in the order of the file",
    .guarantee = "none; can be worse than even; published faults kept",
    .cost = "O(L + D) a sweep, at most 1000 sweeps",
    .source = "Sky Computing (arXiv 2202.11836), code 456c749, dynamic_allocate",
    .place = place_by_sky_dynamic,
    .rivalry = Rivalry::SameGoal,
};

inline constexpr Allocator sky_dynamic_fixed_allocator = {
    .name = "sky-dynamic-fixed",
    .problem = "sky-dynamic with its wrong index fixed",
    .guarantee = "none",
    .cost = "O(L + D) a sweep, at most 1000 sweeps",
    .source = "own correction of sky-dynamic",
    .place = place_by_sky_dynamic_fixed,
    .rivalry = Rivalry::SameGoal,
};

}  // namespace isobar::allocators
