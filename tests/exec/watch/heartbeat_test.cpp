#include "exec/watch/heartbeat.hpp"

#include "core/base/child_process.hpp"
#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "core/errors.hpp"
#include "tests/exec/links/tcp_ranks.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace isobar::exec::heartbeat_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

const std::vector<std::string> names = {"rank 0 (a)", "rank 1 (b)", "rank 2 (c)"};

/// Three ranks with links for their heartbeats, and a ring for data.
class Group : public Ranks {
 public:
  Group() : Ranks(3)
  {
    links = Heartbeat::links(3);
    for (std::size_t rank = 0; rank < 3; ++rank) links.push_back(data_link(rank));
  }

  static LinkName data_link(std::size_t from) { return {from, (from + 1) % 3, 0}; }
  /// Receives what the previous rank sends.
  static void receive_data(TcpWorld& world, std::size_t rank, const Deadline& deadline = plenty)
  {
    receive(world.link(data_link((rank + 2) % 3)), deadline);
  }
};

TimeLimits limits_with(Seconds heartbeat)
{
  return time_limits(Seconds(1), plenty, heartbeat);
}

struct WithProgress {
  Progress progress;
};
/// A rank's heartbeat with its progress.
class HeartbeatOfRank : public WithProgress, public Heartbeat {
 public:
  HeartbeatOfRank(TcpWorld& world, std::size_t rank, const std::vector<std::string>& names_of_all,
                  const TimeLimits& limits, OnHeartbeat on_heartbeat = {}, Listener* listener = nullptr)
      : WithProgress{Progress([&world] { return world.moves(); })},
        Heartbeat(world, rank, names_of_all, limits, progress, std::move(on_heartbeat), listener)
  {
  }

  /// A deadline that passes once no rank has been at work for `limit`.
  Deadline unless_at_work(Seconds limit) const
  {
    return {limit, [this] { return idle(); }};
  }
};

/// What the ranks throw when `culprit` runs `fail` and the others wait for data.
std::vector<std::string> errors_when(std::size_t culprit, Seconds limit,
                                     const std::function<void(TcpWorld&, Heartbeat&)>& fail)
{
  Group ranks;
  return ranks.errors([&](TcpWorld& world, std::size_t rank) {
    HeartbeatOfRank heartbeat(world, rank, names, limits_with(limit));
    if (rank == culprit) return fail(world, heartbeat);
    heartbeat.guard([&] { Group::receive_data(world, rank); });
  });
}

void expect_of_others(const std::vector<std::string>& errors, std::size_t culprit, const std::string& error)
{
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (rank == culprit) continue;
    EXPECT_EQ(errors[rank], error) << "rank " << rank;
  }
}

TEST(Heartbeat, LosesNoRankWhileAllAreAlive)
{
  Group ranks;
  ranks.run([](TcpWorld& world, std::size_t rank) {
    HeartbeatOfRank heartbeat(world, rank, names, limits_with(Seconds(2)));
    heartbeat.guard([&] {
      pause(3);  // longer than the limit
      send(world.link(Group::data_link(rank)), "3", Data(3));
      Group::receive_data(world, rank);
      pause(0.2 * static_cast<double>(rank));  // they leave one after another
    });
    EXPECT_FALSE(heartbeat.lost());
  });
}

TEST(Heartbeat, OfOneRankNeedsNoLinks)
{
  Ranks ranks(1);
  ranks.run([](TcpWorld& world, std::size_t rank) {
    HeartbeatOfRank heartbeat(world, rank, {"rank 0 (a)"}, limits_with(Seconds(1)));
    heartbeat.guard([] {});
    EXPECT_FALSE(heartbeat.lost(little));
    EXPECT_TRUE(Heartbeat::links(1).empty());
  });
}

class AnyRank : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Heartbeat, AnyRank, testing::Values(0, 1, 2));

TEST_P(AnyRank, ThatFailsIsNamedByAllWithItsReason)
{
  const std::size_t culprit = GetParam();
  const auto errors = errors_when(culprit, Seconds(20), [](TcpWorld& world, Heartbeat& heartbeat) {
    heartbeat.guard([&] {
      world.cancel();  // as an executor does when one of its lanes has failed
      throw EnvironmentError("the disk is full");
    });
  });
  EXPECT_EQ(errors[culprit], "the disk is full");
  expect_of_others(errors, culprit, names[culprit] + " failed: the disk is full");
}

TEST_P(AnyRank, ThatFailsIsNamedWhileItsOtherThreadsAreBusy)
{
  const std::size_t culprit = GetParam();
  const auto errors = errors_when(culprit, Seconds(4), [](TcpWorld& world, Heartbeat& heartbeat) {
    heartbeat.guard([&] {
      const auto failure = std::make_exception_ptr(EnvironmentError("the disk is full"));
      heartbeat.failed(failure);
      world.cancel();
      pause(3);  // longer than the others take to report that all are alive
      std::rethrow_exception(failure);
    });
  });
  EXPECT_EQ(errors[culprit], "the disk is full");
  expect_of_others(errors, culprit, names[culprit] + " failed: the disk is full");
}

