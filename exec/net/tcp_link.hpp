#pragma once

#include "core/units.hpp"
#include "exec/net/deadlines.hpp"
#include "exec/net/tls.hpp"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec {

/// An open file of the process, closed at the end.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept
  {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  bool is_open() const { return number_ >= 0; }
  int number() const { return number_; }
  /// Whoever takes the number closes it.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

/// One connection, encrypted if there is TLS over it.
struct Flow {
  Flow() = default;
  Flow(Descriptor connected, std::unique_ptr<Tls> over_it = nullptr)  // NOLINT(google-explicit-constructor)
      : socket(std::move(connected)), tls(std::move(over_it))
  {
  }

  Descriptor socket;
  std::unique_ptr<Tls> tls;
};

/// Whether the other end of a connection has closed it, or is gone, whatever it said before.
bool is_closed_by_peer(const Descriptor& connected);

/// A one-way link between two ranks; a channel tells apart the links that go the same way.
struct LinkName {
  std::size_t from = 0;
  std::size_t to = 0;
  std::uint32_t channel = 0;

  friend auto operator<=>(const LinkName&, const LinkName&) = default;
};

/// What the links of one thread wait on together.
class TcpLoop;
std::shared_ptr<TcpLoop> make_tcp_loop();

/// One end of a stream of messages from one rank to another. A message is a header and a payload, and either may be
/// empty. A payload of 64 KiB or more is cut into contiguous pieces of similar size, one for each connection, which
/// travel side by side; a smaller one takes the first connection. Nothing is copied on the way.
///
/// The calling thread does the work; an end is used by one thread at a time. What is not done by the deadline, or
/// fails, throws a Failure (PeerClosed, DeadlinePassed, Cancelled, Other) with one line such as
///   rank 1: receive from rank 0 (channel 2): 1024 of 4096 B after 2 s: deadline passed
/// (its bytes are those of the payload). The connections are then closed, so that the other end fails too, and all
/// later calls throw. Throws Interrupted likewise when the process was asked to stop.
class TcpLink {
 public:
  using Bytes = std::span<const std::byte>;
  /// Given a message's header, the buffers to fill with its payload, together as long as it.
  using Room = std::function<std::vector<std::span<std::byte>>(Bytes header)>;
  static constexpr std::size_t longest_header = std::size_t{1} << 20;

  /// The end of `name` at rank `self`, over connected sockets in the same order at both ends. Messages of errors call
  /// the link `title`, such as "channel 2". Links of the same loop are used by the same thread.
  TcpLink(const LinkName& name, std::size_t self, const std::string& title, std::vector<Flow> flows,
          std::shared_ptr<TcpLoop> loop = make_tcp_loop());
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;
  ~TcpLink();

  /// Done when the system has taken all bytes, which may be before the receiver has them.
  void send(Bytes header, std::span<const Bytes> payload, Deadline deadline);
  /// The next message. What `room` throws is passed on, and leaves the link as unusable as a message that does not fit
  /// the room. No more than a header's length, at most 1 MiB, is allocated here for what a peer says; what `room`
  /// allocates is for it to limit.
  void receive(const Room& room, Deadline deadline);
  /// Sends on one link and receives on another of the same loop, at the same time.
  static void exchange(TcpLink& out, Bytes header, std::span<const Bytes> payload, TcpLink& in, const Room& room,
                       Deadline deadline);

  /// From any thread: operations under way on any of the links, and all later ones, fail with "cancelled". The other
  /// ends fail with "connection closed by the peer", a sender at the latest when this end is gone.
  static void cancel(std::span<TcpLink* const> links);
  /// Payload bytes of all messages sent so far; from any thread.
  std::uint64_t bytes_sent() const;
  /// Grows whenever bytes have left or arrived; from any thread.
  std::uint64_t moves() const;
  /// Whether the other end, or this one, has closed any of the connections.
  bool is_closed() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
