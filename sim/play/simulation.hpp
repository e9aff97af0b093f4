#pragma once

#include "core/cluster/cluster.hpp"
#include "core/errors.hpp"
#include "core/jobs/mix.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/player.hpp"
#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"
#include "sim/platform/platform.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar::sim {

/// What a link carried.
struct LinkUse {
  std::string name;
  Bytes bytes;               ///< payload of all transfers over it
  Seconds busy_time;         ///< while it carries the data of at least one transfer
  BytesPerSecond bandwidth;  ///< of all transfers together, the most that it had; infinite if they do not share it
};

/// Results of a simulation besides its trace.
struct SimulationReport {
  /// One per iteration: from the end of the previous one (of the first: from the start) to the end of its last
  /// instruction on any rank.
  std::vector<Seconds> step_times;
  std::vector<LinkUse> links;    ///< links that carried anything, sorted by name
  std::uint64_t activities = 0;  ///< completed SimGrid Exec + Comm + Io
  Seconds wall_time;             ///< of the engine's run only
};

/// The machine that a rank's device is in.
struct RankMachine {
  std::string host;                 ///< its name in the platform file
  std::optional<std::string> disk;  ///< name of its disk; none without one
  MachineRates rates;
};

/// Where a rank of a program runs.
struct RankHost {
  std::string host;                         ///< its name in the platform file
  std::optional<RankMachine> machine = {};  ///< needed for copies, and for updates on the machine
  double interference = 1;                  ///< Device::interference
  Seconds collective_start = {};            ///< Device::collective_start
};

/// A job of a mix: its program, and where its ranks run.
struct SimulatedJob {
  const Program& program;
  std::vector<RankHost> ranks;
  std::uint64_t iterations = 1;  ///< periods
  TraceSink* sink = nullptr;     ///< may be null; ranks are those of the program
};

/// Turns in which no job can continue. The message begins with a device.
class DeadlockOfTurns : public InputError {
 public:
  using InputError::InputError;
};

/// Results of a simulation of several jobs besides their traces.
struct MixReport {
  /// By job, one per iteration: from the end of the previous one (of the first: from the job's start) to the end of its
  /// last instruction on any rank.
  std::vector<std::vector<Seconds>> step_times;
  std::vector<LinkUse> links;    ///< links that carried anything, sorted by name
  std::uint64_t activities = 0;  ///< completed SimGrid Exec + Comm + Io
  Seconds wall_time;             ///< of the engine's run only
};

/// Where the ranks of a plan's program run: its devices by rank (devices_of),
/// with their machines at the rates of the plan's system (machine_rates), then the data server if the cluster has one.
/// @throws InputError for a device that the cluster does not have.
std::vector<RankHost> rank_hosts(const Plan& plan, const Cluster& cluster);

/// Plays a program on a platform for `iterations` periods. Periods flow: a lane goes from its last instruction of one
/// to the first of the next, unless another lane of its rank has not ended the period before. So no lane is more than
/// one period ahead of another of its rank, and no rank waits for others except where the program has it wait.
///
/// Rank i of the program runs on `ranks[i]`. An instruction becomes time x host speed there, and availability profiles
/// act on it. There are no actors: an
/// activity is created when its instruction starts and dropped when it ends. Memory grows with the ranks, with the
/// flows of a collective, and with the messages in transit at one time, not with micro-batches. Instructions without
/// time take no activity. Each event is reported to `sink` (may be null). Deterministic.
///
/// A transfer is ready when both ends have reached it and their waits are over. Its latency passes first; then its data
/// flow, one message of a lane after the other (docs/costs.md). Its Send spans the time in which its bytes leave, its
/// Recv the time in which they arrive, a latency later. Messages within a host take no time.
///
/// A collective begins when all ends of its channel have reached it, and all complete it together. It is played as the
/// rounds of flows of `rounds_of`, after the longest start of a rank; a flow takes one activity, whatever the number of
/// its messages. From its begin to its end, the devices of its ranks compute `interference` times slower, for all jobs.
///
/// A Load or Store is a flow between the device and its machine, after the latency of their route; a Read or Write one
/// of the machine's disk. Copies over the same links, and reads and writes of the same disk, share them. A system's
/// copy_bandwidth limits its copies. An Update in a lane of engine Host runs on the machine, together with those of
/// other ranks in it; it runs at `busy_update_speed` while a device of the machine computes, else at `update_speed`.
///
/// A host or link whose profile falls to 0 stands still until the profile raises it again. The run fails when nothing
/// has completed for a week of simulated time and for 1000 times the nominal duration of the work under way.
///
/// Call once per process; after a fault SimGrid cannot be used again.
/// @throws InputError when the platform stops the run: a host or link is off when it is needed, one stands still for
/// good (the message names host or link, instruction and time), or the run takes more than 1e15 s. Throws
/// std::logic_error when the program deadlocks, Interrupted, and what `sink` throws.
SimulationReport simulate(const Platform& platform, const Program& program, const std::vector<RankHost>& ranks,
                          std::uint64_t iterations, TraceSink* sink);

/// Plays the programs of several jobs beside each other on a platform: `jobs[j]` is job j of the mix, which gives its
/// name, when it starts, and how jobs share devices and links. Each program is played as alone, except that
///
/// - under a discipline, a computation waits until its job has the device (sim/play/device_turns.hpp). Without one,
///   computations of several jobs on a device share it evenly;
/// - where links are fifo, a message waits until its job has all links of its route, and a collective until it has
///   those of all its rounds (sim/play/link_turns.hpp). Where they are fair, SimGrid shares them. Copies share links.
///
/// A mix of one job gives the numbers of that program alone. A sink gets the events of its job, and the changes of all
/// links, which count the transfers of all jobs. Times are since the start of the simulation.
///
/// @throws DeadlockOfTurns also.
MixReport simulate(const Platform& platform, const std::vector<SimulatedJob>& jobs, const Mix& mix);

}  // namespace isobar::sim
