#pragma once

#include "core/units.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace isobar::results {

/// Events of one stream of a GPU, or of one thread of a CPU.
struct StreamTimes {
  std::string name;  ///< "GPU 0 stream 7", "process 12 thread 13"
  std::uint64_t events = 0;
  Seconds busy;  ///< with at least one event in progress
};

/// Concurrent activity of the streams of one GPU.
struct GpuTimes {
  std::uint64_t device = 0;
  Seconds compute;        ///< kernels except NCCL's
  Seconds communication;  ///< NCCL's kernels, whose names begin with nccl
  Seconds hidden;         ///< part of communication during which another kernel computes
  Seconds copies;         ///< memcpy and memset
  Seconds idle;           ///< between the first and the last event of the GPU, with none in progress
};

/// Statistics of a trace of PyTorch's profiler (Kineto).
struct KinetoStats {
  Seconds span;                      ///< from the start of the first event to the end of the last
  std::vector<StreamTimes> streams;  ///< by name; threads count their operators (cpu_op)
  std::vector<GpuTimes> gpus;
};

/// Reads a Kineto trace, compressed by gzip or not, with a time resolution of 1 ns. O(n log n) for n events.
/// @returns none for JSON that is no such trace: without `schemaVersion` and without an operator, kernel or copy.
/// @throws InputError when the file is not JSON or one of its events is invalid.
std::optional<KinetoStats> read_kineto(const std::filesystem::path& file);

/// Schema isobar-kineto-stats/1 (docs/formats/trace.md).
std::string kineto_to_json(const KinetoStats& stats);
std::string kineto_to_text(const KinetoStats& stats);

}  // namespace isobar::results
