#pragma once

#include "exec/net/tcp_link.hpp"

#include <cstdint>
#include <string>
#include <utility>

namespace isobar::exec {

/// Where a rank listens.
struct Endpoint {
  std::string host;  ///< a name, or an IPv4 or IPv6 address without brackets
  std::uint16_t port = 0;
};

/// From "host:port" and "[IPv6 address]:port". @throws InputError naming the option.
Endpoint endpoint_from_text(const std::string& option, const std::string& text);
/// The same for messages.
std::string text_of(const Endpoint& endpoint);

/// A port that this process listens on. Whoever starts the ranks of a run can open a listener on port 0 for each, tell
/// all ranks the ports, and hand each rank its own listener: then no other program can take a port in between.
class TcpListener {
 public:
  /// Listens on the first address of the host; port 0 takes a free one. The system keeps early callers waiting.
  /// @throws EnvironmentError when the host is unknown or the port is taken.
  explicit TcpListener(const Endpoint& endpoint);
  /// Takes over a socket that listens already, such as one that a parent process left open. Other processes get it by
  /// dup2, since the listener's own number is closed on exec.
  explicit TcpListener(Descriptor socket);

  std::uint16_t port() const;
  bool is_ipv6() const;
  int descriptor() const { return socket_.number(); }
  /// The socket goes to the caller.
  Descriptor release() { return std::move(socket_); }

 private:
  Descriptor socket_;
};

}  // namespace isobar::exec
