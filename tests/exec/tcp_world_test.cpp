#include "exec/tcp_world.hpp"

#include "core/child_process.hpp"
#include "core/errors.hpp"
#include "core/interrupt.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstring>
#include <random>
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

constexpr Seconds plenty{60};
constexpr Seconds little{0.2};

using Data = std::vector<std::byte>;
using View = TcpLink::Bytes;

Data random_data(std::size_t size, unsigned seed = 1)
{
  std::mt19937 random(seed);
  Data data(size);
  for (auto& value : data) value = static_cast<std::byte>(random());
  return data;
}

View view_of(const std::string& text)
{
  return std::as_bytes(std::span(text));
}

void send(TcpLink& link, const std::string& header, const Data& payload, Seconds deadline = plenty)
{
  link.send(view_of(header), std::array{View(payload)}, deadline);
}

struct Message {
  std::string header;
  Data payload;
};

/// The header of these tests is the length of the payload.
Message receive(TcpLink& link, Seconds deadline = plenty)
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

/// A hundred times the same megabyte: more than the system's buffers take.
void send_100_mb(TcpLink& link, Seconds deadline = plenty)
{
  const Data megabyte(1'000'000);
  link.send(view_of("100000000"), std::vector<View>(100, megabyte), deadline);
}

void pause(double seconds)
{
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

/// The message of what `work` throws; "" if it ends well.
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

/// On a free port below those that the system gives out, so that nobody takes it while its rank is not there.
TcpListener quiet_listener(const std::string& host)
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

/// The ranks of one run as threads, each with a listener.
class Ranks {
 public:
  explicit Ranks(std::size_t count, const std::string& host = "127.0.0.1")
  {
    for (std::size_t rank = 0; rank < count; ++rank) {
      listeners.push_back(quiet_listener(host));
      endpoints.push_back({.host = host, .port = listeners.back().port()});
    }
    options.world = "test";
    options.connect_deadline = plenty;
  }

  TcpWorld world(std::size_t rank) { return {rank, endpoints, links, options, std::move(listeners[rank])}; }

  /// Runs `work(world, rank)` on all ranks; their errors.
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

/// Connected sockets without a world.
std::pair<Descriptor, Descriptor> socket_pair()
{
  int sockets[2] = {};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  return {Descriptor(sockets[0]), Descriptor(sockets[1])};
}

TcpLink link_over(Descriptor socket, std::size_t self)
{
  std::vector<Descriptor> flows;
  flows.push_back(std::move(socket));
  return {{.from = 0, .to = 1, .channel = 2}, self, "channel 2", std::move(flows)};
}

/// A receiving end, and a raw socket to tell it anything.
struct RawSender {
  RawSender() : RawSender(socket_pair()) {}
  explicit RawSender(std::pair<Descriptor, Descriptor> sockets)
      : link(link_over(std::move(sockets.first), 1)), socket(std::move(sockets.second))
  {
  }

  void say(View bytes) const
  {
    EXPECT_EQ(::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void frame(std::uint32_t header, std::uint64_t payload, std::uint32_t mark = 0x4d425349) const
  {
    const std::array<std::uint32_t, 4> words = {mark, header, static_cast<std::uint32_t>(payload),
                                                static_cast<std::uint32_t>(payload >> 32U)};
    say(std::as_bytes(std::span(words)));
  }

  TcpLink link;
  Descriptor socket;
};

Descriptor raw_connection_to(const Endpoint& endpoint)
{
  Descriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(endpoint.port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.number(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return socket;
}

class Flows : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(OneToEight, Flows, testing::Values(1, 2, 3, 8));

TEST_P(Flows, CarryMessagesOfAnySizeBitByBit)
{
  Ranks ranks(2);
  ranks.options.flows = GetParam();
  ranks.links = {{.from = 0, .to = 1, .channel = 0}};
  const std::vector<std::size_t> sizes = {0, 1, 10, 65'535, 65'536, 10'000'000, 3};
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    auto& link = world.link(ranks.links[0]);
    for (const auto size : sizes) {
      const auto data = random_data(size);
      if (rank == 0) {
        send(link, std::to_string(size), data);
      } else {
        const auto message = receive(link);
        EXPECT_EQ(message.header, std::to_string(size));
        EXPECT_TRUE(message.payload == data) << size;
      }
    }
  });
}

TEST_P(Flows, GatherTheSendersBuffersAndScatterIntoTheReceivers)
{
  Ranks ranks(2);
  ranks.options.flows = GetParam();
  ranks.links = {{.from = 1, .to = 0, .channel = 5}};
  const auto data = random_data(300'001);
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    auto& link = world.link(ranks.links[0]);
    if (rank == 1) {
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

TEST(TcpLink, KeepsTheOrderOfMessages)
{
  Ranks ranks(2);
  ranks.options.flows = 3;
  ranks.links = {{.from = 0, .to = 1, .channel = 0}};
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    auto& link = world.link(ranks.links[0]);
    for (unsigned i = 0; i < 1000; ++i) {
      const auto data = random_data(i % 10 == 0 ? 70'000 : i, i);
      if (rank == 0) {
        send(link, std::to_string(data.size()), data);
      } else {
        EXPECT_TRUE(receive(link).payload == data) << i;
      }
    }
  });
}

TEST(TcpLink, OfOneChannelWaitsForNoOther)
{
  Ranks ranks(2);
  ranks.options.flows = 2;
  ranks.links = {{0, 1, 0}, {0, 1, 1}, {1, 0, 0}, {1, 0, 1}};
  const auto data = random_data(3'000'000);
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    std::vector<std::jthread> lanes;
    for (const auto& name : ranks.links) {
      lanes.emplace_back([&world, &data, rank, name] {
        for (int i = 0; i < 5; ++i) {
          if (name.from == rank) {
            send(world.link(name), std::to_string(data.size()), data);
          } else {
            EXPECT_TRUE(receive(world.link(name)).payload == data);
          }
        }
      });
    }
  });
}

TEST(TcpLink, SaysWhatItWaitedForWhenTheDeadlinePasses)
{
  auto silent = RawSender();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(error_of([&] { receive(silent.link, little); }),
              MatchesRegex("rank 1: receive from rank 0 \\(channel 2\\): no message after [0-9.]+ s: deadline passed"));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(200));

  auto slow = RawSender();
  slow.frame(4, 4096);
  slow.say(view_of("4096" + std::string(1024, 'x')));
  EXPECT_THAT(
      error_of([&] { receive(slow.link, Seconds(1)); }),
      MatchesRegex("rank 1: receive from rank 0 \\(channel 2\\): 1024 of 4096 B after [0-9.]+ s: deadline passed"));

  auto [here, there] = socket_pair();
  auto full = link_over(std::move(here), 0);
  EXPECT_THAT(
      error_of([&] { send(full, "", Data(10'000'000), little); }),
      MatchesRegex("rank 0: send to rank 1 \\(channel 2\\): [0-9]+ of 10000000 B after [0-9.]+ s: deadline passed"));
}

TEST(TcpLink, IsUnusableAfterAnErrorAndSaysSo)
{
  auto silent = RawSender();
  error_of([&] { receive(silent.link, Seconds(0.01)); });
  EXPECT_THAT(error_of([&] { receive(silent.link); }),
              AllOf(testing::StartsWith("rank 1: receive from rank 0 (channel 2): unusable after an error: "),
                    EndsWith(" s: deadline passed")));
}

TEST(TcpLink, NoticesThatThePeerClosesInTheMiddleOfAMessage)
{
  auto sender = RawSender();
  sender.frame(4, 4096);
  sender.say(view_of("4096" + std::string(1024, 'x')));
  sender.socket = Descriptor();
  EXPECT_THAT(error_of([&] { receive(sender.link); }),
              MatchesRegex("rank 1: receive from rank 0 \\(channel 2\\): 1024 of 4096 B after [0-9.]+ s: "
                           "connection closed by the peer"));

  auto quiet = RawSender();
  quiet.socket = Descriptor();
  EXPECT_THAT(error_of([&] { receive(quiet.link); }),
              MatchesRegex("rank 1: receive from rank 0 \\(channel 2\\): no message after [0-9.]+ s: "
                           "connection closed by the peer"));
}

TEST(TcpLink, NoticesThatTheReceiverIsGone)
{
  Ranks ranks(2);
  ranks.options.flows = 2;
  ranks.links = {{.from = 0, .to = 1, .channel = 7}};
  const auto errors = ranks.errors([&](TcpWorld& world, std::size_t rank) {
    if (rank == 0) send_100_mb(world.link(ranks.links[0]));
    pause(0.1);
  });
  EXPECT_THAT(errors[0], MatchesRegex("rank 0: send to rank 1 \\(channel 7\\): [0-9]+ of 100000000 B after [0-9.]+ s: "
                                      "connection closed by the peer"));
  EXPECT_EQ(errors[1], "");
}

TEST(TcpLink, EndsTheOtherSideTooWhenItsDeadlinePasses)
{
  Ranks ranks(2);
  ranks.links = {{.from = 0, .to = 1, .channel = 7}};
  const auto errors = ranks.errors([&](TcpWorld& world, std::size_t rank) {
    if (rank == 0) send_100_mb(world.link(ranks.links[0]), Seconds(0.5));
    pause(1);
    receive(world.link(ranks.links[0]));
  });
  EXPECT_THAT(errors[0], MatchesRegex(".* after [0-9.]+ s: deadline passed"));
  EXPECT_THAT(errors[1], MatchesRegex("rank 1: receive from rank 0 \\(channel 7\\): [0-9]+ of 100000000 B after "
                                      "[0-9.]+ s: connection closed by the peer"));
}

TEST(TcpLink, RefusesWhatIsNoMessage)
{
  auto sender = RawSender();
  sender.frame(4, 4, 0x12345678);
  EXPECT_THAT(error_of([&] { receive(sender.link); }), EndsWith(": what came is no message"));
}

TEST(TcpLink, RefusesAHeaderTooLongForAnyMessage)
{
  auto sender = RawSender();
  sender.frame(0xffffffff, 4);
  EXPECT_THAT(error_of([&] { receive(sender.link); }),
              EndsWith(": a header of 4294967295 B came; the longest may have 1048576 B"));
}

TEST(TcpLink, TakesTheLongestHeader)
{
  auto [here, there] = socket_pair();
  auto out = link_over(std::move(here), 0);
  auto in = link_over(std::move(there), 1);
  const auto header = random_data(TcpLink::longest_header);
  const std::jthread sender([&] { out.send(header, {}, plenty); });
  in.receive(
      [&](View bytes) -> std::vector<std::span<std::byte>> {
        EXPECT_TRUE(std::ranges::equal(bytes, header));
        return {};
      },
      plenty);
}

TEST(TcpLink, NamesBothSizesOfAPayloadThatDoesNotFitItsRoom)
{
  for (const std::uint64_t payload : {std::uint64_t{12}, std::uint64_t{1} << 62U}) {
    auto sender = RawSender();
    sender.frame(1, payload);
    sender.say(view_of("8"));
    EXPECT_THAT(error_of([&] { receive(sender.link); }),
                MatchesRegex(fmt::format("rank 1: receive from rank 0 \\(channel 2\\): 0 of {0} B after [0-9.]+ s: "
                                         "a payload of {0} B came and there is room for 8 B",
                                         payload)));
  }
}

TEST(TcpLink, PassesOnWhatItsRoomThrows)
{
  auto sender = RawSender();
  sender.frame(4, 4);
  sender.say(view_of("four"));
  EXPECT_THROW(receive(sender.link), std::invalid_argument);
  EXPECT_THAT(error_of([&] { receive(sender.link); }), EndsWith(": unusable after an error: stoul"));
}

TEST(TcpLink, IsCancelledFromAnotherThread)
{
  auto silent = RawSender();
  auto [here, there] = socket_pair();
  auto full = link_over(std::move(here), 0);
  std::jthread other([&] {
    pause(0.1);
    silent.link.cancel();
    full.cancel();
  });
  EXPECT_THAT(error_of([&] { receive(silent.link); }),
              MatchesRegex("rank 1: receive from rank 0 \\(channel 2\\): no message after [0-9.]+ s: cancelled"));
  EXPECT_THAT(error_of([&] { send(full, "", Data(10'000'000)); }), EndsWith(": cancelled"));
  EXPECT_THAT(error_of([&] { receive(silent.link); }), EndsWith(": cancelled"));
}

TEST(TcpLink, IsNotUsedAfterItWasCancelledAtRest)
{
  auto sender = RawSender();
  sender.link.cancel();
  EXPECT_EQ(error_of([&] { receive(sender.link); }), "rank 1: receive from rank 0 (channel 2): cancelled");
}

TEST(TcpLink, EndsWhenTheProcessIsAskedToStop)
{
  const auto result = run_in_child(
      [] {
        catch_interrupts();
        auto silent = RawSender();
        std::jthread other([] {
          pause(0.1);
          ::kill(::getpid(), SIGINT);
        });
        return error_of([&] { receive(silent.link); });
      },
      plenty);
  EXPECT_EQ(result.output_or_throw(), "interrupted");
}

TEST(TcpLink, SendsOnlyOnItsSendingEnd)
{
  auto receiver = RawSender();
  EXPECT_THAT([&] { send(receiver.link, "", {}); },
              ThrowsMessage<std::logic_error>("messages are sent on the sending end of a link"));
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
  other.world = "other";
  EXPECT_EQ(refusal_of(other, ranks.links, 2), "turns it away: it belongs to another world");
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
    call(rank, view_of("isobar>"));  // half a handshake, then silence
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
  const auto died = raw_connection_to(ranks.endpoints[1]);
  const std::array<std::uint32_t, 7> numbers = {1, 2, 0, 1, TcpWorld::reserved_channel, 0, 1};
  std::string hello("isobar>", 8);
  hello.append(reinterpret_cast<const char*>(numbers.data()), sizeof numbers);
  hello.append(ranks.options.world + std::string(64 - ranks.options.world.size(), '\0'));
  EXPECT_EQ(::send(died.number(), hello.data(), hello.size(), MSG_NOSIGNAL), 100);
  EXPECT_EQ(::shutdown(died.number(), SHUT_WR), 0);
  ranks.run([](TcpWorld&, std::size_t) {});
  std::array<char, 128> answer = {};
  EXPECT_EQ(::recv(died.number(), answer.data(), answer.size(), MSG_WAITALL), 128);
  EXPECT_EQ(std::string(answer.data()), "isobar<");
  EXPECT_EQ(answer[8], 0);  // welcome, had it confirmed
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
  ranks.options.world = std::string(65, 'x');
  EXPECT_EQ(error(), "world: a word of 65 bytes; it may have 64");
  ranks.options.world = "";
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
        world.cancel();
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
