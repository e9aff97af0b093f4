#pragma once

#include "core/base/clock.hpp"
#include "core/units.hpp"
#include "exec/net/secret.hpp"
#include "exec/net/tcp_link.hpp"
#include "exec/net/tcp_listener.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// Links of this channel and of later ones carry little, and have one connection, whatever the flows.
inline constexpr std::uint32_t first_narrow_channel = 0xfffffff0;

struct TcpOptions {
  std::size_t flows = 1;  ///< connections of each link, 1..64
  /// All ranks of a run say the same word of at most 64 bytes, and turn away whoever says another one. It keeps runs
  /// apart; it is no secret and no protection.
  std::string run_id;
  std::uint64_t first_step = 0;                 ///< with which the run begins, the same at all ranks
  Seconds connect_deadline{60};                 ///< from the beginning until all ranks are connected
  std::string connect_option;                   ///< what it follows from, such as "twice --deadline"; "": no option
  std::optional<std::size_t> all_reduce_ranks;  ///< only the first ones take part in sums; default: all
  std::optional<std::string> bind_address;  ///< what to listen on instead of the endpoint's own host, such as "0.0.0.0"
  std::shared_ptr<const Secret> secret;     ///< what the ranks prove to each other
  bool tls = false;                         ///< all connections are encrypted
};

/// Opens the connections of those of the links that begin or end at `rank`: for each link, its flows in order. The
/// sender calls the receiver, proves the secret and says what it is; who does anything else is turned away and harms
/// nothing. Calls are repeated until the deadline, since ranks start at different moments; a rank that is gone again is
/// awaited as if it had not been there, and so is one whose machine has vanished, some 9 s later. Whoever is turned
/// away goes on answering for a second, so that those that it would turn away hear so too.
/// @throws EnvironmentError that names the ranks still awaited at the deadline, or the reason why a rank turned this
/// one away; Interrupted.
std::map<LinkName, std::vector<Flow>> connect_links(std::size_t rank, const std::vector<Endpoint>& ranks,
                                                    const std::vector<LinkName>& links, const TcpOptions& options,
                                                    TcpListener listener, Clock::time_point deadline);

/// Until it is called for a link's socket, the connection counts as closed some 9 s after the machine at its other end
/// has vanished. In a run the signs of life say who is gone, by the user's limit.
void watch_no_more(int socket);

/// Lets this process open as many files as the system ever lets it: each connection is one.
void allow_all_descriptors();

}  // namespace isobar::exec
