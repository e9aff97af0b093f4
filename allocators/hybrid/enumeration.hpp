#pragma once

#include "allocators/hybrid/pipelines.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace isobar::allocators {

/// Whether `enumerate_pipelines` takes seconds at most: there are a few thousand different pipelines, on up to 5
/// devices, and up to 16 micro-batches.
bool are_few_pipelines(std::size_t layers, std::size_t devices, std::uint64_t microbatches);

/// Prices pipelines; none if they do not fit into memory.
using PipelinePrice = std::function<std::optional<Seconds>(const std::vector<Pipeline>& pipelines)>;

/// Tries every set of pipelines of single devices, in every order in a ring, with every division of the step's
/// micro-batches among them, but for those that a lower bound in closed form shows to take `incumbent` or more. Each
/// set takes a unit from the clock.
/// @returns the best set that takes less than `incumbent`, if there is one.
std::optional<std::vector<Pipeline>> enumerate_pipelines(const HybridProblem& problem, std::size_t most_replicas,
                                                         Seconds incumbent, const PipelinePrice& price,
                                                         const std::function<bool()>& stop);

}  // namespace isobar::allocators
