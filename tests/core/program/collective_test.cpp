#include "tests/core/program/collective_cases.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace isobar {

void PrintTo(const Flow& flow, std::ostream* out)
{
  *out << flow.from << "→" << flow.to << " " << flow.messages << " x " << flow.message.value;
}

}  // namespace isobar

namespace isobar::collective_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr std::size_t counts_of_ends[] = {1, 2, 3, 4, 7, 64};
constexpr double sizes_of_data[] = {0, 1, 10, 10'000};
constexpr Opcode collectives[] = {Opcode::AllReduce, Opcode::ReduceScatter, Opcode::AllGather, Opcode::AllToAll,
                                  Opcode::Broadcast};

Flow flow(std::size_t from, std::size_t to, double message, std::uint64_t messages = 1)
{
  return {from, to, Bytes(message), messages};
}

/// Bytes that each end sends and receives.
struct Account {
  std::map<std::size_t, double> sent;
  std::map<std::size_t, double> received;
};

Account account_of(const std::vector<Round>& rounds)
{
  Account account;
  for (const auto& round : rounds) {
    for (const auto& each : round) {
      account.sent[each.from] += each.size().value;
      account.received[each.to] += each.size().value;
    }
  }
  return account;
}

void for_each_size(const std::function<void(std::size_t, double)>& check)
{
  for (const std::size_t ends : counts_of_ends) {
    for (const double size : sizes_of_data) {
      SCOPED_TRACE(std::to_string(ends) + " ends, " + std::to_string(size) + " bytes");
      check(ends, size);
    }
  }
}

TEST(Ring, OfAnAllReduceHasTheBytesAndMessagesOfTheClosedForm)
{
  for_each_size([](std::size_t ends, double size) {
    const auto rounds = rounds_of(Opcode::AllReduce, equal(ends, size), Algorithm::Ring);
    if (ends == 1) {
      EXPECT_THAT(rounds, IsEmpty());
      return;
    }
    const auto n = static_cast<double>(ends);
    ASSERT_THAT(rounds, ElementsAre(SizeIs(ends)));
    for (std::size_t i = 0; i < ends; ++i) {
      EXPECT_EQ(rounds[0][i], flow(i, (i + 1) % ends, std::ceil(size / n), 2 * (ends - 1)));
    }
    const auto account = account_of(rounds);
    for (std::size_t i = 0; i < ends; ++i) {
      EXPECT_EQ(account.sent.at(i), 2 * (n - 1) * std::ceil(size / n));
      EXPECT_EQ(account.received.at(i), account.sent.at(i));
    }
  });
}

TEST(Ring, OfAReduceScatterOrAnAllGatherHasHalfOfAnAllReduce)
{
  for_each_size([](std::size_t ends, double size) {
    const auto scatter = rounds_of(Opcode::ReduceScatter, equal(ends, size), Algorithm::Ring);
    const auto gather =
        rounds_of(Opcode::AllGather, equal(ends, std::ceil(size / static_cast<double>(ends))), Algorithm::Ring);
    EXPECT_EQ(scatter, gather);
    if (ends == 1) {
      EXPECT_THAT(scatter, IsEmpty());
      return;
    }
    const auto whole = rounds_of(Opcode::AllReduce, equal(ends, size), Algorithm::Ring);
    ASSERT_THAT(scatter, ElementsAre(SizeIs(ends)));
    for (std::size_t i = 0; i < ends; ++i) {
      EXPECT_EQ(scatter[0][i].messages, ends - 1);
      EXPECT_EQ(2 * scatter[0][i].size(), whole[0][i].size());
    }
  });
}

TEST(Ring, OfAnAllGatherSendsNoEndItsOwnPart)
{
  const std::vector<Bytes> parts = {Bytes(0), Bytes(10), Bytes(4), Bytes(7)};
  EXPECT_THAT(rounds_of(Opcode::AllGather, parts, Algorithm::Ring),
              ElementsAre(UnorderedElementsAre(flow(0, 1, 4, 3),     // 4 + 7 + 0 in three messages
                                               flow(1, 2, 6, 3),     // 7 + 0 + 10
                                               flow(2, 3, 5, 3),     // 0 + 10 + 4
                                               flow(3, 0, 7, 3))));  // 10 + 4 + 7
}

TEST(Direct, ExchangesThePartsOfAllPairs)
{
  for_each_size([](std::size_t ends, double size) {
    const auto n = static_cast<double>(ends);
    const auto part = std::ceil(size / n);
    for (const Opcode opcode : {Opcode::AllReduce, Opcode::ReduceScatter}) {
      const auto rounds = rounds_of(opcode, equal(ends, size), Algorithm::Direct);
      if (ends == 1) {
        EXPECT_THAT(rounds, IsEmpty());
        continue;
      }
      EXPECT_EQ(rounds.size(), opcode == Opcode::AllReduce ? 2U : 1U);
      for (const auto& round : rounds) {
        EXPECT_THAT(round, SizeIs(ends * (ends - 1)));
        for (const auto& each : round) EXPECT_EQ(each, flow(each.from, each.to, part));
      }
      const auto account = account_of(rounds);
      for (std::size_t i = 0; i < ends; ++i) {
        EXPECT_EQ(account.sent.at(i), static_cast<double>(rounds.size()) * (n - 1) * part);
        EXPECT_EQ(account.received.at(i), account.sent.at(i));
      }
    }
  });
}

TEST(Direct, GathersUnequalParts)
{
  EXPECT_THAT(rounds_of(Opcode::AllGather, {Bytes(3), Bytes(0), Bytes(8)}, Algorithm::Direct),
              ElementsAre(UnorderedElementsAre(flow(0, 1, 3), flow(0, 2, 3), flow(1, 0, 0), flow(1, 2, 0),
                                               flow(2, 0, 8), flow(2, 1, 8))));
}

TEST(Tree, HasTwiceTheRoundsOfItsDepth)
{
  for_each_size([](std::size_t ends, double size) {
    std::size_t depth = 0;
    while ((std::size_t{1} << depth) < ends) ++depth;
    const auto all = rounds_of(Opcode::AllReduce, equal(ends, size), Algorithm::Tree);
    EXPECT_THAT(all, SizeIs(2 * depth));
    std::size_t flows = 0;
    for (const auto& round : all) flows += round.size();
    EXPECT_EQ(flows, 2 * (ends - 1));
    for (const auto& round : all) {
      for (const auto& each : round) EXPECT_EQ(each, flow(each.from, each.to, size));
    }
    const auto broadcast = rounds_of(Opcode::Broadcast, equal(ends, size), Algorithm::Tree);
    EXPECT_EQ(broadcast, std::vector<Round>(all.begin() + static_cast<std::ptrdiff_t>(depth), all.end()));
  });
}

TEST(Tree, CarriesThePartsOfItsBranches)
{
  EXPECT_THAT(rounds_of(Opcode::AllGather, {Bytes(1), Bytes(2), Bytes(4), Bytes(8), Bytes(16)}, Algorithm::Tree),
              ElementsAre(UnorderedElementsAre(flow(1, 0, 2), flow(3, 2, 8)), ElementsAre(flow(2, 0, 12)),
                          ElementsAre(flow(4, 0, 16)), ElementsAre(flow(0, 4, 31)), ElementsAre(flow(0, 2, 31)),
                          UnorderedElementsAre(flow(0, 1, 31), flow(2, 3, 31))));
  EXPECT_THAT(rounds_of(Opcode::ReduceScatter, equal(3, 12), Algorithm::Tree),
              ElementsAre(ElementsAre(flow(1, 0, 12)), ElementsAre(flow(2, 0, 12)), ElementsAre(flow(0, 2, 4)),
                          ElementsAre(flow(0, 1, 4))));
}

TEST(Server, SendsEachEndsDataToTheFirstAndBack)
{
  EXPECT_THAT(rounds_of(Opcode::AllReduce, equal(3, 12), Algorithm::Server),
              ElementsAre(ElementsAre(flow(1, 0, 12), flow(2, 0, 12)), ElementsAre(flow(0, 1, 12), flow(0, 2, 12))));
  EXPECT_THAT(rounds_of(Opcode::ReduceScatter, equal(3, 12), Algorithm::Server),
              ElementsAre(ElementsAre(flow(1, 0, 12), flow(2, 0, 12)), ElementsAre(flow(0, 1, 4), flow(0, 2, 4))));
  EXPECT_THAT(rounds_of(Opcode::AllGather, {Bytes(1), Bytes(2), Bytes(4)}, Algorithm::Server),
              ElementsAre(ElementsAre(flow(1, 0, 2), flow(2, 0, 4)), ElementsAre(flow(0, 1, 7), flow(0, 2, 7))));
}

TEST(AllToAll, IsInPairsAndABroadcastATreeUnderEveryAlgorithm)
{
  const std::vector<Bytes> sizes = {Bytes(30), Bytes(3), Bytes(0)};
  const std::vector<std::string> sites = {"a", "b", "b"};
  for (const Algorithm algorithm : every_algorithm()) {
    EXPECT_THAT(rounds_of(Opcode::AllToAll, sizes, algorithm, sites),
                ElementsAre(ElementsAre(flow(0, 1, 10), flow(1, 2, 1), flow(2, 0, 0)),
                            ElementsAre(flow(0, 2, 10), flow(1, 0, 1), flow(2, 1, 0))));
    EXPECT_THAT(rounds_of(Opcode::Broadcast, sizes, algorithm, sites),
                ElementsAre(ElementsAre(flow(0, 2, 30)), ElementsAre(flow(0, 1, 30))));
  }
}

TEST(AllToAll, OverEqualSitesMeetsEndsOfOneSiteInEachRound)
{
  const std::vector<std::string> sites = {"a", "b", "b", "a"};
  EXPECT_THAT(rounds_of(Opcode::AllToAll, equal(4, 40), Algorithm::Hierarchical, sites),
              ElementsAre(UnorderedElementsAre(flow(0, 3, 10), flow(3, 0, 10), flow(1, 2, 10), flow(2, 1, 10)),
                          UnorderedElementsAre(flow(0, 1, 10), flow(3, 2, 10), flow(1, 0, 10), flow(2, 3, 10)),
                          UnorderedElementsAre(flow(0, 2, 10), flow(3, 1, 10), flow(1, 3, 10), flow(2, 0, 10))));
  for (const std::size_t nodes : {2, 3, 8}) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < 4 * nodes; ++i) names.push_back(std::to_string(i / 4));
    const auto rounds = rounds_of(Opcode::AllToAll, equal(names.size(), 1), Algorithm::Hierarchical, names);
    EXPECT_EQ(rounds.size(), names.size() - 1);
    std::map<std::pair<std::size_t, std::size_t>, int> met;
    for (const auto& round : rounds) {
      for (const auto& each : round) {
        ++met[{each.from, each.to}];
        const bool is_inside = names[each.from] == names[each.to];
        EXPECT_EQ(is_inside, names[round.front().from] == names[round.front().to]);
      }
    }
    EXPECT_EQ(met.size(), names.size() * (names.size() - 1));
  }
}

