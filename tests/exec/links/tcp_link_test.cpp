#include "exec/links/tcp_link.hpp"

#include "core/base/child_process.hpp"
#include "core/base/interrupt.hpp"
#include "tests/exec/links/tcp_ranks.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <unistd.h>
#include <csignal>

namespace isobar::exec::tcp_link_test {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::MatchesRegex;
using testing::ThrowsMessage;

/// Sends more than the system's buffers hold.
void send_100_mb(TcpLink& link, Seconds deadline = plenty)
{
  const Data megabyte(1'000'000);
  link.send(view_of("100000000"), std::vector<View>(100, megabyte), deadline);
}

/// Connected sockets without a TcpWorld.
std::pair<Descriptor, Descriptor> socket_pair()
{
  int sockets[2] = {};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  return {Descriptor(sockets[0]), Descriptor(sockets[1])};
}

TcpLink link_over(Descriptor socket, std::size_t self)
{
  std::vector<Connection> connections;
  connections.emplace_back(std::move(socket));
  return {{.from = 0, .to = 1, .channel = 2}, self, "channel 2", std::move(connections)};
}

/// A receiving end, and a raw socket to send it any bytes.
struct RawSender {
  RawSender() : RawSender(socket_pair()) {}
  explicit RawSender(std::pair<Descriptor, Descriptor> sockets)
      : link(link_over(std::move(sockets.first), 1)), socket(std::move(sockets.second))
  {
  }

