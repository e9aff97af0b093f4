#pragma once

#include "exec/net/deadlines.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

/// NVIDIA's NCCL, loaded when it is first asked for: a build needs its header alone, and without that one says so here
/// (exec/run/no_nccl.cpp).
namespace isobar::exec::nccl {

/// Where the loader finds it, or the one that libtorch_cuda has brought.
inline constexpr const char* usual_library = "libnccl.so.2";

/// The library's, as it counts: 22809 is 2.28.9.
/// @throws EnvironmentError, one line: built without NCCL, no such library, or one before 2.14, which knows no
/// communicators that never block.
int version(const std::string& library = usual_library);
/// "2.28.9"; of 2.9 and later.
inline std::string text_of_version(int version)
{
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

/// What the two ends of a communicator share.
using Id = std::array<std::byte, 128>;
Id new_id();

/// A piece of a GPU's memory.
struct Piece {
  void* begin = nullptr;
  std::size_t bytes = 0;
};

/// One end of a one-way link between two GPUs: a communicator of its two ranks. One thread at a time uses it, on the
/// CUDA device that it was made on.
///
/// Nothing blocks inside NCCL: every call returns at once, and the thread looks every 20 us whether it is through, was
/// cancelled, or is late. What fails throws EnvironmentError, one line such as
///   rank 1: receive from rank 0 (channel 2), by NCCL: deadline passed
/// and aborts the communicator, which ends its kernels on this GPU; all later calls throw. The other end learns of it
/// by its own deadline, or when the world is cancelled that its `cancelled` is of.
class Pair {
 public:
  enum class End { Sends = 0, Receives = 1 };

  /// Waits for the other end. Messages of errors begin with `title`; `cancelled` may be set by any thread, and outlives
  /// the pair.
  Pair(const Id& id, End end, std::string title, const std::atomic<bool>& cancelled, Deadline deadline);
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;
  ~Pair();

  /// Queues the transfer of all pieces on `stream`, CUDA's own handle. The other end has as many, of the same sizes.
  void queue(std::span<const Piece> pieces, void* stream, Deadline deadline);
  /// Until `is_done`, which asks the device for what was queued.
  void wait(const std::function<bool()>& is_done, Deadline deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec::nccl
