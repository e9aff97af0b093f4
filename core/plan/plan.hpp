#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/framework.hpp"
#include "core/model/sharding.hpp"
#include "core/model/workload.hpp"
#include "core/order/schedule_choice.hpp"
#include "core/plan/certificate.hpp"
#include "core/plan/shard_grid.hpp"
#include "core/plan/sharding.hpp"
#include "core/plan/step_interval.hpp"
#include "core/program/program.hpp"
#include "core/program/residence.hpp"
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

/// The objective that an allocator minimises (docs/costs.md). The first three are formulas over the costs s_i of
/// stages.
enum class Objective {
  Sequential,  ///< sum of s_i: one micro-batch in flight
  Bottleneck,  ///< largest s_i: time per micro-batch of a full pipeline
  Pipeline,    ///< (M-1) x largest + sum: the usual formula for one step of M micro-batches
  Step,        ///< time of one step under the plan's schedule: of a chain by its recurrence, else as played
  DtFm         ///< DT-FM's cost of communication: one gradient sync and two passes of the pipeline's transfers
};

/// How transfers count. The first three are for formulas; objective `step` uses Played or None, `dtfm` Played.
enum class Communication {
  None,        ///< transfers take no time: s_i = t_i
  Overlapped,  ///< s_i = max(t_i, time to send the bytes)
  Serial,      ///< s_i = t_i + transfers
  Played       ///< transfers as the simulator plays them
};

/// The answer of an allocator.
enum class Outcome { Optimal, Feasible, Infeasible, TimedOut };

/// How a step time was predicted: of a chain (is_chain) by the schedule's recurrence, of other plans by playing their
/// Program and, only in plans of older versions, by a formula.
enum class StepTimeBy { Formula, Recurrence, Played };
/// Largest number of micro-batches of a plan: evaluating and checking a step takes time in proportion to it.
inline constexpr std::uint64_t most_microbatches_by_recurrence = 65'536;

/// The name of a value, as files and options spell it.
std::string_view name_of(Objective objective);
std::string_view name_of(Communication communication);
std::string_view name_of(Outcome outcome);
std::string_view name_of(StepTimeBy by);
/// What an objective minimizes, in a line for lists.
std::string_view minimized_by(Objective objective);
/// The value with that name; none for an unknown name.
std::optional<Objective> objective_from_name(std::string_view name);
std::optional<Communication> communication_from_name(std::string_view name);
std::optional<Outcome> outcome_from_name(std::string_view name);
std::optional<StepTimeBy> step_time_by_from_name(std::string_view name);
/// All names of an enumeration; the default objective is the first.
std::vector<std::string> objective_names();
std::vector<std::string> communication_names();
std::vector<std::string> outcome_names();

/// The problem that an allocator solves, and that a plan was made for.
struct Goal {
  Objective objective = Objective::Step;
  Communication communication = Communication::Played;
  ScheduleChoice schedule = {};  ///< 1f1b
  std::uint64_t microbatches = 8;

  /// Default goal of an objective. `sequential`: schedule sequential, serial communication, M = 1. The others: 1f1b and
  /// M = 8, with played communication for `step` and `dtfm`, and overlapped for the formulas.
  static Goal with_defaults(Objective objective);
  /// True if the objective is a formula over the costs of a chain's stages.
  bool is_formula() const { return objective < Objective::Step; }
  /// True if the step is computed as if transfers took no time: prediction and bounds leave them out.
  bool has_free_transfers() const { return objective == Objective::Step && communication == Communication::None; }
};

/// Whether an objective allows this communication: `step` allows played or none, `dtfm` played, the formulas all except
/// played.
bool are_compatible(Objective objective, Communication communication);

/// The part of a path that a formula with this communication counts. Overlapped: the bandwidth, since a lane is busy
/// only while its bytes leave. Serial and played: latency and bandwidth. None: nothing.
Path counted_path(Communication communication, Path path);

/// The most micro-batches whose activations a stage holds at once; `stages_after` is the number of stages after it.
/// sequential: 1 · gpipe: M · 1f1b: min(M, stages_after + 1).
std::uint64_t microbatches_in_flight(ChainSchedule schedule, std::size_t stages_after, std::uint64_t microbatches);

/// A device's part of a replica; the shares of a replica sum to 1.
struct Shard {
  std::string device;
  double share = 1;
  // For an executor, which has no cluster, to emulate the device:
  std::optional<double> slowdown = {};  ///< how many times slower it is than reference_speed(cluster)
  std::optional<Bytes> memory = {};     ///< of the device
  /// Device::type, if the platform gives it; ranks are compared with it before they train.
  std::optional<std::string> type = {};
  /// Device::site, if the platform gives it: where a hierarchical sync has its rings. Files have it of replicas.
  std::optional<std::string> site = {};
};

/// Devices that together take some of the step's micro-batches through a stage.
struct Replica {
  std::uint64_t microbatches = 0;  ///< 0: all of the step, of a stage's only replica
  std::vector<Shard> shards;
};