TEST_P(AnyRank, ThatIsGoneIsNamedWhenTheFailureIsReportedTwice)
{
  const std::size_t culprit = GetParam();
  Group ranks;
  const auto errors = ranks.errors([&](TcpWorld& world, std::size_t rank) {
    if (rank == culprit) return;
    HeartbeatOfRank heartbeat(world, rank, names, limits_with(Seconds(20)));
    heartbeat.guard([&] {
      try {
        Group::receive_data(world, rank);
      } catch (const EnvironmentError&) {
        heartbeat.failed(std::current_exception());
        throw;
      }
    });
  });
  expect_of_others(errors, culprit, names[culprit] + " is gone");
}

/// Exit codes of the ranks when one of them throws `error`.
template <typename Error>
std::vector<ExitCode> codes_when(const Error& error)
{
  Group ranks;
  std::vector<ExitCode> codes(3, ExitCode::Done);
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    HeartbeatOfRank heartbeat(world, rank, names, limits_with(Seconds(20)));
    const auto work = [&] {
      if (rank == 1) throw error;
      Group::receive_data(world, rank);
    };
    try {
      heartbeat.guard(work);
    } catch (const EnvironmentError&) {
      codes[rank] = ExitCode::EnvironmentError;
    } catch (const InputError&) {
      codes[rank] = ExitCode::InputError;
    } catch (const Interrupted&) {
      codes[rank] = ExitCode::Interrupted;
    } catch (const std::logic_error&) {
      codes[rank] = ExitCode::OurBug;
    }
  });
  return codes;
}

TEST(Heartbeat, EndsAllRanksWithTheExitCodeOfTheOneThatFailed)
{
  EXPECT_THAT(codes_when(InputError("step 3", "the loss is nan")), Each(ExitCode::InputError));
  EXPECT_THAT(codes_when(EnvironmentError("the disk is full")), Each(ExitCode::EnvironmentError));
  EXPECT_THAT(codes_when(Interrupted()), Each(ExitCode::Interrupted));
  EXPECT_THAT(codes_when(std::logic_error("a bug")), Each(ExitCode::OurBug));
}

TEST(Heartbeat, ReportsAnInterruptedProcessToTheOthers)
{
  Group ranks;
  std::vector<std::function<std::string()>> work;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    work.emplace_back([&ranks, rank] {
      catch_interrupts();
      auto world = ranks.world(rank);
      HeartbeatOfRank heartbeat(world, rank, names, limits_with(Seconds(20)));
      heartbeat.guard([&] {
        if (rank == 1) std::raise(SIGINT);
        Group::receive_data(world, rank);
      });
      return "";
    });
  }
  for (const auto& result : run_in_children(work, 3, plenty)) {
    ASSERT_TRUE(result.failure);
    EXPECT_EQ(result.failure->code, ExitCode::Interrupted) << result.failure->text;
  }
}

TEST_P(AnyRank, WhoseConnectionsCloseIsGone)
{
  const std::size_t culprit = GetParam();
  Group ranks;
  const auto errors = ranks.errors([&](TcpWorld& world, std::size_t rank) {
    if (rank == culprit) return;  // like a killed process: the system closes its connections
    HeartbeatOfRank heartbeat(world, rank, names, limits_with(Seconds(20)));
    heartbeat.guard([&] { Group::receive_data(world, rank); });
  });
  expect_of_others(errors, culprit, names[culprit] + " is gone");
}

TEST_P(AnyRank, ThatIsSilentIsDead)
{
  const std::size_t culprit = GetParam();
  Group ranks;
  const auto errors = ranks.errors([&](TcpWorld& world, std::size_t rank) {
    if (rank == culprit) return pause(6);  // like a suspended process: its connections stay open
    HeartbeatOfRank heartbeat(world, rank, names, limits_with(Seconds(2)));
    heartbeat.guard([&] { Group::receive_data(world, rank); });
  });
  expect_of_others(errors, culprit, names[culprit] + ": no heartbeat for 2 s (--heartbeat)");
}

TEST(Heartbeat, DistinguishesALateRankFromADeadOne)
{
  const auto errors = errors_when(1, Seconds(20), [](TcpWorld& world, Heartbeat& heartbeat) {
    heartbeat.guard([&] { Group::receive_data(world, 1, little); });
  });
  EXPECT_THAT(errors[1], AllOf(StartsWith("rank 1: receive from rank 0 (channel 0): no message after 0."),
                               EndsWith("deadline passed; all ranks are alive")));
  expect_of_others(errors, 1, "rank 1 (b) failed: " + errors[1]);
}

