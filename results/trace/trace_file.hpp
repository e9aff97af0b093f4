#pragma once

#include "core/errors.hpp"
#include "core/program/program.hpp"
#include "core/program/trace.hpp"

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace isobar::results {

/// A Chrome trace written by `isobar simulate` or `isobar run` (docs/formats/trace.md).
struct TraceFile {
  std::string name;
  std::vector<std::string> devices;      ///< by rank, the data server last
  std::vector<std::vector<Lane>> lanes;  ///< by rank and LaneId: the tracks, with their names
  std::vector<Channel> channels;         ///< between them
  std::vector<TraceEvent> events;        ///< at least one
};

/// Reads a trace of schema isobar-trace/2 or isobar-trace/1. In the second, whose gradient sync is part of the compute
/// track, it becomes a lane "sync" as programs have it now.
/// @throws InputError when the file is no such trace.
TraceFile read_trace(const std::filesystem::path& file);

/// "Send 3 of rank 1", for messages.
std::string description_of(std::size_t rank, const Instruction& instruction);

/// The message of a JSON library's exception ("[json.exception.out_of_range.403] key 'ts' not found") without its
/// prefix, on one line.
std::string json_fault_message(const std::string& what);

/// What is wrong with a trace that is not JSON. `byte`: the one at which the parser stopped, from 1; `what`: the text
/// of its exception.
InputError fault_of_trace_text(const std::string& name, std::string_view text, std::size_t byte,
                               const std::string& what);

/// Whether a text begins with a list of events, as PyTorch's autograd profiler and Horovod write it, not an object.
bool is_list_of_events(std::string_view text);

}  // namespace isobar::results