TEST(Hierarchical, OfOneSiteOrOfSitesOfOneEndIsTheRing)
{
  for_each_size([](std::size_t ends, double size) {
    std::vector<std::string> sites;
    for (std::size_t i = 0; i < ends; ++i) sites.push_back(std::to_string(i));
    for (const Opcode opcode : {Opcode::AllReduce, Opcode::ReduceScatter, Opcode::AllGather}) {
      const auto ring = rounds_of(opcode, equal(ends, size), Algorithm::Ring);
      EXPECT_EQ(rounds_of(opcode, equal(ends, size), Algorithm::Hierarchical, sites), ring);
      EXPECT_EQ(rounds_of(opcode, equal(ends, size), Algorithm::Hierarchical, std::vector<std::string>(ends, "a")),
                ring);
    }
  });
}

TEST(Hierarchical, CrossesEqualSitesInOneRingPerEnd)
{
  const std::vector<std::string> sites = {"a", "b", "a", "b"};
  const auto within = [](double message) {
    return UnorderedElementsAre(flow(0, 2, message), flow(2, 0, message), flow(1, 3, message), flow(3, 1, message));
  };
  const auto across = [](double message, std::uint64_t messages) {
    return UnorderedElementsAre(flow(0, 1, message, messages), flow(1, 0, message, messages),
                                flow(2, 3, message, messages), flow(3, 2, message, messages));
  };
  EXPECT_THAT(rounds_of(Opcode::AllReduce, equal(4, 400), Algorithm::Hierarchical, sites),
              ElementsAre(within(200), across(100, 2), within(200)));
  EXPECT_THAT(rounds_of(Opcode::ReduceScatter, equal(4, 400), Algorithm::Hierarchical, sites),
              ElementsAre(within(200), across(100, 1)));
  EXPECT_THAT(rounds_of(Opcode::AllGather, equal(4, 100), Algorithm::Hierarchical, sites),
              ElementsAre(across(100, 1), within(200)));
}

