#pragma once

#include "core/program/program.hpp"
#include "core/units.hpp"
#include "results/trace/timeline.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// Where the time of one device went in a step.
struct DeviceTimes {
  /// Of a device that computes: the step without `busy`, by cause; the three sum to it.
  struct Idle {
    Seconds link;       ///< what it computes next waits for a transfer, or an AllReduce, that is under way
    Seconds straggler;  ///< of the rest, what the busiest device computes more than this one
    Seconds bubble;     ///< of the rest, what is left: the schedule fills and drains
    Seconds total() const { return link + straggler + bubble; }
  };
  std::string device;
  Seconds busy;           ///< forward, backward and update
  Seconds communication;  ///< with at least one transfer to or from it under way, or an AllReduce
  Seconds hidden;         ///< of communication: while it computes
  std::optional<Idle> idle;
};

/// What the critical path of a step spends on instructions of one kind; of Send and Recv together: Send.
struct KindShare {
  Opcode opcode = Opcode::Forward;
  Seconds time;
  double fraction = 0;  ///< of the path
};

/// What a trace says of where its time went.
struct TraceStats {
  std::uint64_t steps = 0;                  ///< that the means are of: all, without the first where there are more
  Seconds step_time;                        ///< mean
  std::vector<DeviceTimes> devices;         ///< means
  std::uint64_t typical_step = 0;           ///< the one of the median time
  std::vector<KindShare> critical_path;     ///< of the typical step, the largest first
  std::vector<PathShare> critical_devices;  ///< the same by device
};

/// `devices` names the ranks. O(n log n).
TraceStats stats_of(const Timeline& timeline, const std::vector<std::string>& devices);

/// Schema isobar-trace-stats/1 (docs/formats.md).
std::string stats_to_json(const TraceStats& stats);
std::string stats_to_text(const TraceStats& stats);

}  // namespace isobar::results
