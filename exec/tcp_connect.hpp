#pragma once

#include "core/units.hpp"
#include "exec/clock.hpp"
#include "exec/tcp_link.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// Where a rank listens.
struct Endpoint {
  std::string host;  ///< a name, or an IPv4 or IPv6 address without brackets
  std::uint16_t port = 0;
};

/// From "host:port" and "[IPv6 address]:port". @throws InputError naming the option.
Endpoint endpoint_from_text(const std::string& option, const std::string& text);

struct TcpOptions {
  std::size_t flows = 1;  ///< connections of each link, 1..64
  /// All ranks of a run say the same word of at most 64 bytes, and turn away whoever says another one. It keeps runs
  /// apart; it is no secret and no protection.
  std::string world;
  Seconds connect_deadline{60};              ///< from the beginning until all ranks are connected
  std::optional<std::size_t> summing_ranks;  ///< only the first ones take part in sums; default: all
  std::optional<std::string> bind_address;  ///< what to listen on instead of the endpoint's own host, such as "0.0.0.0"
};

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
  int descriptor() const { return socket_.number(); }
  /// The socket goes to the caller.
  Descriptor release() { return std::move(socket_); }

 private:
  Descriptor socket_;
};

/// Opens the connections of those of the links that begin or end at `rank`: for each link, its flows in order. The
/// sender calls the receiver and says what it is; who says anything else, or nothing, is turned away and harms nothing.
/// Calls are repeated until the deadline, since ranks start at different moments.
/// @throws EnvironmentError that names the ranks still awaited at the deadline, or the reason why a rank turned this
/// one away; Interrupted.
std::map<LinkName, std::vector<Descriptor>> connect_links(std::size_t rank, const std::vector<Endpoint>& ranks,
                                                          const std::vector<LinkName>& links, const TcpOptions& options,
                                                          TcpListener listener, Clock::time_point deadline);

}  // namespace isobar::exec
