#pragma once

#include "core/units.hpp"
#include "exec/clock.hpp"
#include "exec/secret.hpp"
#include "exec/tcp_link.hpp"
#include "exec/tcp_listener.hpp"

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

struct TcpOptions {
  std::size_t flows = 1;  ///< connections of each link, 1..64
  /// All ranks of a run say the same word of at most 64 bytes, and turn away whoever says another one. It keeps runs
  /// apart; it is no secret and no protection.
  std::string world;
  Seconds connect_deadline{60};              ///< from the beginning until all ranks are connected
  std::optional<std::size_t> summing_ranks;  ///< only the first ones take part in sums; default: all
  std::optional<std::string> bind_address;  ///< what to listen on instead of the endpoint's own host, such as "0.0.0.0"
  std::shared_ptr<const Secret> secret;     ///< what the ranks prove to each other
  bool tls = false;                         ///< all connections are encrypted
};

/// Opens the connections of those of the links that begin or end at `rank`: for each link, its flows in order. The
/// sender calls the receiver, proves the secret and says what it is; who does anything else is turned away and harms
/// nothing. Calls are repeated until the deadline, since ranks start at different moments.
/// @throws EnvironmentError that names the ranks still awaited at the deadline, or the reason why a rank turned this
/// one away; Interrupted.
std::map<LinkName, std::vector<Flow>> connect_links(std::size_t rank, const std::vector<Endpoint>& ranks,
                                                    const std::vector<LinkName>& links, const TcpOptions& options,
                                                    TcpListener listener, Clock::time_point deadline);

}  // namespace isobar::exec
