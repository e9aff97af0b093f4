#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "core/steps/step_graph.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace isobar {

/// A forward or backward pass of a stage for a micro-batch.
struct StagePass {
  Opcode opcode = Opcode::Forward;
  std::size_t stage = 0;
  std::uint64_t microbatch = 0;

  bool operator==(const StagePass&) const = default;
};

/// The passes of a Program's devices, in the order of their compute lanes.
std::vector<std::vector<StagePass>> passes_of(const Program& program);
/// Likewise of the devices of a chain, by its schedule.
std::vector<std::vector<StagePass>> passes_of_chain(const Plan& plan);

/// What lies between the endpoints of a plan's platform; nothing if transfers are free. Refers to the platform.
StepGraph::Paths paths_between(const Plan& plan, const Cluster& cluster);

/// Computes the time of a step of a plan, in seconds, from the plan and the passes of each of
/// its devices (devices_of). What they wait for, what they send and what they add up is that of the plan. `stretch`:
/// how much longer computations take.
///
/// For the plan checker, independent of programs and of play_program. O(passes), and as StepGraph has it.
/// @throws std::logic_error for passes that wait for each other.
double play_step(const Plan& plan, const Workload& workload, const Cluster& cluster,
                 const std::vector<std::vector<StagePass>>& passes, double stretch = 1);

}  // namespace isobar
