#include "exec/rank_failures.hpp"

#include "core/errors.hpp"
#include "tests/exec/tcp_ranks.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace isobar::exec {
namespace {

using Status = ChildResult::Status;
using End = std::pair<std::size_t, ChildResult>;

const std::vector<std::string> names = {"rank 0 (a)", "rank 1 (b)", "rank 2 (data server)"};

End killed(std::size_t rank)
{
  return {rank, {Status::Crashed, "", "died of signal 9 (Killed)"}};
}
End ended(std::size_t rank, const std::string& message, Status status = Status::EnvironmentFault)
{
  return {rank, {status, "", message}};
}

std::string cause_of(const std::vector<End>& ends)
{
  RankFailures failures(names);
  for (const auto& [rank, result] : ends) failures.ended(rank, result);
  return error_of([&] { failures.throw_if_any(); });
}

constexpr auto closed = "rank 0: receive from rank 1 (channel 0): no message after 2 s: connection closed by the peer";

TEST(RankFailures, AreBugsWhereTheRanksIs)
{
  RankFailures failures(names);
  const auto [rank, result] = ended(1, "a vector is too long", Status::Bug);
  failures.ended(rank, result);
  EXPECT_THROW(failures.throw_if_any(), std::logic_error);
}

TEST(RankFailures, AreNoneOfRanksThatAreDone)
{
  EXPECT_EQ(cause_of({ended(0, "", Status::Done), ended(1, "", Status::Done)}), "");
}

TEST(RankFailures, AreTheOneThatTheOthersFollowFromWhateverEndsFirst)
{
  const auto gone = ended(0, "rank 1 (b) is gone");
  const auto silent = ended(1, "", Status::TimedOut);
  EXPECT_EQ(cause_of({gone, killed(1)}), "rank 1 (b): died of signal 9 (Killed)");
  EXPECT_EQ(cause_of({killed(1), gone}), "rank 1 (b): died of signal 9 (Killed)");
  EXPECT_EQ(cause_of({ended(0, closed), killed(1)}), "rank 1 (b): died of signal 9 (Killed)");
  EXPECT_EQ(cause_of({ended(0, closed), ended(2, "rank 1 (b): no sign of life for 10 s"), silent}),
            "rank 1 (b): no sign of life for 10 s");
  EXPECT_EQ(cause_of({ended(0, "rank 0: send: cancelled"), silent}), "rank 0 (a): rank 0: send: cancelled");
  EXPECT_EQ(cause_of({silent}), "rank 1 (b): did not answer");
}

TEST(RankFailures, AreAsWellALinkThatFailedWhileAllAreAlive)
{
  const std::string alive = std::string(closed) + "; all ranks are alive";
  EXPECT_EQ(cause_of({ended(1, "rank 0 (a) failed: " + alive), ended(0, alive)}), "rank 0 (a): " + alive);
}

TEST(RankFailures, SayARanksNameOnce)
{
  EXPECT_EQ(cause_of({ended(1, "rank 1 (b): out of memory")}), "rank 1 (b): out of memory");
}

TEST(RankFailures, OfTheUsersInputsAreSuch)
{
  RankFailures failures(names);
  failures.ended(0, {Status::InputFault, "", "model.yaml: no model"});
  EXPECT_THROW(failures.throw_if_any(), InputError);
}

TEST(RankFailures, KeepWhatTheOthersSayOfARankThatAnswersNoMoreIncludingWhoseFaultItIs)
{
  RankFailures failures(names);
  failures.ended(0, {Status::InputFault, "", "rank 1 (b) failed: step 3: the loss is nan"});
  failures.ended(1, {Status::TimedOut, "", ""});
  EXPECT_THROW(failures.throw_if_any(), InputError);
}

TEST(RankFailures, AreNoneOfRanksThatWereInterrupted)
{
  RankFailures failures(names);
  failures.ended(1, {Status::Interrupted, "", "interrupted"});
  failures.ended(0, {Status::Interrupted, "", "interrupted"});
  EXPECT_THROW(failures.throw_if_any(), Interrupted);
}

TEST(RankLost, IsDeadSilentOrOutOfMemory)
{
  for (const auto* what :
       {" is gone", ": died of signal 9 (Killed)", ": exited with code 1; its last words: abort", ": did not answer",
        ": no sign of life for 10 s", ": out of memory in layer 3 (gpt-block)"}) {
    EXPECT_EQ(rank_lost(names[1] + what, names), 1U) << what;
  }
}

TEST(RankLost, IsNoneThatHasOtherTroubles)
{
  for (const auto* what :
       {": kept/step-00000030/stage-1-of-2.safetensors: cannot write: No space left on device",
        " failed: cannot load NCCL: died of signal 9", ": rank 1: send: connection closed by the peer"}) {
    EXPECT_EQ(rank_lost(names[1] + what, names), std::nullopt) << what;
  }
  EXPECT_EQ(rank_lost("died of signal 9 (Killed)", names), std::nullopt);
}

TEST(NamesOfRanks, AreThoseOfDevicesAndTheDataServer)
{
  Plan plan;
  plan.stages = {{{{"a"}}, 0, 0}, {{{"b\n"}}, 1, 1}};
  plan.data_server = "server";
  EXPECT_EQ(names_of_ranks(plan), (std::vector<std::string>{"rank 0 (a)", "rank 1 (b\\x0a)", "rank 2 (data server)"}));
  EXPECT_EQ(rank_blamed("rank 1 (b\\x0a) is gone", names_of_ranks(plan)), 1U);
  EXPECT_EQ(rank_blamed("rank 1: receive from rank 0", names_of_ranks(plan)), std::nullopt);
}

}  // namespace
}  // namespace isobar::exec
