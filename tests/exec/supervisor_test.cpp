#include "exec/supervisor.hpp"

#include "core/interrupt.hpp"
#include "tests/exec/tcp_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace isobar::exec {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// A supervision that keeps what it is told.
class Told {
 public:
  explicit Told(std::uint64_t restarts)
  {
    supervision.restarts = restarts;
    supervision.resume_point = [] { return std::string("step 12"); };
    supervision.say = [this](const std::string& line) { lines.push_back(line); };
  }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;

  Supervision supervision;
  std::vector<std::string> lines;
};

ExitCode fail(const std::string& why)
{
  throw EnvironmentError(why);
}

TEST(Supervisor, RunsWhatSucceedsOnce)
{
  Told told(3);
  EXPECT_EQ(supervise([](std::uint64_t) { return ExitCode::Done; }, told.supervision), ExitCode::Done);
  EXPECT_EQ(supervise([](std::uint64_t) { return ExitCode::Infeasible; }, told.supervision), ExitCode::Infeasible);
  EXPECT_THAT(told.lines, IsEmpty());
}

TEST(Supervisor, StartsAgainWhatFailedOrDied)
{
  Told told(3);
  const auto attempt = [](std::uint64_t failed) {
    if (failed == 0) return fail("rank 1 (b) is gone");
    if (failed == 1) std::raise(SIGKILL);
    return ExitCode::Done;
  };
  EXPECT_EQ(supervise(attempt, told.supervision), ExitCode::Done);
  EXPECT_THAT(told.lines, ElementsAre("attempt 1 of 4 failed: rank 1 (b) is gone; going on from step 12",
                                      "attempt 2 of 4 failed: died of signal 9 (Killed); going on from step 12"));
}

TEST(Supervisor, GivesUpAfterTheLastRestart)
{
  Told told(2);
  try {
    supervise([](std::uint64_t failed) { return fail("failure " + std::to_string(failed)); }, told.supervision);
    FAIL();
  } catch (const AttemptsFailed& error) {
    EXPECT_STREQ(error.what(), "failure 2");
  }
  EXPECT_EQ(told.lines.size(), 2U);
}

TEST(Supervisor, RepeatsNothingThatWouldEndTheSameWay)
{
  Told told(5);
  const auto attempt = [&](const auto& error) {
    supervise([&](std::uint64_t) -> ExitCode { throw error; }, told.supervision);
  };
  EXPECT_THROW(attempt(InputError("--seed", "is no number")), InputError);
  EXPECT_THROW(attempt(std::logic_error("a bug")), std::logic_error);
  const std::string not_finite = std::string("the loss of step 3 is nan; ") + would_fail_again;
  EXPECT_EQ(error_of([&] { attempt(EnvironmentError(not_finite)); }), not_finite);
  EXPECT_THAT(told.lines, IsEmpty());
}

TEST(Supervisor, EndsWithAnAttemptThatWasInterrupted)
{
  Told told(5);
  const auto attempt = [](std::uint64_t) {
    std::raise(SIGTERM);
    throw_if_interrupted();
    return ExitCode::Done;
  };
  EXPECT_THROW(supervise(attempt, told.supervision), Interrupted);
  EXPECT_THAT(told.lines, IsEmpty());
}

TEST(Supervisor, AsksTheAttemptToStopAndWaitsForIt)
{
  EXPECT_EXIT(
      {
        catch_interrupts();
        Told told(5);
        int stopped[2];
        if (pipe(stopped) != 0) std::exit(1);
        try {
          supervise(
              [&](std::uint64_t) {
                kill(getppid(), SIGINT);
                while (!interrupted()) usleep(10'000);
                usleep(300'000);  // as one that writes a last checkpoint
                return write(stopped[1], "!", 1) == 1 ? ExitCode::Done : ExitCode::OurBug;
              },
              told.supervision);
        } catch (const Interrupted&) {
          char mark = 0;
          std::exit(told.lines.empty() && read(stopped[0], &mark, 1) == 1 ? 130 : 2);
        }
      },
      testing::ExitedWithCode(130), "");
}

}  // namespace
}  // namespace isobar::exec
