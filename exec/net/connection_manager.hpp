#pragma once

#include "core/base/clock.hpp"
#include "exec/net/handshake.hpp"
#include "exec/net/tcp_link.hpp"
#include "exec/net/tcp_listener.hpp"

#include <functional>
#include <memory>
#include <string>

namespace isobar::exec {

/// Makes and takes calls: TCP connections whose two ends have proved the same secret to each other, and which are
/// encrypted from then on if asked for. Nothing happens but in `work`, in the calling thread.
///
/// A caller proves first. Whoever says anything else, or nothing, or says it slowly is turned away without an answer
/// after 10 s at most, and no more than 256 such callers are kept waiting: beyond, one of them makes room, and half of
/// them do when the process has too many open files.
class ConnectionManager {
 public:
  /// Why a caller who proved the secret is turned away; "" if it is welcome. It is told in at most 128 bytes.
  using Objection = std::function<std::string(const Purpose&)>;
  using Connected = std::function<void(const Purpose&, Flow)>;
  using TurnedAway = std::function<void(const std::string& reason)>;

  /// `tls`: whether what follows is encrypted; both ends must say the same, which is for the purpose to tell.
  ConnectionManager(std::shared_ptr<const Secret> secret, bool tls);
  ConnectionManager(const ConnectionManager&) = delete;
  ConnectionManager& operator=(const ConnectionManager&) = delete;
  ~ConnectionManager();

  /// Takes calls on one port. Before a caller is connected, `objection` is asked once more, since another one may have
  /// taken its place.
  void listen(TcpListener listener, Objection objection, Connected connected);
  /// Calls again and again, with pauses of up to 0.5 s, until somebody who proves the secret answers.
  /// The number of the outgoing, for `trouble`.
  std::size_t connect(const Endpoint& peer, const Purpose& purpose, Connected connected, TurnedAway turned_away);

  /// Goes on until something has happened, for 0.1 s at most; false once the deadline has passed and nothing happened.
  /// @throws Interrupted; EnvironmentError when the port fails; what the functions above throw.
  bool work(Clock::time_point deadline);

  /// Why a call has not been answered yet, such as "Connection refused".
  const std::string& trouble(std::size_t outgoing) const;
  /// "; 3 calls did not prove the secret (the last one from 10.0.0.7): give all ranks the same one", or "".
  /// The like of calls that could not be taken for want of open files.
  std::string unauthenticated() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace isobar::exec
