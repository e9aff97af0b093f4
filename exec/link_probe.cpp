#include "exec/link_probe.hpp"

#include "exec/clock.hpp"
#include "exec/tcp_world.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

namespace isobar::exec {

namespace {

constexpr Seconds patience{60};
constexpr int round_trips = 201;
constexpr int bulk_trips = 9;
constexpr std::size_t small = std::size_t{1} << 20;
constexpr std::size_t large = 17 * small;
constexpr LinkName there{.from = 0, .to = 1, .channel = 0};
constexpr LinkName back{.from = 1, .to = 0, .channel = 0};

void send(TcpWorld& world, const LinkName& link, TcpLink::Bytes payload)
{
  world.link(link).send({}, std::array{payload}, patience);
}

void receive(TcpWorld& world, const LinkName& link, std::span<std::byte> room)
{
  world.link(link).receive([&](TcpLink::Bytes) { return std::vector{room}; }, patience);
}

/// The median time until an answer to `bytes` is there, in seconds.
double answer_time(TcpWorld& world, int times, std::vector<std::byte>& bytes)
{
  std::vector<double> taken;
  for (int i = 0; i < times; ++i) {
    const auto begin = Clock::now();
    send(world, there, bytes);
    receive(world, back, {});
    taken.push_back(time_since(begin).value);
  }
  std::nth_element(taken.begin(), taken.begin() + times / 2, taken.end());
  return taken[static_cast<std::size_t>(times / 2)];
}

void answer(TcpWorld& world, int times, std::vector<std::byte>& room)
{
  for (int i = 0; i < times; ++i) {
    receive(world, there, room);
    send(world, back, {});
  }
}

}  // namespace

LinkMeasurement probe_loopback(std::size_t flows)
{
  TcpOptions options;
  options.flows = flows;
  options.world = "probe";
  std::array<TcpListener, 2> listeners = {TcpListener({"127.0.0.1", 0}), TcpListener({"127.0.0.1", 0})};
  const std::vector<Endpoint> ranks = {{"127.0.0.1", listeners[0].port()}, {"127.0.0.1", listeners[1].port()}};
  std::exception_ptr failure;
  std::thread other([&] {
    try {
      TcpWorld world(1, ranks, {there, back}, options, std::move(listeners[1]));
      for (const auto& [times, size] :
           {std::pair{round_trips, std::size_t{0}}, {bulk_trips, small}, {bulk_trips, large}}) {
        std::vector<std::byte> room(size);
        answer(world, times, room);
      }
    } catch (...) {
      failure = std::current_exception();
    }
  });
  LinkMeasurement measured;
  try {
    TcpWorld world(0, ranks, {there, back}, options, std::move(listeners[0]));
    std::vector<std::byte> bytes;
    measured.latency = Seconds(answer_time(world, round_trips, bytes) / 2);
    bytes.resize(small);
    const double small_time = answer_time(world, bulk_trips, bytes);
    bytes.resize(large);
    const double large_time = answer_time(world, bulk_trips, bytes);
    measured.bandwidth = Bytes(static_cast<double>(large - small)) / Seconds(large_time - small_time);
  } catch (...) {
    other.join();
    throw;
  }
  other.join();
  if (failure) std::rethrow_exception(failure);
  return measured;
}

}  // namespace isobar::exec
