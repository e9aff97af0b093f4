#pragma once

#include "core/base/interrupt.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/player.hpp"
#include "core/program/program.hpp"
#include "exec/control/rank_turn.hpp"
#include "exec/device/shared_disk.hpp"
#include "exec/files/step_report.hpp"
#include "exec/files/tensor_source.hpp"
#include "exec/links/deadlines.hpp"
#include "exec/links/network_options.hpp"
#include "exec/model/batch.hpp"
#include "exec/rank/rank_report.hpp"
#include "exec/transport/transport_choice.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

class Weights;
struct OuterRun;

/// When a run writes checkpoints, and to which folder; all ranks share it.
struct CheckpointOptions {
  std::string folder;             ///< "": no checkpoints
  std::uint64_t every_steps = 0;  ///< interval in steps; 0: none. The end of the run always writes one
  Seconds every;                  ///< interval in time; 0: none
  std::size_t keep = 3;           ///< number of complete checkpoints to keep
  /// JSON object that identifies the run; stored in its checkpoints.
  std::string run = "{}";
};

/// Options of a run. Pointed-to objects must outlive the run.
struct RunOptions {
  /// Number of steps already done. If all `steps` are done, the run only evaluates.
  std::uint64_t first_step = 0;
  const TensorSource* resume_from = nullptr;  ///< the checkpoint of `first_step`
  const Weights* weights = nullptr;           ///< Hugging Face model to start from; null: new parameters
  CheckpointOptions checkpoints;
  const BatchSource* batches = nullptr;     ///< training data; null: synthetic
  const BatchSource* evaluation = nullptr;  ///< data of an evaluation at the end; null: none
  std::uint64_t evaluation_steps = 0;       ///< each with the plan's number of micro-batches
  const GracefulStop* stop = nullptr;       ///< once requested, the run ends after the current step
  std::uint64_t steps = 10;                 ///< total, including those already done
  std::uint64_t seed = 1;
  /// Text of the options that must be equal on all ranks; a rank with others is rejected.
  std::string settings;
  std::string device = "cpu";   ///< of every rank in this process or its children: "cpu", "cuda:0"
  std::size_t threads = 1;      ///< computing threads of each rank on a CPU
  std::size_t connections = 1;  ///< TCP connections per link
  NetworkOptions network;       ///< for ranks that are processes
  /// For ranks that are processes.
  TransportChoice transport = TransportChoice::Tcp;
  /// Receives informational lines: each link's transport, if it is chosen automatically or NCCL; newly initialised
  /// parameters.
  std::function<void(const std::string&)> info = [](const std::string& /*line*/) {};
  /// Receives warnings: that the run is far slower than predicted.
  std::function<void(const std::string&)> warn = [](const std::string& /*line*/) {};
  bool emulate = false;  ///< limits ranks to the speed and memory of the plan's devices
  /// With `emulate` on a CPU: the profiled speed that underlies the layers' work. Slowed ranks then take the
  /// profile's times. Without it they take a multiple of their threads' processor time.
  std::optional<FlopsPerSecond> profiled_speed;
  /// With `emulate` on a CPU: the machines that set the time of copies, updates and disks, by rank; empty: as they are.
  std::vector<EmulatedMachine> machines = {};
  TimeLimits limits;    ///< how long ranks wait for one another
  std::string scratch;  ///< folder on the disk for optimizer states that live there; "": that for temporary files
  /// For tests: the seed of random delays of copies, of the machine's updates and of its disk; memory of theirs that is
  /// free then holds NaN.
  std::optional<std::uint64_t> disturb_copies = {};
  const JobTurns* turns = nullptr;  ///< of a job that shares its devices with others; null: it has them for itself
  const OuterRun* outer = nullptr;  ///< the rounds that the run takes part in; null: in none
};

/// Runs every rank as a thread of this process; tensors pass between them without a copy.
/// @throws the first failure of a rank, once all ranks have ended.
MeasuredRun run_in_process(const Workload& workload, const Plan& plan, const Program& program,
                           const RunOptions& options, const StepEnded& step_ended);

/// The ranks of a run on this machine, in processes or as threads with connections of their own. What the references
/// are of must outlive it.
class LocalRanks {
 public:
  /// Opens a listener for each rank. Call it before this process has threads.
  LocalRanks(const Workload& workload, const Plan& plan, const Program& program, const RunOptions& options);
  LocalRanks(const LocalRanks&) = delete;
  LocalRanks& operator=(const LocalRanks&) = delete;
  ~LocalRanks();

  /// In a child: closes the listeners of all other ranks, so that the listener of a dead rank is gone.
  void keep(const std::vector<std::size_t>& ranks);
  /// Executes a rank to its end, once. All ranks must be executed at the same time.
  /// @throws its failure, or that of the rank that is lost.
  RankReport play(std::size_t rank, const StepEnded& step_ended);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// For waits without a deadline: threads end together, and the heartbeat detects dead processes.
inline constexpr Seconds no_limit(1e9);
/// How long ranks of this machine have to end once one of them has failed.
inline constexpr Seconds grace_after_fault(5);

/// Runs every rank as a child process, over TCP on the loopback interface. Call it before this process has threads.
/// `step_ended` is called in the last stage's process.
/// @throws EnvironmentError naming the rank that failed first, where and why, once all ranks have ended.
MeasuredRun run_in_processes(const Workload& workload, const Plan& plan, const Program& program,
                             const RunOptions& options, const StepEnded& step_ended);

/// The place of one rank among the others, which are other processes.
struct RankPlace {
  std::size_t rank = 0;
  std::vector<Endpoint> endpoints;  ///< of all ranks, including its own
  std::shared_ptr<const Secret> secret;
  std::optional<TcpListener> listener = {};  ///< already open at its own endpoint
};

/// What a rank knows at the end of a run.
struct RankOutcome {
  std::uint64_t steps_done = 0;         ///< since step 0
  bool evaluation_is_cut = false;       ///< the evaluation was stopped before its end
  std::optional<MeasuredRun> measured;  ///< measurements of all ranks, by rank 0's clock; only on rank 0
};

/// Runs one rank of a run whose other ranks are processes elsewhere.
/// @throws EnvironmentError naming the rank that failed first, where and why.
RankOutcome run_rank(const Workload& workload, const Plan& plan, const Program& program, RankPlace place,
                     const RunOptions& options, const StepEnded& step_ended);

}  // namespace isobar::exec
