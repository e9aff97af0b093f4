#include "tests/core/program/collective_cases.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace isobar::collective_steps_test {
namespace {

/// The sites of ends: `count` of each in turn, then as many of the next.
std::vector<std::string> sites_with(const std::vector<std::size_t>& counts)
{
  std::vector<std::string> sites;
  for (std::size_t i = 0; i < counts.size(); ++i) sites.insert(sites.end(), counts[i], std::string(1, 'a' + char(i)));
  return sites;
}

/// A collective of `values` values by its steps, in which a message is sent only while it is received.
class PlayedSteps {
 public:
  /// `fraction` is added to the first value of end 0, twice to that of end 1, and so on.
  PlayedSteps(Opcode opcode, std::size_t ends, std::size_t values, Algorithm algorithm,
              const std::vector<std::string>& sites, double fraction = 0)
      : fraction_(fraction)
  {
    for (std::size_t end = 0; end < ends; ++end) {
      steps_.push_back(steps_of(opcode, end, ends, values, algorithm, sites));
      data_.emplace_back(values);
      for (std::size_t i = 0; i < values; ++i) data_[end][i] = value_of(end, i);
    }
    progress_.resize(ends);
    while (moves()) continue;
  }

  bool is_complete() const
  {
    for (std::size_t end = 0; end < steps_.size(); ++end) {
      if (progress_[end].step < steps_[end].size()) return false;
    }
    return true;
  }

  bool has_all_sums() const
  {
    for (const auto& data : data_) {
      for (std::size_t i = 0; i < data.size(); ++i) {
        double sum = 0;
        for (std::size_t end = 0; end < data_.size(); ++end) sum += value_of(end, i);
        if (data[i] != sum) return false;
      }
    }
    return true;
  }

  const std::vector<double>& data(std::size_t end) const { return data_[end]; }
  double value_of(std::size_t end, std::size_t index) const
  {
    return std::pow(2, double(end % 8)) + double(index) + fraction_ * double(end + 1);
  }

  /// Values by their sender and receiver.
  const std::map<std::pair<std::size_t, std::size_t>, double>& moved() const { return moved_; }

 private:
  struct Progress {
    std::size_t step = 0;
    bool has_sent = false;
    bool has_received = false;
  };

  const CollectiveStep* current(std::size_t end) const
  {
    return progress_[end].step < steps_[end].size() ? &steps_[end][progress_[end].step] : nullptr;
  }

  /// One message between two ends that are both ready for it; false if there is none.
  bool moves()
  {
    for (std::size_t from = 0; from < steps_.size(); ++from) {
      const CollectiveStep* const sender = current(from);
      if (sender == nullptr || !sender->to || progress_[from].has_sent) continue;
      const CollectiveStep* const receiver = current(*sender->to);
      if (receiver == nullptr || receiver->from != from || progress_[*sender->to].has_received) continue;
      EXPECT_EQ(sender->sent, receiver->received);
      const std::size_t to = *sender->to;
      for (std::size_t i = sender->sent.begin; i < sender->sent.end; ++i) {
        data_[to][i] = receiver->adds ? data_[to][i] + data_[from][i] : data_[from][i];
      }
      moved_[{from, to}] += double(sender->sent.size());
      progress_[from].has_sent = true;
      progress_[to].has_received = true;
      advance(from);
      advance(to);
      return true;
    }
    return false;
  }

  void advance(std::size_t end)
  {
    const CollectiveStep& step = *current(end);
    const bool is_over = (!step.to || progress_[end].has_sent) && (!step.from || progress_[end].has_received);
    if (is_over) progress_[end] = {progress_[end].step + 1, false, false};
  }