TEST(Hierarchical, CollectsTheDataOfTheLargerSitesAtTheirFirstEnds)
{
  const std::vector<std::string> sites = {"a", "b", "b", "b"};
  const auto within = [](double message) {
    return UnorderedElementsAre(flow(1, 2, message, 2), flow(2, 3, message, 2), flow(3, 1, message, 2));
  };
  const auto to_first = [](double size) { return UnorderedElementsAre(flow(2, 1, size), flow(3, 1, size)); };
  const auto from_first = [](double size) { return UnorderedElementsAre(flow(1, 2, size), flow(1, 3, size)); };
  EXPECT_THAT(rounds_of(Opcode::AllReduce, equal(4, 12), Algorithm::Hierarchical, sites),
              ElementsAre(within(4), to_first(4), UnorderedElementsAre(flow(0, 1, 6, 2), flow(1, 0, 6, 2)),
                          from_first(4), within(4)));
  // End 0 needs its own quarter only, the other site the other three.
  EXPECT_THAT(rounds_of(Opcode::ReduceScatter, equal(4, 12), Algorithm::Hierarchical, sites),
              ElementsAre(within(4), to_first(4), UnorderedElementsAre(flow(0, 1, 9), flow(1, 0, 3)), from_first(3)));
  EXPECT_THAT(rounds_of(Opcode::AllGather, equal(4, 3), Algorithm::Hierarchical, sites),
              ElementsAre(to_first(3), UnorderedElementsAre(flow(0, 1, 3), flow(1, 0, 9)), from_first(4), within(4)));
}

