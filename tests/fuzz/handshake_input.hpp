#pragma once

#include "core/errors.hpp"
#include "exec/net/handshake.hpp"
#include "exec/net/tcp_link.hpp"
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
  ensure(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "the system makes pairs of sockets");
  return {exec::Descriptor(sockets[0]), exec::Descriptor(sockets[1])};
}

/// A part of the handshake that begins with the input.
template <typename Part>
Part part_of(std::span<const std::uint8_t> input)
{
  Part part;
  if (!input.empty()) std::memcpy(&part, input.data(), std::min(input.size(), sizeof part));
  return part;
}

/// What a stranger may say to either end of a connection, and that it comes to nothing. The first byte says to whom.
inline void handshake(std::span<const std::uint8_t> input)
{
  if (input.empty()) return;
  static const exec::Secret secret("fuzz", "a secret that no input knows");
  const auto rest = input.subspan(1);
  exec::AcceptorHandshake acceptor(secret);
  exec::InitiatorHandshake caller(secret, exec::purpose_of("fuzz"));
  switch (input[0] % 4) {
    case 0:
      ensure(!acceptor.is_proved_by(part_of<exec::Claim>(rest)), "a stranger proves nothing");
      return;
    case 1:
      caller.claim(part_of<exec::Challenge>(rest));
      ensure(!caller.reason_of(part_of<exec::Verdict>(rest.subspan(std::min<std::size_t>(rest.size(), 32)))),
             "a stranger's verdict counts for nothing");
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
    ensure(progress.error != 0 || !progress.fault.empty(), "a stranger does not end TLS's handshake");
    return;
  }
  // A rank that is broken, or plain text that was changed on the way.
  std::vector<exec::Flow> flows;
  flows.emplace_back(exec::Descriptor(::dup(here.number())));
  exec::TcpLink link({.from = 0, .to = 1, .channel = 0}, 1, "channel 0", std::move(flows));
  std::vector<std::byte> payload;
  const auto room = [&](exec::TcpLink::Bytes header) -> std::vector<std::span<std::byte>> {
    payload.resize(header.size());
    return {payload};
  };
  try {
    while (true) link.receive(room, Seconds(10));
  } catch (const EnvironmentError&) {
    // What came is no message, or it has ended.
  }
}

}  // namespace isobar::fuzz
