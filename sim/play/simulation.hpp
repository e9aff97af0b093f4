#pragma once

#include "core/cluster/cluster.hpp"
#include "core/model/workload.hpp"
#include "core/plan/plan.hpp"
#include "core/program/program.hpp"
#include "core/program/trace.hpp"
#include "core/units.hpp"
#include "sim/platform/platform.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace isobar::sim {

/// What a link carried.
struct LinkUse {
  std::string name;
  Bytes bytes;        ///< payload of all transfers over it
  Seconds busy_time;  ///< while it carries the data of at least one transfer
};

/// What one simulation tells besides its trace.
struct SimulationReport {
  std::vector<Seconds> step_times;  ///< one per iteration
  std::vector<LinkUse> links;       ///< of links that carried anything, sorted by name
  std::uint64_t activities = 0;     ///< completed SimGrid Exec + Comm + Io
  Seconds wall_time;                ///< of the engine's run alone
};

/// Where a rank of a program runs.
struct RankHost {
  std::string host;      ///< its name in the platform file
  FlopsPerSecond speed;  ///< what the device computes at in the workload's dtype; not used where nothing is computed
};

/// Where the ranks of a plan's program run: the device of each stage at its rate in the workload's dtype, then the data
/// server if the cluster has one. @throws InputError for a device that the cluster does not have.
std::vector<RankHost> rank_hosts(const Plan& plan, const Workload& workload, const Cluster& cluster);

/// Plays a program on a platform, `iterations` times; an iteration starts when every rank has ended the one before.
///
/// Rank i of the program runs on `ranks[i]`. SimGrid's hosts know one speed, that of float32; so an instruction becomes
/// work x host speed / device speed there, and availability profiles act on it. No actors: activities are created when
/// their instruction's turn comes and dropped when they are done, so memory grows with the ranks and with the messages
/// that are on their way at one time, not with micro-batches. Instructions without work pass without an activity.
/// Deterministic. Each event goes to `sink` (may be null).
///
/// A transfer is ready when both of its ends have come to it and their waits are over. Its latency passes first. Then
/// its data flow, those of one lane one message after the other (docs/costs.md). Its Send spans the time in which its
/// bytes left, its Recv that in which they arrived, a latency later.
///
/// A host or link whose profile falls to 0 stands still until the profile raises it again. The run is given up when
/// nothing has completed for a week of simulated time, and for 1000 times what is under way takes at nominal speed.
/// @throws InputError when the platform stops the run: a host or link that is off when it is needed, or that stands
/// still for good (names host or link, instruction and time), or when it takes more than 1e15 s of simulated time;
/// std::logic_error when the program waits for itself;
/// Interrupted; what `sink` throws. Call once per process; after a fault SimGrid cannot be used again.
SimulationReport simulate(const Platform& platform, const Program& program, const std::vector<RankHost>& ranks,
                          std::uint64_t iterations, TraceSink* sink);

}  // namespace isobar::sim
