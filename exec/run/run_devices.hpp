#pragma once

#include "core/cluster/cluster.hpp"
#include "core/plan/plan.hpp"
#include "exec/run/run.hpp"

#include <cstddef>
#include <optional>

namespace isobar::exec {

/// The emulated speed of a rank; none where it computes as fast as it can.
std::optional<FlopsPerSecond> emulated_speed(const Plan& plan, const RunOptions& options, std::size_t rank);

/// The devices of a plan, and their machines, as a run has them: emulated ones with their speeds. What others take is
/// not known; their speeds are infinite, and the times of their instructions 0.
Cluster run_devices(const Plan& plan, const RunOptions& options);

}  // namespace isobar::exec
