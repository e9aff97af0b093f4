#include "exec/net/tcp_world.hpp"

#include "core/base/clock.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>
#include <map>
#include <set>

namespace isobar::exec {

namespace {

/// Channel of the links of all-reduces in which not all ranks take part.
constexpr std::uint32_t all_reduce_of_some = TcpWorld::reserved_channel - 1;

/// Header of a message of an all-reduce.
struct RoundHeader {
  std::uint64_t values = 0;      ///< of the whole all-reduce
  std::uint32_t value_size = 0;  ///< bytes
  std::uint32_t round = 0;
};

void check_inputs(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
                  const TcpOptions& options)
{
  ensure(rank < ranks.size(), "the rank of a process group is below its size");
  for (const auto& link : links) {
    ensure(link.from < ranks.size() && link.to < ranks.size() && link.from != link.to, "a link is between two ranks");
    ensure(link.channel < all_reduce_of_some, "the channels of all-reduces are reserved");
  }
  if (options.connections < 1 || options.connections > 64) {
    throw InputError("flows", fmt::format("{} connections per link; it must be 1 to 64", options.connections));
  }
  if (options.run_id.size() > 64) {
    throw InputError("run id", fmt::format("{} bytes; at most 64", options.run_id.size()));
  }
  for (std::size_t i = 0; i < ranks.size() && ranks.size() > 1; ++i) {
    if (ranks[i].port == 0) throw InputError(fmt::format("rank {}", i), "its port is 0; it must be 1 to 65535");
  }
}

TcpListener listener_of(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
                        const TcpOptions& options)
{
  check_inputs(rank, ranks, links, options);
  return TcpListener({.host = options.bind_address.value_or(ranks[rank].host), .port = ranks[rank].port});
}

}  // namespace

class TcpWorld::Impl {
 public:
  Impl(std::size_t rank, const std::vector<Endpoint>& ranks, std::vector<LinkName> links, const TcpOptions& options,
       TcpListener listener);

  template <typename Value>
  void all_reduce_sum(std::span<Value> values, const Deadline& deadline)
  {
    ensure(rank_ < all_reduce_ring_.size, "only ranks that take part in all-reduces call all_reduce_sum");
    all_reduce_sum(all_reduce_ring_, values, deadline);
  }
  void wait_for_all(const Deadline& deadline) { all_reduce_sum(all_, std::span<double>(), deadline); }

  std::map<LinkName, std::unique_ptr<TcpLink>> links;
  std::atomic<bool> cancelled = false;

 private:
  /// The first `size` ranks, each with links to its neighbours.
  struct Ring {
    std::size_t size = 1;
    std::uint32_t channel = reserved_channel;
    TcpLink* to_next = nullptr;
    TcpLink* from_previous = nullptr;
  };

  /// "; rank 1 is gone", from the links that no failed all-reduce has closed; "" when all are connected.
  std::string ranks_gone() const
  {
    std::set<std::size_t> gone;
    for (const auto& [name, link] : links) {
      if (name.channel < all_reduce_of_some && link->is_closed()) gone.insert(name.from == rank_ ? name.to : name.from);
    }
    if (gone.empty()) return "";
    return fmt::format("; rank{} {} {} gone", gone.size() > 1 ? "s" : "", fmt::join(gone, ", "),
                       gone.size() > 1 ? "are" : "is");
  }
  LinkName to_next(const Ring& ring) const
  {
    return {.from = rank_, .to = (rank_ + 1) % ring.size, .channel = ring.channel};
  }
  LinkName from_previous(const Ring& ring) const
  {
    return {.from = (rank_ + ring.size - 1) % ring.size, .to = rank_, .channel = ring.channel};
  }
  bool is_in(const Ring& ring) const { return rank_ < ring.size && ring.size > 1; }
  template <typename Value>
  void all_reduce_sum(const Ring& ring, std::span<Value> values, const Deadline& deadline);

