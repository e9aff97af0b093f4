#include "core/errors.hpp"
#include "core/program/collective.hpp"
#include "exec/links/tcp_world.hpp"
#include "tests/exec/links/tcp_ranks.hpp"
#include "tests/support/every_algorithm.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace isobar::exec::all_reduce_test {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;

using Sum = std::tuple<std::size_t, std::size_t>;
class AllReduce : public testing::TestWithParam<Sum> {
 protected:
  template <typename Value>
  void sums_to_the_same_on_all_ranks()
  {
    const auto [count, size] = GetParam();
    Ranks ranks(count);
    ranks.options.connections = 2;
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
    // Chunk c is values c n/N to (c+1) n/N; rank i sends all chunks twice, except i and i+1 once.
    std::uint64_t total = 0;
    for (std::size_t rank = 0; rank < count; ++rank) {
      const auto length = [n = size, N = count](std::size_t c) { return (c % N + 1) * n / N - c % N * n / N; };
      EXPECT_EQ(sent[rank], count == 1 ? 0 : sizeof(Value) * (2 * size - length(rank) - length(rank + 1)));
      total += sent[rank];
    }
    EXPECT_EQ(total, 2 * (count - 1) * size * sizeof(Value));
  }
};
INSTANTIATE_TEST_SUITE_P(RanksAndSizes, AllReduce,
                         testing::Combine(testing::Values(1, 2, 3, 4, 7), testing::Values(0, 1, 10, 10'000, 100'003)));

TEST_P(AllReduce, SumsFloatsToTheSameBitsWithTheBytesOfTheClosedForm)
{
  sums_to_the_same_on_all_ranks<float>();
}

TEST_P(AllReduce, SumsDoublesToTheSameBitsWithTheBytesOfTheClosedForm)
{
  sums_to_the_same_on_all_ranks<double>();
}

TEST(AllReduce, OfGroupsSumsInTheOrderOfTheirRings)
{
  Ranks ranks(4);
  ranks.options.connections = 4;
  ranks.options.groups = {{.channel = 5, .ranks = {0, 1, 2}}, {.channel = 6, .ranks = {2, 0}}};
  std::vector<std::array<double, 2>> sums(4);
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    const double own = std::pow(2, static_cast<double>(rank));
    std::vector<std::jthread> groups;  // at the same time
    if (rank < 3) {
      groups.emplace_back([&] {
        for (int repetition = 0; repetition < 50; ++repetition) {
          sums[rank][0] = own;
          world.collective(Opcode::AllReduce, 5, TcpWorld::values_of<double>({std::span(&sums[rank][0], 1)}), plenty);
        }
      });
    }
    if (rank % 2 == 0 && rank < 3) {
      groups.emplace_back([&] {
        for (int repetition = 0; repetition < 50; ++repetition) {
          sums[rank][1] = own;
          world.collective(Opcode::AllReduce, 6, TcpWorld::values_of<double>({std::span(&sums[rank][1], 1)}), plenty);
        }
      });
    }
    groups.clear();
    world.wait_for_all(plenty);
  });
  EXPECT_EQ(sums[0], (std::array<double, 2>{7, 5}));
  EXPECT_EQ(sums[1], (std::array<double, 2>{7, 0}));
  EXPECT_EQ(sums[2], (std::array<double, 2>{7, 5}));
  EXPECT_EQ(sums[3], (std::array<double, 2>{0, 0}));
}

TEST(AllReduce, SumsTheValuesOfPiecesThatEachRankHasInItsOwnSizes)
{
  Ranks ranks(3);
  ranks.options.groups = {{.channel = 5, .ranks = {0, 1, 2}}};
  std::vector<std::vector<float>> sums(3);
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    sums[rank].resize(100);
    std::iota(sums[rank].begin(), sums[rank].end(), static_cast<float>(rank));
    const std::span<float> all(sums[rank]);
    const std::size_t cut = 7 + 40 * rank;
    world.collective(Opcode::AllReduce, 5, TcpWorld::values_of<float>({all.first(cut), {}, all.subspan(cut)}), plenty);
  });
  for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(sums[0][i], 3 * static_cast<float>(i) + 3);
  EXPECT_EQ(sums[1], sums[0]);
  EXPECT_EQ(sums[2], sums[0]);
}

