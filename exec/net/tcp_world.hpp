#pragma once

#include "core/units.hpp"
#include "exec/net/tcp_connect.hpp"
#include "exec/net/tcp_link.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace isobar::exec {

/// One rank's links to the other ranks of a run, over TCP, and sums over all ranks.
///
/// Links may be used side by side, each end by one thread at a time; so may the sums, which have links of their own.
/// There are no threads here. The destructor closes all connections, and is not to run while a link is used.
class TcpWorld {
 public:
  /// The channel of the sums' links.
  static constexpr std::uint32_t reserved_channel = 0xffffffff;
  /// The channel of links that `cancel` leaves alone, so that a rank that gives up can say why.
  static constexpr std::uint32_t lasting_channel = reserved_channel - 2;

  /// Connects rank `rank` of `ranks` with all others. `links` may be those of all ranks, each once; the two ranks of a
  /// link must both name it. Returns when all ranks are there.
  /// @throws InputError for options out of their range and for a rank without a port; EnvironmentError when the port
  /// is taken, when ranks are not there by the deadline (it names those that this rank waits for) or turn this rank
  /// away; Interrupted. A host's name is looked up by the system, which may take longer than the deadline.
  TcpWorld(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
           const TcpOptions& options);
  /// The same over a listener that is open already, on the rank's port.
  TcpWorld(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
           const TcpOptions& options, TcpListener listener);
  TcpWorld(const TcpWorld&) = delete;
  TcpWorld& operator=(const TcpWorld&) = delete;
  ~TcpWorld();

  /// This rank's end of a link; lives as long as the world.
  TcpLink& link(const LinkName& name);

  /// Replaces `values` by their sums over all ranks, bitwise the same on every rank, in the same order at each call.
  /// All ranks call it with as many values; with none it is a barrier. One thread at a time.
  ///
  /// A ring: reduce-scatter, then all-gather, in 2 (N-1) rounds for N ranks. Each rank sends 2 (N-1)/N of the bytes of
  /// `values`, and allocates 1/N of them. docs/costs.md, "The executor's transport".
  /// @throws EnvironmentError as TcpLink does, and when another rank sums another number of values.
  void all_reduce_sum(std::span<float> values, const Deadline& deadline);
  void all_reduce_sum(std::span<double> values, const Deadline& deadline);

  /// Returns when all ranks have called it, those that do not sum too. Not beside a sum. @throws as TcpLink does.
  void wait_for_all(const Deadline& deadline);

  /// From any thread: all operations under way on all links but the lasting ones, and all later ones, fail with
  /// "cancelled".
  void cancel();
  /// Whether it was cancelled, for whoever carries data by another way; lives as long as the world.
  const std::atomic<bool>& cancelled() const;
  /// Payload bytes sent over all links, the sums' included; from any thread.
  std::uint64_t bytes_sent() const;
  /// Grows whenever bytes have left or arrived over any link but the lasting ones; from any thread.
  std::uint64_t moves() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
