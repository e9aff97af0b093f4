#include "exec/links/tcp_world.hpp"

#include "core/base/clock.hpp"
#include "core/errors.hpp"
#include "core/failure.hpp"
#include "core/program/collective.hpp"
#include "exec/net/address.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

namespace isobar::exec {

namespace {

/// Header of a message of an all-reduce.
struct SumHeader {
  std::uint64_t values = 0;      ///< of the whole all-reduce
  std::uint64_t value_size = 0;  ///< bytes
  std::uint64_t begin = 0;       ///< the first value of the message
  std::uint64_t end = 0;         ///< the one after its last
};

/// The memory of a range of values, counted through all pieces.
std::vector<std::span<std::byte>> part_of(const TcpWorld::Values& values, ValueRange range)
{
  const std::size_t begin = range.begin * values.value_size;
  const std::size_t end = range.end * values.value_size;
  std::vector<std::span<std::byte>> part;
  std::size_t first = 0;  // of the piece
  for (const auto& piece : values.pieces) {
    const std::size_t from = std::max(begin, first);
    const std::size_t to = std::min(end, first + piece.size());
    if (from < to) part.push_back(piece.subspan(from - first, to - from));
    first += piece.size();
  }
  return part;
}

std::size_t count_of(const TcpWorld::Values& values)
{
  const std::size_t bytes = std::accumulate(values.pieces.begin(), values.pieces.end(), std::size_t{0},
                                            [](std::size_t sum, const auto& piece) { return sum + piece.size(); });
  return bytes / values.value_size;
}

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
  const std::string host = options.bind_address.value_or(ranks[rank].host);
  resolves_by(deadline_in(options.connect_deadline), host);  // if it does not, the listener says so
  return TcpListener({.host = host, .port = ranks[rank].port});
}

}  // namespace

class TcpWorld::Impl {
 public:
  Impl(std::size_t rank, const std::vector<Endpoint>& ranks, std::vector<LinkName> links, const TcpOptions& options,
       TcpListener listener);

  void collective(Opcode opcode, std::uint32_t channel, const Values& values, const Deadline& deadline);
  void exchange(std::uint32_t channel, std::span<const TcpLink::Bytes> outgoing,
                std::span<const std::span<std::byte>> incoming, const Deadline& deadline);
  void wait_for_all(const Deadline& deadline) { collective(Opcode::AllReduce, reserved_channel, {}, deadline); }

  std::map<LinkName, std::unique_ptr<TcpLink>> links;
  std::atomic<bool> cancelled = false;

 private:
  /// A group that this rank belongs to.
  struct Group {
    RankGroup ranks;
    std::string name;                                 // in messages
    std::size_t place = 0;                            // of this rank
    std::shared_ptr<TcpLoop> loop = make_tcp_loop();  // of its links

    std::vector<CollectiveStep> steps(Opcode opcode, std::size_t values) const
    {
      return steps_of(opcode, place, ranks.ranks.size(), values, ranks.algorithm, ranks.sites);
    }
    LinkName link(std::size_t from, std::size_t to) const
    {
      return {ranks.ranks[from], ranks.ranks[to], ranks.channel};
    }
  };

