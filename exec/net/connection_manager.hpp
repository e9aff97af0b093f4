#pragma once

#include "core/base/clock.hpp"
#include "exec/net/connection.hpp"
#include "exec/net/handshake.hpp"
#include "exec/net/tcp_listener.hpp"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace isobar::exec {

/// Makes and accepts TCP connections whose two ends prove the same secret to each other, and encrypts them if
/// requested. Everything happens in `work`, in the calling thread.
///
/// The initiator proves the secret first. A peer that sends anything else, or is silent or slow, is dropped without an
/// answer after at most 10 s. At most 256 unauthenticated peers are kept: each further one replaces another at random,
/// and half of them are dropped when the process has too many open files.
class ConnectionManager {
 public:
  /// Why a connection of an authenticated peer is rejected; "" accepts it. The peer receives at most 128 bytes.
  using ReasonToReject = std::function<std::string(const Purpose&)>;
  using Connected = std::function<void(const Purpose&, Connection)>;
  using Rejected = std::function<void(const std::string& reason)>;

  /// `tls`: encrypt all connections. Both ends must agree, so the purpose should state it.
  ConnectionManager(std::shared_ptr<const Secret> secret, bool tls);
  ConnectionManager(const ConnectionManager&) = delete;
  ConnectionManager& operator=(const ConnectionManager&) = delete;
  ~ConnectionManager();

  /// Accepts connections on one port. `reason_to_reject` is called twice for each of them, when its peer is
  /// authenticated and just before `connected`, since another connection may have taken its place.
  void listen(TcpListener listener, ReasonToReject reason_to_reject, Connected connected);
  /// Connects to a peer. Repeats the attempt, with pauses of up to 0.5 s, until a peer that proves the secret answers.
  /// @returns the number of the attempt, for `trouble`.
  std::size_t connect(const Endpoint& peer, const Purpose& purpose, Connected connected, Rejected rejected);

  /// Waits up to 0.1 s for an event and handles it. Returns false once the deadline has passed and nothing happened.
  /// @throws Interrupted; EnvironmentError when the port fails; exceptions of the functions above.
  bool work(Clock::time_point deadline);

  /// Why a connection has not been made yet, such as "Connection refused". `attempt`: as returned by `connect`.
  const std::string& trouble(std::size_t attempt) const;
  /// "; 3 connections did not prove the secret (the last one from 10.0.0.7): give all ranks the same secret", or "".
  /// Also reports connections that had to wait for lack of open files.
  std::string unauthenticated() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
