#include "exec/links/tcp_world.hpp"

#include "core/errors.hpp"
#include "exec/net/connection_manager.hpp"
#include "exec/net/handshake.hpp"
#include "tests/exec/links/tcp_ranks.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <array>
#include <filesystem>
#include <string>
#include <thread>

namespace isobar::exec::tcp_world_test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::ThrowsMessage;

bool connects(const Descriptor& socket, const Endpoint& endpoint)
{
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(endpoint.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

Descriptor raw_connection_to(const Endpoint& endpoint)
{
  Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_TRUE(connects(socket, endpoint));
  return socket;
}

/// During its lifetime, this process may open at most `more` files in addition to those that are open.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t more)
  {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const Descriptor lowest_free(::socket(AF_INET, SOCK_STREAM, 0));
    const rlimit few = {static_cast<rlim_t>(lowest_free.number()) + more, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

std::size_t open_descriptors()
{
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(open), end(open)));
}

TEST(TcpWorld, WaitsForRanksThatStartLate)
{
  // Their ports are not open until they start.
  Ranks ranks(3);
  ranks.links = {{0, 2, 0}, {2, 1, 0}};
  ranks.listeners.clear();
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      pause(0.3 * static_cast<double>(rank));
      EXPECT_EQ(error_of([&] { const TcpWorld world(rank, ranks.endpoints, ranks.links, ranks.options); }), "");
    });
  }
}

TEST(TcpWorld, NamesTheMissingRank)
{
  Ranks ranks(4);
  ranks.options.connect_deadline = Seconds(2);
  const auto absent = fmt::format("127.0.0.1:{}", ranks.listeners[2].port());
  ranks.listeners[2].release();
  std::vector<std::string> errors(4);
  std::vector<std::jthread> threads;
  for (const std::size_t rank : {0, 1, 3}) {
    threads.emplace_back([&, rank] { errors[rank] = error_of([&] { ranks.world(rank); }); });
  }
  threads.clear();
  EXPECT_THAT(errors[1], MatchesRegex("rank 1: still waiting after [0-9.]+ s for rank 2 \\(" + absent +
                                      ": Connection refused\\)"));
  EXPECT_THAT(errors[3], MatchesRegex("rank 3: still waiting after [0-9.]+ s for rank 2 \\(has not connected\\)"));
  EXPECT_THAT(errors[0], EndsWith(" (still waiting for ranks beyond the neighbours)"));
}

TEST(TcpWorld, ReportsAPortThatDoesNotAnswer)
{
  Ranks ranks(2);
  ranks.options.connect_deadline = Seconds(0.5);
  EXPECT_THAT(error_of([&] { ranks.world(0); }),
              MatchesRegex(fmt::format("rank 0: still waiting after [0-9.]+ s for rank 1 \\(127.0.0.1:{}: no answer\\)",
                                       ranks.endpoints[1].port)));
}

TEST(TcpWorld, RejectsASecondRankWithTheSameNumber)
{
  Ranks ranks(3);
  std::vector<std::jthread> threads;
  const auto start = [&](std::size_t rank) {
    threads.emplace_back([&, rank] { EXPECT_EQ(error_of([&] { ranks.world(rank); }), ""); });
  };
  start(0);
  start(2);
  pause(1);
  EXPECT_EQ(
      error_of([&] {
        const TcpWorld second(2, ranks.endpoints, {}, ranks.options, TcpListener({.host = "127.0.0.1", .port = 0}));
      }),
      fmt::format("rank 2: rejected by rank 0 at 127.0.0.1:{}: rank 2 is already connected", ranks.endpoints[0].port));
  start(1);
}

TEST(TcpWorld, AcceptsARestartedRankThatDiedBeforeAllWereConnected)
{
  Ranks ranks(3);
  ranks.links = {{0, 1, 0}, {1, 0, 0}};
  std::vector<std::jthread> threads;
  threads.emplace_back([&] { EXPECT_EQ(error_of([&] { ranks.world(0); }), ""); });
  auto brief = ranks.options;
  brief.connect_deadline = Seconds(1);
  EXPECT_THAT(
      error_of([&] { const TcpWorld first(1, ranks.endpoints, ranks.links, brief, std::move(ranks.listeners[1])); }),
      MatchesRegex("rank 1: still waiting after [0-9.]+ s for rank 2 .*"));
  threads.emplace_back(
      [&] { EXPECT_EQ(error_of([&] { const TcpWorld second(1, ranks.endpoints, ranks.links, ranks.options); }), ""); });
  threads.emplace_back([&] { EXPECT_EQ(error_of([&] { ranks.world(2); }), ""); });
}