  void add_group(const RankGroup& group, const std::string& name);
  /// The links of a group that this rank uses for some number of values.
  std::set<LinkName> links_of(const Group& group) const;
  /// The group whose links have this channel; nullptr if there is none.
  const Group* group_of(std::uint32_t channel) const
  {
    const auto found = groups_.find(channel);
    return found == groups_.end() ? nullptr : &found->second;
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
  std::map<std::uint32_t, Group> groups_;  // by channel
};

TcpWorld::Impl::Impl(std::size_t rank, const std::vector<Endpoint>& ranks, std::vector<LinkName> names,
                     const TcpOptions& options, TcpListener listener)
    : rank_(rank)
{
  RankGroup all = {.channel = reserved_channel, .ranks = std::vector<std::size_t>(ranks.size())};
  std::iota(all.ranks.begin(), all.ranks.end(), std::size_t{0});
  add_group(all, "all-reduce over all ranks");
  for (const auto& group : options.groups) add_group(group, fmt::format("channel {}", group.channel));
  if (ranks.size() == 1) return;
  const auto deadline = deadline_in(options.connect_deadline);
  for (const auto& [channel, group] : groups_) {
    const auto of_group = links_of(group);
    names.insert(names.end(), of_group.begin(), of_group.end());
  }
  std::vector<int> sockets;
  for (auto& [name, connections] : connect_links(rank, ranks, names, options, std::move(listener), deadline)) {
    const Group* group = group_of(name.channel);
    const auto title = group != nullptr ? group->name : fmt::format("channel {}", name.channel);
    for (const auto& connection : connections) sockets.push_back(connection.socket.number());
    links[name] = std::make_unique<TcpLink>(name, rank_, title, std::move(connections),
                                            group != nullptr ? group->loop : make_tcp_loop());
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

void TcpWorld::Impl::add_group(const RankGroup& ranks, const std::string& name)
{
  const auto self = std::find(ranks.ranks.begin(), ranks.ranks.end(), rank_);
  if (self == ranks.ranks.end()) return;
  Group group;
  group.ranks = ranks;
  group.name = name;
  group.place = static_cast<std::size_t>(self - ranks.ranks.begin());
  ensure(groups_.try_emplace(ranks.channel, std::move(group)).second, "a group has a channel of its own");
}

std::set<LinkName> TcpWorld::Impl::links_of(const Group& group) const
{
  constexpr std::size_t many_values = std::size_t{1} << 40;  // so many that every piece has some
  std::set<LinkName> used;
  for (const auto& step : group.steps(Opcode::AllReduce, many_values)) {  // the others use some of its links
    if (step.to) used.insert(group.link(group.place, *step.to));
    if (step.from) used.insert(group.link(*step.from, group.place));
  }
  for (std::size_t other = 0; other < group.ranks.ranks.size() && group.ranks.exchanges; ++other) {
    if (other == group.place) continue;
    used.insert(group.link(group.place, other));
    used.insert(group.link(other, group.place));
  }
  return used;
}

void TcpWorld::Impl::collective(Opcode opcode, std::uint32_t channel, const Values& values, const Deadline& deadline)
{
  const Group* group = group_of(channel);
  ensure(group != nullptr, "a rank takes part in the collectives of its own groups");
  const std::size_t count = count_of(values);
  std::vector<std::byte> arrived;
  for (const auto& step : group->steps(opcode, count)) {
    const auto header_of = [&](ValueRange range) {
      return SumHeader{count, values.value_size, range.begin, range.end};
    };
    const SumHeader header = header_of(step.sent);
    const SumHeader expected = header_of(step.received);
    std::vector<TcpLink::Bytes> leaving;
    for (const auto& piece : part_of(values, step.sent)) leaving.emplace_back(piece);
    const auto here = part_of(values, step.received);
    std::vector<std::span<std::byte>> arriving;
    if (step.adds) {
      const std::size_t bytes = step.received.size() * values.value_size;
      arrived.resize(std::max(arrived.size(), bytes));
      arriving.push_back(std::span(arrived).first(bytes));
    } else {
      arriving = here;
    }
    const auto room = [&](TcpLink::Bytes bytes) -> std::vector<std::span<std::byte>> {
      SumHeader theirs;
      if (bytes.size() == sizeof theirs) std::memcpy(&theirs, bytes.data(), sizeof theirs);
      if (std::memcmp(&theirs, &expected, sizeof theirs) != 0) {
        throw EnvironmentError(
            fmt::format("rank {}: {}: {} values of {} B, {} to {} of them; rank {} has {} values of {} B, {} to {}",
                        rank_, group->name, count, values.value_size, expected.begin, expected.end,
                        group->ranks.ranks[*step.from], theirs.values, theirs.value_size, theirs.begin, theirs.end));
      }
      return arriving;
    };
    const auto link = [&](std::size_t from, std::size_t to) -> TcpLink& { return *links.at(group->link(from, to)); };
    const auto header_bytes = std::as_bytes(std::span(&header, 1));
    if (step.to && step.from) {
      TcpLink::exchange(link(group->place, *step.to), header_bytes, leaving, link(*step.from, group->place), room,
                        deadline);
    } else if (step.to) {
      link(group->place, *step.to).send(header_bytes, leaving, deadline);
    } else {
      link(*step.from, group->place).receive(room, deadline);
    }
    if (!step.adds) continue;
    std::span<const std::byte> addends = arrived;
    for (const auto& piece : here) {
      values.add(piece, addends.first(piece.size()));
      addends = addends.subspan(piece.size());
    }
  }
}

void TcpWorld::Impl::exchange(std::uint32_t channel, std::span<const TcpLink::Bytes> outgoing,
                              std::span<const std::span<std::byte>> incoming, const Deadline& deadline)
{
  const Group* group = group_of(channel);
  ensure(group != nullptr && group->ranks.exchanges, "a rank exchanges with its own groups that do");
  const std::size_t size = group->ranks.ranks.size();
  for (std::size_t turn = 1; turn < size; ++turn) {
    const std::size_t to = (group->place + turn) % size;
    const std::size_t from = (group->place + size - turn) % size;
    const std::uint64_t leaves = outgoing[to].size();
    const auto room = [&](TcpLink::Bytes bytes) -> std::vector<std::span<std::byte>> {
      std::uint64_t theirs = 0;
      if (bytes.size() == sizeof theirs) std::memcpy(&theirs, bytes.data(), sizeof theirs);
      if (bytes.size() != sizeof theirs || theirs != incoming[from].size()) {
        throw EnvironmentError(fmt::format("rank {}: {}: rank {} sends {} B where {} B are expected", rank_,
                                           group->name, group->ranks.ranks[from], theirs, incoming[from].size()));
      }
      return {incoming[from]};
    };
    TcpLink::exchange(*links.at(group->link(group->place, to)), std::as_bytes(std::span(&leaves, 1)),
                      outgoing.subspan(to, 1), *links.at(group->link(from, group->place)), room, deadline);
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
  impl_->collective(Opcode::AllReduce, reserved_channel, values_of<float>({values}), deadline);
}

void TcpWorld::all_reduce_sum(std::span<double> values, const Deadline& deadline)
{
  impl_->collective(Opcode::AllReduce, reserved_channel, values_of<double>({values}), deadline);
}

void TcpWorld::collective(Opcode opcode, std::uint32_t channel, const Values& values, const Deadline& deadline)
{
  impl_->collective(opcode, channel, values, deadline);
}

void TcpWorld::exchange(std::uint32_t channel, std::span<const TcpLink::Bytes> outgoing,
                        std::span<const std::span<std::byte>> incoming, const Deadline& deadline)
{
  impl_->exchange(channel, outgoing, incoming, deadline);
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
