#pragma once

#include "core/check/step_graph.hpp"
#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"

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

/// The step that a plan claims (predicted.step_time_s) if play_step gives the same but for rounding; else what it
/// gives.
///
/// Flows of unequal weight over one link pass on each delay larger than it was, so a step may depend on the last digits
/// of its times: by 0.6 % after 512 micro-batches on `geo_12regions`. Where the claim differs by more than
/// claim_tolerance, computations that take a few 1e-15 more or less show by how much rounding moves the step. The claim
/// may be off by 100 times that, at most by 2 %.
double checked_step(const Plan& plan, const Workload& workload, const Cluster& cluster,
                    const std::vector<std::vector<StagePass>>& passes);

}  // namespace isobar
