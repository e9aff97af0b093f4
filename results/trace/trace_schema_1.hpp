#pragma once

#include "core/program/trace.hpp"
#include "results/trace/trace_file.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace isobar::results {

/// The tracks of isobar-trace/1 by number. Tracks 1 and 2 send, and 3 and 4 receive.
inline constexpr std::array<std::string_view, 5> tracks_of_schema_1 = {"compute", "send activation", "send gradient",
                                                                       "receive activation", "receive gradient"};

/// An instruction of an isobar-trace/1 file.
struct EventOfSchema1 {
  TraceEvent event;  ///< its lanes are tracks of the file; it has no position
  std::size_t peer = 0;
  std::uint64_t peer_position = 0;
};

/// Fills the lanes, channels and events of a trace that has its devices. Positions follow from the order of begins.
/// @throws InputError when events contradict each other.
void add_events_of_schema_1(TraceFile& trace, std::vector<EventOfSchema1> events);

}  // namespace isobar::results
