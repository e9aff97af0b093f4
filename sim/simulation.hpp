#pragma once

#include "core/program.hpp"
#include "core/trace.hpp"
#include "core/units.hpp"
#include "sim/platform.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace isobar::sim {

/// What a link carried.
struct LinkUse {
  std::string name;
  Bytes bytes;        ///< payload of all transfers over it
  Seconds busy_time;  ///< with at least one transfer under way, latency included
};

/// What one simulation tells besides its trace.
struct SimulationReport {
  std::vector<Seconds> step_times;  ///< one per iteration
  std::vector<LinkUse> links;       ///< of links that carried anything, sorted by name
  std::uint64_t activities = 0;     ///< completed SimGrid Exec + Comm + Io
  Seconds wall_time;                ///< of the engine's run alone
};

/// Plays a program on a platform, `iterations` times; an iteration starts when every rank has ended the one before.
///
/// Rank i of the program runs on the host `hosts[i]`. No actors: activities are created when their instruction's turn
/// comes and dropped when they are done, so memory grows with ranks, not with micro-batches. Deterministic.
/// Each event goes to `sink` (may be null).
/// @throws InputError when the platform's profiles stop the run: a host or link that is off, a speed that stays 0 (it
/// names instruction, device and time); std::logic_error when the program waits for itself. Call once per process.
SimulationReport simulate(const Platform& platform, const Program& program, const std::vector<std::string>& hosts,
                          std::uint64_t iterations, TraceSink* sink);

}  // namespace isobar::sim