TEST(Hierarchical, DividesALargerSiteAmongAllItsEndsThatCross)
{
  // Ends 0 and 1 cross with halves of 6 bytes; ends 2, 3 and 4 hold thirds of 4 bytes in their site.
  const auto rounds = rounds_of(Opcode::AllReduce, equal(5, 12), Algorithm::Hierarchical, {"a", "a", "b", "b", "b"});
  ASSERT_THAT(rounds, SizeIs(5));
  EXPECT_THAT(rounds[1], UnorderedElementsAre(flow(3, 2, 2), flow(4, 3, 4)));
  EXPECT_THAT(rounds[2], UnorderedElementsAre(flow(0, 2, 3, 2), flow(2, 0, 3, 2), flow(1, 3, 3, 2), flow(3, 1, 3, 2)));
  EXPECT_THAT(rounds[3], UnorderedElementsAre(flow(2, 3, 2), flow(3, 4, 4)));
}

TEST(AllToAll, OfUnequalPartsSendsToEachEndInProportionToItsResult)
{
  // Ends with 20, 0 and 10 bytes, of 30, come to have 3, 12 and 15.
  EXPECT_THAT(rounds_of(Opcode::AllToAll, {Bytes(20), Bytes(0), Bytes(10)}, Algorithm::Ring, {},
                        {Bytes(3), Bytes(12), Bytes(15)}),
              ElementsAre(ElementsAre(flow(0, 1, 8), flow(1, 2, 0), flow(2, 0, 1)),
                          ElementsAre(flow(0, 2, 10), flow(1, 0, 0), flow(2, 1, 4))));
}

