#include "exec/watch/supervisor.hpp"

#include "core/base/clock.hpp"
#include "core/base/interrupt.hpp"
#include "tests/exec/links/tcp_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace isobar::exec::supervisor_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// A supervision that records its reports.
class Recorded {
 public:
  explicit Recorded(std::uint64_t restarts)
  {
    supervision.restarts = restarts;
    supervision.resume_point = [] { return std::string("step 12"); };
    supervision.report = [this](const std::string& line) { lines.push_back(line); };
    supervision.pause = Seconds(0.01);
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

  Supervision supervision;
  std::vector<std::string> lines;
};

ExitCode fail(const std::string& why)
{
  throw EnvironmentError(why);
}

TEST(Supervisor, RunsASuccessfulAttemptOnce)
{
  Recorded run(3);
  EXPECT_EQ(supervise([](std::uint64_t) { return ExitCode::Done; }, run.supervision), ExitCode::Done);
  EXPECT_EQ(supervise([](std::uint64_t) { return ExitCode::Infeasible; }, run.supervision), ExitCode::Infeasible);
  EXPECT_THAT(run.lines, IsEmpty());
}

TEST(Supervisor, RepeatsAnAttemptThatFailedOrDied)
{
  Recorded run(3);
  const auto attempt = [](std::uint64_t failed) {
    if (failed == 0) return fail("rank 1 (b) is gone");
    if (failed == 1) std::raise(SIGKILL);
    return ExitCode::Done;
  };
  EXPECT_EQ(supervise(attempt, run.supervision), ExitCode::Done);
  EXPECT_THAT(run.lines, ElementsAre("attempt 1 of 4 failed: rank 1 (b) is gone; continuing from step 12",
                                     "attempt 2 of 4 failed: died of signal 9 (Killed); continuing from step 12"));
}

TEST(Supervisor, GivesUpAfterTheLastRestart)
{
  Recorded run(2);
  try {
    supervise([](std::uint64_t failed) { return fail("failure " + std::to_string(failed)); }, run.supervision);
    FAIL();
  } catch (const AttemptsFailed& error) {
    EXPECT_EQ(error.failure().text, "failure 2");
  }
  EXPECT_EQ(run.lines.size(), 2U);
}

TEST(Supervisor, WaitsTwiceAsLongBeforeEachFurtherAttempt)
{
  Recorded run(3);
  run.supervision.pause = Seconds(0.2);
  const auto begin = Clock::now();
  EXPECT_THROW(supervise([](std::uint64_t) { return fail("no port is free"); }, run.supervision), AttemptsFailed);
  EXPECT_GE(time_since(begin), Seconds(0.2 + 0.4 + 0.8));
}

TEST(Supervisor, DoesNotRepeatInputErrorsAndBugs)
{
  Recorded run(5);
  const auto attempt = [&](const auto& error) {
    supervise([&](std::uint64_t) -> ExitCode { throw error; }, run.supervision);
  };
  EXPECT_THROW(attempt(InputError("--seed", "is no number")), InputError);
  EXPECT_THROW(attempt(std::logic_error("a bug")), std::logic_error);
  EXPECT_THAT(run.lines, IsEmpty());
}

TEST(Supervisor, DoesNotRepeatAnInterruptedAttempt)
{
  Recorded run(5);
  const auto attempt = [](std::uint64_t) -> ExitCode { throw Interrupted(); };
  EXPECT_THROW(supervise(attempt, run.supervision), Interrupted);
  EXPECT_THAT(run.lines, IsEmpty());
}

TEST(Supervisor, LetsTheAttemptFinishWhenItIsAskedToStop)
{
  EXPECT_EXIT(
      {
        catch_interrupts();
        Recorded run(5);
        const auto attempt = [](std::uint64_t) {
          const GracefulStop stop;
          kill(getppid(), SIGINT);
          while (!stop.requested()) usleep(10'000);
          usleep(300'000);  // as if it wrote a last checkpoint
          return ExitCode::Interrupted;
        };
        std::exit(static_cast<int>(supervise(attempt, run.supervision)));
      },
      testing::ExitedWithCode(130), "");
}

TEST(Supervisor, EndsTheAttemptWhenItIsAskedTwice)
{
  EXPECT_EXIT(
      {
        catch_interrupts();
        Recorded run(5);
        const auto attempt = [](std::uint64_t) -> ExitCode {
          const GracefulStop stop;
          kill(getppid(), SIGINT);
          while (!stop.requested()) usleep(10'000);
          usleep(200'000);  // two signals that come together are one request
          kill(getppid(), SIGTERM);
          for (;;) ::pause();
        };
        try {
          supervise(attempt, run.supervision);
        } catch (const Interrupted&) {
          std::exit(waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD ? 130 : 1);
        }
      },
      testing::ExitedWithCode(130), "");
}

/// For a process that is interrupted while an attempt runs `work`: exits with 100 when the attempt fails.
[[noreturn]] void supervise_and_exit(Recorded& run, const std::function<ExitCode(std::uint64_t)>& work)
{
  constexpr int with_error = 100;
  try {
    std::exit(static_cast<int>(supervise(work, run.supervision)));
  } catch (const Interrupted&) {
    std::exit(static_cast<int>(ExitCode::Interrupted));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s after %zu", error.what(), run.lines.size());
    std::exit(with_error);
  }
}

TEST(Supervisor, EndsAnAttemptAtOnceBeforeItTrains)
{
  EXPECT_EXIT(
      {
        catch_interrupts();
        Recorded run(5);
        supervise_and_exit(run, [](std::uint64_t) -> ExitCode {
          kill(getppid(), SIGINT);
          for (int look = 0; look < 1000; ++look) {
            throw_if_interrupted();  // as if it waited for the other ranks
            usleep(10'000);
          }
          return ExitCode::Done;
        });
      },
      testing::ExitedWithCode(130), "");
}

TEST(Supervisor, EndsAtOnceBetweenTwoAttempts)
{
  EXPECT_EXIT(
      {
        catch_interrupts();
        Recorded run(5);
        run.supervision.pause = plenty;
        run.supervision.report = [](const std::string&) { kill(getpid(), SIGINT); };
        supervise_and_exit(run, [](std::uint64_t) { return fail("rank 1 (b) is gone"); });
      },
      testing::ExitedWithCode(130), "");
}

TEST(Supervisor, ReportsTheFailureOfTheLastAttemptAfterAnInterrupt)
{
  EXPECT_EXIT(
      {
        catch_interrupts();
        Recorded run(5);
        supervise_and_exit(run, [](std::uint64_t) {
          const GracefulStop stop;
          kill(getppid(), SIGINT);
          while (!stop.requested()) usleep(10'000);
          return fail("the disk is full");
        });
      },
      testing::ExitedWithCode(100), "^the disk is full after 0$");
}

}  // namespace
}  // namespace isobar::exec::supervisor_test