TEST(AllReduce, OfAGroupFollowsItsAlgorithmToTheSameBits)
{
  for (const Algorithm algorithm : every_algorithm()) {
    Ranks ranks(5);
    ranks.options.connections = 2;
    ranks.options.groups = {
        {.channel = 5, .ranks = {4, 0, 3, 1, 2}, .algorithm = algorithm, .sites = {"x", "y", "x", "x", "y"}}};
    std::vector<std::vector<double>> sums(5);
    ranks.run([&](TcpWorld& world, std::size_t rank) {
      for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{100'003}}) {
        sums[rank].assign(size, 0.1 * static_cast<double>(rank + 1));
        world.collective(Opcode::AllReduce, 5, TcpWorld::values_of<double>({std::span(sums[rank])}), plenty);
      }
    });
    for (const double sum : sums[0]) EXPECT_NEAR(sum, 1.5, 1e-12) << name_of(algorithm);
    for (const auto& of_rank : sums) EXPECT_EQ(of_rank, sums[0]) << name_of(algorithm);
  }
}

TEST(Collective, ScattersSumsAndGathersThemByTheBitsOfAnAllReduce)
{
  constexpr std::size_t size = 100'003;
  const std::vector<std::string> sites = {"x", "y", "y", "x"};
  for (const Algorithm algorithm : every_algorithm()) {
    Ranks ranks(4);
    ranks.options.connections = 2;
    ranks.options.groups = {{.channel = 5, .ranks = {3, 0, 1, 2}, .algorithm = algorithm, .sites = sites}};
    std::vector<std::vector<float>> whole(4);
    std::vector<std::vector<float>> in_halves(4);
    std::vector<std::array<std::uint64_t, 2>> sent(4);
    ranks.run([&](TcpWorld& world, std::size_t rank) {
      std::mt19937 random(static_cast<unsigned>(rank));
      std::uniform_real_distribution<float> distribution(-1, 1);
      whole[rank].resize(size);
      for (float& value : whole[rank]) value = distribution(random);
      in_halves[rank] = whole[rank];
      const auto collective = [&](Opcode opcode, std::vector<float>& values) {
        const std::uint64_t before = world.bytes_sent();
        world.collective(opcode, 5, TcpWorld::values_of<float>({std::span(values)}), plenty);
        return world.bytes_sent() - before;
      };
      sent[rank][0] = collective(Opcode::AllReduce, whole[rank]);
      sent[rank][1] = collective(Opcode::ReduceScatter, in_halves[rank]);
      const std::size_t end = (rank + 1) % 4;  // in the group
      const ValueRange own = part_of_end(end, 4, size, algorithm, sites);
      for (std::size_t i = 0; i < size; ++i) {
        if (i < own.begin || i >= own.end) in_halves[rank][i] = 0;
      }
      sent[rank][1] += collective(Opcode::AllGather, in_halves[rank]);
    });
    std::uint64_t all_reduced = 0;
    std::uint64_t divided = 0;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(in_halves[rank], whole[0]) << name_of(algorithm);
      all_reduced += sent[rank][0];
      divided += sent[rank][1];
    }
    if (algorithm == Algorithm::Tree || algorithm == Algorithm::Server) {
      EXPECT_GT(divided, all_reduced);  // they take whole sums to end 0, and parts back
    } else {
      EXPECT_EQ(divided, all_reduced) << name_of(algorithm);
    }
  }
}