TEST(TcpWorld, TellsBothRanksThatTheyWouldBeginAtDifferentSteps)
{
  Ranks ranks(2);
  std::vector<std::string> errors(2);
  std::vector<std::jthread> threads;
  for (const std::size_t rank : {0, 1}) {
    threads.emplace_back([&, rank] {
      auto options = ranks.options;
      options.first_step = 10 * rank;
      errors[rank] = error_of(
          [&] { const TcpWorld world(rank, ranks.endpoints, ranks.links, options, std::move(ranks.listeners[rank])); });
    });
  }
  threads.clear();
  EXPECT_THAT(errors[0], MatchesRegex("rank 0: rejected by rank 1 at 127.0.0.1:[0-9]+: it begins at step 10, not 0"));
  EXPECT_THAT(errors[1], MatchesRegex("rank 1: rejected by rank 0 at 127.0.0.1:[0-9]+: it begins at step 0, not 10"));
}

TEST(TcpWorld, RejectsRanksOfAnotherRun)
{
  Ranks ranks(2);
  ranks.links = {{0, 1, 3}};
  std::vector<std::jthread> threads;
  threads.emplace_back([&] { EXPECT_EQ(error_of([&] { ranks.world(0); }), ""); });
  const auto rejection_of = [&](const TcpOptions& options, const std::vector<LinkName>& links, std::size_t count) {
    auto endpoints = ranks.endpoints;
    endpoints.resize(count, endpoints[1]);
    const auto error = error_of([&] {
      const TcpWorld other(count - 1, endpoints, links, options, TcpListener({.host = "127.0.0.1", .port = 0}));
    });
    const auto begin = fmt::format("rank {}: rejected by rank 0 at 127.0.0.1:{}: ", count - 1, endpoints[0].port);
    EXPECT_THAT(error, testing::StartsWith(begin));
    return error.substr(std::min(begin.size(), error.size()));
  };
  auto other = ranks.options;
  other.run_id = "other";
  EXPECT_EQ(rejection_of(other, ranks.links, 2),
            "it belongs to another run; give all ranks the same plan, data and options, and each run its own ports");
  other = ranks.options;
  other.connections = 2;
  EXPECT_EQ(rejection_of(other, ranks.links, 2), "it uses --flows 1, not 2");
  EXPECT_EQ(rejection_of(ranks.options, ranks.links, 3), "it has 2 ranks, not 3");
  EXPECT_EQ(rejection_of(ranks.options, {{1, 0, 9}}, 2), "it expects no connection 0 of channel 9 from rank 1");
  auto swapped = ranks.endpoints;
  std::swap(swapped[0], swapped[1]);
  EXPECT_THAT(error_of([&] {
                const TcpWorld misplaced(0, swapped, {}, ranks.options, TcpListener({.host = "127.0.0.1", .port = 0}));
              }),
              EndsWith(": it is rank 0"));
  threads.emplace_back([&] { EXPECT_EQ(error_of([&] { ranks.world(1); }), ""); });
}

