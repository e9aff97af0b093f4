#pragma once

#include "core/units.hpp"
#include "exec/net/tcp_link.hpp"

#include <string>
#include <string_view>

namespace isobar::exec {

/// A text as one message of a link; errors as TcpLink's.
void send_text(TcpLink& link, std::string_view text, Seconds deadline);
/// The next one, of at most 4 GiB.
std::string receive_text(TcpLink& link, Seconds deadline);

}  // namespace isobar::exec
