#pragma once

#include "core/check/claims.hpp"
#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/placed_shards.hpp"
#include "core/plan/plan.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace isobar {

/// The first thing that a plan says of where its stages live, and that holds on no platform; none if there is none.
std::optional<StageFault> fault_of_residences(const Plan& plan);

/// Checks the same of a plan whose stages hold every layer, and that its devices have what it says; `number`: of each
/// stage in a file. Only the plan checker uses it.
void check_residences(const Plan& plan, const Workload& workload, const Cluster& cluster,
                      const std::vector<std::size_t>& number, Claims& claims);

/// The key by which the instructions of a checked plan's program wait for each other in a circle, if they do; none for
/// a plan whose program always ends.
std::optional<std::string> key_of_circle(const Plan& plan);

/// Checks that the matrix that `layer` of stage `index` uses, of stage `owner` on the same devices, is where both can
/// use it.
void check_tied_residence(const Plan& plan, std::size_t layer, std::size_t index, std::size_t owner,
                          const std::vector<std::size_t>& number, Claims& claims);

}  // namespace isobar
