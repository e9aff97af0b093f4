#pragma once

#include "allocators/allocator.hpp"
#include "allocators/hybrid/shapes.hpp"

#include <optional>

namespace isobar::allocators {

/// The pipeline on devices of a kind with the least largest load of a stage, where each stage has its own number of
/// replicas, by Piper's model: a replica computes, sends and receives one after the other, and adds up its gradients in
/// a ring once a step. A replica holds activations of as many micro-batches as the stages from its own on have devices
/// for each of its own, rounded up. No stage divides its layers. Of more than 64 devices, replicas are counted in equal
/// groups of at most that many.
///
/// O(L² D²), at most that of 64 devices. None if nothing fits.
/// Source: Tarnawski, Narayanan, Phanishayee, Piper: Multidimensional Planner for DNN Parallelization, NeurIPS 2021.
std::optional<Plan> propose_by_piper(const HybridProblem& problem, const DeviceKind& kind);

}  // namespace isobar::allocators
