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
  Seconds busy;  ///< with at least one event under way
};

/// What the streams of one GPU did side by side.
struct GpuTimes {
  std::uint64_t device = 0;
  Seconds compute;        ///< kernels, but for NCCL's
  Seconds communication;  ///< NCCL's kernels, which are named nccl…
  Seconds hidden;         ///< of communication: while another kernel computes
  Seconds copies;         ///< memcpy and memset
  Seconds idle;           ///< from the first event of the GPU to the last: none under way
};

/// What a trace of PyTorch's profiler (Kineto) says of where its time went.
struct KinetoStats {
  Seconds span;                      ///< from the begin of the first event to the end of the last
  std::vector<StreamTimes> streams;  ///< by name; threads count their operators (cpu_op)
  std::vector<GpuTimes> gpus;
};

/// Reads a trace of Kineto's, packed by gzip or not, with times to a nanosecond. Nothing when the file is JSON and no
/// such trace: it has neither `schemaVersion` nor an event of an operator, kernel or copy.
/// @throws InputError when it is no JSON, or one of its events is faulty. O(n log n).
std::optional<KinetoStats> read_kineto(const std::filesystem::path& file);

/// Schema isobar-kineto-stats/1 (docs/formats.md).
std::string kineto_to_json(const KinetoStats& stats);
std::string kineto_to_text(const KinetoStats& stats);

}  // namespace isobar::results
