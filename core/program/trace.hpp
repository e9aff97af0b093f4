#pragma once

#include "core/program/program.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace isobar {

/// One executed instruction, simulated or measured. A simulated Send spans the time in which its bytes leave, its Recv
/// the time in which they arrive.
struct TraceEvent {
  std::uint64_t step = 0;  ///< period, from 0
  std::size_t rank = 0;
  std::uint64_t position = 0;  ///< in its lane, within the period
  Instruction instruction;
  Seconds begin;  ///< since the start of the first step
  Seconds end;
  Bytes memory;  ///< of the rank's device at `begin` (of a Send: when its Recv begins), including this instruction's
};

/// Receives a trace as it is produced, so that a long run needs no memory for it.
///
/// Events of one lane arrive in its order. Events of all lanes are ordered by `end`, except for a Send whose bytes left
/// before they arrived: it comes just before its Recv. Steps overlap: the first event of a step may come before the
/// last one of the step before.
class TraceSink {
 public:
  TraceSink() = default;
  TraceSink(const TraceSink&) = delete;
  TraceSink& operator=(const TraceSink&) = delete;
  virtual ~TraceSink() = default;
  virtual void record(const TraceEvent& event) = 0;
  /// The memory of a tier that the rank holds from `time` on; called in the order of time for each rank.
  virtual void memory_changed(std::size_t /*rank*/, Tier /*tier*/, Seconds /*time*/, Bytes /*memory*/) {}
  /// The number of transfers whose data use a link from `time` on; called in the order of time for each link. If links
  /// are not known, the path from one device to another counts as one: "a → b".
  virtual void link_changed(const std::string& /*link*/, Seconds /*time*/, std::size_t /*transfers*/) {}
  /// A rank of a mix asked for its device, got it and gave it back; called then, in the order of time for each rank.
  virtual void device_held(std::size_t /*rank*/, Seconds /*asked*/, Seconds /*got*/, Seconds /*given_back*/) {}
};

}  // namespace isobar