/// Heartbeats much shorter than the waits of these tests, and a timeout much longer.
TimeLimits limits_of_waits()
{
  TimeLimits limits = limits_with(Seconds(20));
  limits.heartbeat_interval = Seconds(0.2);
  return limits;
}

Instruction backward(std::uint64_t microbatch)
{
  Instruction instruction;
  instruction.opcode = Opcode::Backward;
  instruction.microbatch = microbatch;
  return instruction;
}

TEST(Heartbeat, ExtendsAWaitWhileAThirdRankIsAtWork)
{
  constexpr Seconds limit(4);
  Group ranks;
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    HeartbeatOfRank heartbeat(world, rank, names, limits_of_waits());
    heartbeat.guard([&] {
      if (rank == 2) {
        const Progress::Work work(&heartbeat.progress, 0, backward(0));
        pause(2.5 * limit.value);
      } else {
        Group::receive_data(world, rank, heartbeat.unless_at_work(limit));
      }
      if (rank != 1) send(world.link(Group::data_link(rank)), "3", Data(3));
    });
    EXPECT_FALSE(heartbeat.lost());
  });
}

TEST(Heartbeat, DoesNotExtendAWaitForRanksThatWait)
{
  Group ranks;
  const auto errors = ranks.errors([&](TcpWorld& world, std::size_t rank) {
    HeartbeatOfRank heartbeat(world, rank, names, limits_of_waits());
    heartbeat.guard(
        [&] { Group::receive_data(world, rank, rank == 1 ? heartbeat.unless_at_work(Seconds(1)) : plenty); });
  });
  EXPECT_THAT(errors[1], AllOf(StartsWith("rank 1: receive from rank 0 (channel 0): no message after "),
                               EndsWith("deadline passed; all ranks are alive")));
}

TEST(Heartbeat, NamesOnRankZeroTheRankWithTheLongestWork)
{
  Group ranks;
  std::atomic<bool> is_seen = false;
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    const auto look = [&](const std::string& longest) {
      if (longest.starts_with("rank 2 (c): Backward 3 of step 7 for ")) is_seen = true;
    };
    HeartbeatOfRank heartbeat(world, rank, names, limits_of_waits(), rank == 0 ? look : Heartbeat::OnHeartbeat());
    const Progress::Work work(rank == 2 ? &heartbeat.progress : nullptr, 7, backward(3));
    heartbeat.guard([&] {
      while (!is_seen) pause(0.01);
    });
  });
}

TEST(Heartbeat, DistinguishesACutConnectionFromARankThatIsGone)
{
  Group ranks;
  const auto errors = ranks.errors([&](TcpWorld& world, std::size_t rank) {
    HeartbeatOfRank heartbeat(world, rank, names, limits_with(Seconds(20)));
    heartbeat.guard([&] {
      if (rank == 0) {
        auto* link = &world.link(Group::data_link(2));
        TcpLink::cancel(std::span(&link, 1));
        heartbeat.lost(plenty);
        throw_failure(environment_failure(Failure::Kind::Cancelled, "rank 0: cancelled"));
      }
      if (rank == 1) Group::receive_data(world, rank);
      if (rank == 2) {
        const Data much(std::size_t{64} << 20);
        while (true) send(world.link(Group::data_link(2)), "67108864", much);
      }
    });
  });
  EXPECT_THAT(errors[2], AllOf(StartsWith("rank 2: send to rank 0 (channel 0): "),
                               HasSubstr("connection closed by the peer; all ranks are alive")));
  EXPECT_EQ(errors[0], "rank 2 (c) failed: " + errors[2]);
  EXPECT_EQ(errors[1], "rank 2 (c) failed: " + errors[2]);
}

TEST(Heartbeat, RefusesMalformedMessages)
{
  for (const std::string message :
       {"lost 0 3 3 nobody", "lost 0 -1 3 somebody", "lost 0 1 3", "lost x", "lost 1", "lost ", "GET / HTTP/1.1", "",
        "beat", "beat ", "beat 1", "beat [0, 0]", "beat [0, 0, 1]", "beat [null, 0, \"\"]"}) {
    Group ranks;
    const auto errors = ranks.errors([&](TcpWorld& world, std::size_t rank) {
      if (rank == 1) {
        send(world.link({1, 0, TcpWorld::lasting_channel}), message, {});
        return pause(1);
      }
      HeartbeatOfRank heartbeat(world, rank, names, limits_with(Seconds(20)));
      heartbeat.guard([&] { Group::receive_data(world, rank); });
    });
    expect_of_others(errors, 1, "rank 1 (b) sent a malformed heartbeat");
  }
}