  std::size_t rank_;
  Ring all_;              // all ranks
  Ring all_reduce_ring_;  // those that take part in all-reduces
};

TcpWorld::Impl::Impl(std::size_t rank, const std::vector<Endpoint>& ranks, std::vector<LinkName> names,
                     const TcpOptions& options, TcpListener listener)
    : rank_(rank)
{
  all_.size = ranks.size();
  all_reduce_ring_.size = options.all_reduce_ranks.value_or(ranks.size());
  all_reduce_ring_.channel = all_reduce_ring_.size == all_.size ? reserved_channel : all_reduce_of_some;
  if (ranks.size() == 1) return;
  const auto deadline = deadline_in(options.connect_deadline);
  names.insert(names.end(), {to_next(all_), from_previous(all_)});
  if (is_in(all_reduce_ring_) && all_reduce_ring_.channel != all_.channel) {
    names.insert(names.end(), {to_next(all_reduce_ring_), from_previous(all_reduce_ring_)});
  }
  const auto loop = make_tcp_loop();
  std::vector<int> sockets;
  for (auto& [name, connections] : connect_links(rank, ranks, names, options, std::move(listener), deadline)) {
    const bool is_of_ring = name.channel >= all_reduce_of_some;
    const auto title = is_of_ring ? "all-reduce over all ranks" : fmt::format("channel {}", name.channel);
    for (const auto& connection : connections) sockets.push_back(connection.socket.number());
    links[name] =
        std::make_unique<TcpLink>(name, rank_, title, std::move(connections), is_of_ring ? loop : make_tcp_loop());
  }
  for (Ring* ring : {&all_, &all_reduce_ring_}) {
    if (!is_in(*ring)) continue;
    ring->to_next = links.at(to_next(*ring)).get();
    ring->from_previous = links.at(from_previous(*ring)).get();
  }
  // Connected neighbours do not imply that all ranks are connected.
  try {
    wait_for_all(time_until(deadline));
  } catch (const EnvironmentError& error) {
    Failure failure = failure_of(error);
    failure.text += fmt::format(" (still waiting for ranks beyond the neighbours{})", ranks_gone());
    throw_failure(failure);
  }
  for (const int socket : sockets) stop_keepalive(socket);
}

template <typename Value>
void TcpWorld::Impl::all_reduce_sum(const Ring& ring, std::span<Value> values, const Deadline& deadline)
{
  const std::size_t ranks = ring.size;
  if (ranks == 1) return;
  const auto chunk = [&](std::size_t index) {
    index %= ranks;
    const auto begin_of = [&](std::size_t i) { return values.size() / ranks * i + values.size() % ranks * i / ranks; };
    return values.subspan(begin_of(index), begin_of(index + 1) - begin_of(index));
  };
  std::vector<Value> arrived(values.size() / ranks + 1);
  RoundHeader header = {.values = values.size(), .value_size = sizeof(Value), .round = 0};
  for (; header.round < 2 * (ranks - 1); ++header.round) {
    // Reduce-scatter: in round r, rank i sends chunk i-r and adds the one that arrives to its own. After N-1 rounds
    // chunk i+1 is complete; all-gather sends complete chunks in the same order.
    const bool scatters = header.round < ranks - 1;
    const auto leaving = std::as_bytes(chunk(rank_ + 2 * ranks - header.round));
    const auto chunk_here = chunk(rank_ + 2 * ranks - header.round - 1);
    const auto arriving = scatters ? std::span(arrived).first(chunk_here.size()) : chunk_here;
    const auto room = [&](TcpLink::Bytes bytes) -> std::vector<std::span<std::byte>> {
      RoundHeader theirs;
      if (bytes.size() == sizeof theirs) std::memcpy(&theirs, bytes.data(), sizeof theirs);
      if (std::memcmp(&theirs, &header, sizeof theirs) != 0) {
        throw EnvironmentError(fmt::format(
            "rank {}: all-reduce over all ranks: {} values of {} B, round {}; rank {} has {} values of {} B, round {}",
            rank_, header.values, header.value_size, header.round, (rank_ + ranks - 1) % ranks, theirs.values,
            theirs.value_size, theirs.round));
      }
      return {std::as_writable_bytes(arriving)};
    };
    TcpLink::exchange(*ring.to_next, std::as_bytes(std::span(&header, 1)), std::array{leaving}, *ring.from_previous,
                      room, deadline);
    for (std::size_t i = 0; scatters && i < chunk_here.size(); ++i) chunk_here[i] += arrived[i];
  }
}

TcpWorld::TcpWorld(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
                   const TcpOptions& options)
    : TcpWorld(rank, ranks, links, options, listener_of(rank, ranks, links, options))
{
}

TcpWorld::TcpWorld(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
                   const TcpOptions& options, TcpListener listener)
{
  check_inputs(rank, ranks, links, options);
  impl_ = std::make_unique<Impl>(rank, ranks, links, options, std::move(listener));
}

TcpWorld::~TcpWorld() = default;

TcpLink& TcpWorld::link(const LinkName& name)
{
  const auto found = impl_->links.find(name);
  ensure(found != impl_->links.end(), "a rank uses the links that were opened");
  return *found->second;
}

void TcpWorld::all_reduce_sum(std::span<float> values, const Deadline& deadline)
{
  impl_->all_reduce_sum(values, deadline);
}

void TcpWorld::all_reduce_sum(std::span<double> values, const Deadline& deadline)
{
  impl_->all_reduce_sum(values, deadline);
}

void TcpWorld::wait_for_all(const Deadline& deadline)
{
  impl_->wait_for_all(deadline);
}

void TcpWorld::cancel()
{
  impl_->cancelled = true;
  std::vector<TcpLink*> links;
  for (const auto& [name, link] : impl_->links) {
    if (name.channel != lasting_channel) links.push_back(link.get());
  }
  TcpLink::cancel(links);
}

const std::atomic<bool>& TcpWorld::cancelled() const
{
  return impl_->cancelled;
}

std::uint64_t TcpWorld::bytes_sent() const
{
  std::uint64_t sent = 0;
  for (const auto& [name, link] : impl_->links) sent += link->bytes_sent();
  return sent;
}

std::uint64_t TcpWorld::moves() const
{
  std::uint64_t moves = 0;
  for (const auto& [name, link] : impl_->links) {
    if (name.channel != lasting_channel) moves += link->moves();
  }
  return moves;
}

}  // namespace isobar::exec
