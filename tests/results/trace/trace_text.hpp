#pragma once

#include "core/program/trace.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

/// Traces as text, to write what no writer writes.
namespace isobar::results {

/// A trace of processes named d0, d1, …, each with tracks of these names.
inline std::string trace_text(const std::string& schema, const std::vector<std::vector<std::string>>& tracks,
                              const std::vector<std::string>& events)
{
  std::string text = fmt::format(R"({{"otherData": {{"schema": "{}"}}, "traceEvents": [)", schema);
  for (std::size_t rank = 0; rank < tracks.size(); ++rank) {
    text += fmt::format(R"({{"ph": "M", "name": "process_name", "pid": {0}, "args": {{"name": "d{0}"}}}},)", rank);
    for (std::size_t track = 0; track < tracks[rank].size(); ++track) {
      text += fmt::format(R"({{"ph": "M", "name": "thread_name", "pid": {}, "tid": {}, "args": {{"name": "{}"}}}},)",
                          rank, track, tracks[rank][track]);
    }
  }
  for (const auto& event : events) text += event + ",";
  text.back() = ']';
  return text + "}";
}

/// An event at 1 us; `more` goes into its args.
inline std::string event_text(const std::string& rank, int track, const std::string& opcode, const std::string& more)
{
  return fmt::format(R"({{"ph": "X", "cat": "{}", "pid": {}, "tid": {}, "ts": 1, "dur": 1, "args": {{"step": 0, )"
                     R"("stage": 0, "microbatch": 0, "first_layer": 0, "last_layer": 0, {}}}}})",
                     opcode, rank, track, more);
}

/// In the schema isobar-trace/1, the tracks are known without their names.
inline std::string trace_1(std::size_t processes, const std::vector<std::string>& events)
{
  return trace_text("isobar-trace/1", std::vector<std::vector<std::string>>(processes, {"compute"}), events);
}
inline const std::string work_1 = R"("alone_s": 1, "memory_bytes": 1)";
inline std::string transfer_1(const std::string& peer, int position)
{
  return fmt::format(R"("peer": {}, "peer_position": {}, "bytes": 1)", peer, position);
}

inline std::string trace_2(const std::vector<std::vector<std::string>>& tracks, const std::vector<std::string>& events)
{
  return trace_text("isobar-trace/2", tracks, events);
}
inline std::string work_2(int position)
{
  return fmt::format(R"("position": {}, "alone_s": 1, "memory_bytes": 1)", position);
}
inline std::string collective_2(int position, int channel)
{
  return fmt::format(R"("position": {}, "channel": {}, "payload": "gradient facts", "bytes": 1)", position, channel);
}
inline std::string transfer_2(int position, int channel, int peer)
{
  return fmt::format(R"("position": {}, "channel": {}, "payload": "activation", "bytes": 1, "peer": {})", position,
                     channel, peer);
}
inline std::string waits_2(int track, int count, int periods_back = 0)
{
  return fmt::format(R"(, "waits": [{{"tid": {}, "count": {}, "periods_back": {}}}])", track, count, periods_back);
}

}  // namespace isobar::results
