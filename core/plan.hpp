#pragma once

#include "core/certificate.hpp"
#include "core/cluster.hpp"
#include "core/units.hpp"
#include "core/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace isobar {

struct DocumentNode;

/// What an allocator makes small; a formula over the cost s_i of each stage (docs/costs.md).
enum class Objective {
  Sequential,  ///< sum of s_i: one micro-batch in flight
  Bottleneck,  ///< largest s_i: what a full pipeline takes per micro-batch
  Pipeline     ///< (M-1) x largest + sum: one step of M micro-batches
};

/// How a stage counts its transfers: s_i = t_i, max(t_i, send_i) or t_i + send_i.
enum class Communication { None, Overlapped, Serial };

/// The order in which a device works on micro-batches.
enum class Schedule { Sequential, GPipe, OneForwardOneBackward };

/// The answer of an allocator.
enum class Outcome { Optimal, Feasible, Infeasible, TimedOut };

/// What a predicted step time is: the schedule's formula, or its exact recurrence (docs/costs.md).
enum class StepTimeBy { Formula, Recurrence };
/// A step time by recurrence takes time in proportion to them, also to check: a plan with more has none.
inline constexpr std::uint64_t most_microbatches_by_recurrence = 65'536;

std::string_view name_of(Objective objective);
std::string_view name_of(Communication communication);
std::string_view name_of(Schedule schedule);  ///< "sequential", "gpipe", "1f1b"
std::string_view name_of(Outcome outcome);
std::string_view name_of(StepTimeBy by);
std::optional<Objective> objective_from_name(std::string_view name);
std::optional<Communication> communication_from_name(std::string_view name);
std::optional<Schedule> schedule_from_name(std::string_view name);
std::optional<Outcome> outcome_from_name(std::string_view name);
std::optional<StepTimeBy> step_time_by_from_name(std::string_view name);
/// Every name, in the order of the enumeration.
std::vector<std::string> objective_names();
std::vector<std::string> communication_names();
std::vector<std::string> schedule_names();
std::vector<std::string> outcome_names();
std::vector<std::string> step_time_by_names();

/// What a plan is made for: the question that an allocator answers.
struct Goal {
  Objective objective = Objective::Pipeline;
  Communication communication = Communication::Overlapped;
  Schedule schedule = Schedule::OneForwardOneBackward;
  std::uint64_t microbatches = 8;

  /// `sequential` goes with schedule sequential, serial communication and M = 1; the others with 1f1b, overlapped, 8.
  static Goal with_defaults(Objective objective);
};

/// Micro-batches whose activations a stage holds at once, at most. `stages_after` counts the stages behind it.
/// sequential: 1 · gpipe: M · 1f1b: min(M, stages_after + 1).
std::uint64_t microbatches_in_flight(Schedule schedule, std::size_t stages_after, std::uint64_t microbatches);

/// A device's part in a stage; shares of a stage sum to 1.
struct StageDevice {
  std::string name;
  double share = 1;
  // What an executor, which knows no cluster, needs to emulate the device:
  std::optional<double> slowdown = {};  ///< how many times slower it is than reference_speed(cluster)
  std::optional<Bytes> memory = {};     ///< that it has
  /// What it was taken for, as Device::type, where the platform says it; ranks are compared with it before they train.
  std::optional<std::string> type = {};
};

/// Neighbouring layers that run on one device. (Several devices per stage are kept in the file for later schedules;
/// this version plans, checks and simulates stages of one device and refuses others.)
struct Stage {
  std::vector<StageDevice> devices;
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive

  const std::string& device() const { return devices.front().name; }
};

/// What the closed forms say of a plan.
struct Predicted {
  Seconds step_time;   ///< of the plan's schedule, with the update; see step_time_by
  Seconds bottleneck;  ///< largest s_i
  Seconds sequential;  ///< sum of s_i under serial communication: one micro-batch alone, compute and transfers
  std::map<std::string, Bytes> peak_memory;  ///< by device
  StepTimeBy step_time_by = StepTimeBy::Formula;
};

