#pragma once

#include "core/base/interrupt.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "exec/files/step_report.hpp"
#include "exec/files/tensor_source.hpp"
#include "exec/model/batch.hpp"
#include "exec/net/deadlines.hpp"
#include "exec/net/network_options.hpp"
#include "exec/run/rank_report.hpp"
#include "exec/run/transport_choice.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

class Weights;

/// When a run writes checkpoints, and where: into a folder that all ranks share.
struct CheckpointOptions {
  std::string folder;             ///< "": none are written
  std::uint64_t every_steps = 0;  ///< 0: by steps none; one at the end of the run in any case
  Seconds every;                  ///< 0: by time none
  std::size_t keep = 3;           ///< complete ones that stay
  /// What makes the run, as a JSON object; a checkpoint holds it.
  std::string run = "{}";
};

/// What a run is asked for. What is pointed to outlives the run.
struct RunOptions {
  /// Steps that are done already. Where these are all, nothing is trained, and the model is evaluated.
  std::uint64_t first_step = 0;
  const TensorSource* resume_from = nullptr;  ///< the checkpoint of `first_step`
  const Weights* weights = nullptr;           ///< a Hugging Face model to begin with; null: new parameters
  CheckpointOptions checkpoints;
  const BatchSource* batches = nullptr;     ///< to train on; null: synthetic
  const BatchSource* evaluation = nullptr;  ///< to evaluate on at the end; null: nothing
  std::uint64_t evaluation_steps = 0;       ///< of the plan's micro-batches
  const GracefulStop* stop = nullptr;       ///< once it is asked, the step is finished and the run ends
  std::uint64_t steps = 10;                 ///< in all, those that are done already among them
  std::uint64_t seed = 1;
  /// All that ranks elsewhere must be told alike, in words; they turn away ranks that were told otherwise.
  std::string settings;
  std::string device = "cpu";  ///< of every rank here: "cpu", "cuda:0"
  std::size_t threads = 1;     ///< of each rank, for its computation on a CPU
  std::size_t flows = 1;       ///< TCP connections of each link
  NetworkOptions network;      ///< of ranks that are processes
  /// Of ranks that are processes.
  TransportChoice transport = TransportChoice::Tcp;
  /// Takes lines for people: each link's transport, where it was to be chosen, and parameters that begin anew.
  std::function<void(const std::string&)> tell = [](const std::string& /*line*/) {};
  /// Takes a line that people are to see in any case: that the run is far later than predicted.
  std::function<void(const std::string&)> warn = [](const std::string& /*line*/) {};
  bool emulate = false;  ///< ranks are as slow, and have as little memory, as the plan takes their devices for
  /// With `emulate` on a CPU: the profiled speed, by which the program counts its work. Slower ranks then compute as
  /// steadily as the profile says; else they take so many times what their threads work.
  std::optional<FlopsPerSecond> profiled_speed;
  TimeLimits limits;  ///< how long ranks wait for each other
};

/// Trains with every rank a thread of this process; tensors pass between them without a copy.
/// @throws the first rank's failure once all have ended.
MeasuredRun run_in_process(const Workload& workload, const Plan& plan, const Program& program,
                           const RunOptions& options, const StepEnded& step_ended);

/// Trains with every rank a process of its own on this machine, over TCP on the loopback interface. Call it before
/// this process has threads. `step_ended` is called in the process of the last stage.
/// @throws EnvironmentError naming the rank that the failure began with, where and why, once all have ended.
MeasuredRun run_in_processes(const Workload& workload, const Plan& plan, const Program& program,
                             const RunOptions& options, const StepEnded& step_ended);

/// Where one rank of a run stands among the others, which are elsewhere.
struct RankPlace {
  std::size_t rank = 0;
  std::vector<Endpoint> endpoints;  ///< of all ranks, its own included
  std::shared_ptr<const Secret> secret;
  std::optional<TcpListener> listener = {};  ///< open at its own endpoint already
};

/// What a rank of a run knows at its end.
struct RankOutcome {
  std::uint64_t steps_done = 0;         ///< since step 0
  bool evaluation_is_cut = false;       ///< there is data to evaluate on that was not used to the end
  std::optional<MeasuredRun> measured;  ///< by all ranks, times by rank 0's clock; rank 0 alone has it
};

/// One rank of a run whose others are elsewhere.
RankOutcome run_rank(const Workload& workload, const Plan& plan, const Program& program, RankPlace place,
                     const RunOptions& options, const StepEnded& step_ended);

}  // namespace isobar::exec
