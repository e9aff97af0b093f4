#pragma once

#include "exec/links/deadlines.hpp"
#include "exec/net/connection.hpp"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace isobar::exec {

/// A one-way link between two ranks. The channel distinguishes links with the same ends.
struct LinkName {
  std::size_t from = 0;
  std::size_t to = 0;
  std::uint32_t channel = 0;

  friend auto operator<=>(const LinkName&, const LinkName&) = default;
};

/// Event loop on which the links of one thread wait together.
class TcpLoop;
std::shared_ptr<TcpLoop> make_tcp_loop();

/// One end of a stream of messages from one rank to another. A message has a header and a payload; either may be empty.
/// A payload of 64 KiB or more is cut into contiguous pieces of similar size, one for each connection, which travel in
/// parallel; a smaller one uses the first connection. Nothing is copied.
///
/// The calling thread does the work, and only one thread may use an end at a time. An operation that fails, or is not
/// complete by its deadline, throws a Failure (PeerClosed, DeadlinePassed, Cancelled, Other) with one line such as
///   rank 1: receive from rank 0 (channel 2): 1024 of 4096 B after 2 s: deadline passed
/// where the bytes are those of the payload. The connections are then closed, so that the other end fails too, and all
/// later calls throw. The same holds for Interrupted, thrown when the process was asked to stop.
class TcpLink {
 public:
  using Bytes = std::span<const std::byte>;
  /// Returns the buffers for the payload that follows a header; together they must be as long as the payload.
  using Room = std::function<std::vector<std::span<std::byte>>(Bytes header)>;
  static constexpr std::size_t longest_header = std::size_t{1} << 20;

  /// Makes the end of link `name` at rank `self`. `connections`: at least one, in the same order at both ends. `title`:
  /// name of the link in error messages, such as "channel 2". Only one thread may use the links that share a loop.
  TcpLink(const LinkName& name, std::size_t self, const std::string& title, std::vector<Connection> connections,
          std::shared_ptr<TcpLoop> loop = make_tcp_loop());
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;
  ~TcpLink();

  /// Sends a message. Returns when the system has taken all bytes, possibly before the receiver has them.
  void send(Bytes header, std::span<const Bytes> payload, Deadline deadline);
  /// Receives the next message. Exceptions of `room` are rethrown and leave the link unusable, as does a payload that
  /// does not fit its buffers. It allocates no more than the header, at most 1 MiB, for an untrusted peer; `room` must
  /// limit its own allocations.
  void receive(const Room& room, Deadline deadline);
  /// Sends on one link and receives on another link of the same loop at the same time.
  static void exchange(TcpLink& out, Bytes header, std::span<const Bytes> payload, TcpLink& in, const Room& room,
                       Deadline deadline);

  /// Makes operations under way on any of the links, and all later ones, fail with "cancelled". The other ends fail
  /// with "connection closed by the peer", a sender at the latest when this end is destroyed. Callable from any thread.
  static void cancel(std::span<TcpLink* const> links);
  /// Payload bytes of all messages sent so far. Callable from any thread.
  std::uint64_t bytes_sent() const;
  /// A count that grows whenever bytes have left or arrived. Callable from any thread.
  std::uint64_t moves() const;
  /// True when either end has closed any of the connections.
  bool is_closed() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
