#pragma once

#include "core/program/program.hpp"
#include "core/units.hpp"
#include "results/trace/timeline.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// Time of one device in a step, by use.
struct DeviceTimes {
  /// Step time without `busy`, by cause; the four causes sum to it.
  struct Idle {
    Seconds link;       ///< its next work waits for a transfer or a collective in progress
    Seconds machine;    ///< of the rest, while its machine copies to or from it, updates, or uses its disk
    Seconds straggler;  ///< of the rest, up to the extra compute time of the busiest device
    Seconds bubble;     ///< the rest: the schedule fills and drains
    Seconds total() const { return link + machine + straggler + bubble; }
  };
  /// Time of one lane in a step.
  struct Lane {
    std::string name;
    Seconds busy;                ///< with an instruction in progress
    bool is_of_machine = false;  ///< of copies, updates by the machine, or its disk
  };
  std::string device;
  Seconds busy;              ///< forward, backward and update
  Seconds communication;     ///< with at least one transfer to or from it, or a collective, in progress
  Seconds hidden;            ///< part of communication during which it computes
  std::optional<Idle> idle;  ///< only for devices that compute
  std::vector<Lane> lanes;   ///< those with instructions
};

/// Time that the critical path of a step spends on instructions of one kind; a Recv counts as its Send.
struct KindShare {
  Opcode opcode = Opcode::Forward;
  Seconds time;
  double fraction = 0;  ///< of the path
};

/// Statistics of a trace.
struct TraceStats {
  std::uint64_t steps = 0;                  ///< in the means: all except the first, or the only one
  Seconds step_time;                        ///< mean
  std::vector<DeviceTimes> devices;         ///< means
  std::uint64_t typical_step = 0;           ///< the step with the median time
  std::vector<KindShare> critical_path;     ///< of the typical step, largest share first
  std::vector<PathShare> critical_devices;  ///< likewise, by device
};

/// Statistics of a timeline whose ranks are named `devices`. O(n log n) for n instructions.
TraceStats stats_of(const Timeline& timeline, const std::vector<std::string>& devices);

/// Schema isobar-trace-stats/1 (docs/formats/trace.md).
std::string stats_to_json(const TraceStats& stats);
std::string stats_to_text(const TraceStats& stats);

}  // namespace isobar::results
