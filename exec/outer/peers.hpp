#pragma once

#include "core/failure.hpp"
#include "core/units.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace isobar::exec {

/// What a worker sends to another one, and receives from it, at the same time.
struct PeerTransfer {
  std::size_t worker = 0;
  std::vector<std::span<const std::byte>> outgoing;  ///< together one message, which may be empty
  std::vector<std::span<std::byte>> incoming;        ///< buffers of the message expected from it
  /// Why it failed; nullopt if both messages have moved whole. Cancelled: the other worker has sent an empty message
  /// where another one was expected, and can be talked to still. After any other failure it cannot.
  std::optional<Failure> failure = {};
};

/// Payload bytes that have moved so far, whole or in part.
struct PeerTraffic {
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
};

/// Messages between this worker and others. Used by one thread at a time.
class Peers {
 public:
  Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  virtual ~Peers() = default;

  virtual std::size_t self() const = 0;

  /// Makes all transfers at the same time, each with another worker. Returns once each has ended or failed; one that
  /// has not ended after `limit` fails. The failure of one disturbs no other, and a worker that has failed once fails
  /// in all later calls. Memory: that of the buffers.
  /// @throws Interrupted; no worker can be talked to afterwards.
  virtual void exchange(std::span<PeerTransfer> transfers, Seconds limit) = 0;

  virtual PeerTraffic traffic() const = 0;
};

}  // namespace isobar::exec
