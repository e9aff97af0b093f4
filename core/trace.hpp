#pragma once

#include "core/program.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <string>

namespace isobar {

/// One instruction as it went, simulated or measured.
struct TraceEvent {
  std::uint64_t step = 0;  ///< which iteration, from 0
  std::size_t rank = 0;
  Instruction instruction;
  Seconds begin;  ///< since the start of the first step
  Seconds end;
  Bytes memory;  ///< of the rank, at `begin`, this instruction's own included
};

/// Takes a trace as it comes, events ordered by `end`, so that a long run needs no memory for it.
class TraceSink {
 public:
  TraceSink() = default;
  TraceSink(const TraceSink&) = delete;
  TraceSink& operator=(const TraceSink&) = delete;
  virtual ~TraceSink() = default;
  virtual void record(const TraceEvent& event) = 0;
  /// What the rank holds from `time` on; told for each rank in the order of time.
  virtual void memory_changed(std::size_t /*rank*/, Seconds /*time*/, Bytes /*memory*/) {}
  /// How many transfers are on a link from `time` on; told for each link in the order of time. Where links are not
  /// known, a way from one device to another stands for one: "a → b".
  virtual void link_changed(const std::string& /*link*/, Seconds /*time*/, std::size_t /*transfers*/) {}
};

}  // namespace isobar
