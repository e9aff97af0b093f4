#include "exec/watch/rank_failures.hpp"

#include <gtest/gtest.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec::rank_failures_test {
namespace {

using Kind = Failure::Kind;
using End = std::pair<std::size_t, ChildResult>;

const std::vector<std::string> names = {"rank 0 (a)", "rank 1 (b)", "rank 2 (data server)"};

Failure failure(Kind kind, std::optional<std::size_t> rank, const std::string& text)
{
  return {kind, rank, ExitCode::EnvironmentError, text};
}
End ended(std::size_t rank, Failure with)
{
  return {rank, {"", std::move(with)}};
}
const End killed = ended(1, failure(Kind::Died, {}, "died of signal 9 (Killed)"));
const End silent = ended(1, failure(Kind::Silent, {}, "was ended at the time limit of 2 s"));

/// The failure thrown after the ranks have ended; of kind Other and without a text when none is thrown.
Failure cause_of(const std::vector<End>& ends)
{
  RankFailures failures(names);
  for (const auto& [rank, result] : ends) failures.ended(rank, result);
  try {
    failures.throw_if_any();
  } catch (const std::exception& error) {
    return failure_of(error);
  }
  return {};
}

const Failure closed = failure(Kind::PeerClosed, {}, "rank 0: receive from rank 1 (channel 0): no message after 2 s");

TEST(RankFailures, ThrowNothingForRanksThatSucceeded)
{
  EXPECT_EQ(cause_of({{0, {"result"}}, {1, {"result"}}}).text, "");
}

TEST(RankFailures, ThrowTheCauseWhicheverRankEndsFirst)
{
  const auto gone = ended(0, failure(Kind::Died, 1, "rank 1 (b) is gone"));
  const auto mute = ended(2, failure(Kind::Silent, 1, "rank 1 (b): no heartbeat for 10 s"));
  const auto cancelled = ended(0, failure(Kind::Cancelled, {}, "send: cancelled"));
  const auto late = ended(0, failure(Kind::DeadlinePassed, {}, "send: deadline passed"));
  EXPECT_EQ(cause_of({gone, killed}).text, "rank 1 (b): died of signal 9 (Killed)");
  EXPECT_EQ(cause_of({killed, gone}).text, "rank 1 (b): died of signal 9 (Killed)");
  EXPECT_EQ(cause_of({ended(0, closed), killed}).text, "rank 1 (b): died of signal 9 (Killed)");
  EXPECT_EQ(cause_of({late, killed}).text, "rank 1 (b): died of signal 9 (Killed)");
  EXPECT_EQ(cause_of({ended(0, closed), mute, silent}).text, "rank 1 (b): no heartbeat for 10 s");
  EXPECT_EQ(cause_of({cancelled, silent}).text, "rank 0 (a): send: cancelled");
  EXPECT_EQ(cause_of({silent}).text, "rank 1 (b): did not answer");
}

TEST(RankFailures, KeepTheRankAndTheKindOfTheOneAtFault)
{
  const Failure died = cause_of({ended(0, closed), killed});
  EXPECT_EQ(died.rank, 1U);
  EXPECT_EQ(died.kind, Kind::Died);
  const Failure mute = cause_of({silent});
  EXPECT_EQ(mute.rank, 1U);
  EXPECT_EQ(mute.kind, Kind::Silent);
}

TEST(RankFailures, ThrowAFailedLinkWhenAllRanksAreAlive)
{
  const auto found = failure(Kind::PeerClosed, 0, "rank 0 (a) failed: " + closed.text + "; all ranks are alive");
  EXPECT_EQ(cause_of({ended(1, found), ended(0, found)}).text, found.text);
}

TEST(RankFailures, NameARankOnce)
{
  EXPECT_EQ(cause_of({ended(1, failure(Kind::OutOfMemory, 1, "rank 1 (b): out of memory"))}).text,
            "rank 1 (b): out of memory");
}

TEST(RankFailures, HaveTheExitCodeOfTheRankAtFault)
{
  for (const auto code : {ExitCode::InputError, ExitCode::EnvironmentError, ExitCode::OurBug, ExitCode::Interrupted}) {
    const Failure of_one = {Kind::Other, {}, code, "model.yaml: no model"};
    EXPECT_EQ(cause_of({ended(0, closed), ended(1, of_one)}).code, code);
    EXPECT_EQ(cause_of({ended(1, of_one), ended(0, closed)}).code, code);
  }
}

TEST(RankFailures, KeepTheExitCodeThatOthersReportForASilentRank)
{
  const Failure of_input = {Kind::BadInput, 1, ExitCode::InputError, "rank 1 (b) failed: step 3: the loss is nan"};
  EXPECT_EQ(cause_of({ended(0, of_input), silent}).code, ExitCode::InputError);
}

TEST(RankFailures, DoNotDependOnTexts)
{
  const std::vector<Kind> kinds = {Kind::Other, Kind::PeerClosed, Kind::DeadlinePassed, Kind::Cancelled,
                                   Kind::Died,  Kind::Silent,     Kind::OutOfMemory};
  const std::vector<std::optional<std::size_t>> ranks = {std::nullopt, 0, 1};
  const std::vector<std::string> texts = {"",
                                          "is gone",
                                          ": out of memory",
                                          "rank 0 (a): deadline passed",
                                          "connection closed by the peer",
                                          "died of signal 9",
                                          "no heartbeat"};
  for (const auto kind : kinds) {
    for (const auto other : kinds) {
      for (const auto rank : ranks) {
        const auto with_text = [&](const std::string& text) {
          return cause_of({ended(0, failure(kind, rank, text)), ended(1, failure(other, {}, text))});
        };
        const Failure plain = with_text("failed");
        for (const auto& text : texts) {
          const Failure found = with_text(text);
          EXPECT_EQ(found.kind, plain.kind) << text;
          EXPECT_EQ(found.rank, plain.rank) << text;
          EXPECT_EQ(rank_lost(found), rank_lost(plain)) << text;
        }
      }
    }
  }
}

TEST(RankLost, IsARankThatIsDeadSilentOrOutOfMemory)
{
  for (const auto kind : {Kind::Died, Kind::Silent, Kind::OutOfMemory}) {
    EXPECT_EQ(rank_lost(failure(kind, 1, "")), 1U);
    EXPECT_EQ(rank_lost(failure(kind, {}, "")), std::nullopt);
  }
}

TEST(RankLost, IsNoneForOtherFailures)
{
  for (const auto kind : {Kind::Other, Kind::PeerClosed, Kind::DeadlinePassed, Kind::Cancelled, Kind::BadInput})
    EXPECT_EQ(rank_lost(failure(kind, 1, "rank 1 (b): out of memory")), std::nullopt);
}

}  // namespace
}  // namespace isobar::exec::rank_failures_test
