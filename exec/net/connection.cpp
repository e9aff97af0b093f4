#include "exec/net/connection.hpp"

#include <poll.h>
#include <unistd.h>

namespace isobar::exec {

Descriptor::~Descriptor()
{
  if (is_open()) ::close(number_);
}

bool is_closed_by_peer(int socket)
{
  pollfd state = {.fd = socket, .events = POLLRDHUP, .revents = 0};
  return ::poll(&state, 1, 0) > 0;
}

}  // namespace isobar::exec
