#pragma once

#include "exec/net/connection_stream.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace isobar::exec {

/// The connections of one end of a link, and the transfers under way over them.
///
/// Only the thread that runs the loop may call its functions, except where they are marked otherwise.
class LinkConnections {
 public:
  static constexpr std::size_t no_payload = std::numeric_limits<std::size_t>::max();

  /// `loop` must outlive this object.
  LinkConnections(std::vector<Connection> connections, TcpLoop& loop);

  std::size_t size() const { return streams_.size(); }

  /// Sets `payload_moved` to 0.
  void begin_message();
  /// Begin to move all bytes of the buffers over the connection `index`. The first `before_payload` bytes do not count
  /// as payload. The buffers must stay valid until the transfer ends.
  void write(std::size_t index, const std::vector<std::span<const std::byte>>& buffers, std::size_t before_payload);
  void read(std::size_t index, const std::vector<std::span<std::byte>>& buffers, std::size_t before_payload);

  bool is_busy() const { return under_way_ > 0; }
  /// Why the first transfer that failed did so; nullopt when none has failed.
  const std::optional<StreamFault>& fault() const { return fault_; }
  /// Payload bytes of the current message that have moved, over all connections.
  std::uint64_t payload_moved() const;
  /// Grows whenever bytes have left or arrived. Callable from any thread.
  std::uint64_t moves() const { return moves_; }

  /// Closes all connections. Transfers under way end with a fault.
  void close();
  /// Shuts all connections down, which wakes waiting threads at both ends. Callable from any thread.
  void shut_down();
  /// True when this end or the peer has closed any of the connections. Callable from any thread.
  bool is_closed() const;

 private:
  ConnectionStream::OnProgress progress_of(std::size_t index, std::size_t before_payload);
  ConnectionStream::OnEnd end_of_transfer();

  std::deque<ConnectionStream> streams_;
  std::size_t under_way_ = 0;  ///< transfers
  std::optional<StreamFault> fault_;
  std::vector<std::uint64_t> moved_;  ///< payload bytes, by connection
  std::atomic<std::uint64_t> moves_ = 0;

  mutable std::mutex mutex_;  ///< guards `open_`
  std::vector<int> open_;     ///< sockets
};

}  // namespace isobar::exec