TEST(AllReduce, OfAGroupNamesItsChannel)
{
  Ranks ranks(2);
  ranks.options.groups = {{.channel = 5, .ranks = {0, 1}}};
  const auto errors = ranks.errors([](TcpWorld& world, std::size_t rank) {
    double value = 1;
    if (rank == 0) world.collective(Opcode::AllReduce, 5, TcpWorld::values_of<double>({std::span(&value, 1)}), little);
    pause(0.3);
  });
  EXPECT_THAT(errors[0], MatchesRegex("rank 0: receive from rank 1 \\(channel 5\\): no message after [0-9.]+ s: "
                                      "deadline passed"));
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

TEST(AllReduce, RefusesDifferentNumbersOfValues)
{
  Ranks ranks(2);
  const auto errors = ranks.errors([](TcpWorld& world, std::size_t rank) {
    std::vector<float> values(10 + rank);
    world.all_reduce_sum(std::span(values), plenty);
  });
  EXPECT_THAT(errors,
              testing::Contains(MatchesRegex(
                  "rank [01]: all-reduce over all ranks: 1[01] values of 4 B, [05] to [0-9]+ of them; rank [01] has "
                  "1[01] values of 4 B, [05] to [0-9]+")));
}

TEST(AllReduce, FailsOnTheOtherRanksWhenOneIsCancelled)
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
  EXPECT_THAT(errors[2], AllOf(HasSubstr("(all-reduce over all ranks)"), EndsWith("connection closed by the peer")));
}

TEST(AllReduce, FailsAtItsDeadline)
{
  Ranks ranks(2);
  const auto errors = ranks.errors([](TcpWorld& world, std::size_t rank) {
    double value = 1;
    if (rank == 0) world.all_reduce_sum(std::span(&value, 1), little);
    pause(0.3);
  });
  EXPECT_THAT(errors[0],
              MatchesRegex("rank 0: receive from rank 1 \\(all-reduce over all ranks\\): no message after [0-9.]+ s: "
                           "deadline passed"));
}

/// What a rank of a group sends to another: as many bytes as both say, some none.
Data sent_by(std::size_t from, std::size_t to)
{
  constexpr std::size_t large = 70'000;  // so that it travels over several connections
  return random_data((3 * from + to) % 4 * (from == 1 ? large : 1), static_cast<unsigned>(10 * from + to));
}

TEST(TcpWorld, ExchangesUnequalAndEmptyPiecesWithinAGroup)
{
  const std::vector<std::size_t> members = {3, 0, 1, 2};
  for (const std::size_t size : {2UL, 3UL, 4UL}) {
    Ranks ranks(4);
    ranks.options.connections = 2;
    const std::vector<std::size_t> group(members.begin(), members.begin() + static_cast<std::ptrdiff_t>(size));
    ranks.options.groups = {{.channel = 5, .ranks = group, .exchanges = true}};
    ranks.run([&](TcpWorld& world, std::size_t rank) {
      const auto found = std::find(group.begin(), group.end(), rank);
      if (found == group.end()) return;
      const auto self = static_cast<std::size_t>(found - group.begin());
      for (int repetition = 0; repetition < 2; ++repetition) {
        std::vector<Data> outgoing;
        std::vector<Data> incoming;
        std::uint64_t sent = 0;
        for (std::size_t other = 0; other < size; ++other) {
          outgoing.push_back(sent_by(self, other));
          incoming.emplace_back(sent_by(other, self).size());
          if (other != self) sent += outgoing.back().size();
        }
        const std::vector<View> leaving(outgoing.begin(), outgoing.end());
        const std::vector<std::span<std::byte>> arriving(incoming.begin(), incoming.end());
        const std::uint64_t before = world.bytes_sent();
        world.exchange(5, leaving, arriving, plenty);
        EXPECT_EQ(world.bytes_sent() - before, sent);
        for (std::size_t other = 0; other < size; ++other) {
          if (other == self) continue;
          EXPECT_EQ(incoming[other], sent_by(other, self)) << other << " to " << self;
        }
      }
    });
  }
}

TEST(TcpWorld, SaysWhichRankSendsAnotherNumberOfBytes)
{
  Ranks ranks(2);
  ranks.options.groups = {{.channel = 5, .ranks = {0, 1}, .exchanges = true}};
  const auto errors = ranks.errors([](TcpWorld& world, std::size_t rank) {
    const Data leaving(rank == 0 ? 3 : 4);
    Data arriving(4);
    world.exchange(5, std::array{View(leaving), View(leaving)}, std::array{std::span(arriving), std::span(arriving)},
                   plenty);
  });
  EXPECT_EQ(errors[1], "rank 1: channel 5: rank 0 sends 3 B where 4 B are expected");
}

}  // namespace
}  // namespace isobar::exec::all_reduce_test
