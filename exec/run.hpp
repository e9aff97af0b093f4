#pragma once

#include "core/plan.hpp"
#include "core/program.hpp"
#include "core/workload.hpp"
#include "exec/rank_report.hpp"
#include "exec/step_report.hpp"
#include "exec/transport_choice.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// What a run is asked for.
struct RunOptions {
  std::uint64_t steps = 10;
  std::uint64_t seed = 1;
  std::string device = "cpu";  ///< of every rank here: "cpu", "cuda:0"
  std::size_t threads = 1;     ///< of each rank, for its computation on a CPU
  std::size_t flows = 1;       ///< TCP connections of each link
  /// Of ranks that are processes.
  TransportChoice transport = TransportChoice::Tcp;
  /// Takes a line for each link's transport, where it was to be chosen.
  std::function<void(const std::string&)> tell = [](const std::string& /*line*/) {};
  bool emulate = false;  ///< ranks are as slow, and have as little memory, as the plan takes their devices for
  /// With `emulate` on a CPU: the profiled speed, by which the program counts its work. Slower ranks then compute as
  /// steadily as the profile says; else they take so many times what their threads work.
  std::optional<FlopsPerSecond> profiled_speed;
  Seconds deadline;  ///< of each transfer: how long one rank waits for another
};

/// Ten times the predicted step, but at least 30 s: no transfer of a healthy run waits as long.
Seconds default_deadline(const Plan& plan);

/// Trains with every rank a thread of this process; tensors pass between them without a copy.
/// @throws the first rank's failure once all have ended.
MeasuredRun run_in_process(const Workload& workload, const Plan& plan, const Program& program,
                           const RunOptions& options, const StepEnded& step_ended);

/// Trains with every rank a process of its own on this machine, over TCP on the loopback interface. Call it before
/// this process has threads. `step_ended` is called in the process of the last stage.
/// @throws EnvironmentError naming the rank that failed first, where and why, once all have ended.
MeasuredRun run_in_processes(const Workload& workload, const Plan& plan, const Program& program,
                             const RunOptions& options, const StepEnded& step_ended);

/// One rank of a run whose others are elsewhere: `endpoints` ("host:port") of all ranks, its own included. Rank 0 gets
/// what all have measured, times by its own clock; the others get nothing.
std::optional<MeasuredRun> run_rank(const Workload& workload, const Plan& plan, const Program& program,
                                    std::size_t rank, const std::vector<std::string>& endpoints,
                                    const RunOptions& options, const StepEnded& step_ended);

}  // namespace isobar::exec