TEST(ReduceScatter, OfUnequalPartsSendsEachEndItsOwn)
{
  const std::vector<Bytes> parts = {Bytes(1), Bytes(2), Bytes(0)};
  EXPECT_THAT(rounds_of(Opcode::ReduceScatter, equal(3, 3), Algorithm::Direct, {}, parts),
              ElementsAre(UnorderedElementsAre(flow(0, 1, 2), flow(0, 2, 0), flow(1, 0, 1), flow(1, 2, 0),
                                               flow(2, 0, 1), flow(2, 1, 2))));
  // Around the ring, each end passes on all parts but its own.
  EXPECT_THAT(rounds_of(Opcode::ReduceScatter, equal(3, 3), Algorithm::Ring, {}, parts),
              ElementsAre(ElementsAre(flow(0, 1, 1, 2), flow(1, 2, 1, 2), flow(2, 0, 2, 2))));
  EXPECT_THROW(rounds_of(Opcode::ReduceScatter, equal(3, 3), Algorithm::Tree, {}, parts), std::logic_error);
  EXPECT_THROW(rounds_of(Opcode::AllReduce, equal(3, 3), Algorithm::Ring, {}, parts), std::logic_error);
  EXPECT_THROW(rounds_of(Opcode::AllToAll, equal(3, 3), Algorithm::Ring, {}, {Bytes(3)}), std::logic_error);
}

/// The sites of `ends` ends in several ways: one, unequal ones (a smaller first), mixed up, each its own.
std::vector<std::vector<std::string>> sites_of(std::size_t ends)
{
  std::vector<std::vector<std::string>> ways(4);
  for (std::size_t i = 0; i < ends; ++i) {
    ways[0].push_back("a");
    ways[1].push_back(i < ends / 3 ? "a" : "b");
    ways[2].push_back(std::string(1, static_cast<char>('a' + i % 3)));
    ways[3].push_back(std::to_string(i));
  }
  return ways;
}

/// Checks `check` on every opcode and algorithm, number of ends, size and division into sites.
void for_each_collective(const std::function<void(Opcode, const std::vector<Bytes>&, const std::vector<Round>&)>& check)
{
  for (const Opcode opcode : collectives) {
    for (const Algorithm algorithm : every_algorithm()) {
      for (const std::size_t ends : std::initializer_list<std::size_t>{2, 3, 4, 5, 7}) {
        for (const double size : sizes_of_data) {
          for (const auto& sites : sites_of(ends)) {
            auto sizes = equal(ends, size);
            for (std::size_t i = 0; opcode == Opcode::AllGather && i < ends; ++i) {
              sizes[i] = size * static_cast<double>(i * i % 5) * Bytes(1);
            }
            SCOPED_TRACE(std::string(name_of(opcode)) + ", " + std::string(name_of(algorithm)) + ", " +
                         std::to_string(ends) + " ends, " + std::to_string(size) + " bytes");
            check(opcode, sizes, rounds_of(opcode, sizes, algorithm, sites));
          }
        }
      }
    }
  }
}

TEST(RoundsOf, BringEachEndTheDataOfAllOthers)
{
  for_each_collective([](Opcode opcode, const std::vector<Bytes>& sizes, const std::vector<Round>& rounds) {
    // knows[i]: the ends whose data have reached end i; the message of a flow passes on what its sender knows.
    std::vector<std::vector<bool>> knows(sizes.size(), std::vector<bool>(sizes.size(), false));
    for (std::size_t i = 0; i < sizes.size(); ++i) knows[i][i] = true;
    for (const auto& round : rounds) {
      std::uint64_t messages = 0;
      for (const auto& each : round) messages = std::max(messages, each.messages);
      for (std::uint64_t message = 0; message < messages; ++message) {
        const auto before = knows;
        for (const auto& each : round) {
          if (message >= each.messages) continue;
          for (std::size_t i = 0; i < sizes.size(); ++i) {
            if (before[each.from][i]) knows[each.to][i] = true;
          }
        }
      }
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      for (std::size_t source = 0; source < sizes.size(); ++source) {
        if (opcode == Opcode::Broadcast && source > 0) continue;
        EXPECT_TRUE(knows[i][source]) << "data of end " << source << " at end " << i;
      }
    }
  });
}

/// The fewest bytes that leave the ends `inside` for the others.
double least_bytes_out(Opcode opcode, const std::vector<Bytes>& sizes, const std::vector<bool>& inside)
{
  const auto n = static_cast<double>(sizes.size());
  double own = 0;  // data of the ends inside
  double ends_outside = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (inside[i]) own += sizes[i].value;
    if (!inside[i]) ends_outside += 1;
  }
  switch (opcode) {
    case Opcode::AllReduce:
      return sizes.front().value;  // their sum, or that of the others to them and back
    case Opcode::ReduceScatter:
      return sizes.front().value / n * ends_outside;  // their sums of the parts of the others
    case Opcode::AllToAll:
      return own / n * ends_outside;
    case Opcode::Broadcast:
      return inside[0] ? sizes.front().value : 0;
    default:
      return own;
  }
}

