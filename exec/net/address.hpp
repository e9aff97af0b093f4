#pragma once

#include "core/base/clock.hpp"

#include <string>

namespace isobar::exec {

/// Address that a socket is bound to, and address of a connected socket's peer, in numeric form: "10.0.0.7", "::1".
/// @throws EnvironmentError when the socket has no such address.
std::string local_address(int socket);
std::string peer_address(int socket);

/// First address of a host, in numeric form; "" when the system cannot resolve it. Blocks during the lookup.
std::string address_of_host(const std::string& host);
/// Waits until the system resolves a host, and looks it up every 0.2 s: the name of a container may be published after
/// its processes start. Returns false at the deadline. Numeric addresses take no time. @throws Interrupted.
bool resolves_by(Clock::time_point deadline, const std::string& host);
/// Host name of this machine.
std::string host_name();
/// True for a name, false for a numeric address.
bool is_host_name(const std::string& host);

}  // namespace isobar::exec