  double fraction_;
  std::vector<std::vector<CollectiveStep>> steps_;
  std::vector<std::vector<double>> data_;
  std::vector<Progress> progress_;
  std::map<std::pair<std::size_t, std::size_t>, double> moved_;
};

TEST(StepsOf, GiveAllEndsTheSumsWithoutWaitingInACircle)
{
  for (const Algorithm algorithm : every_algorithm()) {
    for (const auto& counts : std::vector<std::vector<std::size_t>>{
             {1}, {2}, {3}, {7}, {8}, {1, 1}, {2, 2}, {1, 3}, {2, 3}, {3, 2}, {4, 6, 5}, {2, 7, 3, 1}, {8, 8}}) {
      for (const std::size_t values : {0UL, 1UL, 5UL, 64UL, 1001UL}) {
        const auto sites = sites_with(counts);
        const PlayedSteps sum(Opcode::AllReduce, sites.size(), values, algorithm, sites);
        SCOPED_TRACE(testing::Message() << name_of(algorithm) << ", sites " << testing::PrintToString(counts) << ", "
                                        << values << " values");
        EXPECT_TRUE(sum.is_complete());
        EXPECT_TRUE(sum.has_all_sums());
      }
    }
  }
}

/// Ways to divide values among ends: an algorithm and the sites of the ends.
struct Dividing {
  Algorithm algorithm = Algorithm::Ring;
  std::vector<std::string> sites;

