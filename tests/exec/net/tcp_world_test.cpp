#include "exec/net/tcp_world.hpp"

#include "core/errors.hpp"
#include "exec/net/connection_manager.hpp"
#include "exec/net/handshake.hpp"
#include "tests/exec/net/tcp_ranks.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <tuple>

namespace isobar::exec {
namespace {

using testing::AllOf;
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

/// The most open files of this process while it lives; those that are open stay.
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
  // Their ports are open to nobody until they start.
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

TEST(TcpWorld, NamesTheRankThatIsNotThere)
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
  EXPECT_THAT(errors[3], MatchesRegex("rank 3: still waiting after [0-9.]+ s for rank 2 \\(has not called\\)"));
  EXPECT_THAT(errors[0], EndsWith(" (ranks beyond the neighbours are awaited)"));
}

TEST(TcpWorld, SaysWhenARanksPortDoesNotAnswer)
{
  Ranks ranks(2);
  ranks.options.connect_deadline = Seconds(0.5);
  EXPECT_THAT(error_of([&] { ranks.world(0); }),
              MatchesRegex(fmt::format("rank 0: still waiting after [0-9.]+ s for rank 1 \\(127.0.0.1:{}: no answer\\)",
                                       ranks.endpoints[1].port)));
}

TEST(TcpWorld, TurnsAwayASecondRankOfTheSameNumber)
{
  Ranks ranks(3);
  std::vector<std::jthread> threads;
  const auto start = [&](std::size_t rank) {
    threads.emplace_back([&, rank] { EXPECT_EQ(error_of([&] { ranks.world(rank); }), ""); });
  };
  start(0);
  start(2);
  pause(1);
  EXPECT_EQ(error_of([&] {
              const TcpWorld second(2, ranks.endpoints, {}, ranks.options,
                                    TcpListener({.host = "127.0.0.1", .port = 0}));
            }),
            fmt::format("rank 2: rank 0 at 127.0.0.1:{} turns it away: rank 2 is connected already",
                        ranks.endpoints[0].port));
  start(1);
}

TEST(TcpWorld, TakesInARankAgainThatDiedBeforeAllWereThere)
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

TEST(TcpWorld, RanksThatWouldBeginAtDifferentStepsBothHearSo)
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
  EXPECT_THAT(errors[0], EndsWith("turns it away: it begins at step 10, not 0"));
  EXPECT_THAT(errors[1], EndsWith("turns it away: it begins at step 0, not 10"));
}

TEST(TcpWorld, TurnsAwayWhoeverBelongsElsewhere)
{
  Ranks ranks(2);
  ranks.links = {{0, 1, 3}};
  std::vector<std::jthread> threads;
  threads.emplace_back([&] { EXPECT_EQ(error_of([&] { ranks.world(0); }), ""); });
  const auto refusal_of = [&](const TcpOptions& options, const std::vector<LinkName>& links, std::size_t count) {
    auto endpoints = ranks.endpoints;
    endpoints.resize(count, endpoints[1]);
    auto error = error_of([&] {
      const TcpWorld stranger(count - 1, endpoints, links, options, TcpListener({.host = "127.0.0.1", .port = 0}));
    });
    return error.substr(error.find("turns"));
  };
  auto other = ranks.options;
  other.run_id = "other";
  EXPECT_EQ(refusal_of(other, ranks.links, 2),
            "turns it away: it belongs to another world: give all ranks the same plan, data and options, and each run "
            "ports of its own");
  other = ranks.options;
  other.flows = 2;
  EXPECT_EQ(refusal_of(other, ranks.links, 2), "turns it away: it uses 1 flows, not 2");
  EXPECT_EQ(refusal_of(ranks.options, ranks.links, 3), "turns it away: it has 2 ranks, not 3");
  EXPECT_EQ(refusal_of(ranks.options, {{1, 0, 9}}, 2), "turns it away: it expects no flow 0 of channel 9 from rank 1");
  auto swapped = ranks.endpoints;
  std::swap(swapped[0], swapped[1]);
  EXPECT_THAT(error_of([&] {
                const TcpWorld stranger(0, swapped, {}, ranks.options, TcpListener({.host = "127.0.0.1", .port = 0}));
              }),
              EndsWith("turns it away: it is rank 0"));
  threads.emplace_back([&] { EXPECT_EQ(error_of([&] { ranks.world(1); }), ""); });
}

