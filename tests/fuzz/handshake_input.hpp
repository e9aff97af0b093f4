#pragma once

#include "core/errors.hpp"
#include "exec/links/tcp_link.hpp"
#include "exec/net/handshake.hpp"
#include "exec/net/tls.hpp"

#include <sys/socket.h>
#include <unistd.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace isobar::fuzz {

/// Two ends of one connection.
inline std::pair<exec::Descriptor, exec::Descriptor> connection()
{
  int sockets[2] = {};
  ensure(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "the system provides a pair of sockets");
  return {exec::Descriptor(sockets[0]), exec::Descriptor(sockets[1])};
}

/// A part of the handshake with the first bytes of the input.
template <typename Part>
Part part_of(std::span<const std::uint8_t> input)
{
  Part part;
  if (!input.empty()) std::memcpy(&part, input.data(), std::min(input.size(), sizeof part));
  return part;
}

/// Sends arbitrary bytes of an unauthenticated peer to either end of a connection and checks that they are refused. The
/// first byte selects the target.
inline void handshake(std::span<const std::uint8_t> input)
{
  if (input.empty()) return;
  static const exec::Secret secret("fuzz", "a secret that no input knows");
  const auto rest = input.subspan(1);
  exec::AcceptorHandshake acceptor(secret);
  exec::InitiatorHandshake initiator(secret, exec::purpose_of("fuzz"));
  switch (input[0] % 4) {
    case 0:
      ensure(!acceptor.is_proved_by(part_of<exec::Claim>(rest)), "an unauthenticated peer proves nothing");
      return;
    case 1:
      initiator.claim(part_of<exec::Challenge>(rest));
      ensure(!initiator.reason_of(part_of<exec::Verdict>(rest.subspan(std::min<std::size_t>(rest.size(), 32)))),
             "the verdict of an unauthenticated peer is ignored");
      return;
    default:
      break;
  }
  const auto [here, there] = connection();
  const auto sent = ::send(there.number(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ensure(sent == static_cast<ssize_t>(rest.size()) || rest.size() > 100'000, "a short input fits the system's buffers");
  ::shutdown(there.number(), SHUT_WR);
  if (input[0] % 4 == 2) {
    const auto side = rest.size() % 2 == 0 ? exec::Tls::Side::Acceptor : exec::Tls::Side::Initiator;
    exec::Tls tls(here.number(), side, secret.key("fuzz"));
    const auto progress = tls.shake_hands();
    ensure(progress.error != 0 || !progress.fault.empty(),
           "an unauthenticated peer does not complete the TLS handshake");
    return;
  }
  // A faulty rank, or plain text that was changed in transit.
  std::vector<exec::Connection> connections;
  connections.emplace_back(exec::Descriptor(::dup(here.number())));
  exec::TcpLink link({.from = 0, .to = 1, .channel = 0}, 1, "channel 0", std::move(connections));
  std::vector<std::byte> payload;
  const auto room = [&](exec::TcpLink::Bytes header) -> std::vector<std::span<std::byte>> {
    payload.resize(header.size());
    return {payload};
  };
  try {
    while (true) link.receive(room, Seconds(10));
  } catch (const EnvironmentError&) {
    // The bytes are not a message, or the connection has ended.
  }
}

}  // namespace isobar::fuzz
