#include "exec/links/link_connections.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <algorithm>
#include <numeric>
#include <utility>

namespace isobar::exec {

LinkConnections::LinkConnections(std::vector<Connection> connections, TcpLoop& loop)
{
  for (auto& connection : connections) {
    const int socket = connection.socket.number();
    ::fcntl(socket, F_SETFD, FD_CLOEXEC);
    streams_.emplace_back(loop, std::move(connection));
    open_.push_back(socket);
  }
}

void LinkConnections::begin_message()
{
  moved_.assign(streams_.size(), 0);
}

void LinkConnections::write(std::size_t index, const std::vector<std::span<const std::byte>>& buffers,
                            std::size_t before_payload)
{
  ++under_way_;
  streams_[index].write(buffers, progress_of(index, before_payload), end_of_transfer());
}

void LinkConnections::read(std::size_t index, const std::vector<std::span<std::byte>>& buffers,
                           std::size_t before_payload)
{
  ++under_way_;
  streams_[index].read(buffers, progress_of(index, before_payload), end_of_transfer());
}

ConnectionStream::OnProgress LinkConnections::progress_of(std::size_t index, std::size_t before_payload)
{
  return [this, index, before_payload](std::size_t bytes) {
    moved_[index] = bytes - std::min(bytes, before_payload);
    ++moves_;
  };
}

ConnectionStream::OnEnd LinkConnections::end_of_transfer()
{
  return [this](const std::optional<StreamFault>& fault) {
    --under_way_;
    if (!fault_) fault_ = fault;
  };
}

std::uint64_t LinkConnections::payload_moved() const
{
  return std::accumulate(moved_.begin(), moved_.end(), std::uint64_t{0});
}

void LinkConnections::close()
{
  const std::scoped_lock lock(mutex_);
  open_.clear();
  for (auto& stream : streams_) stream.close();
}

void LinkConnections::shut_down()
{
  const std::scoped_lock lock(mutex_);
  for (const int socket : open_) ::shutdown(socket, SHUT_RDWR);
}

bool LinkConnections::is_closed() const
{
  const std::scoped_lock lock(mutex_);
  return open_.empty() || std::any_of(open_.begin(), open_.end(), is_closed_by_peer);
}

}  // namespace isobar::exec