TEST(TcpWorld, ConnectsAmongUnauthenticatedPeers)
{
  Ranks ranks(2);
  ranks.options.connections = 2;
  ranks.links = {{0, 1, 0}};
  std::vector<Descriptor> peers;
  const auto connect_and_send = [&](std::size_t rank, View bytes) {
    peers.push_back(raw_connection_to(ranks.endpoints[rank]));
    ::send(peers.back().number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  };
  for (const std::size_t rank : {0, 1}) {
    connect_and_send(rank, random_data(10'000));
    connect_and_send(rank, view_of("half of a handshake, then silence"));
    connect_and_send(rank, {});
    connect_and_send(rank, view_of("GET / HTTP/1.1\r\n\r\n"));
    peers.back() = Descriptor();
  }
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    auto& link = world.link(ranks.links[0]);
    if (rank == 0) {
      send(link, "4", random_data(4));
    } else {
      EXPECT_EQ(receive(link).payload, random_data(4));
    }
  });
}

TEST(TcpWorld, AcceptsARankAfterAnotherProcessDiedInItsHandshake)
{
  Ranks ranks(2);
  const std::array<std::uint32_t, 8> numbers = {4, 2, 0, 1, TcpWorld::reserved_channel, 0, 1, 0};
  std::string hello("link\0\0\0", 8);
  hello.append(reinterpret_cast<const char*>(numbers.data()), sizeof numbers);
  hello.append(sizeof ranks.options.first_step, '\0');
  hello.append(ranks.options.run_id);
  InitiatorHandshake handshake(*ranks.options.secret, purpose_of(hello));
  const auto died = raw_connection_to(ranks.endpoints[1]);
  std::string error;
  {
    const std::jthread rank_1([&] { error = error_of([&] { ranks.world(1); }); });
    Challenge challenge;
    EXPECT_EQ(::recv(died.number(), &challenge, sizeof challenge, MSG_WAITALL), 32);
    const Claim claim = handshake.claim(challenge);
    EXPECT_EQ(::send(died.number(), &claim, sizeof claim, MSG_NOSIGNAL), 192);
    EXPECT_EQ(::shutdown(died.number(), SHUT_WR), 0);
    Verdict verdict;
    EXPECT_EQ(::recv(died.number(), &verdict, sizeof verdict, MSG_WAITALL), 160);
    EXPECT_EQ(handshake.reason_of(verdict), "");  // accepted, had it confirmed
    EXPECT_EQ(error_of([&] { ranks.world(0); }), "");
  }
  EXPECT_EQ(error, "");
}

TEST(TcpWorld, OpensTheMostConnectionsOfALink)
{
  Ranks ranks(2);
  ranks.options.connections = 64;
  ranks.links = {{0, 1, 0}, {1, 0, 0}};
  const auto data = random_data(1'000'000);
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    if (rank == 0) {
      send(world.link(ranks.links[0]), "1000000", data);
    } else {
      EXPECT_TRUE(receive(world.link(ranks.links[0])).payload == data);
    }
  });
}

TEST(TcpWorld, ConnectsWhileHundredsOfPeersAreSilent)
{
  Ranks ranks(2);
  std::vector<Descriptor> peers;
  for (std::size_t i = 0; i < 600; ++i) peers.push_back(raw_connection_to(ranks.endpoints[i % 2]));
  ranks.run([](TcpWorld&, std::size_t) {});
}

TEST(TcpWorld, OpensOneConnectionForEachNarrowLink)
{
  Ranks ranks(2);
  ranks.options.connections = 64;
  ranks.links = {{0, 1, first_narrow_channel}, {1, 0, TcpWorld::lasting_channel}};
  const auto before = open_descriptors();
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    EXPECT_LT(open_descriptors(), before + 64);
    auto& link = world.link(ranks.links[0]);
    const auto data = random_data(1'000'000);
    if (rank == 0) {
      send(link, "1000000", data);
    } else {
      EXPECT_TRUE(receive(link).payload == data);
    }
  });
}

TEST(TcpWorld, StopsListeningOnceAllAreConnectedEvenOnPortsThatTheParentKeepsOpen)
{
  Ranks ranks(2);
  std::vector<Descriptor> parents;
  for (const auto& listener : ranks.listeners) parents.emplace_back(::dup(listener.descriptor()));
  ranks.run([&](TcpWorld&, std::size_t rank) {
    EXPECT_FALSE(connects(Descriptor(::socket(AF_INET, SOCK_STREAM, 0)), ranks.endpoints[rank]));
  });
}

TEST(ConnectionManager, AcceptsConnectionsWhileUnauthenticatedPeersHoldAllOpenFiles)
{
  ConnectionManager acceptor(test_secret(), false);
  ConnectionManager initiator(test_secret(), false);
  auto listener = quiet_listener("127.0.0.1");
  const Endpoint endpoint = {.host = "127.0.0.1", .port = listener.port()};
  std::vector<Descriptor> peers;
  for (int i = 0; i < 100; ++i) peers.push_back(raw_connection_to(endpoint));
  std::vector<Connection> connections;
  const auto connected = [&](const Purpose&, Connection connection) { connections.push_back(std::move(connection)); };
  initiator.connect(endpoint, purpose_of("test"), connected,
                    [](const std::string& reason) { ADD_FAILURE() << reason; });
  acceptor.listen(
      std::move(listener), [](const Purpose&) { return ""; }, connected);
  const FewDescriptors few(20);
  const auto end = deadline_in(plenty);
  while (connections.size() < 2 && Clock::now() < end) {
    for (ConnectionManager* manager : {&acceptor, &initiator}) {
      manager->work(Clock::now() + std::chrono::milliseconds(1));
    }
  }
  EXPECT_EQ(connections.size(), 2);
  EXPECT_THAT(acceptor.unauthenticated(),
              HasSubstr("; not all connections could be accepted at once: Too many open files"));
}

