#pragma once

#include "core/program/program.hpp"
#include "core/units.hpp"
#include "exec/links/tcp_connect.hpp"
#include "exec/links/tcp_link.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace isobar::exec {

/// One rank's links to the other ranks of a run, over TCP, and collectives over all ranks and over groups of them.
///
/// Different links may be used in parallel, each end by one thread at a time. Collectives may run next to them, and
/// those of different groups next to each other, since each has links of its own. The class starts no threads. The
/// destructor closes all connections; no link may be in use then.
class TcpWorld {
 public:
  /// Channel of the links of all-reduces over all ranks.
  static constexpr std::uint32_t reserved_channel = 0xffffffff;
  /// Channel of the links that `cancel` spares, so that a rank that gives up can still report why.
  static constexpr std::uint32_t lasting_channel = reserved_channel - 1;
  /// Values of a collective in pieces of memory, and how they are added up.
  struct Values {
    std::vector<std::span<std::byte>> pieces;
    std::size_t value_size = 1;  ///< bytes
    /// Adds values, of which both have as many.
    void (*add)(std::span<std::byte> sums, std::span<const std::byte> addends) = nullptr;
  };
  /// Values of a type that adds up by +=.
  template <typename Value>
  static Values values_of(const std::vector<std::span<Value>>& pieces);

  /// Connects rank `rank` of `ranks` with all others; returns when all ranks are connected. `links` may be those of all
  /// ranks, each once; both ranks of a link must name it.
  /// @throws InputError for options out of their range and for a rank without a port; EnvironmentError when the port is
  /// taken, when ranks are missing at the deadline (it names those that this rank waits for), or when a rank rejects
  /// this one; Interrupted. The system's lookup of a host name may take longer than the deadline.
  TcpWorld(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
           const TcpOptions& options);
  /// The same with a listener that is already open on the rank's port.
  TcpWorld(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
           const TcpOptions& options, TcpListener listener);
  TcpWorld(const TcpWorld&) = delete;
  TcpWorld& operator=(const TcpWorld&) = delete;
  ~TcpWorld();

  /// This rank's end of a link; valid as long as this object.
  TcpLink& link(const LinkName& name);

  /// Replaces `values` by their sums over all ranks, in the same order at each call, so that the results are bitwise
  /// equal on all ranks. All ranks call it with the same number of values; with none it is a barrier. One thread at a
  /// time.
  ///
  /// The ring of core/program/collective.hpp (steps_of): reduce-scatter, then all-gather, in 2 (N-1) messages from
  /// each of N ranks to the next. Each rank sends 2 (N-1)/N of the bytes of `values`, and allocates 1/N of them.
  /// docs/costs.md, "The executor's transport".
  /// @throws EnvironmentError as TcpLink does, and when another rank gives another number of values.
  void all_reduce_sum(std::span<float> values, const Deadline& deadline);
  void all_reduce_sum(std::span<double> values, const Deadline& deadline);
  /// An AllReduce, ReduceScatter or AllGather over the ranks of a group of TcpOptions, which this rank belongs to, by
  /// the group's algorithm, as `steps_of` says. The values are those of all pieces, one after another; only their
  /// number counts. One thread at a time for each group.
  void collective(Opcode opcode, std::uint32_t channel, const Values& values, const Deadline& deadline);

  /// Sends `outgoing[i]` to the i-th rank of a group that exchanges, and receives `incoming[i]` from it; its own are
  /// ignored. Any of them may be empty. With N ranks there are N-1 turns: in turn t a rank sends to the one t places
  /// after it, and receives at the same time from the one t places before it. Nothing is allocated. One thread at a
  /// time for each group, also with `collective`.
  /// @throws EnvironmentError as TcpLink does, and when another rank sends another number of bytes.
  void exchange(std::uint32_t channel, std::span<const TcpLink::Bytes> outgoing,
                std::span<const std::span<std::byte>> incoming, const Deadline& deadline);

  /// A barrier over all ranks. Not in parallel with an all-reduce over all ranks. @throws as TcpLink does.
  void wait_for_all(const Deadline& deadline);

  /// Makes all operations under way on all links except the lasting ones, and all later ones, fail with "cancelled".
  /// Callable from any thread.
  void cancel();
  /// True once `cancel` was called, for code that carries data by another way; valid as long as this object.
  const std::atomic<bool>& cancelled() const;
  /// Payload bytes sent over all links, including those of all-reduces. Callable from any thread.
  std::uint64_t bytes_sent() const;
  /// Grows whenever bytes have left or arrived over any link except the lasting ones. Callable from any thread.
  std::uint64_t moves() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

template <typename Value>
TcpWorld::Values TcpWorld::values_of(const std::vector<std::span<Value>>& pieces)
{
  Values values;
  for (const auto& piece : pieces) values.pieces.push_back(std::as_writable_bytes(piece));
  values.value_size = sizeof(Value);
  values.add = [](std::span<std::byte> sums, std::span<const std::byte> addends) {
    auto* const sum = reinterpret_cast<Value*>(sums.data());
    const auto* const addend = reinterpret_cast<const Value*>(addends.data());
    for (std::size_t i = 0; i < sums.size() / sizeof(Value); ++i) sum[i] += addend[i];
  };
  return values;
}

}  // namespace isobar::exec
