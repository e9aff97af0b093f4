#pragma once

#include "exec/links/deadlines.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

/// NVIDIA's NCCL, loaded at run time on first use: a build needs only its header. A build without the header refuses
/// here (exec/transport/no_nccl.cpp).
namespace isobar::exec::nccl {

/// Name by which the loader finds NCCL, or the copy that libtorch_cuda has loaded.
inline constexpr const char* usual_library = "libnccl.so.2";

/// Version of the library in NCCL's encoding: 22809 is 2.28.9.
/// @throws EnvironmentError with a one-line reason: built without NCCL, no such library, or a version before 2.14,
/// which has no non-blocking communicators.
int version(const std::string& library = usual_library);
/// Formats such a version, 2.9 or later: "2.28.9".
inline std::string text_of_version(int version)
{
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

/// Identifier of a communicator, shared by its ranks.
using Id = std::array<std::byte, 128>;
/// Makes a new identifier. @throws EnvironmentError as version() does, or when NCCL fails.
Id new_id();

/// The type of values to be added up.
enum class Number { Float32, Float16, BFloat16 };

/// A piece of a GPU's memory.
struct Piece {
  void* begin = nullptr;
  std::size_t bytes = 0;
};

/// One rank's end of a communicator: of two ranks, of which rank 0 sends to rank 1, or of any number that make
/// collectives. Not thread-safe; use it on the CUDA device that it was made on.
///
/// No call blocks inside NCCL: calls return at once, and the thread checks every 20 us for completion, cancellation and
/// the deadline. A failure throws EnvironmentError with one line such as
///   rank 1: receive from rank 0 (channel 2), by NCCL: deadline passed
/// and aborts the communicator, which ends its kernels on this GPU; all later calls throw. The other ranks notice by
/// their own deadlines or their own `cancelled`.
class Communicator {
 public:
  /// Waits for the other ranks. Error messages begin with `title`. Any thread may set `cancelled`, which must outlive
  /// the communicator.
  Communicator(const Id& id, std::size_t rank, std::size_t ranks, std::string title, const std::atomic<bool>& cancelled,
               const Deadline& deadline);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  /// Enqueues the transfer of all pieces from rank 0 to rank 1 on `stream`, a CUDA handle. The other end must have
  /// pieces of the same sizes.
  void enqueue_transfer(std::span<const Piece> pieces, void* stream, const Deadline& deadline);
  /// Enqueues the sums of all pieces, which are of numbers of one type, over the ranks, in place. All must have pieces
  /// of the same sizes.
  void enqueue_sums(std::span<const Piece> pieces, Number type, void* stream, const Deadline& deadline);
  /// Parts by the rank that they belong to, as pieces of float32, which each rank has all of.
  using Parts = std::span<const std::vector<Piece>>;
  /// Enqueues the sums of each part on its own rank, in place.
  void enqueue_sums_of_parts(Parts parts, void* stream, const Deadline& deadline);
  /// Enqueues that all ranks receive each part from its own rank.
  void enqueue_gather(Parts parts, void* stream, const Deadline& deadline);
  /// Enqueues that this rank sends `outgoing[i]` to rank i and receives `incoming[i]` from it, for all others; pieces
  /// without bytes are left out, at both ends.
  void enqueue_exchange(std::span<const Piece> outgoing, std::span<const Piece> incoming, void* stream,
                        const Deadline& deadline);
  /// Waits until `is_done`, which checks whether the device has done the enqueued work.
  void wait(const std::function<bool()>& is_done, const Deadline& deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec::nccl
