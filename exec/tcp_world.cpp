#include "exec/tcp_world.hpp"

#include "core/errors.hpp"
#include "exec/clock.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <map>

namespace isobar::exec {

namespace {

/// The header of a message of a sum.
struct RoundHeader {
  std::uint64_t values = 0;      ///< of the whole sum
  std::uint32_t value_size = 0;  ///< bytes
  std::uint32_t round = 0;
};

void check_inputs(std::size_t rank, const std::vector<Endpoint>& ranks, const std::vector<LinkName>& links,
                  const TcpOptions& options)
{
  ensure(rank < ranks.size(), "a world's rank is one of its ranks");
  for (const auto& link : links) {
    ensure(link.from < ranks.size() && link.to < ranks.size() && link.from != link.to, "a link is between two ranks");
    ensure(link.channel != TcpWorld::reserved_channel, "the sums' channel is reserved");
  }
  if (options.flows < 1 || options.flows > 64) {
    throw InputError("flows", fmt::format("{} connections for each link; it may have 1 to 64", options.flows));
  }
  if (options.world.size() > 64) {
    throw InputError("world", fmt::format("a word of {} bytes; it may have 64", options.world.size()));
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
  void all_reduce_sum(std::span<Value> values, Seconds deadline);

  std::map<LinkName, std::unique_ptr<TcpLink>> links;

 private:
  std::size_t rank_;
  std::size_t ranks_;
  TcpLink* to_next_ = nullptr;
  TcpLink* from_previous_ = nullptr;
};

TcpWorld::Impl::Impl(std::size_t rank, const std::vector<Endpoint>& ranks, std::vector<LinkName> names,
                     const TcpOptions& options, TcpListener listener)
    : rank_(rank), ranks_(ranks.size())
{
  if (ranks_ == 1) return;
  const auto deadline = deadline_in(options.connect_deadline);
  const LinkName to_next = {.from = rank_, .to = (rank_ + 1) % ranks_, .channel = reserved_channel};
  const LinkName from_previous = {.from = (rank_ + ranks_ - 1) % ranks_, .to = rank_, .channel = reserved_channel};
  names.push_back(to_next);
  names.push_back(from_previous);
  const auto ring = make_tcp_loop();
  for (auto& [name, flows] : connect_links(rank, ranks, names, options, std::move(listener), deadline)) {
    const bool of_sums = name.channel == reserved_channel;
    const auto title = of_sums ? "sum over all ranks" : fmt::format("channel {}", name.channel);
    links[name] = std::make_unique<TcpLink>(name, rank_, title, std::move(flows), of_sums ? ring : make_tcp_loop());
  }
  to_next_ = links.at(to_next).get();
  from_previous_ = links.at(from_previous).get();
  // The neighbours being there says nothing of the rest.
  try {
    all_reduce_sum(std::span<double>(), time_until(deadline));
  } catch (const EnvironmentError& error) {
    throw EnvironmentError(fmt::format("{} (ranks beyond the neighbours are awaited)", error.what()));
  }
}

template <typename Value>
void TcpWorld::Impl::all_reduce_sum(std::span<Value> values, Seconds wait)
{
  if (ranks_ == 1) return;
  const auto deadline = deadline_in(wait);
  const auto chunk = [&](std::size_t index) {
    index %= ranks_;
    const auto begin_of = [&](std::size_t i) {
      return values.size() / ranks_ * i + values.size() % ranks_ * i / ranks_;
    };
    return values.subspan(begin_of(index), begin_of(index + 1) - begin_of(index));
  };
  std::vector<Value> arrived(values.size() / ranks_ + 1);
  RoundHeader header = {.values = values.size(), .value_size = sizeof(Value), .round = 0};
  for (; header.round < 2 * (ranks_ - 1); ++header.round) {
    // Reduce-scatter: rank i passes chunk i-r on in round r, and adds the one that arrives to its own. After N-1 rounds
    // chunk i+1 is whole; all-gather passes on whole chunks, in the same order.
    const bool scatters = header.round < ranks_ - 1;
    const auto leaving = std::as_bytes(chunk(rank_ + 2 * ranks_ - header.round));
    const auto chunk_here = chunk(rank_ + 2 * ranks_ - header.round - 1);
    const auto arriving = scatters ? std::span(arrived).first(chunk_here.size()) : chunk_here;
    const auto room = [&](TcpLink::Bytes bytes) -> std::vector<std::span<std::byte>> {
      RoundHeader theirs;
      if (bytes.size() == sizeof theirs) std::memcpy(&theirs, bytes.data(), sizeof theirs);
      if (std::memcmp(&theirs, &header, sizeof theirs) != 0) {
        throw EnvironmentError(fmt::format(
            "rank {}: sum over all ranks: {} values of {} B, round {}; rank {} sums {} values of {} B, round {}", rank_,
            header.values, header.value_size, header.round, (rank_ + ranks_ - 1) % ranks_, theirs.values,
            theirs.value_size, theirs.round));
      }
      return {std::as_writable_bytes(arriving)};
    };
    TcpLink::exchange(*to_next_, std::as_bytes(std::span(&header, 1)), std::array{leaving}, *from_previous_, room,
                      time_until(deadline));
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

void TcpWorld::all_reduce_sum(std::span<float> values, Seconds deadline)
{
  impl_->all_reduce_sum(values, deadline);
}

void TcpWorld::all_reduce_sum(std::span<double> values, Seconds deadline)
{
  impl_->all_reduce_sum(values, deadline);
}

void TcpWorld::cancel()
{
  for (const auto& [name, link] : impl_->links) link->cancel();
}

std::uint64_t TcpWorld::bytes_sent() const
{
  std::uint64_t sent = 0;
  for (const auto& [name, link] : impl_->links) sent += link->bytes_sent();
  return sent;
}

}  // namespace isobar::exec
