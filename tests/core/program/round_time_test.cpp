#include "core/program/round_time.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isobar::round_time_test {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

/// Each end has a link of 100 B/s to a hub, and one back; a message takes 1 s, from end 3 it takes 2 s.
EndNetwork star()
{
  EndNetwork network;
  network.transfer = [](std::size_t from, std::size_t, Bytes size) {
    return TransferTimes{Seconds(from == 3 ? 2 : 1), size / BytesPerSecond(100)};
  };
  network.shared_links = [](std::size_t from, std::size_t to) {
    static const std::vector<std::string> up = {"up0", "up1", "up2", "up3"};
    static const std::vector<std::string> down = {"down0", "down1", "down2", "down3"};
    return std::vector<SharedLink>{{up[from], BytesPerSecond(100)}, {down[to], BytesPerSecond(100)}};
  };
  return network;
}

std::vector<double> ends_of(const Round& round, const EndNetwork& network)
{
  std::vector<double> ends;
  for (const Seconds end : ends_of_flows(round, network)) ends.push_back(end.value);
  return ends;
}

TEST(RoundTime, IsThatOfTheLongestFlowIfNoneShareALink)
{
  const Round round = {{0, 1, Bytes(100)}, {1, 2, Bytes(50), 4}, {2, 0, Bytes(0)}};
  EXPECT_THAT(ends_of(round, star()), ElementsAre(2, 4 + 2, 1));
  EXPECT_EQ(round_time(round, star()), Seconds(6));
  EXPECT_EQ(round_time({}, star()), Seconds(0));
  EXPECT_EQ(round_time(round, {}), Seconds(0)) << "transfers take no time";
}

TEST(RoundTime, PlaysRoundsOfEqualGroupsBesideEachOther)
{
  const std::vector<Round> of_one = {{{0, 1, Bytes(4), 1}}, {{1, 0, Bytes(2), 1}}};
  const auto all = rounds_beside(of_one, {{3, 1}, {0, 2}});
  ASSERT_EQ(all.size(), 2U);
  ASSERT_EQ(all[0].size(), 2U);
  EXPECT_EQ(std::pair(all[0][0].from, all[0][0].to), std::pair(std::size_t{3}, std::size_t{1}));
  EXPECT_EQ(std::pair(all[0][1].from, all[0][1].to), std::pair(std::size_t{0}, std::size_t{2}));
  EXPECT_EQ(std::pair(all[1][1].from, all[1][1].to), std::pair(std::size_t{2}, std::size_t{0}));
  EXPECT_EQ(all[1][0].size(), of_one[1][0].size());
  EXPECT_TRUE(rounds_beside({}, {{0, 1}}).empty());
}

TEST(RoundTime, SharesALinkAmongFlowsUntilTheShortOnesHaveEnded)
{
  // Both get 50 B/s for 2 s; then the rest of the second has 100 B/s.
  EXPECT_THAT(ends_of({{0, 1, Bytes(100)}, {0, 2, Bytes(200)}}, star()),
              ElementsAre(DoubleNear(1 + 2, 1e-12), DoubleNear(1 + 3, 1e-12)));
}

TEST(RoundTime, GivesWhatAFlowCannotUseToOthers)
{
  // Two flows fill the link into 1, and leave the first of them half of that out of 0: the third has the other half.
  EXPECT_THAT(ends_of({{0, 1, Bytes(100)}, {2, 1, Bytes(100)}, {0, 2, Bytes(50)}}, star()),
              ElementsAre(DoubleNear(3, 1e-12), DoubleNear(3, 1e-12), DoubleNear(2, 1e-12)));
}

TEST(RoundTime, LetsAFlowOfTwiceTheLatencyHaveHalfTheRate)
{
  // From 1 s to 2 s the first is alone; then it has 2/3 of 100 B/s.
  EXPECT_THAT(ends_of({{0, 1, Bytes(200)}, {3, 1, Bytes(100)}}, star()),
              ElementsAre(DoubleNear(2 + 1.5, 1e-12), DoubleNear(2 + 1.5 + 0.5, 1e-12)));
}

TEST(RoundTime, CountsALinkThatCarriesAByteTwice)
{
  EndNetwork network = star();
  network.transfer = [](std::size_t, std::size_t, Bytes size) {
    return TransferTimes{Seconds(0), size / BytesPerSecond(50)};
  };
  network.shared_links = [](std::size_t, std::size_t) {
    return std::vector<SharedLink>{{"bus", BytesPerSecond(100), 2}};
  };
  EXPECT_THAT(ends_of({{0, 1, Bytes(100)}, {1, 0, Bytes(100)}}, network),
              ElementsAre(DoubleNear(4, 1e-12), DoubleNear(4, 1e-12)));
}

TEST(RoundTime, LetsAFlowThatFillsAFatPipeLeaveOneOfTwiceTheLatencyHalfOfIt)
{
  EndNetwork network = star();
  network.shared_links = [](std::size_t, std::size_t) {
    return std::vector<SharedLink>{{"pipe", BytesPerSecond(100), 1, true}};
  };
  EXPECT_THAT(ends_of({{0, 1, Bytes(100)}, {1, 2, Bytes(100)}}, network), ElementsAre(2, 2)) << "of equal latency";
  // From 2 s to 4 s the second has 50 B/s.
  EXPECT_THAT(ends_of({{0, 1, Bytes(300)}, {3, 1, Bytes(200)}}, network),
              ElementsAre(DoubleNear(4, 1e-12), DoubleNear(4 + 1, 1e-12)));
}

TEST(CollectiveTime, IsTheLongestStartAndTheRoundsOneAfterAnother)
{
  const std::vector<Round> rounds = {{{0, 1, Bytes(100)}, {1, 2, Bytes(100)}}, {{2, 0, Bytes(200)}}};
  EndNetwork network = star();
  const double without = round_time(rounds[0], network).value + round_time(rounds[1], network).value;
  EXPECT_DOUBLE_EQ(collective_time(rounds, network).value, without);
  network.start = [](std::size_t end) { return Seconds(end == 1 ? 5 : 2); };
  EXPECT_DOUBLE_EQ(collective_time(rounds, network).value, 5 + without);
  EXPECT_DOUBLE_EQ(collective_time({rounds[1]}, network).value, 2 + round_time(rounds[1], network).value)
      << "of its ends";
  EXPECT_EQ(collective_time({}, network), Seconds(0));
}

TEST(NetworkBetween, NamesEndsByTheirPlace)
{
  EndNetwork whole = star();
  whole.start = [](std::size_t end) { return Seconds(static_cast<double>(end)); };
  const EndNetwork part = network_between({3, 1}, whole);
  EXPECT_EQ(part.transfer(0, 1, Bytes(100)).latency, Seconds(2));
  EXPECT_EQ(part.shared_links(1, 0).front().name, "up1");
  EXPECT_EQ(part.start(0), Seconds(3));
  const EndNetwork none = {};
  EXPECT_FALSE(network_between({0, 1}, none).transfer);
}

}  // namespace
}  // namespace isobar::round_time_test
