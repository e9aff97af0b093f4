#include "exec/net/connection_manager.hpp"
#include "tests/exec/links/tcp_ranks.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <atomic>
#include <functional>
#include <mutex>

namespace isobar::exec::secure_link_test {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

Descriptor connection_to(std::uint16_t port)
{
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
  return socket;
}

bool send_bytes(const Descriptor& socket, View bytes)
{
  return ::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

/// Receives for a second, or until the other end closes; at most `most` bytes.
Data received(const Descriptor& socket, std::size_t most = 1'000'000)
{
  const timeval second = {.tv_sec = 1, .tv_usec = 0};
  ::setsockopt(socket.number(), SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
  Data data(most);
  const auto count = ::recv(socket.number(), data.data(), data.size(), MSG_WAITALL);
  data.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  return data;
}

/// Passes bytes on between an initiator and an acceptor, and records them. May change those of the initiator.
class Relay {
 public:
  using Change = std::function<void(std::size_t begin, std::span<std::byte> bytes)>;

  explicit Relay(std::uint16_t acceptor, Change change = {})
      : acceptor_(acceptor), change_(std::move(change)), thread_([this](const std::stop_token& stop) { run(stop); })
  {
  }
  ~Relay()
  {
    thread_.request_stop();
    ::shutdown(listener_.descriptor(), SHUT_RDWR);
  }

  std::uint16_t port() const { return listener_.port(); }
  /// All bytes that have passed so far, both ways.
  Data passed() const
  {
    const std::scoped_lock lock(mutex_);
    return passed_;
  }

 private:
  void run(const std::stop_token& stop)
  {
    std::vector<std::jthread> ways;
    std::vector<std::pair<Descriptor, Descriptor>> pairs;
    pairs.reserve(1'000);
    while (!stop.stop_requested() && pairs.size() < pairs.capacity()) {
      Descriptor initiator(::accept(listener_.descriptor(), nullptr, nullptr));
      if (!initiator.is_open()) break;
      pairs.emplace_back(std::move(initiator), connection_to(acceptor_));
      const int from = pairs.back().first.number();
      const int to = pairs.back().second.number();
      ways.emplace_back([this, from, to] { pass(from, to, change_); });
      ways.emplace_back([this, from, to] { pass(to, from, {}); });
    }
    for (const auto& [initiator, acceptor] : pairs) {
      ::shutdown(initiator.number(), SHUT_RDWR);
      ::shutdown(acceptor.number(), SHUT_RDWR);
    }
    ways.clear();
  }

  void pass(int from, int to, const Change& change)
  {
    Data buffer(1U << 16U);
    std::size_t begin = 0;
    while (true) {
      const auto count = ::recv(from, buffer.data(), buffer.size(), 0);
      if (count <= 0) break;
      const auto bytes = std::span(buffer).first(static_cast<std::size_t>(count));
      if (change) change(begin, bytes);
      begin += bytes.size();
      {
        const std::scoped_lock lock(mutex_);
        passed_.insert(passed_.end(), bytes.begin(), bytes.end());
      }
      for (std::size_t sent = 0; sent < bytes.size();) {
        const auto more = ::send(to, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
        if (more <= 0) break;
        sent += static_cast<std::size_t>(more);
      }
    }
    ::shutdown(from, SHUT_RDWR);
    ::shutdown(to, SHUT_RDWR);
  }

  TcpListener listener_{Endpoint{"127.0.0.1", 0}};
  std::uint16_t acceptor_;
  Change change_;
  mutable std::mutex mutex_;
  Data passed_;
  std::jthread thread_;
};

/// Two ranks with a link from 0 to 1.
struct Pair : Ranks {
  explicit Pair(bool tls) : Ranks(2)
  {
    links = {{.from = 0, .to = 1, .channel = 0}};
    options.tls = tls;
  }
};

/// Links with TLS (true) and without.
class SecureLink : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(PlainAndTls, SecureLink, testing::Bool(),
                         [](const auto& tls) { return tls.param ? "Tls" : "Plain"; });

TEST_P(SecureLink, CarriesMessagesOfAnySizeOverOneAndSeveralConnections)
{
  for (const std::size_t connections : {1, 3}) {
    Pair ranks(GetParam());
    ranks.options.connections = connections;
    ranks.run([&](TcpWorld& world, std::size_t rank) {
      for (const std::size_t size : {0, 1, 10, 16'383, 16'384, 16'385, 65'536, 3'000'001}) {
        const auto data = random_data(size);
        if (rank == 0) {
          send(world.link(ranks.links[0]), std::to_string(size), data);
        } else {
          EXPECT_TRUE(receive(world.link(ranks.links[0])).payload == data) << size;
        }
      }
    });
  }
}

TEST_P(SecureLink, GathersAndScattersBuffers)
{
  Pair ranks(GetParam());
  const auto data = random_data(300'001);
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    auto& link = world.link(ranks.links[0]);
    if (rank == 0) {
      std::vector<View> pieces;
      for (std::size_t i = 0; i < data.size(); i += 1'000) {
        pieces.push_back(View(data).subspan(i, std::min<std::size_t>(1'000, data.size() - i)));
        pieces.push_back({});
      }
      link.send({}, pieces, plenty);
    } else {
      Data start(70'000);
      Data end(230'001);
      link.receive([&](View) -> std::vector<std::span<std::byte>> { return {start, end}; }, plenty);
      start.insert(start.end(), end.begin(), end.end());
      EXPECT_TRUE(start == data);
    }
  });
}

TEST_P(SecureLink, CarriesAllReduces)
{
  Ranks ranks(3);
  ranks.options.tls = GetParam();
  ranks.run([](TcpWorld& world, std::size_t rank) {
    std::vector<double> values(100'000, static_cast<double>(rank));
    world.all_reduce_sum(std::span(values), plenty);
    EXPECT_TRUE(std::ranges::all_of(values, [](double value) { return value == 3; }));
  });
}

TEST_P(SecureLink, FailsAtTheDeadlineWhenCancelledAndWhenThePeerIsGone)
{
  const auto errors_of_receiver = [](const std::function<void(TcpLink&)>& sender, double cancelled_after,
                                     Seconds deadline) {
    Pair ranks(GetParam());
    return ranks.errors([&](TcpWorld& world, std::size_t rank) {
      auto& link = world.link(ranks.links[0]);
      if (rank == 0) return sender(link);
      std::jthread other([&] {
        if (cancelled_after == 0) return;
        pause(cancelled_after);
        world.cancel();
      });
      receive(link, deadline);
    });
  };
  EXPECT_THAT(errors_of_receiver([](TcpLink&) { pause(1); }, 0, little)[1],
              MatchesRegex("rank 1: receive from rank 0 \\(channel 0\\): no message after [0-9.]+ s: deadline passed"));
  EXPECT_THAT(errors_of_receiver([](TcpLink&) { pause(1); }, 0.2, plenty)[1],
              MatchesRegex("rank 1: receive from rank 0 \\(channel 0\\): no message after [0-9.]+ s: cancelled"));
  EXPECT_THAT(errors_of_receiver([](TcpLink&) {}, 0, plenty)[1],
              MatchesRegex("rank 1: receive from rank 0 \\(channel 0\\): no message after [0-9.]+ s: connection closed "
                           "by the peer"));
}

TEST_P(SecureLink, FailsOnTheSenderWhenItsReceiverIsGoneOrSlow)
{
  const auto send_much = [](TcpLink& link, Seconds deadline) {
    const Data megabyte(1'000'000);
    link.send(view_of("100000000"), std::vector<View>(100, megabyte), deadline);
  };
  const auto error_of_sender = [&](double receiver_stays, Seconds deadline) {
    Pair ranks(GetParam());
    return ranks.errors([&](TcpWorld& world, std::size_t rank) {
      rank == 0 ? send_much(world.link(ranks.links[0]), deadline) : pause(receiver_stays);
    })[0];
  };
  EXPECT_THAT(error_of_sender(0.1, plenty), MatchesRegex("rank 0: send to rank 1 \\(channel 0\\): [0-9]+ of 100000000 "
                                                         "B after [0-9.]+ s: connection closed by the peer"));
  EXPECT_THAT(error_of_sender(1.5, Seconds(0.5)), MatchesRegex("rank 0: send to rank 1 \\(channel 0\\): [0-9]+ of "
                                                               "100000000 B after [0-9.]+ s: deadline passed"));
}

TEST(Tls, ContinuesWithANewKeyWhenOneHasSealedEnough)
{
  Pair ranks(true);
  constexpr std::size_t times = 70;  // of 16 MiB: a new key after the first GiB
  const auto data = random_data(std::size_t{1} << 24U);
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    for (std::size_t i = 0; i < times; ++i) {
      if (rank == 0) {
        send(world.link(ranks.links[0]), std::to_string(data.size()), data);
      } else {
        EXPECT_TRUE(receive(world.link(ranks.links[0])).payload == data);
      }
    }
  });
}

/// Errors of both ranks when rank 0 connects through a relay, and the bytes that passed.
struct Captured {
  std::vector<std::string> errors;
  Data passed;
};

Captured captured(bool tls, const Data& tensor, Relay::Change change = {})
{
  Pair ranks(tls);
  const Relay relay(ranks.endpoints[1].port, std::move(change));
  auto by_relay = ranks.endpoints;
  by_relay[1].port = relay.port();
  std::vector<std::string> errors(2);
  {
    std::vector<std::jthread> threads;
    for (const std::size_t rank : {0, 1}) {
      threads.emplace_back([&, rank] {
        errors[rank] = error_of([&] {
          TcpWorld world(rank, rank == 0 ? by_relay : ranks.endpoints, ranks.links, ranks.options,
                         std::move(ranks.listeners[rank]));
          if (rank == 0) {
            send(world.link(ranks.links[0]), std::to_string(tensor.size()), tensor);
            pause(0.3);
          } else {
            EXPECT_TRUE(receive(world.link(ranks.links[0])).payload == tensor);
          }
        });
      });
    }
  }
  return {errors, relay.passed()};
}

bool is_in(const Data& where, View what)
{
  return std::search(where.begin(), where.end(), what.begin(), what.end()) != where.end();
}

TEST_P(SecureLink, ShowsTensorsInTransitOnlyWithoutTls)
{
  const bool tls = GetParam();
  const auto tensor = random_data(50'000);
  const auto capture = captured(tls, tensor);
  EXPECT_EQ(capture.errors, std::vector<std::string>(2));
  ASSERT_GT(capture.passed.size(), tensor.size());
  for (const std::size_t place : {0, 20'000, 49'968}) {
    EXPECT_EQ(is_in(capture.passed, View(tensor).subspan(place, 32)), !tls) << place;
  }
  EXPECT_FALSE(is_in(capture.passed, view_of("what the ranks of the tests share")));
}

TEST(Tls, DetectsBytesChangedInTransit)
{
  const auto flip = [](std::size_t begin, std::span<std::byte> bytes) {
    constexpr std::size_t place = 40'000;
    if (begin <= place && place < begin + bytes.size()) bytes[place - begin] ^= std::byte(1);
  };
  const auto capture = captured(true, random_data(50'000), flip);
  EXPECT_THAT(capture.errors[1], EndsWith(": received bytes that are not the peer's, or not TLS"));
}

// Unauthenticated peers, and what ranks report about them.

/// Accepts connections of peers that know the secret of the tests, unless their purpose is "no".
class Acceptor {
 public:
  explicit Acceptor(bool tls = false) : manager_(test_secret(), tls)
  {
    TcpListener listener(Endpoint{"127.0.0.1", 0});
    port_ = listener.port();
    manager_.listen(
        std::move(listener), [](const Purpose& purpose) { return text_of(purpose) == "no" ? "no" : ""; },
        [this](const Purpose& purpose, Connection) { accepted_.push_back(text_of(purpose)); });
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) manager_.work(Clock::now() + std::chrono::milliseconds(100));
    });
  }

  std::uint16_t port() const { return port_; }
  /// Stops accepting, and returns the purposes of the accepted connections.
  std::vector<std::string> accepted()
  {
    thread_.request_stop();
    thread_.join();
    return accepted_;
  }
  std::string unauthenticated() const { return manager_.unauthenticated(); }

 private:
  ConnectionManager manager_;
  std::uint16_t port_ = 0;
  std::vector<std::string> accepted_;
  std::jthread thread_;
};

/// Connects with a secret. Returns why the connection was rejected or not made; "" when it was made.
std::string connect_to(std::uint16_t port, const std::shared_ptr<const Secret>& secret, bool tls,
                       const std::string& purpose = "yes", double patience_s = 0.5)
{
  ConnectionManager manager(secret, tls);
  std::string outcome = "-";
  const auto attempt = manager.connect(
      Endpoint{"127.0.0.1", port}, purpose_of(purpose), [&](const Purpose&, Connection) { outcome = ""; },
      [&](const std::string& reason) { outcome = "rejected: " + reason; });
  const auto deadline = deadline_in(Seconds(patience_s));
  while (outcome == "-" && manager.work(deadline)) {
  }
  return outcome == "-" ? manager.trouble(attempt) : outcome;
}

TEST(ConnectionManager, ConnectsPeersThatKnowTheSecret)
{
  for (const bool tls : {false, true}) {
    Acceptor acceptor(tls);
    EXPECT_EQ(connect_to(acceptor.port(), test_secret(), tls), "");
    EXPECT_EQ(connect_to(acceptor.port(), test_secret(), tls, "no"), "rejected: no");
    pause(0.2);
    EXPECT_EQ(acceptor.accepted(), std::vector<std::string>{"yes"});
    EXPECT_EQ(acceptor.unauthenticated(), "");
  }
}

TEST(ConnectionManager, ReportsAWrongSecretToBothSidesWithoutRevealingEither)
{
  Acceptor acceptor;
  EXPECT_EQ(connect_to(acceptor.port(), test_secret("another secret of sixteen bytes and more"), false),
            "it closed the connection after our proof of the secret: give all ranks the same secret");
  EXPECT_EQ(acceptor.accepted(), std::vector<std::string>{});
  EXPECT_THAT(acceptor.unauthenticated(),
              MatchesRegex("; [0-9]+ connections? did not prove the secret \\(the last one from 127.0.0.1\\): give all "
                           "ranks the same secret"));
}

TEST(ConnectionManager, DoesNotConnectToAPeerThatDoesNotProveTheSecret)
{
  TcpListener listener(Endpoint{"127.0.0.1", 0});
  std::jthread impostor([&] {
    const Descriptor initiator(::accept(listener.descriptor(), nullptr, nullptr));
    send_bytes(initiator, random_data(32));
    received(initiator, sizeof(Claim));
    send_bytes(initiator, random_data(sizeof(Verdict)));
    received(initiator, 1);
  });
  EXPECT_EQ(connect_to(listener.port(), test_secret(), false),
            "it does not prove the secret: it is another program, or a rank with another secret");
}

TEST(ConnectionManager, SendsOnlyRandomBytesToUnauthenticatedPeers)
{
  Acceptor acceptor;
  const auto answer_to = [&](View bytes) {
    const auto peer = connection_to(acceptor.port());
    send_bytes(peer, bytes);
    ::shutdown(peer.number(), SHUT_WR);
    return received(peer);
  };
  std::vector<Data> answers;
  for (const auto size : {0U, 1U, 32U, 191U, 192U, 193U, 100'000U}) answers.push_back(answer_to(random_data(size)));
  for (std::size_t i = 0; i < answers.size(); ++i) {
    // The system may drop what was sent to a peer whose bytes remained unread.
    EXPECT_TRUE(answers[i].size() == 32 || answers[i].empty()) << i << ": " << answers[i].size();
    for (std::size_t other = 0; other < i; ++other) EXPECT_TRUE(answers[i].empty() || answers[i] != answers[other]);
  }
  EXPECT_EQ(answers[0].size(), 32);
  EXPECT_EQ(acceptor.accepted(), std::vector<std::string>{});
}

TEST(ConnectionManager, RejectsAReplayedHandshake)
{
  Acceptor acceptor;
  const Relay relay(acceptor.port());
  EXPECT_EQ(connect_to(relay.port(), test_secret(), false), "");
  pause(0.2);
  // The challenge, the claim, the verdict and the confirmation, in the order in which they passed.
  const auto recorded = relay.passed();
  ASSERT_EQ(recorded.size(), 32 + sizeof(Claim) + sizeof(Verdict) + 1);
  const auto bytes_of_initiator = [&](std::size_t length) {
    Data bytes(recorded.begin() + 32, recorded.begin() + 32 + sizeof(Claim));
    bytes.push_back(recorded.back());
    bytes.resize(std::min(length, bytes.size()));
    return bytes;
  };
  for (const std::size_t length : {1, 100, 192, 193}) {
    const auto peer = connection_to(acceptor.port());
    send_bytes(peer, bytes_of_initiator(length));
    ::shutdown(peer.number(), SHUT_WR);
    EXPECT_LE(received(peer).size(), 32) << length;
  }
  EXPECT_EQ(acceptor.accepted(), std::vector<std::string>{"yes"});
}

TEST(TcpWorld, ConnectsWhileHundredsOfPeersSendSingleBytesAndReconnect)
{
  for (const bool tls : {false, true}) {
    Ranks ranks(3);
    ranks.options.tls = tls;
    ranks.options.connections = 2;
    ranks.links = {{0, 1, 0}, {1, 2, 0}};
    std::atomic<std::size_t> connections = 0;
    std::jthread peers([&](const std::stop_token& stop) {
      std::vector<Descriptor> open(200);
      const auto garbage = random_data(1'000);
      for (std::size_t i = 0; !stop.stop_requested(); ++i) {
        auto& peer = open[i % open.size()];
        if (!peer.is_open() || !send_bytes(peer, View(garbage).subspan(i % 1'000, 1))) {
          peer = connection_to(ranks.endpoints[i % 3].port);
          ++connections;
        }
        if (i % open.size() == 0) pause(0.01);
      }
    });
    while (connections < 200) pause(0.01);
    ranks.run([&](TcpWorld& world, std::size_t rank) {
      for (const auto& link : ranks.links) {
        if (rank == link.from) send(world.link(link), "4", random_data(4));
        if (rank == link.to) {
          EXPECT_EQ(receive(world.link(link)).payload, random_data(4));
        }
      }
    });
    EXPECT_GE(connections, 200);
  }
}

TEST(TcpWorld, NamesTheRankWithAnotherSecretAndWhereItIs)
{
  Ranks ranks(2);
  ranks.links = {{0, 1, 0}};
  ranks.options.connect_deadline = Seconds(2);
  std::vector<std::string> errors(2);
  {
    std::vector<std::jthread> threads;
    for (const std::size_t rank : {0, 1}) {
      threads.emplace_back([&, rank] {
        auto options = ranks.options;
        if (rank == 0) options.secret = test_secret("another secret of sixteen bytes and more");
        errors[rank] = error_of([&] {
          const TcpWorld world(rank, ranks.endpoints, ranks.links, options, std::move(ranks.listeners[rank]));
        });
      });
    }
  }
  for (const std::size_t rank : {0, 1}) {
    EXPECT_THAT(errors[rank], MatchesRegex(fmt::format(
                                  "rank {}: still waiting after [0-9.]+ s for rank {} \\(127.0.0.1:{}: it closed "
                                  "the connection after our proof of the secret: give all ranks the same secret\\); "
                                  "[0-9]+ connections? did not prove the secret \\(the last one from "
                                  "127.0.0.1\\): give all ranks the same secret",
                                  rank, 1 - rank, ranks.endpoints[1 - rank].port)));
    EXPECT_THAT(errors[rank], AllOf(Not(HasSubstr("sixteen")), Not(HasSubstr("tests share"))));
  }
}

TEST(TcpWorld, RejectsARankThatUsesPlainTextWhereTheOthersUseTls)
{
  Ranks ranks(2);
  ranks.options.tls = true;
  std::jthread one([&] { error_of([&] { ranks.world(1); }); });
  auto options = ranks.options;
  options.tls = false;
  EXPECT_EQ(error_of([&] {
              const TcpWorld world(0, ranks.endpoints, {}, options, TcpListener({.host = "127.0.0.1", .port = 0}));
            }),
            fmt::format("rank 0: rejected by rank 1 at 127.0.0.1:{}: it uses TLS, not plain text; give --tls or "
                        "--plain-text to all ranks or none",
                        ranks.endpoints[1].port));
  ranks.options.tls = true;
  EXPECT_EQ(error_of([&] { ranks.world(0); }), "");
}

TEST(TcpWorld, RequiresASecret)
{
  Ranks ranks(2);
  ranks.options.secret = nullptr;
  EXPECT_EQ(error_of([&] { ranks.world(0); }), "a connection manager has a secret");
}

}  // namespace
}  // namespace isobar::exec::secure_link_test
