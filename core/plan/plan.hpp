#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/certificate.hpp"
#include "core/units.hpp"

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

/// What an allocator minimises (docs/costs.md). The first three are formulas over the cost s_i of each stage.
enum class Objective {
  Sequential,  ///< sum of s_i: one micro-batch in flight
  Bottleneck,  ///< largest s_i: what a full pipeline takes per micro-batch
  Pipeline,    ///< (M-1) x largest + sum: the field's formula for one step of M micro-batches
  Step         ///< the time of one step under the plan's schedule, by its recurrence
};

/// How transfers count. Formulas: s_i = t_i, max(t_i, bytes sent) or t_i + transfers. Objective `step` takes `played`,
/// transfers as the simulator plays them, or `none`, transfers that take no time.
enum class Communication { None, Overlapped, Serial, Played };

/// The order in which a device works on micro-batches.
enum class Schedule { Sequential, GPipe, OneForwardOneBackward };

/// The answer of an allocator.
enum class Outcome { Optimal, Feasible, Infeasible, TimedOut };

/// How a step time was predicted: by the schedule's recurrence or, in plans of older versions only, by a formula.
enum class StepTimeBy { Formula, Recurrence };
/// The recurrence takes time in proportion to the micro-batches, also to check: no plan is made for more.
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
  Objective objective = Objective::Step;
  Communication communication = Communication::Played;
  Schedule schedule = Schedule::OneForwardOneBackward;
  std::uint64_t microbatches = 8;

  /// `sequential` goes with schedule sequential, serial communication and M = 1; the others with 1f1b and M = 8, `step`
  /// with played communication, formulas with overlapped.
  static Goal with_defaults(Objective objective);
  /// True when the step is asked for as if the network took no time: prediction and bounds leave transfers out.
  bool has_free_transfers() const { return objective == Objective::Step && communication == Communication::None; }
};

/// Whether an objective can count transfers so: `step` takes played or none, the others everything but played.
bool are_compatible(Objective objective, Communication communication);

/// What a formula with this communication counts of a path. Overlapped counts how long a lane is busy, which is for
/// the bytes alone; serial and played count the latency too; none counts nothing.
Path counted_path(Communication communication, Path path);

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

/// What is predicted of a plan.
struct Predicted {
  Seconds step_time;   ///< of the plan's schedule, with the update; see step_time_by
  Seconds bottleneck;  ///< largest s_i; of played communication as of overlapped
  Seconds sequential;  ///< sum of s_i under serial communication: one micro-batch alone, compute and transfers
  std::map<std::string, Bytes> peak_memory = {};  ///< by device
  StepTimeBy step_time_by = StepTimeBy::Recurrence;
  /// The formula of objective `pipeline` over the same s_i as `bottleneck`: neither a prediction nor a bound. None in
  /// plans of older versions, which count the latency of a transfer as time in which its lane is busy.
  std::optional<Seconds> pipeline = {};
};

/// The simulation by which a plan was chosen among candidates.
struct Simulated {
  Seconds step_time;                      ///< of this plan; no candidate took less
  std::uint64_t candidates = 1;           ///< different placements that were simulated
  std::string allocator;                  ///< that found this placement
  Objective objective = Objective::Step;  ///< for which it found it
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
  std::vector<Stage> stages;           ///< in chain order; empty when infeasible
  std::vector<std::size_t> recompute;  ///< layers that recompute their activations, ascending: with_recomputation
  /// Samples of a micro-batch, where they are not those of the workload's file: see with_micro_batch.
  std::optional<std::uint64_t> micro_batch;
  std::vector<std::string> without;        ///< devices of the platform that were left out; every claim is of the rest
  std::optional<std::string> data_server;  ///< the cluster's, for an executor, which knows no cluster
  std::optional<Predicted> predicted;
  std::optional<Simulated> simulated;  ///< where the plan was chosen by simulation
  std::optional<Seconds> objective;
  std::optional<Seconds> objective_bound;  ///< no placement has a smaller objective
  std::optional<Seconds> step_bound;       ///< no schedule finishes a step of this placement earlier
  Certificate certificate;                 ///< how the bound was proven
  Fingerprint platform;
  Fingerprint workload;
  std::optional<Fingerprint> profile;  ///< of what the layers took when they were measured
  std::optional<Stamp> stamp;
  Seconds search_time;  ///< wall clock; under "wall" in the file

  /// True for plans of older versions: latencies occupy the lanes of transfers in all that they claim.
  bool latency_occupies_lanes() const { return predicted && !predicted->pipeline; }

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

}  // namespace isobar
