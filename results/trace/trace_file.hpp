#pragma once

#include "core/program/program.hpp"
#include "core/program/trace.hpp"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace isobar::results {

/// A Chrome trace written by `isobar simulate` or `isobar run` (docs/formats/trace.md).
struct TraceFile {
  std::string name;
  std::vector<std::string> devices;  ///< by rank, the data server last
  std::vector<TraceEvent> events;    ///< at least one, in the order of the file
};

/// Reads a trace. @throws InputError when the file is no such trace.
TraceFile read_trace(const std::filesystem::path& file);

/// The program that a trace executed, from its first step. Holds every instruction.
/// @throws InputError when instructions refer to missing ones or wait for each other.
std::unique_ptr<const Program> recorded_program(const TraceFile& trace);

/// The message of a JSON library's exception ("[json.exception.out_of_range.403] key 'ts' not found") without its
/// prefix, on one line.
std::string json_fault_message(const std::string& what);

}  // namespace isobar::results
