#pragma once

#include "core/units.hpp"
#include "exec/launch/rendezvous.hpp"
#include "exec/links/tcp_link.hpp"
#include "exec/net/connection.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// What rank 0 and the other ranks send each other at a rendezvous.
///
///   member: connects twice, once for each way; the purpose names the rank and its process
///   master: `accepted`
///   member: its endpoint, then its facts (preflight.hpp)
///   master: `clock_question`, some times; each is answered with the member's wall clock
///   master: its decision, which may also come at any time before
namespace isobar::exec::rendezvous {

/// How long missing ranks may still connect once there is a reason against the run, so that they receive it too.
inline constexpr Seconds grace{5};
/// Longest wait for one message of a connected rank.
inline constexpr Seconds patience{10};

/// Sent by rank 0 once both links of a rank are connected. A rank that does not receive it was dropped and connects
/// again.
inline constexpr std::string_view accepted = "welcome";
inline constexpr std::string_view clock_question = "clock";

/// A rank's two one-way links with rank 0: to it, and from it.
enum class Way : std::uint32_t { Up, Down };
inline constexpr std::array ways = {Way::Up, Way::Down};

/// Separates, in the purpose of a connection, the role from an identifier of the process. The latter keeps two
/// processes from sharing a rank's links.
inline constexpr std::string_view process_mark = ", process ";

/// The role of a connection in the run, such as "isobar 3: rank 1 of 3, up".
std::string role_of(const RendezvousOptions& options, std::size_t rank, Way way);

/// The end, at rank `self`, of the link of `rank` over a connection.
std::unique_ptr<TcpLink> link_over(Connection connection, Way way, std::size_t rank, std::size_t self);

/// Seconds since the epoch, by the system's clock.
double wall_clock();

/// What rank 0 sends to the others at the end.
struct Decision {
  std::vector<std::string> reasons;  ///< against the run; none: it begins
  bool is_the_machines_fault = false;
  std::vector<std::size_t> device_of_rank;
  std::vector<Endpoint> endpoints;  ///< by device

  /// @throws InputError or EnvironmentError with the reasons, if there are any.
  void throw_if_refused() const;
};

std::string decision_to_json(const Decision& decision);
/// @throws EnvironmentError for any other text.
Decision decision_from_json(const std::string& text);

}  // namespace isobar::exec::rendezvous
