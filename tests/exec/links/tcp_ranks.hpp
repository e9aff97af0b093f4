#pragma once

#include "core/errors.hpp"
#include "exec/links/tcp_world.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// Ranks of a TcpWorld as threads of one process, and the messages that they exchange.
namespace isobar::exec {

inline constexpr Seconds plenty{60};
inline constexpr Seconds little{0.2};

using Data = std::vector<std::byte>;
using View = TcpLink::Bytes;

inline Data random_data(std::size_t size, unsigned seed = 1)
{
  std::mt19937 random(seed);
  Data data(size);
  for (auto& value : data) value = static_cast<std::byte>(random());
  return data;
}

inline View view_of(const std::string& text)
{
  return std::as_bytes(std::span(text));
}

inline void send(TcpLink& link, const std::string& header, const Data& payload, Seconds deadline = plenty)
{
  link.send(view_of(header), std::array{View(payload)}, deadline);
}

struct Message {
  std::string header;
  Data payload;
};

/// In these tests the header of a message is the length of its payload.
inline Message receive(TcpLink& link, const Deadline& deadline = plenty)
{
  Message message;
  const auto room = [&](View header) -> std::vector<std::span<std::byte>> {
    message.header.assign(reinterpret_cast<const char*>(header.data()), header.size());
    message.payload.resize(std::stoul(message.header));
    return {message.payload};
  };
  link.receive(room, deadline);
  return message;
}

inline void pause(double seconds)
{
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// The message of the exception that `work` throws; "" if it throws none.
template <typename Work>
std::string error_of(Work work)
{
  try {
    work();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

inline std::shared_ptr<const Secret> test_secret(const std::string& text = "what the ranks of the tests share")
{
  return std::make_shared<const Secret>("test", text);
}

/// Listens on a free port below the ephemeral ones, so that no other program takes it before its rank starts.
inline TcpListener quiet_listener(const std::string& host)
{
  std::random_device random;
  for (int attempt = 0; attempt < 100; ++attempt) {
    try {
      return TcpListener({.host = host, .port = static_cast<std::uint16_t>(20'000 + random() % 10'000)});
    } catch (const EnvironmentError&) {
      continue;  // taken
    }
  }
  return TcpListener({.host = host, .port = 0});
}

/// Ranks of one run, each with a listener.
class Ranks {
 public:
  explicit Ranks(std::size_t count, const std::string& host = "127.0.0.1")
  {
    for (std::size_t rank = 0; rank < count; ++rank) {
      listeners.push_back(quiet_listener(host));
      endpoints.push_back({.host = host, .port = listeners.back().port()});
    }
    options.run_id = "test";
    options.secret = test_secret();
    options.connect_deadline = plenty;
  }

  TcpWorld world(std::size_t rank) { return {rank, endpoints, links, options, std::move(listeners[rank])}; }

  /// Runs `work(world, rank)` on all ranks, each in a thread, and returns their errors.
  template <typename Work>
  std::vector<std::string> errors(Work work)
  {
    std::vector<std::string> errors(endpoints.size());
    std::vector<std::jthread> threads;
    for (std::size_t rank = 0; rank < endpoints.size(); ++rank) {
      threads.emplace_back([this, rank, &errors, &work] {
        errors[rank] = error_of([&] {
          auto here = world(rank);
          work(here, rank);
        });
      });
    }
    threads.clear();
    return errors;
  }

  template <typename Work>
  void run(Work work)
  {
    for (const auto& error : errors(work)) EXPECT_EQ(error, "");
  }

  std::vector<TcpListener> listeners;
  std::vector<Endpoint> endpoints;
  std::vector<LinkName> links;
  TcpOptions options;
};

}  // namespace isobar::exec