/// What shards divide of layers.
struct NamedSplit {
  std::string layers;  ///< a pattern of their names, in which * stands for any text: "*.mlp"
  std::string split;   ///< Split::name, such as "columns"; "1d": the one that a layer has

  bool operator==(const NamedSplit&) const = default;
};

/// Neighbouring layers and the devices that run them; a device may have several stages.
struct Stage {
  std::size_t first_layer = 0;
  std::size_t last_layer = 0;  ///< inclusive
  std::vector<Replica> replicas;
  ShardGrid grid = {};  ///< of the shards of each replica
  /// How a file says that its layers are divided, the first that fits a layer; none: each by the split that it has.
  std::vector<NamedSplit> splits = {};
  Residence residence = {};
  /// Whether it begins another stage of the pipeline though the layer before is on the same devices, as where a V turns
  /// back; set where each layer is a part.
  bool starts_chunk = false;

  /// The one shard of the one replica of a stage on one device.
  const Shard& shard() const { return replicas.front().shards.front(); }
  const std::string& device() const { return shard().device; }
  bool is_on_one_device() const { return replicas.size() == 1 && replicas.front().shards.size() == 1; }
};

/// A stage on one device.
Stage stage_on(Shard shard, std::size_t first_layer, std::size_t last_layer);
Stage stage_on(std::string device, std::size_t first_layer, std::size_t last_layer);

/// How the replicas of a stage add up their gradients.
struct Sync {
  Algorithm algorithm = Algorithm::Ring;
  Sharding sharded = Sharding::None;
  /// Neighbouring stages on the same devices, the last first, add up their gradients together as soon as these are
  /// that many bytes, in float32; 0: each by itself.
  Bytes bucket = {};
  /// The parameters whose gradients are the last of a collective each, in the order in which backward makes them, where
  /// devices divide operators; empty: each gradient has its own.
  std::vector<std::size_t> bucket_ends = {};
  /// False: replicas of parameters drift apart, as in the published script of FastMoE.
  bool adds_replicas = true;
  /// The format in which gradients travel between replicas.
  DType summed = DType::Float32;
  /// The format in which parameters that replicas divide travel (Sharding::Parameters).
  DType gathered = DType::Float32;
  /// Replicas that divide parameters add up the gradients of each micro-batch, and keep their part of the sum.
  bool each_microbatch = false;

  bool operator==(const Sync&) const = default;
};

/// How stages pass activations and gradients to each other.
struct TransferRules {
  /// A device computes nothing while it sends, or adds up with other shards, what its last task made.
  bool blocking = false;
  /// Each shard sends its part of the data to that of the same number, and the receivers gather them inside their
  /// group: what a layer waits for then counts as its work (Narayanan et al. 2021, section 4.1).
  bool sliced = false;

  bool operator==(const TransferRules&) const = default;
};

/// The predicted times and memory of a plan.
struct Predicted {
  Seconds step_time;   ///< under the plan's schedule, with the update; see step_time_by
  Seconds bottleneck;  ///< largest s_i; played communication counts as overlapped
  Seconds sequential;  ///< sum of s_i under serial communication: one micro-batch alone, compute and transfers
  std::map<std::string, Bytes> peak_memory = {};  ///< by device
  StepTimeBy step_time_by = StepTimeBy::Recurrence;
  /// The formula of objective `pipeline` over the same s_i as `bottleneck`: neither a prediction nor a bound. None in
  /// plans of older versions, in which the latency of a transfer occupies its lane.
  std::optional<Seconds> pipeline = {};
  std::optional<StepInterval> interval = {};  ///< of step_time; none where no training system is known
};

/// The simulation by which a plan was chosen among candidates.
struct Simulated {
  Seconds step_time;                      ///< of this plan; no candidate took less
  std::uint64_t candidates = 1;           ///< number of different placements that were simulated
  std::string allocator;                  ///< the allocator that found this placement
  Objective objective = Objective::Step;  ///< the objective that it minimised
};

/// Identifies an input file of a plan.
struct Fingerprint {
  std::string name;           ///< as given, such as "platforms/sky64.xml"
  std::string hash;           ///< 64-bit FNV-1a of the bytes, hexadecimal; guards against mistakes, not against forgery
  WorkloadSettings set = {};  ///< of a workload: the values of --set, which its hash covers (workload_fingerprint)
};
/// The file and its settings, for people: "gpt.yaml --set layers=48".
std::string text_of(const Fingerprint& input);

/// The result of simulating a plan, with the hashes of its inputs. An executor uses it to verify that it runs what was
/// simulated.
struct Stamp {
  Seconds step_time;
  std::map<std::string, Bytes> peak_memory;  ///< by device
  std::string platform_hash;                 ///< of the simulated file, as in Fingerprint; likewise the workload's
  std::string workload_hash;
  std::string plan_hash;  ///< `hash_of` the plan
  std::string version;    ///< of Isobar
  std::string simgrid_version;
};

