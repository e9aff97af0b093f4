#pragma once

#include "core/program/program.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <string>

namespace isobar {

/// One instruction as it went, simulated or measured. A simulated Send spans the time in which its bytes left, its Recv
/// the time in which they arrived.
struct TraceEvent {
  std::uint64_t step = 0;  ///< which iteration, from 0
  std::size_t rank = 0;
  Instruction instruction;
  Seconds begin;  ///< since the start of the first step
  Seconds end;
  Bytes memory;  ///< of the rank, at `begin` (of a Send: at the begin of its Recv), this instruction's own included
};

/// Takes a trace as it comes, so that a long run needs no memory for it. The events of one lane come in its order.
/// Those of all lanes are ordered by `end`, but for a Send whose bytes left before they arrived: it comes just before
/// its Recv.
class TraceSink {
 public:
  TraceSink() = default;
  TraceSink(const TraceSink&) = delete;
  TraceSink& operator=(const TraceSink&) = delete;
  virtual ~TraceSink() = default;
  virtual void record(const TraceEvent& event) = 0;
  /// What the rank holds from `time` on; told for each rank in the order of time.
  virtual void memory_changed(std::size_t /*rank*/, Seconds /*time*/, Bytes /*memory*/) {}
  /// How many transfers load a link with their data from `time` on; called for each link in the order of time. Where
  /// links are not known, the path from one device to another counts as one: "a → b".
  virtual void link_changed(const std::string& /*link*/, Seconds /*time*/, std::size_t /*transfers*/) {}
};

}  // namespace isobar
