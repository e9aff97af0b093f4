#pragma once

#include "exec/net/connection.hpp"

#include <cstdint>
#include <string>
#include <utility>

namespace isobar::exec {

/// Address at which a rank listens.
struct Endpoint {
  std::string host;  ///< a name, or an IPv4 or IPv6 address without brackets
  std::uint16_t port = 0;
};

/// Parses "host:port" and "[IPv6 address]:port". @throws InputError naming the option.
Endpoint endpoint_from_text(const std::string& option, const std::string& text);
/// Formats an endpoint likewise, for messages.
std::string text_of(const Endpoint& endpoint);

/// A port on which this process listens. A process that starts ranks can open a listener on port 0 for each rank, tell
/// all ranks the ports, and pass each rank its listener. So no other program can take a port in between.
class TcpListener {
 public:
  /// Listens on the first address of the host; port 0 selects a free port. The system queues early connections.
  /// @throws EnvironmentError when the host is unknown or the port is taken.
  explicit TcpListener(const Endpoint& endpoint);
  /// Takes over a listening socket, such as one that a parent process left open. Pass it to other programs by dup2:
  /// the listener's own descriptor is closed on exec.
  explicit TcpListener(Descriptor socket);

  std::uint16_t port() const;
  bool is_ipv6() const;
  int descriptor() const { return socket_.number(); }
  /// Transfers the socket to the caller.
  Descriptor release() { return std::move(socket_); }

 private:
  Descriptor socket_;
};

}  // namespace isobar::exec