/// The assignment of layers to devices, and the allocator's claims about it. It is all that an allocator passes to the
/// simulator and the executor.
struct Plan {
  std::string allocator;
  Goal goal;
  Outcome outcome = Outcome::Feasible;
  std::string reason;  ///< if infeasible: the device, what it needs, what it has, the smallest change that would help
  std::vector<Stage> stages;  ///< in layer order; empty when infeasible
  Sync sync;                  ///< of stages with several replicas
  TransferRules transfers = {};
  /// How replicas divide sequences (core/plan/replica_exchanges.hpp). Micro-batches are then parts of the workload's.
  ContextParallelism context = {};
  ExpertParallelism experts = {};      ///< how replicas divide experts, likewise
  std::vector<std::size_t> recompute;  ///< layers that recompute their activations, ascending; see with_recomputation
  /// The training system that the plan imitates: training software, whose times and memory its layers then have
  /// (compute::AsTrained), or one whose measured constants count where a platform has them (Cluster::systems). Its
  /// rules of transfers and sums are in `transfers` and `sync` alone.
  std::optional<TrainingSystem> system;
  /// Samples of a step, if the last micro-batch of a replica is smaller than others. All are then played a little
  /// smaller. At most those of all micro-batches.
  std::optional<std::uint64_t> samples;
  /// Samples of a micro-batch, if not those of the workload file; see with_micro_batch.
  std::optional<std::uint64_t> micro_batch;
  /// How tokens come to their experts, if not as in the workload file; see with_routing.
  std::optional<spmd::Routing> routing;
  std::vector<std::string> without;        ///< devices of the platform that were left out; all claims are for the rest
  std::optional<std::string> data_server;  ///< of the cluster, for an executor, which has no cluster
  std::optional<Predicted> predicted;
  std::optional<Simulated> simulated;  ///< if the plan was chosen by simulation
  std::optional<Seconds> objective;
  std::optional<Seconds> objective_bound;  ///< no placement has a smaller objective; of a chain: no chain has
  std::optional<Seconds> step_bound;       ///< no order of the plan's passes finishes a step earlier
  /// No order of this placement finishes a step earlier, as far as its micro-batches fit in memory; if it is claimed.
  std::optional<Seconds> schedule_bound;
  Certificate certificate;  ///< how the bound was proven
  Fingerprint platform;
  Fingerprint workload;
  std::optional<Fingerprint> profile;  ///< the measured times of the layers, if they were measured
  std::optional<Stamp> stamp;
  Seconds search_time;  ///< wall clock; under "wall" in the file

  /// True for plans of older versions, in whose claims latencies occupy the lanes of transfers.
  bool latency_occupies_lanes() const { return predicted && !predicted->pipeline; }

  /// (objective - bound) / objective; none if either is missing.
  std::optional<double> gap_fraction() const;
};

/// The settings of a plan's workload (Fingerprint::set), for any command that reads the plan. `given` are those of the
/// command's `options`, which may only repeat them; `plan_file` names the plan.
/// @throws InputError for a setting that the plan does not have.
const WorkloadSettings& settings_of(const Plan& plan, const std::string& plan_file, const WorkloadSettings& given,
                                    const std::string& options = "--set");

/// The devices of a plan by rank: in the order of their first appearance in the stages. Of a chain, that of the stages.
std::vector<std::string> devices_of(const Plan& plan);

/// True for a plan whose stages have a device each, none of them twice, with all that they hold on it, and whose
/// schedule has a recurrence (ChainSchedule). Its times and memory follow from the cost model; those of other plans
/// from their Program.
bool is_chain(const Plan& plan);

/// Which of several steps in a row has the plan's step time.
CountedStep counted_step(const Plan& plan);

/// plan.json (docs/formats/plan.md), schema isobar-plan/1 or, for plans that it cannot express, isobar-plan/2.
/// Deterministic except for "wall".
std::string plan_to_json(const Plan& plan);
/// The same without "stamp" and "wall": what `hash_of` hashes and what a result stores. It can be read as a plan.
std::string lasting_plan_to_json(const Plan& plan);
/// Parses a plan; `name` stands for the file in messages. @throws InputError naming file, line and key of every fault.
Plan plan_from_json(const std::string& text, const std::string& name);
/// Reads a plan within another file, such as a result: `name` is the file's, `path` precedes each key ("plan.").
Plan plan_from_document(const DocumentNode& document, const std::string& name, const std::string& path = "");
/// Reads a plan file. @throws InputError as plan_from_json does, and when the file cannot be read.
Plan read_plan(const std::filesystem::path& file);

/// The fingerprint of the plan's JSON without "stamp" and "wall", which does not depend on the file's formatting.
std::string hash_of(const Plan& plan);
/// Checks that a plan's stamp matches the plan, the executor's `version` and the hash of the executor's workload.
/// @returns one line per mismatch, or one line if there is no stamp; empty if the stamp matches.
std::vector<std::string> faults_of_stamp(const Plan& plan, const std::string& workload_hash,
                                         const std::string& version);

}  // namespace isobar
