#pragma once

#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/residence.hpp"
#include "core/steps/holders.hpp"

#include <array>
#include <cstddef>
#include <vector>

namespace isobar {

/// The bytes that each rank of a plan holds throughout a step in each tier: parameters, gradients, optimizer states,
/// buffers and workspaces. For the plan checker, from plain sums over the layers.
std::vector<std::array<double, tier_count>> resident_memory(const Plan& plan, const Workload& workload,
                                                            std::size_t ranks, const std::vector<Holder>& holders,
                                                            const HoldersOfStages& holder_of);

}  // namespace isobar
