#pragma once

#include "core/jobs/mix.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/units.hpp"
#include "results/mix_result.hpp"
#include "sim/platform/platform.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::cli {

/// What a job of a mix computes, and where.
struct MixJobInputs {
  Plan plan;
  Workload workload;  ///< with the plan's settings, micro-batch, routing and recomputation
};

/// A platform and the jobs that share it, read and checked. Another `mix` may be set that has the same jobs.
struct MixInputs {
  sim::Platform platform;
  Fingerprint platform_fingerprint;
  std::optional<std::string> devices_file;  ///< where one was named
  std::optional<Fingerprint> profile;       ///< where times were measured, of the layers of all jobs
  std::string name;                         ///< of the mix in messages: its file
  Mix mix;
  std::vector<MixJobInputs> jobs;  ///< as Mix::jobs

  /// Every file that was read.
  std::vector<std::string> files() const;
};

/// Reads the files of a mix. `profile`: measured times of the layers of all jobs, or "". `name` precedes the faults of
/// the mix. Checks each plan against its workload and the
/// platform, as `isobar simulate` does, and warns where it was made for other inputs. Does not check memory.
/// @throws InputError with every fault of the first job that has one; a plan without stages is one.
MixInputs load_mix(const std::string& platform, const std::string& devices_file, const std::string& profile,
                   const Mix& mix, const std::string& name);

/// Reads and checks the files of a further job, for the same platform. Prints no notes.
/// @throws InputError as load_mix does.
MixJobInputs load_mix_job(const MixInputs& inputs, const MixJob& job);

/// The devices whose jobs do not fit in memory together, a line each: under a discipline with hand-over after a step,
/// what all jobs hold throughout, and the activations of the one with the most; else the sum of their peaks.
std::vector<std::string> memory_faults_of(const MixInputs& inputs);

/// A job alone on its devices, per step.
struct SoloRun {
  Seconds step_time;                        ///< mean after the first round; of the first if it is the only one
  std::map<std::string, Seconds> compute;   ///< by device: its work at nominal speed
  std::map<std::string, Seconds> transfer;  ///< by link: the least time for which the job needs it
};

/// Runs each job of a mix alone, for `rounds` rounds, in child processes, `parallel` at a time. Equal jobs run once.
std::vector<SoloRun> simulate_alone(const MixInputs& inputs, std::uint64_t rounds, std::size_t parallel);

/// The least time of a round (docs/costs.md).
results::RoundBound bound_of(const MixInputs& inputs, const std::vector<SoloRun>& alone);

/// Simulates a mix in this process and returns the result as JSON (isobar-mix-result/1, docs/formats/mix.md). Can be
/// called once per process. `trace_file`: the Chrome trace to write, or "".
/// @throws InputError as sim::simulate does.
std::string simulate_mix(const MixInputs& inputs, const std::vector<SoloRun>& alone, std::uint64_t rounds,
                         const std::string& trace_file);

}  // namespace isobar::cli
