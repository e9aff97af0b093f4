#pragma once

#include "core/model/workload.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

/// Plans that have a layer with a matrix and another one that uses it, too, on different devices (Layer::tied_to). Both
/// then hold the matrix, and once a step they add up its gradients.
/// Source: Shoeybi et al., Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism, 2020.
namespace isobar {

/// A matrix of which several stages have a copy each.
struct TiedMatrix {
  std::vector<std::size_t> layers;  ///< that have it among their parameters: the first that all use, and a copy each
  std::vector<std::size_t> stages;  ///< of these layers
};

/// The workload with the copies that a plan's devices hold: a layer that uses the matrix of one on other devices has it
/// among its parameters, state and updates (Layer::has_tied_copy). The workload itself, if there are none, or if it has
/// them already. Of layers on the same devices that use a matrix, the first has the copy. O(layers + devices).
Workload with_tied_copies(const Workload& workload, const Plan& plan);

/// Whether with_tied_copies adds copies.
bool needs_tied_copies(const Workload& workload, const Plan& plan);

/// The matrices of which several stages have copies, of a workload that has them. O(layers + stages).
std::vector<TiedMatrix> tied_matrices(const Workload& workload, const Plan& plan);

/// The layers before `first` whose matrices layers first..last use, in order. O(last - first).
std::vector<std::size_t> matrices_of_earlier_layers(const Workload& workload, std::size_t first, std::size_t last);

/// What keeps the stages of a plan from holding copies of a matrix; none if nothing does, or if they need none. The
/// stages hold every layer.
std::optional<StageFault> fault_of_ties(const Workload& workload, const Plan& plan);

}  // namespace isobar