  ValueRange part(std::size_t end, std::size_t values) const
  {
    return part_of_end(end, sites.size(), values, algorithm, sites);
  }
};

void PrintTo(const Dividing& dividing, std::ostream* out)
{
  *out << name_of(dividing.algorithm) << ", sites " << testing::PrintToString(dividing.sites);
}

std::vector<Dividing> dividings()
{
  std::vector<Dividing> all;
  for (const Algorithm algorithm : every_algorithm()) {
    if (algorithm == Algorithm::Hierarchical) continue;  // which needs sites
    for (const std::size_t ends : {1UL, 2UL, 3UL, 5UL, 6UL, 8UL, 13UL}) all.push_back({algorithm, sites_with({ends})});
  }
  for (const auto& counts : std::vector<std::vector<std::size_t>>{{3}, {1, 1}, {2, 2}, {3, 3, 3}, {1, 1, 1}, {8, 8}}) {
    all.push_back({Algorithm::Hierarchical, sites_with(counts)});
  }
  all.push_back({Algorithm::Hierarchical, {"a", "b", "b", "a"}});
  return all;
}

TEST(StepsOf, AReduceScatterGiveEachEndItsPartWithTheBitsOfAnAllReduce)
{
  for (const auto& dividing : dividings()) {
    const std::size_t ends = dividing.sites.size();
    for (const std::size_t values : {0UL, 1UL, 5UL, 64UL, 1001UL}) {
      SCOPED_TRACE(testing::PrintToString(dividing) + ", " + std::to_string(values) + " values");
      const PlayedSteps all(Opcode::AllReduce, ends, values, dividing.algorithm, dividing.sites, 0.1);
      const PlayedSteps parts(Opcode::ReduceScatter, ends, values, dividing.algorithm, dividing.sites, 0.1);
      ASSERT_TRUE(parts.is_complete());
      std::vector<int> owners(values, 0);
      for (std::size_t end = 0; end < ends; ++end) {
        const ValueRange part = dividing.part(end, values);
        for (std::size_t i = part.begin; i < part.end; ++i) {
          ++owners[i];
          ASSERT_EQ(parts.data(end)[i], all.data(end)[i]);
        }
      }
      EXPECT_THAT(owners, testing::Each(1));
    }
  }
}

TEST(StepsOf, AnAllGatherGiveAllEndsEachEndsPart)
{
  for (const auto& dividing : dividings()) {
    const std::size_t ends = dividing.sites.size();
    for (const std::size_t values : {0UL, 1UL, 5UL, 64UL, 1001UL}) {
      SCOPED_TRACE(testing::PrintToString(dividing) + ", " + std::to_string(values) + " values");
      const PlayedSteps gathered(Opcode::AllGather, ends, values, dividing.algorithm, dividing.sites);
      ASSERT_TRUE(gathered.is_complete());
      for (std::size_t owner = 0; owner < ends; ++owner) {
        const ValueRange part = dividing.part(owner, values);
        for (std::size_t end = 0; end < ends; ++end) {
          for (std::size_t i = part.begin; i < part.end; ++i) {
            ASSERT_EQ(gathered.data(end)[i], gathered.value_of(owner, i));
          }
        }
      }
    }
  }
}

TEST(StepsOf, AReduceScatterAndAnAllGatherSendTheBytesOfTheirRounds)
{
  for (const auto& dividing : dividings()) {
    constexpr std::size_t values =
        65'520;  // which all numbers of ends divide, and all numbers of pieces of their parts
    const std::size_t ends = dividing.sites.size();
    for (const Opcode opcode : {Opcode::ReduceScatter, Opcode::AllGather}) {
      const double each = opcode == Opcode::AllGather ? values / double(ends) : values;
      std::map<std::pair<std::size_t, std::size_t>, double> expected;
      for (const auto& round : rounds_of(opcode, equal(ends, each), dividing.algorithm, dividing.sites)) {
        for (const auto& flow : round) expected[{flow.from, flow.to}] += flow.size().value;
      }
      EXPECT_EQ(PlayedSteps(opcode, ends, values, dividing.algorithm, dividing.sites).moved(), expected)
          << testing::PrintToString(dividing) << ", " << name_of(opcode);
    }
  }
}

TEST(StepsOf, RefuseWhatHasNone)
{
  EXPECT_EQ(message_of([] { steps_of(Opcode::Broadcast, 0, 2, 1, Algorithm::Ring); }),
            "bug a collective without steps");
  const std::vector<std::string> unequal = {"a", "a", "b"};
  EXPECT_FALSE(are_equal_sites(unequal));
  EXPECT_EQ(message_of([&] { steps_of(Opcode::ReduceScatter, 0, 3, 1, Algorithm::Hierarchical, unequal); }),
            "bug parts of ends need equal sites");
  EXPECT_EQ(message_of([&] { part_of_end(0, 3, 1, Algorithm::Hierarchical, unequal); }),
            "bug parts of ends need equal sites");
}

TEST(StepsOf, SendTheBytesOfTheRounds)
{
  for (const Algorithm algorithm : every_algorithm()) {
    for (const auto& counts : std::vector<std::vector<std::size_t>>{
             {2}, {3}, {8}, {2, 2}, {1, 3}, {2, 3}, {4, 6, 5}, {2, 4, 3, 1}, {8, 8}}) {
      constexpr std::size_t values =
          5040;  // which all numbers of ends divide, and all numbers of pieces of their pieces
      const auto sites = sites_with(counts);
      std::map<std::pair<std::size_t, std::size_t>, double> expected;
      for (const auto& round : rounds_of(Opcode::AllReduce, equal(sites.size(), values), algorithm, sites)) {
        for (const auto& flow : round) expected[{flow.from, flow.to}] += flow.size().value;
      }
      std::erase_if(expected, [](const auto& entry) { return entry.second == 0; });
      EXPECT_EQ(PlayedSteps(Opcode::AllReduce, sites.size(), values, algorithm, sites).moved(), expected)
          << name_of(algorithm) << ", sites " << testing::PrintToString(counts);
    }
  }
}

TEST(StepsOf, CrossBetweenTwoSitesOnceEachWayIfTheyAreHierarchical)
{
  // Each of two sites of 8 sends 2 (2 - 1) / 2 = 1.0 of the data to the other; a ring of all 16, 2 · 15 / 16 = 1.875.
  constexpr std::size_t values = 1600;
  const auto sites = sites_with({8, 8});
  const auto across = [&](Algorithm algorithm) {
    double sent = 0;
    const PlayedSteps sum(Opcode::AllReduce, 16, values, algorithm, sites);
    for (const auto& [ends, moved] : sum.moved()) {
      if (sites[ends.first] == "a" && sites[ends.second] == "b") sent += moved;
    }
    return sent / values;
  };
  EXPECT_EQ(across(Algorithm::Hierarchical), 1.0);
  EXPECT_EQ(across(Algorithm::Ring), 1.875);
}

}  // namespace
}  // namespace isobar::collective_steps_test
