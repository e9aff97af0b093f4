#pragma once

#include <string>

namespace isobar::exec {

/// The two ends of a connected socket, as numbers: "10.0.0.7", "::1". @throws EnvironmentError for what is none.
std::string local_address(int socket);
std::string peer_address(int socket);

/// Of an address in numbers.
bool is_loopback(const std::string& address);
/// The first address of a host, in numbers; "" when the system knows none. Blocks while the system looks it up.
std::string address_of_host(const std::string& host);
/// Whether `host` is a name, not numbers.
bool is_host_name(const std::string& host);

}  // namespace isobar::exec
