#pragma once

#include "core/base/clock.hpp"
#include "core/program/program.hpp"
#include "core/units.hpp"
#include "exec/links/tcp_link.hpp"
#include "exec/net/secret.hpp"
#include "exec/net/tcp_listener.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace isobar::exec {

/// Links of this channel and of later ones carry little data and have one connection, whatever TcpOptions say.
inline constexpr std::uint32_t first_narrow_channel = 0xfffffff0;

/// Ranks that make collectives among themselves.
struct RankGroup {
  std::uint32_t channel = 0;       ///< of its links, which no other links have
  std::vector<std::size_t> ranks;  ///< in the order of their ring
  Algorithm algorithm = Algorithm::Ring;
  std::vector<std::string> sites = {};  ///< of the ranks, which a hierarchical group needs
  bool has_little_data = false;         ///< then its links have one connection
  bool exchanges = false;               ///< whether its links join each of its ranks with each, for TcpWorld::exchange
};

struct TcpOptions {
  std::size_t connections = 1;  ///< of each link, 1..64
  /// Identifier of the run, ≤ 64 bytes. A connection with another identifier is rejected. It is not secret and gives no
  /// protection.
  std::string run_id;
  std::uint64_t first_step = 0;  ///< of the run; all ranks must agree
  Seconds connect_deadline{60};  ///< until this rank's own name resolves, and again until all ranks are connected
  std::string connect_option;    ///< source of that deadline in messages, such as "twice --deadline"; "": no option
  /// Groups that all-reduce besides all ranks together.
  std::vector<RankGroup> groups;
  std::optional<std::string> bind_address;  ///< to listen on instead of the endpoint's own host, such as "0.0.0.0"
  std::shared_ptr<const Secret> secret;     ///< shared by all ranks, which prove it to each other
  bool tls = false;                         ///< encrypts all connections
};

/// Opens the connections of all links that begin or end at `rank`; returns for each link its connections in order.
///
/// The sender of a link connects to its receiver, proves the secret and names the link. Other peers are rejected and do
/// no harm. Attempts are repeated until the deadline, since ranks start at different times. A rank that has connected
/// and left counts as missing. So does one whose machine has become unreachable, after about 9 s. A rejected rank keeps
/// answering for 1 s, so that the ranks that it would reject receive the reason too.
/// @throws EnvironmentError naming the ranks that are missing at the deadline, or why a rank rejected this one;
/// Interrupted.
std::map<LinkName, std::vector<Connection>> connect_links(std::size_t rank, const std::vector<Endpoint>& ranks,
                                                          const std::vector<LinkName>& links, const TcpOptions& options,
                                                          TcpListener listener, Clock::time_point deadline);

/// Stops the keepalive checks of a link's socket. Until then, its connection counts as closed about 9 s after the
/// peer's machine has become unreachable; during a run, heartbeats detect that within the user's limit.
void stop_keepalive(int socket);

/// Raises this process's limit of open files to the system's maximum: each connection is an open file.
void allow_all_descriptors();

}  // namespace isobar::exec
