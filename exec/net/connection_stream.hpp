#pragma once

#include "core/base/clock.hpp"
#include "core/failure.hpp"
#include "exec/net/connection.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace isobar::exec {

/// Event loop on which the links of one thread wait together. Used by one thread at a time.
class TcpLoop {
 public:
  TcpLoop();
  TcpLoop(const TcpLoop&) = delete;
  TcpLoop& operator=(const TcpLoop&) = delete;
  ~TcpLoop();

  /// Handles one event that is ready; false when there is none.
  bool poll();
  /// Handles the next event; false when there is none until `end`.
  bool wait_until(Clock::time_point end);
  /// Handles events until no transfer is under way.
  void drain();

 private:
  friend class ConnectionStream;
  struct Context;
  std::unique_ptr<Context> context_;
};

/// Why a transfer over a connection failed.
struct StreamFault {
  Failure::Kind kind = Failure::Kind::Other;
  std::string text;
};

/// Moves bytes over one connection, encrypted or not, while its loop handles events.
class ConnectionStream {
 public:
  /// Called with the number of bytes moved so far: when a transfer begins, whenever bytes have moved, and at its end.
  using OnProgress = std::function<void(std::size_t bytes)>;
  /// Called at the end of a transfer. `fault`: nullopt when all bytes have moved.
  using OnEnd = std::function<void(const std::optional<StreamFault>& fault)>;

  /// `loop` must outlive this object.
  ConnectionStream(TcpLoop& loop, Connection connection);
  ConnectionStream(const ConnectionStream&) = delete;
  ConnectionStream& operator=(const ConnectionStream&) = delete;
  ~ConnectionStream();

  /// Begin to move all bytes of the buffers, which must stay valid until the transfer ends. At most one transfer in
  /// each direction at a time. A peer that is gone is a fault and raises no SIGPIPE.
  void write(const std::vector<std::span<const std::byte>>& buffers, OnProgress on_progress, OnEnd on_end);
  void read(const std::vector<std::span<std::byte>>& buffers, OnProgress on_progress, OnEnd on_end);
  /// Closes the connection. Transfers under way end with a fault.
  void close();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
