#include "exec/launch/link_probe.hpp"

#include "core/base/clock.hpp"
#include "core/base/threads.hpp"
#include "core/errors.hpp"
#include "core/text/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <thread>
#include <utility>

namespace isobar::exec {

namespace {

constexpr Seconds patience{600};
constexpr int round_trips = 101;
constexpr int bulk_trips = 7;
constexpr int most_repetitions_of_a_size = 20;  // on a busy machine, where some take far too long
constexpr std::size_t smallest = std::size_t{64} << 10;
constexpr std::size_t largest = std::size_t{64} << 20;
constexpr std::size_t growth = 4;
constexpr Seconds long_enough{0.25};                   // the next size would take four times as long
constexpr std::uint64_t end_mark = ~std::uint64_t{0};  // instead of a size

LinkName probe_link(std::size_t from, std::size_t to)
{
  return {from, to, 0};
}
LinkName answer_link(std::size_t from, std::size_t to)
{
  return {to, from, 1};
}

/// The probing end of a link; the other end runs `answer`.
class Prober {
 public:
  Prober(TcpWorld& world, std::size_t from, std::size_t to)
      : out_(&world.link(probe_link(from, to))), back_(&world.link(answer_link(from, to)))
  {
  }

  /// Median time until `size` bytes are answered.
  Seconds answer_time(int times, std::uint64_t size)
  {
    const std::vector<std::byte> bytes(size);
    std::vector<Seconds> taken;
    for (int i = 0; i < times; ++i) {
      const auto begin = Clock::now();
      send(size, bytes);
      back_->receive([](TcpLink::Bytes) { return std::vector<std::span<std::byte>>(); }, patience);
      taken.push_back(time_since(begin));
    }
    std::nth_element(taken.begin(), taken.begin() + times / 2, taken.end());
    return taken[static_cast<std::size_t>(times / 2)];
  }
  void end() { send(end_mark, {}); }

 private:
  void send(std::uint64_t size, TcpLink::Bytes bytes)
  {
    out_->send(std::as_bytes(std::span(&size, 1)), std::array{bytes}, patience);
  }

  TcpLink* out_;
  TcpLink* back_;
};

/// Answers each message with an empty one, until the prober ends.
void answer(TcpWorld& world, std::size_t from, std::size_t to)
{
  std::vector<std::byte> bytes;
  while (true) {
    std::uint64_t size = 0;
    const auto room = [&](TcpLink::Bytes header) {
      if (header.size() == sizeof(size)) std::memcpy(&size, header.data(), sizeof(size));
      if (header.size() != sizeof(size) || (size > largest && size != end_mark)) {
        throw EnvironmentError("malformed header of a probe");
      }
      bytes.resize(size == end_mark ? 0 : size);
      return std::vector{std::span(bytes)};
    };
    world.link(probe_link(from, to)).receive(room, patience);
    if (size == end_mark) return;
    world.link(answer_link(from, to)).send({}, {}, patience);
  }
}

LinkMeasurement probe(TcpWorld& world, std::size_t from, std::size_t to, std::size_t connections)
{
  Prober prober(world, from, to);
  LinkMeasurement link{from, to, connections, 0.5 * prober.answer_time(round_trips, 0), BytesPerSecond(0), {}};
  for (std::size_t size = smallest; size <= largest; size *= growth) {
    const Seconds time = prober.answer_time(bulk_trips, size) - link.latency;
    link.sizes.push_back({Bytes(static_cast<double>(size)), time});
    if (link.sizes.size() > 1 && time > long_enough) break;
  }
  auto& [less, less_time] = link.sizes[link.sizes.size() - 2];
  const auto& [more, more_time] = link.sizes.back();
  // Other work on the machine only adds time, so that the least one is the best.
  for (int i = 0; more_time <= less_time && i < most_repetitions_of_a_size; ++i) {
    const auto size = static_cast<std::uint64_t>(less.value);
    less_time = std::min(less_time, prober.answer_time(bulk_trips, size) - link.latency);
  }
  prober.end();
  if (more_time <= less_time) {
    throw EnvironmentError(
        fmt::format("rank {} to rank {}: {} took no longer than {}; measure again when the machines are less busy",
                    from, to, text_of(more), text_of(less)));
  }
  link.bandwidth = (more - less) / (more_time - less_time);
  return link;
}

std::vector<LinkName> links_between(std::size_t ranks)
{
  std::vector<LinkName> links;
  for (std::size_t from = 0; from < ranks; ++from) {
    for (std::size_t to = 0; to < ranks; ++to) {
      if (from == to) continue;
      links.push_back(probe_link(from, to));
      links.push_back(answer_link(from, to));
    }
  }
  return links;
}

}  // namespace

std::vector<std::size_t> connection_counts(std::size_t most)
{
  std::vector<std::size_t> counts;
  for (std::size_t connections = 1; connections < most; connections *= 2) counts.push_back(connections);
  counts.push_back(most);
  return counts;
}

std::vector<LinkMeasurement> probe_links(std::size_t rank, const std::vector<Endpoint>& ranks,
                                         std::size_t most_connections, TcpOptions options)
{
  std::vector<LinkMeasurement> measured;
  for (const std::size_t connections : connection_counts(most_connections)) {
    options.connections = connections;
    options.connect_deadline = patience;
    TcpWorld world(rank, ranks, links_between(ranks.size()), options);
    for (std::size_t from = 0; from < ranks.size(); ++from) {
      for (std::size_t to = 0; to < ranks.size(); ++to) {
        if (from == to) continue;
        if (rank == from) measured.push_back(probe(world, from, to, connections));
        if (rank == to) answer(world, from, to);
        world.all_reduce_sum(std::span<double>(), patience);  // before the next pair begins
      }
    }
  }
  return measured;
}

LinkMeasurement probe_loopback(std::size_t connections)
{
  TcpOptions options;
  options.connections = connections;
  options.run_id = "probe";
  options.secret = random_secret();
  std::array<TcpListener, 2> listeners = {TcpListener({"127.0.0.1", 0}), TcpListener({"127.0.0.1", 0})};
  const std::vector<Endpoint> ranks = {{"127.0.0.1", listeners[0].port()}, {"127.0.0.1", listeners[1].port()}};
  const std::vector<LinkName> links = {probe_link(0, 1), answer_link(0, 1)};
  std::exception_ptr failure;
  std::jthread other = start_thread([&] {
    try {
      TcpWorld world(1, ranks, links, options, std::move(listeners[1]));
      answer(world, 0, 1);
    } catch (...) {
      failure = std::current_exception();
    }
  });
  LinkMeasurement measured;
  try {
    TcpWorld world(0, ranks, links, options, std::move(listeners[0]));
    measured = probe(world, 0, 1, connections);
  } catch (...) {
    other.join();
    throw;
  }
  other.join();
  if (failure) std::rethrow_exception(failure);
  return measured;
}

}  // namespace isobar::exec