TEST(Heartbeat, NamesTheRankThatReportsALivingOneAsLost)
{
  Group ranks;
  const auto errors = ranks.errors([&](TcpWorld& world, std::size_t rank) {
    if (rank == 1) {
      send(world.link({1, 0, TcpWorld::lasting_channel}), "lost 4 0 3 rank 0 (a) is gone", {});
      return pause(1);
    }
    HeartbeatOfRank heartbeat(world, rank, names, limits_with(Seconds(20)));
    heartbeat.guard([&] { Group::receive_data(world, rank); });
  });
  expect_of_others(errors, 1, "rank 1 (b) reported this rank as lost: rank 0 (a) is gone");
}

/// Keeps the messages that it receives, and refuses "nonsense".
class Keeper : public Heartbeat::Listener {
 public:
  bool receive(std::string_view message) override
  {
    const std::lock_guard lock(mutex_);
    messages_.emplace_back(message);
    changed_.notify_all();
    return message != "nonsense";
  }
  void cancel() noexcept override
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    changed_.notify_all();
  }

  /// The first `count` messages, once they have arrived.
  std::vector<std::string> messages(std::size_t count)
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [&] { return messages_.size() >= count || cancelled_; });
    return messages_;
  }
  bool is_cancelled()
  {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return cancelled_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> messages_;
  bool cancelled_ = false;
};

TEST(Heartbeat, SendsMessagesBetweenRankZeroAndTheOthersInTheirOrder)
{
  Group ranks;
  std::vector<Keeper> keepers(3);
  ranks.run([&](TcpWorld& world, std::size_t rank) {
    TimeLimits limits = limits_with(Seconds(50));  // heartbeats 10 s apart
    HeartbeatOfRank heartbeat(world, rank, names, limits, {}, &keepers[rank]);
    const auto begin = Clock::now();
    heartbeat.guard([&] {
      if (rank == 0) {
        for (int i = 0; i < 100; ++i) heartbeat.send(fmt::format("message {}", i));
        EXPECT_THAT(keepers[0].messages(2), testing::UnorderedElementsAre("from 1", "from 2"));
        return;
      }
      heartbeat.send(fmt::format("from {}", rank));
      const auto messages = keepers[rank].messages(100);
      ASSERT_EQ(messages.size(), 100U);
      for (std::size_t i = 0; i < messages.size(); ++i) EXPECT_EQ(messages[i], fmt::format("message {}", i));
    });
    EXPECT_LT(time_since(begin), Seconds(9)) << "messages do not wait for the next heartbeat";
  });
}

TEST(Heartbeat, SendsTheLastMessagesBeforeItLeaves)
{
  for (int repetition = 0; repetition < 10; ++repetition) {
    Group ranks;
    std::vector<Keeper> keepers(3);
    ranks.run([&](TcpWorld& world, std::size_t rank) {
      HeartbeatOfRank heartbeat(world, rank, names, limits_with(Seconds(20)), {}, &keepers[rank]);
      heartbeat.guard([&] {
        if (rank == 0) {
          heartbeat.send("farewell");
        } else {
          EXPECT_THAT(keepers[rank].messages(1), testing::ElementsAre("farewell"));
        }
      });
    });
  }
}

TEST(Heartbeat, LosesARankThatSendsWhatNoRankSends)
{
  Group ranks;
  std::vector<Keeper> keepers(3);
  const auto errors = ranks.errors([&](TcpWorld& world, std::size_t rank) {
    HeartbeatOfRank heartbeat(world, rank, names, limits_with(Seconds(20)), {}, &keepers[rank]);
    heartbeat.guard([&] {
      if (rank == 1) heartbeat.send("nonsense");
      Group::receive_data(world, rank);
    });
  });
  expect_of_others(errors, 1, "rank 1 (b) sent a malformed heartbeat");
}

TEST_P(AnyRank, ThatIsLostCancelsTheListenersOfTheOthers)
{
  const std::size_t culprit = GetParam();
  Group ranks;
  std::vector<Keeper> keepers(3);
  ranks.errors([&](TcpWorld& world, std::size_t rank) {
    if (rank == culprit) return;  // its connections close
    HeartbeatOfRank heartbeat(world, rank, names, limits_with(Seconds(20)), {}, &keepers[rank]);
    EXPECT_TRUE(keepers[rank].is_cancelled());
  });
}

TEST(Heartbeat, ShowsFailuresOfOtherRanksOnOneLine)
{
  const auto errors = errors_when(2, Seconds(20), [](TcpWorld&, Heartbeat& heartbeat) {
    heartbeat.guard([] { throw EnvironmentError("two\nlines"); });
  });
  expect_of_others(errors, 2, "rank 2 (c) failed: two\\x0alines");
}

}  // namespace
}  // namespace isobar::exec::heartbeat_test