TEST(RoundsOf, CarryEnoughBytesOutOfEverySetOfEnds)
{
  for_each_collective([](Opcode opcode, const std::vector<Bytes>& sizes, const std::vector<Round>& rounds) {
    for (std::size_t set = 1; set + 1 < std::size_t{1} << sizes.size(); ++set) {
      std::vector<bool> inside;
      for (std::size_t i = 0; i < sizes.size(); ++i) inside.push_back((set >> i & 1) != 0);
      double out = 0;
      for (const auto& round : rounds) {
        for (const auto& each : round) {
          if (inside[each.from] && !inside[each.to]) out += each.size().value;
        }
      }
      EXPECT_GE(out, least_bytes_out(opcode, sizes, inside)) << "set " << set;
    }
  });
}

TEST(RoundsOf, SendWholeBytesBetweenDifferentEnds)
{
  for_each_collective([](Opcode, const std::vector<Bytes>& sizes, const std::vector<Round>& rounds) {
    for (const auto& round : rounds) {
      EXPECT_THAT(round, testing::Not(IsEmpty()));
      for (const auto& each : round) {
        EXPECT_EQ(each.message.value, std::floor(each.message.value));
        EXPECT_GE(each.messages, 1U);
        EXPECT_NE(each.from, each.to);
        EXPECT_LT(std::max(each.from, each.to), sizes.size());
      }
    }
  });
  EXPECT_THAT(rounds_of(Opcode::AllReduce, equal(2, 4.5), Algorithm::Ring),
              ElementsAre(UnorderedElementsAre(flow(0, 1, 3, 2), flow(1, 0, 3, 2))));
}

TEST(Hierarchical, SendsIntoEachSiteWhatARingOfSitesDoes)
{
  for (const std::size_t sites : std::initializer_list<std::size_t>{2, 3, 5}) {
    for (const std::size_t smallest : std::initializer_list<std::size_t>{1, 2, 4}) {
      std::vector<std::string> names;
      for (std::size_t site = 0; site < sites; ++site) names.insert(names.end(), smallest + site, std::to_string(site));
      const double size = 120;  // divisible by all numbers of sites and rings
      std::map<std::string, double> into;
      const auto rounds = rounds_of(Opcode::AllReduce, equal(names.size(), size), Algorithm::Hierarchical, names);
      for (const auto& round : rounds) {
        for (const auto& each : round) {
          if (names[each.from] != names[each.to]) into[names[each.to]] += each.size().value;
        }
      }
      EXPECT_THAT(into, SizeIs(sites));
      const auto u = static_cast<double>(sites);
      for (const auto& [site, bytes] : into) EXPECT_EQ(bytes, 2 * (u - 1) / u * size) << site;
    }
  }
}

TEST(RoundsOf, RefusesWhatIsNoCollective)
{
  EXPECT_EQ(message_of([] { rounds_of(Opcode::Send, equal(2, 1), Algorithm::Ring); }),
            "bug rounds of an instruction that is no collective");
  EXPECT_EQ(message_of([] { rounds_of(Opcode::AllReduce, {}, Algorithm::Ring); }), "bug a collective without ends");
  EXPECT_EQ(message_of([] { rounds_of(Opcode::AllReduce, equal(2, 1), Algorithm::Hierarchical); }),
            "bug a collective needs a site for each end");
  EXPECT_EQ(message_of([] { rounds_of(Opcode::AllReduce, equal(2, 1), Algorithm::Ring, {"a"}); }),
            "bug a collective needs a site for each end");
  EXPECT_EQ(message_of([] {
              rounds_of(Opcode::ReduceScatter, {Bytes(1), Bytes(2)}, Algorithm::Ring);
            }),
            "bug ends of one sum with data of different sizes");
  EXPECT_EQ(message_of([] { rounds_of(Opcode::AllReduce, equal(2, -1), Algorithm::Ring); }),
            "bug a collective of more data than 2^53 bytes, or of less than none");
}

}  // namespace
}  // namespace isobar::collective_test