/// What a file was made from, to recognise it again.
struct Fingerprint {
  std::string name;  ///< as given, such as "platforms/sky64.xml"
  std::string hash;  ///< 64-bit FNV-1a of the bytes, hexadecimal; guards against mistakes, not against forgery
};

/// What a simulation of a plan found, and of what, so that an executor knows that it runs what was simulated.
struct Stamp {
  Seconds step_time;
  std::map<std::string, Bytes> peak_memory;  ///< by device
  std::string platform_hash;                 ///< of the files that were simulated, as in Fingerprint
  std::string workload_hash;
  std::string plan_hash;  ///< `hash_of` the plan
  std::string version;    ///< Isobar's
  std::string simgrid_version;
};

/// Which device runs which layers, and what the allocator claims of it. The only thing that passes from allocators to
/// the simulator and the executor.
struct Plan {
  std::string allocator;
  Goal goal;
  Outcome outcome = Outcome::Feasible;
  std::string reason;  ///< when infeasible: the device, what it needs, what it has, the nearest change that would do
  std::vector<Stage> stages;               ///< in chain order; empty when infeasible
  std::vector<std::size_t> recompute;      ///< layers that recompute their activations, ascending: with_recomputation
  std::vector<std::string> without;        ///< devices of the platform that were left out; every claim is of the rest
  std::optional<std::string> data_server;  ///< the cluster's, for an executor, which knows no cluster
  std::optional<Predicted> predicted;
  std::optional<Seconds> objective;
  std::optional<Seconds> objective_bound;  ///< no placement has a smaller objective
  std::optional<Seconds> step_bound;       ///< no schedule finishes a step of this placement earlier
  Certificate certificate;                 ///< how the bound was proven
  Fingerprint platform;
  Fingerprint workload;
  std::optional<Fingerprint> profile;  ///< of what the layers took when they were measured
  std::optional<Stamp> stamp;
  Seconds search_time;  ///< wall clock; under "wall" in the file

  /// (objective - bound) / objective; none when either is missing.
  std::optional<double> gap_fraction() const;
};

/// plan.json, schema isobar-plan/1 (docs/formats.md). Deterministic but for "wall".
std::string plan_to_json(const Plan& plan);
/// The same without "stamp" and "wall": what `hash_of` is of, and what a result keeps. Can be read again.
std::string lasting_plan_to_json(const Plan& plan);
/// @throws InputError naming file, line and key of every fault.
Plan plan_from_json(const std::string& text, const std::string& name);
/// Of a plan within another file, such as a result: `name` is the file's, `path` stands before each key ("plan.").
Plan plan_from_document(const DocumentNode& document, const std::string& name, const std::string& path = "");
Plan read_plan(const std::filesystem::path& file);

/// The fingerprint of the plan's JSON without "stamp" and "wall": the same however a file is indented.
std::string hash_of(const Plan& plan);
/// What an executor of this version, given a workload with this hash, may not take the plan's stamp for: one line per
/// thing that does not fit, or one that it has none; empty when all fits.
std::vector<std::string> faults_of_stamp(const Plan& plan, const std::string& workload_hash,
                                         const std::string& version);

/// Recomputes everything that a plan says, of the workload with the plan's recomputation, with an evaluator of its own,
/// which shares no code with the cost model: every layer exactly once and in order, devices exist and are used once,
/// memory holds under the schedule, predicted times, objective, step bound and memory as claimed to 1e-9 relative, the
/// bound not above the objective. An infeasible plan, and one whose search timed out before any was found, needs a
/// reason and no stages.
/// @returns one line per fault, "" prefixes left to the caller; empty when the plan holds. O(layers + stages).
std::vector<std::string> faults_of(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// The same of the placement alone: every layer exactly once and in order, each device once, a micro-batch at least.
std::vector<std::string> placement_faults_of(const Plan& plan, const Workload& workload);

}  // namespace isobar