  void send_bytes(View bytes) const
  {
    EXPECT_EQ(::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void send_frame(std::uint32_t header, std::uint64_t payload, std::uint32_t mark = 0x4d425349) const
  {
    const std::array<std::uint32_t, 4> words = {mark, header, static_cast<std::uint32_t>(payload),
                                                static_cast<std::uint32_t>(payload >> 32U)};
    send_bytes(std::as_bytes(std::span(words)));
  }

  TcpLink link;
  Descriptor socket;
};

/// A link of 1 to 8 connections.
class StripedLink : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(OneToEight, StripedLink, testing::Values(1, 2, 3, 8));

TEST_P(StripedLink, CarriesMessagesOfAnySizeUnchanged)
{
  Ranks ranks(2);
  ranks.options.connections = GetParam();
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

TEST_P(StripedLink, GathersTheSendersBuffersAndScattersIntoTheReceivers)
{
  Ranks ranks(2);
  ranks.options.connections = GetParam();
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
  ranks.options.connections = 3;
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

TEST(TcpLink, DoesNotWaitForOtherChannels)
{
  Ranks ranks(2);
  ranks.options.connections = 2;
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

TEST(TcpLink, ReportsItsProgressWhenTheDeadlinePasses)
{
  auto silent = RawSender();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(error_of([&] { receive(silent.link, little); }),
              MatchesRegex("rank 1: receive from rank 0 \\(channel 2\\): no message after [0-9.]+ s: deadline passed"));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(200));

  auto slow = RawSender();
  slow.send_frame(4, 4096);
  slow.send_bytes(view_of("4096" + std::string(1024, 'x')));
  EXPECT_THAT(
      error_of([&] { receive(slow.link, Seconds(1)); }),
      MatchesRegex("rank 1: receive from rank 0 \\(channel 2\\): 1024 of 4096 B after [0-9.]+ s: deadline passed"));

  auto [here, there] = socket_pair();
  auto full = link_over(std::move(here), 0);
  EXPECT_THAT(
      error_of([&] { send(full, "", Data(10'000'000), little); }),
      MatchesRegex("rank 0: send to rank 1 \\(channel 2\\): [0-9]+ of 10000000 B after [0-9.]+ s: deadline passed"));
}

TEST(TcpLink, IsUnusableAfterAnErrorAndReportsIt)
{
  auto silent = RawSender();
  error_of([&] { receive(silent.link, Seconds(0.01)); });
  EXPECT_THAT(error_of([&] { receive(silent.link); }),
              AllOf(testing::StartsWith("rank 1: receive from rank 0 (channel 2): unusable after an error: "),
                    EndsWith(" s: deadline passed")));
}

TEST(TcpLink, DetectsThatThePeerClosesInTheMiddleOfAMessage)
{
  auto sender = RawSender();
  sender.send_frame(4, 4096);
  sender.send_bytes(view_of("4096" + std::string(1024, 'x')));
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

TEST(TcpLink, DetectsThatTheReceiverIsGone)
{
  Ranks ranks(2);
  ranks.options.connections = 2;
  ranks.links = {{.from = 0, .to = 1, .channel = 7}};
  const auto errors = ranks.errors([&](TcpWorld& world, std::size_t rank) {
    if (rank == 0) send_100_mb(world.link(ranks.links[0]));
    pause(0.1);
  });
  EXPECT_THAT(errors[0], MatchesRegex("rank 0: send to rank 1 \\(channel 7\\): [0-9]+ of 100000000 B after [0-9.]+ s: "
                                      "connection closed by the peer"));
  EXPECT_EQ(errors[1], "");
}

TEST(TcpLink, FailsAtBothEndsWhenADeadlinePasses)
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

TEST(TcpLink, RefusesBytesThatAreNotAMessage)
{
  auto sender = RawSender();
  sender.send_frame(4, 4, 0x12345678);
  EXPECT_THAT(error_of([&] { receive(sender.link); }), EndsWith(": received data is not a message"));
}

TEST(TcpLink, RefusesAHeaderAboveTheLimit)
{
  auto sender = RawSender();
  sender.send_frame(0xffffffff, 4);
  EXPECT_THAT(error_of([&] { receive(sender.link); }),
              EndsWith(": received a header of 4294967295 B; the limit is 1048576 B"));
}

TEST(TcpLink, AcceptsTheLongestHeader)
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

TEST(TcpLink, NamesBothSizesOfAPayloadThatDoesNotFitItsBuffers)
{
  for (const std::uint64_t payload : {std::uint64_t{12}, std::uint64_t{1} << 62U}) {
    auto sender = RawSender();
    sender.send_frame(1, payload);
    sender.send_bytes(view_of("8"));
    EXPECT_THAT(error_of([&] { receive(sender.link); }),
                MatchesRegex(fmt::format("rank 1: receive from rank 0 \\(channel 2\\): 0 of {0} B after [0-9.]+ s: "
                                         "received a payload of {0} B; its buffers hold 8 B",
                                         payload)));
  }
}

TEST(TcpLink, RethrowsExceptionsOfItsRoom)
{
  auto sender = RawSender();
  sender.send_frame(4, 4);
  sender.send_bytes(view_of("four"));
  EXPECT_THROW(receive(sender.link), std::invalid_argument);
  EXPECT_THAT(error_of([&] { receive(sender.link); }), EndsWith(": unusable after an error: stoul"));
}

TEST(TcpLink, CanBeCancelledFromAnotherThread)
{
  auto silent = RawSender();
  auto [here, there] = socket_pair();
  auto full = link_over(std::move(here), 0);
  std::jthread other([&] {
    pause(0.1);
    TcpLink::cancel(std::array{&silent.link, &full});
  });
  EXPECT_THAT(error_of([&] { receive(silent.link); }),
              MatchesRegex("rank 1: receive from rank 0 \\(channel 2\\): no message after [0-9.]+ s: cancelled"));
  EXPECT_THAT(error_of([&] { send(full, "", Data(10'000'000)); }), EndsWith(": cancelled"));
  EXPECT_THAT(error_of([&] { receive(silent.link); }), EndsWith(": cancelled"));
}

TEST(TcpLink, FailsWhenItWasCancelledBefore)
{
  auto sender = RawSender();
  TcpLink::cancel(std::array{&sender.link});
  EXPECT_EQ(error_of([&] { receive(sender.link); }), "rank 1: receive from rank 0 (channel 2): cancelled");
}

TEST(TcpLink, FailsWhenTheProcessIsAskedToStop)
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

}  // namespace
}  // namespace isobar::exec::tcp_link_test