TEST(Descriptors, AreAllowedUpToTheSystemsLimit)
{
  const FewDescriptors few(20);
  allow_all_descriptors();
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

TEST(TcpWorld, RepeatsAttemptsThatAnotherProgramAnswers)
{
  Ranks ranks(2);
  ranks.options.connect_deadline = Seconds(0.5);
  const std::jthread other([listener = ranks.listeners[1].descriptor()] {
    const Descriptor initiator(::accept(listener, nullptr, nullptr));
    const std::string page(1000, 'x');
    ::send(initiator.number(), page.data(), page.size(), MSG_NOSIGNAL);
    pause(0.1);
  });
  // The attempt after it is not answered.
  EXPECT_THAT(error_of([&] { ranks.world(0); }), MatchesRegex("rank 0: still waiting after [0-9.]+ s for rank 1 .*"));
}

TEST(TcpWorld, ReportsAPortThatIsTaken)
{
  Ranks ranks(2);
  EXPECT_EQ(error_of([&] { const TcpWorld world(0, ranks.endpoints, {}, ranks.options); }),
            fmt::format("cannot listen on 127.0.0.1:{}: Address already in use", ranks.endpoints[0].port));
}

TEST(TcpWorld, RefusesOptionsOutOfTheirRange)
{
  Ranks ranks(2);
  const auto error = [&] { return error_of([&] { ranks.world(0); }); };
  ranks.options.connections = 0;
  EXPECT_EQ(error(), "flows: 0 connections per link; it must be 1 to 64");
  ranks.options.connections = 65;
  EXPECT_EQ(error(), "flows: 65 connections per link; it must be 1 to 64");
  ranks.options.connections = 1;
  ranks.options.run_id = std::string(65, 'x');
  EXPECT_EQ(error(), "run id: 65 bytes; at most 64");
  ranks.options.run_id = "";
  ranks.endpoints[1].port = 0;
  EXPECT_EQ(error(), "rank 1: its port is 0; it must be 1 to 65535");
}

TEST(TcpWorld, FindsHostsByNameAndByIpv6Address)
{
  for (const std::string host : {"localhost", "::1"}) {
    if (const auto error = error_of([&] { TcpListener({.host = host, .port = 0}); }); !error.empty()) {
      GTEST_SKIP() << error;
    }
    Ranks ranks(2, host);
    ranks.run([](TcpWorld& world, std::size_t) {
      double one = 1;
      world.all_reduce_sum(std::span(&one, 1), plenty);
      EXPECT_EQ(one, 2);
    });
  }
}

TEST(TcpWorld, ListensOnABindAddressThatDiffersFromItsEndpoint)
{
  Ranks ranks(2);
  ranks.listeners.clear();
  ranks.options.bind_address = "0.0.0.0";
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      EXPECT_EQ(error_of([&] { const TcpWorld world(rank, ranks.endpoints, {}, ranks.options); }), "");
    });
  }
}

TEST(TcpListener, CanBeTakenOverByItsDescriptor)
{
  TcpListener parents({.host = "127.0.0.1", .port = 0});
  const TcpListener childs{Descriptor(::dup(parents.descriptor()))};
  EXPECT_EQ(childs.port(), parents.port());
  EXPECT_NE(parents.port(), 0);
}

TEST(TcpListener, RefusesADescriptorThatIsNotASocket)
{
  EXPECT_THAT([] { TcpListener(Descriptor(::dup(STDIN_FILENO))).port(); },
              ThrowsMessage<EnvironmentError>(MatchesRegex("descriptor [0-9]+ is not a socket: .+")));
}

}  // namespace
}  // namespace isobar::exec::tcp_world_test
