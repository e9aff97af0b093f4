#pragma once

#include "core/program/program.hpp"
#include "core/program/trace.hpp"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace isobar::results {

/// A Chrome trace as `isobar simulate` and `isobar run` write it (docs/formats.md).
struct TraceFile {
  std::string name;
  std::vector<std::string> devices;  ///< by rank, the data server's last
  std::vector<TraceEvent> events;    ///< one at least, in the order of the file
};

/// @throws InputError when the file is no such trace.
TraceFile read_trace(const std::filesystem::path& file);

/// The program that a trace shows: that of its first step. Holds every instruction.
/// @throws InputError when instructions name what is not there, or wait for each other.
std::unique_ptr<const Program> recorded_program(const TraceFile& trace);

/// What the JSON library says of a fault ("[json.exception.out_of_range.403] key 'ts' not found") without its own
/// numbers, on one line.
std::string words_of_json_fault(const std::string& what);

}  // namespace isobar::results