TEST(TcpWorld, ComesUpAmongStrangers)
{
  Ranks ranks(2);
  ranks.options.flows = 2;
  ranks.links = {{0, 1, 0}};
  std::vector<Descriptor> strangers;
  const auto call = [&](std::size_t rank, View bytes) {
    strangers.push_back(raw_connection_to(ranks.endpoints[rank]));
    ::send(strangers.back().number(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  };
  for (const std::size_t rank : {0, 1}) {
    call(rank, random_data(10'000));
    call(rank, view_of("half of a handshake, then silence"));
    call(rank, {});
    call(rank, view_of("GET / HTTP/1.1\r\n\r\n"));
    strangers.back() = Descriptor();
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

TEST(TcpWorld, KeepsThePlaceOfARankThatDiedBeforeItWasConnected)
{
  Ranks ranks(2);
  const std::array<std::uint32_t, 8> numbers = {3, 2, 0, 1, TcpWorld::reserved_channel, 0, 1, 0};
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
    EXPECT_EQ(handshake.reason_of(verdict), "");  // welcome, had it confirmed
    EXPECT_EQ(error_of([&] { ranks.world(0); }), "");
  }
  EXPECT_EQ(error, "");
}

TEST(TcpWorld, ConnectsAsManyFlowsAsItMay)
{
  Ranks ranks(2);
  ranks.options.flows = 64;
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

TEST(TcpWorld, ComesUpWhenHundredsOfStrangersCallAndSayNothing)
{
  Ranks ranks(2);
  std::vector<Descriptor> strangers;
  for (std::size_t i = 0; i < 600; ++i) strangers.push_back(raw_connection_to(ranks.endpoints[i % 2]));
  ranks.run([](TcpWorld&, std::size_t) {});
}

TEST(TcpWorld, HasOneConnectionForEachLinkThatCarriesLittle)
{
  Ranks ranks(2);
  ranks.options.flows = 64;
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

TEST(TcpWorld, ListensNoLongerOnceAllAreThereThoughTheParentKeepsThePorts)
{
  Ranks ranks(2);
  std::vector<Descriptor> parents;
  for (const auto& listener : ranks.listeners) parents.emplace_back(::dup(listener.descriptor()));
  ranks.run([&](TcpWorld&, std::size_t rank) {
    EXPECT_FALSE(connects(Descriptor(::socket(AF_INET, SOCK_STREAM, 0)), ranks.endpoints[rank]));
  });
}

TEST(ConnectionManager, TakesCallsThoughStrangersHoldAllOpenFiles)
{
  ConnectionManager acceptor(test_secret(), false);
  ConnectionManager caller(test_secret(), false);
  auto listener = quiet_listener("127.0.0.1");
  const Endpoint place = {.host = "127.0.0.1", .port = listener.port()};
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(raw_connection_to(place));
  std::vector<Flow> flows;
  const auto connected = [&](const Purpose&, Flow flow) { flows.push_back(std::move(flow)); };
  caller.connect(place, purpose_of("test"), connected, [](const std::string& reason) { ADD_FAILURE() << reason; });
  acceptor.listen(
      std::move(listener), [](const Purpose&) { return ""; }, connected);
  const FewDescriptors few(20);
  const auto end = deadline_in(plenty);
  while (flows.size() < 2 && Clock::now() < end) {
    for (ConnectionManager* board : {&acceptor, &caller}) board->work(Clock::now() + std::chrono::milliseconds(1));
  }
  EXPECT_EQ(flows.size(), 2);
  EXPECT_THAT(acceptor.unauthenticated(), HasSubstr("; not all calls could be taken at once: Too many open files"));
}

TEST(Descriptors, AreAsManyAsTheSystemEverAllows)
{
  const FewDescriptors few(20);
  allow_all_descriptors();
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

TEST(TcpWorld, CallsAgainWhenAnotherProgramAnswers)
{
  Ranks ranks(2);
  ranks.options.connect_deadline = Seconds(0.5);
  const std::jthread other([listener = ranks.listeners[1].descriptor()] {
    const Descriptor caller(::accept(listener, nullptr, nullptr));
    const std::string page(1000, 'x');
    ::send(caller.number(), page.data(), page.size(), MSG_NOSIGNAL);
    pause(0.1);
  });
  // The one after it has nobody to answer.
  EXPECT_THAT(error_of([&] { ranks.world(0); }), MatchesRegex("rank 0: still waiting after [0-9.]+ s for rank 1 .*"));
}

TEST(TcpWorld, SaysThatAPortIsTaken)
{
  Ranks ranks(2);
  EXPECT_EQ(error_of([&] { const TcpWorld world(0, ranks.endpoints, {}, ranks.options); }),
            fmt::format("cannot listen on 127.0.0.1:{}: Address already in use", ranks.endpoints[0].port));
}

TEST(TcpWorld, RefusesOptionsOutOfTheirRange)
{
  Ranks ranks(2);
  const auto error = [&] { return error_of([&] { ranks.world(0); }); };
  ranks.options.flows = 0;
  EXPECT_EQ(error(), "flows: 0 connections for each link; it may have 1 to 64");
  ranks.options.flows = 65;
  EXPECT_EQ(error(), "flows: 65 connections for each link; it may have 1 to 64");
  ranks.options.flows = 1;
  ranks.options.run_id = std::string(65, 'x');
  EXPECT_EQ(error(), "run id: 65 bytes; at most 64");
  ranks.options.run_id = "";
  ranks.endpoints[1].port = 0;
  EXPECT_EQ(error(), "rank 1: its port is 0; it must be 1 to 65535");
}

TEST(TcpWorld, FindsHostsByNameAndByEitherKindOfAddress)
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

TEST(TcpWorld, ListensOnAnotherAddressThanTheOthersCall)
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

TEST(TcpListener, IsTakenOverByItsDescriptor)
{
  TcpListener parents({.host = "127.0.0.1", .port = 0});
  const TcpListener childs{Descriptor(::dup(parents.descriptor()))};
  EXPECT_EQ(childs.port(), parents.port());
  EXPECT_NE(parents.port(), 0);
}

TEST(TcpListener, SaysWhenADescriptorIsNoSocket)
{
  EXPECT_THAT([] { TcpListener(Descriptor(::dup(STDIN_FILENO))).port(); },
              ThrowsMessage<EnvironmentError>(MatchesRegex("descriptor [0-9]+ is no socket: .+")));
}

using Sum = std::tuple<std::size_t, std::size_t>;
class AllReduce : public testing::TestWithParam<Sum> {
 protected:
  template <typename Value>
  void sums_to_the_same_on_all_ranks()
  {
    const auto [count, size] = GetParam();
    Ranks ranks(count);
    ranks.options.flows = 2;
    const auto values_of = [n = size](std::size_t rank) {
      std::mt19937 random(static_cast<unsigned>(rank));
      std::uniform_real_distribution<Value> distribution(-1, 1);
      std::vector<Value> values(n);
      for (auto& value : values) value = distribution(random);
      return values;
    };
    std::vector<std::vector<Value>> sums(count);
    std::vector<std::uint64_t> sent(count);
    ranks.run([&](TcpWorld& world, std::size_t rank) {
      for (int repetition = 0; repetition < 2; ++repetition) {
        sums[rank] = values_of(rank);
        const auto before = world.bytes_sent();
        world.all_reduce_sum(std::span(sums[rank]), plenty);
        sent[rank] = world.bytes_sent() - before;
      }
    });
    std::vector<double> expected(size);
    for (std::size_t rank = 0; rank < count; ++rank) {
      const auto values = values_of(rank);
      for (std::size_t i = 0; i < size; ++i) expected[i] += static_cast<double>(values[i]);
    }
    for (std::size_t i = 0; i < size; ++i) EXPECT_NEAR(static_cast<double>(sums[0][i]), expected[i], 1e-5) << i;
    for (const auto& sum : sums) {
      EXPECT_TRUE(size == 0 || std::memcmp(sum.data(), sums[0].data(), size * sizeof(Value)) == 0);
    }
    // Chunk c is values c n/N to (c+1) n/N; rank i passes on all chunks twice, but i+1 and i+2 once.
    std::uint64_t total = 0;
    for (std::size_t rank = 0; rank < count; ++rank) {
      const auto length = [n = size, N = count](std::size_t c) { return (c % N + 1) * n / N - c % N * n / N; };
      EXPECT_EQ(sent[rank], count == 1 ? 0 : sizeof(Value) * (2 * size - length(rank + 1) - length(rank + 2)));
      total += sent[rank];
    }
    EXPECT_EQ(total, 2 * (count - 1) * size * sizeof(Value));
  }
};
INSTANTIATE_TEST_SUITE_P(RanksAndSizes, AllReduce,
                         testing::Combine(testing::Values(1, 2, 3, 4, 7), testing::Values(0, 1, 10, 10'000, 100'003)));

TEST_P(AllReduce, SumsFloatsToTheSameBitsInTheBytesOfTheClosedForm)
{
  sums_to_the_same_on_all_ranks<float>();
}

TEST_P(AllReduce, SumsDoublesToTheSameBitsInTheBytesOfTheClosedForm)
{
  sums_to_the_same_on_all_ranks<double>();
}

TEST(AllReduce, SumsMoreThanTheSystemsBuffersHold)
{
  Ranks ranks(2);
  ranks.run([](TcpWorld& world, std::size_t) {
    std::vector<double> values(5'000'000, 1.0);
    world.all_reduce_sum(std::span(values), plenty);
    EXPECT_TRUE(std::ranges::all_of(values, [](double value) { return value == 2; }));
  });
}

TEST(AllReduce, SaysThatAnotherRankSumsAnotherNumberOfValues)
{
  Ranks ranks(2);
  const auto errors = ranks.errors([](TcpWorld& world, std::size_t rank) {
    std::vector<float> values(10 + rank);
    world.all_reduce_sum(std::span(values), plenty);
  });
  EXPECT_THAT(errors,
              testing::Contains(MatchesRegex(
                  "rank [01]: sum over all ranks: 1[01] values of 4 B, round 0; rank [01] sums 1[01] values of 4 "
                  "B, round 0")));
}

TEST(AllReduce, IsCancelledAndEndsOnTheOtherRanksToo)
{
  Ranks ranks(3);
  ranks.links = {{0, 1, 0}, {1, 0, 0}};
  const auto errors = ranks.errors([&](TcpWorld& world, std::size_t rank) {
    float value = 1;
    if (rank == 0) {
      // Another lane of the rank fails.
      std::jthread other([&] {
        pause(0.5);
        EXPECT_FALSE(world.cancelled());
        world.cancel();
        EXPECT_TRUE(world.cancelled());
      });
      receive(world.link(ranks.links[1]));
    } else if (rank == 1) {
      receive(world.link(ranks.links[0]));
    } else {
      world.all_reduce_sum(std::span(&value, 1), plenty);
    }
  });
  EXPECT_THAT(errors[0], EndsWith(": cancelled"));
  EXPECT_THAT(errors[1], EndsWith("connection closed by the peer"));
  EXPECT_THAT(errors[2], AllOf(HasSubstr("(sum over all ranks)"), EndsWith("connection closed by the peer")));
}

TEST(AllReduce, EndsWithItsDeadline)
{
  Ranks ranks(2);
  const auto errors = ranks.errors([](TcpWorld& world, std::size_t rank) {
    double value = 1;
    if (rank == 0) world.all_reduce_sum(std::span(&value, 1), little);
    pause(0.3);
  });
  EXPECT_THAT(errors[0],
              MatchesRegex("rank 0: receive from rank 1 \\(sum over all ranks\\): no message after [0-9.]+ s: "
                           "deadline passed"));
}

}  // namespace
}  // namespace isobar::exec
