#include "exec/net/tcp_world.hpp"

#include "core/base/clock.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"
#include "core/program/collective.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

namespace isobar::exec {

namespace {

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
    ensure(link.channel < TcpWorld::reserved_channel, "the channel of all-reduces is reserved");
  }
  for (const auto& group : options.groups) {
    ensure(group.channel < first_narrow_channel, "the channels of groups are those of a program");
    ensure(std::ranges::all_of(group.ranks, [&](std::size_t member) { return member < ranks.size(); }),
           "a group has ranks of the process group");
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
  void all_reduce_sum(std::uint32_t channel, std::span<Value> values, const Deadline& deadline);
  void wait_for_all(const Deadline& deadline) { all_reduce_sum(reserved_channel, std::span<double>(), deadline); }

  std::map<LinkName, std::unique_ptr<TcpLink>> links;
  std::atomic<bool> cancelled = false;

 private:
  /// The ring of a group that this rank belongs to.
  struct Ring {
    std::string name;            // in messages
    std::size_t size = 1;        // number of ranks
    std::size_t place = 0;       // of this rank
    std::uint64_t messages = 0;  // from each rank to the next, in an all-reduce
    LinkName to_next;
    LinkName from_previous;
    std::shared_ptr<TcpLoop> loop = make_tcp_loop();  // of both links
  };

  void add_ring(const RankGroup& group, const std::string& name);
  /// The ring whose links have this channel; nullptr if there is none.
  const Ring* ring_of(std::uint32_t channel) const
  {
    const auto found = rings_.find(channel);
    return found == rings_.end() ? nullptr : &found->second;
  }

  /// "; rank 1 is gone", from the links that no failed all-reduce has closed; "" when all are connected.
  std::string ranks_gone() const
  {
    std::set<std::size_t> gone;
    for (const auto& [name, link] : links) {
      if (name.channel != reserved_channel && link->is_closed()) gone.insert(name.from == rank_ ? name.to : name.from);
    }
    if (gone.empty()) return "";
    return fmt::format("; rank{} {} {} gone", gone.size() > 1 ? "s" : "", fmt::join(gone, ", "),
                       gone.size() > 1 ? "are" : "is");
  }

  std::size_t rank_;
  std::map<std::uint32_t, Ring> rings_;  // by channel
};

TcpWorld::Impl::Impl(std::size_t rank, const std::vector<Endpoint>& ranks, std::vector<LinkName> names,
                     const TcpOptions& options, TcpListener listener)
    : rank_(rank)
{
  RankGroup all = {.channel = reserved_channel, .ranks = std::vector<std::size_t>(ranks.size())};
  std::iota(all.ranks.begin(), all.ranks.end(), std::size_t{0});
  add_ring(all, "all-reduce over all ranks");
  for (const auto& group : options.groups) add_ring(group, fmt::format("channel {}", group.channel));
  if (ranks.size() == 1) return;
  const auto deadline = deadline_in(options.connect_deadline);
  for (const auto& [channel, ring] : rings_) {
    if (ring.size > 1) names.insert(names.end(), {ring.to_next, ring.from_previous});
  }
  std::vector<int> sockets;
  for (auto& [name, connections] : connect_links(rank, ranks, names, options, std::move(listener), deadline)) {
    const Ring* ring = ring_of(name.channel);
    const auto title = ring != nullptr ? ring->name : fmt::format("channel {}", name.channel);
    for (const auto& connection : connections) sockets.push_back(connection.socket.number());
    links[name] = std::make_unique<TcpLink>(name, rank_, title, std::move(connections),
                                            ring != nullptr ? ring->loop : make_tcp_loop());
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

void TcpWorld::Impl::add_ring(const RankGroup& group, const std::string& name)
{
  const auto self = std::find(group.ranks.begin(), group.ranks.end(), rank_);
  if (self == group.ranks.end()) return;
  Ring ring;
  ring.name = name;
  ring.size = group.ranks.size();
  ring.place = static_cast<std::size_t>(self - group.ranks.begin());
  // One round, whatever the size: every rank sends to the next.
  for (const auto& round : rounds_of(Opcode::AllReduce, std::vector<Bytes>(ring.size), Algorithm::Ring)) {
    for (const Flow& flow : round) {
      const LinkName link = {group.ranks[flow.from], group.ranks[flow.to], group.channel};
      if (flow.from == ring.place) {
        ring.to_next = link;
        ring.messages = flow.messages;
      }
      if (flow.to == ring.place) ring.from_previous = link;
    }
  }
  ensure(rings_.try_emplace(group.channel, std::move(ring)).second, "a group has a channel of its own");
}

template <typename Value>
void TcpWorld::Impl::all_reduce_sum(std::uint32_t channel, std::span<Value> values, const Deadline& deadline)
{
  const Ring* ring = ring_of(channel);
  ensure(ring != nullptr, "a rank all-reduces in its own groups");
  if (ring->size == 1) return;
  const std::size_t ranks = ring->size;
  const auto chunk = [&](std::size_t index) {
    index %= ranks;
    const auto begin_of = [&](std::size_t i) { return values.size() / ranks * i + values.size() % ranks * i / ranks; };
    return values.subspan(begin_of(index), begin_of(index + 1) - begin_of(index));
  };
  std::vector<Value> arrived(values.size() / ranks + 1);
  RoundHeader header = {.values = values.size(), .value_size = sizeof(Value), .round = 0};
  for (; header.round < ring->messages; ++header.round) {
    // Reduce-scatter: in round r, place i sends chunk i-r and adds the one that arrives to its own. After N-1 rounds
    // chunk i+1 is complete; all-gather sends complete chunks in the same order.
    const bool scatters = header.round < ranks - 1;
    const auto leaving = std::as_bytes(chunk(ring->place + 2 * ranks - header.round));
    const auto chunk_here = chunk(ring->place + 2 * ranks - header.round - 1);
    const auto arriving = scatters ? std::span(arrived).first(chunk_here.size()) : chunk_here;
    const auto room = [&](TcpLink::Bytes bytes) -> std::vector<std::span<std::byte>> {
      RoundHeader theirs;
      if (bytes.size() == sizeof theirs) std::memcpy(&theirs, bytes.data(), sizeof theirs);
      if (std::memcmp(&theirs, &header, sizeof theirs) != 0) {
        throw EnvironmentError(
            fmt::format("rank {}: {}: {} values of {} B, round {}; rank {} has {} values of {} B, round {}", rank_,
                        ring->name, header.values, header.value_size, header.round, ring->from_previous.from,
                        theirs.values, theirs.value_size, theirs.round));
      }
      return {std::as_writable_bytes(arriving)};
    };
    TcpLink::exchange(*links.at(ring->to_next), std::as_bytes(std::span(&header, 1)), std::array{leaving},
                      *links.at(ring->from_previous), room, deadline);
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
  impl_->all_reduce_sum(reserved_channel, values, deadline);
}

void TcpWorld::all_reduce_sum(std::span<double> values, const Deadline& deadline)
{
  impl_->all_reduce_sum(reserved_channel, values, deadline);
}

void TcpWorld::all_reduce_sum(std::uint32_t channel, std::span<double> values, const Deadline& deadline)
{
  impl_->all_reduce_sum(channel, values, deadline);
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
