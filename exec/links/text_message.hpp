#pragma once

#include "core/units.hpp"
#include "exec/links/tcp_link.hpp"

#include <string>
#include <string_view>

namespace isobar::exec {

/// Sends a text as one message over a link. Errors as TcpLink's.
void send_text(TcpLink& link, std::string_view text, Seconds deadline);
/// Receives the next text, of at most 4 GiB.
/// @throws EnvironmentError as TcpLink does, and for a message that is not a text.
std::string receive_text(TcpLink& link, Seconds deadline);

}  // namespace isobar::exec
