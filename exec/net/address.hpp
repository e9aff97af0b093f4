#pragma once

#include <string>

namespace isobar::exec {

/// What a socket is bound to, and the other end of a connected one, in numbers: "10.0.0.7", "::1". @throws
/// EnvironmentError for what is none.
std::string local_address(int socket);
std::string peer_address(int socket);

/// The first address of a host, in numbers; "" when the system knows none. Blocks while the system looks it up.
std::string address_of_host(const std::string& host);
/// What this machine calls itself.
std::string host_name();
/// Whether `host` is a name, not numbers.
bool is_host_name(const std::string& host);

}  // namespace isobar::exec
