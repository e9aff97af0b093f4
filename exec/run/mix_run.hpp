#pragma once

#include "core/failure.hpp"
#include "core/jobs/mix.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"
#include "exec/rank/rank_report.hpp"
#include "exec/run/run.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// A job of a mix that is ready to run. What is pointed to must outlive the run.
struct MixedRun {
  const Workload* workload = nullptr;
  const Plan* plan = nullptr;
  const Program* program = nullptr;
  RunOptions options;
  StepEnded step_ended;
};

/// What the processes of a mix's ranks are.
enum class MixProcesses : std::uint8_t {
  None,    ///< all ranks of all jobs are threads of this process
  Device,  ///< one for each device, with the ranks of all jobs there as threads
  Job      ///< one for each rank of each job
};

/// How a job of a mix ended, as far as this process knows.
struct JobOutcome {
  std::uint64_t steps_done = 0;         ///< since its step 0; 0 where it failed
  std::optional<MeasuredRun> measured;  ///< of all its ranks; on other machines than that of its rank 0, none
  std::optional<Failure> failure;
};

/// The devices of the jobs of a mix, in the order in which jobs and their ranks name them.
std::vector<std::string> devices_of_mix(const std::vector<MixedRun>& jobs);

/// Refuses a mix whose turns cannot be executed, all on this machine or on several.
/// @throws InputError that names the key of the mix.
void require_executable(const Mix& mix, const std::vector<MixedRun>& jobs, bool on_several_machines);

/// Predicted time of a round of the mix: the sum of the jobs' steps; 0 unless all are predicted.
Seconds predicted_round(const Mix& mix, const std::vector<MixedRun>& jobs);

/// Runs the jobs of a mix on this machine, each in its turns (device_turns.hpp), and returns how each ended. Losses are
/// those of each job alone, bit by bit. A job that ends, fails or dies leaves the devices to the others. Call it before
/// this process has threads. `failed` is called once for each job that failed, when its last rank has ended, by
/// this thread or with MixProcesses::None by the job's.
/// @throws as `require_executable` does; Interrupted.
std::vector<JobOutcome> run_mix(const Mix& mix, std::vector<MixedRun> jobs, MixProcesses processes,
                                const std::function<void(std::size_t job, const Failure& failure)>& failed = {});

/// One device of a mix whose other devices are processes elsewhere.
struct MixPlace {
  std::size_t device = 0;           ///< in devices_of_mix
  std::vector<Endpoint> endpoints;  ///< of all devices; job number j listens at the port + j
  std::shared_ptr<const Secret> secret;
};

/// Runs the ranks of all jobs on one device, as threads of this process. All machines must have the same mix: each
/// grants the turns of its device in the order of the rotation.
/// @throws as `require_executable` does.
std::vector<JobOutcome> run_mix_device(const Mix& mix, std::vector<MixedRun> jobs, const MixPlace& place,
                                       const std::function<void(std::size_t job, const Failure& failure)>& failed = {});

}  // namespace isobar::exec
