#include "core/base/child_process.hpp"

#include "core/base/interrupt.hpp"
#include "core/base/standard_streams.hpp"
#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

namespace isobar::child_process_test {
namespace {

using Kind = Failure::Kind;
using testing::ThrowsMessage;

constexpr Seconds ample{60};

void expect_failure(const ChildResult& result, Kind kind, const std::string& text)
{
  ASSERT_TRUE(result.failure);
  EXPECT_EQ(result.failure->kind, kind);
  EXPECT_EQ(result.failure->rank, std::nullopt);
  EXPECT_EQ(result.failure->code, ExitCode::EnvironmentError);
  EXPECT_EQ(result.failure->text, text);
}

TEST(RunInChildren, ReturnsResultsInTheOrderOfTheWork)
{
  std::vector<std::function<std::string()>> work;
  for (int i = 0; i < 20; ++i) work.emplace_back([i] { return std::to_string(i); });
  const auto results = run_in_children(work, 3, ample);
  for (std::size_t i = 0; i < work.size(); ++i) EXPECT_EQ(results[i].output_or_throw(), std::to_string(i));
}

TEST(RunInChildren, LosesOnlyTheResultOfACrashedChild)
{
  const auto results = run_in_children({[] { return std::string("a"); },
                                        []() -> std::string {
                                          std::fputs("first\nlast words\n", stderr);
                                          std::fflush(stderr);
                                          std::abort();
                                        },
                                        []() -> std::string { _exit(3); }, [] { return std::string("b"); }},
                                       2, ample);
  EXPECT_EQ(results[0].output, "a");
  expect_failure(results[1], Kind::Died, "died of signal 6 (Aborted); last line on stderr: last words");
  expect_failure(results[2], Kind::Died, "exited with code 3");
  EXPECT_EQ(results[3].output, "b");
}

TEST(RunInChild, RethrowsExceptionsWithTheirTypes)
{
  const auto input = run_in_child([]() -> std::string { throw InputError("x.yaml:1", "wrong"); }, ample);
  EXPECT_THAT([&] { input.output_or_throw(); }, ThrowsMessage<InputError>("x.yaml:1: wrong"));
  const auto machine = run_in_child([]() -> std::string { throw EnvironmentError("disk full"); }, ample);
  EXPECT_THAT([&] { machine.output_or_throw(); }, ThrowsMessage<EnvironmentError>("disk full"));
  const auto bug = run_in_child([]() -> std::string { throw std::logic_error("ours"); }, ample);
  EXPECT_THAT([&] { bug.output_or_throw(); }, ThrowsMessage<std::logic_error>("ours"));
}

TEST(RunInChild, KeepsAFailureAsItWasThrown)
{
  const Failure thrown = {Kind::PeerClosed, 4, ExitCode::EnvironmentError, "rank 4 (e): closed"};
  const auto result = run_in_child([&]() -> std::string { throw_failure(thrown); }, ample);
  ASSERT_TRUE(result.failure);
  EXPECT_EQ(serialize_failure(*result.failure), serialize_failure(thrown));
}

TEST(RunInChild, CarriesLargeResults)
{
  const auto result = run_in_child([] { return std::string(5'000'000, 'x'); }, ample);
  EXPECT_EQ(result.output_or_throw().size(), 5'000'000u);
}

TEST(RunInChild, KillsAHangingChildAtTheTimeLimit)
{
  const auto result = run_in_child(
      []() -> std::string {
        for (;;) pause();
      },
      Seconds(0.2));
  expect_failure(result, Kind::Silent, "was ended at the time limit of 0.2 s");
  EXPECT_THAT([&] { result.output_or_throw(); },
              ThrowsMessage<EnvironmentError>("a child process was ended at the time limit of 0.2 s"));
}

TEST(RunInChild, KillsAHangingChildWithClosedOutputs)
{
  const auto result = run_command({"sh", "-c", "exec >&- 2>&-; sleep 60"}, "", {Seconds(0.3), "--time-limit"});
  expect_failure(result, Kind::Silent, "was ended at the time limit of 0.3 s (--time-limit)");
}

TEST(RunInChildren, KillsEveryChildOnAnInterrupt)
{
  EXPECT_EXIT(
      {
        catch_interrupts();
        std::thread([] {
          usleep(200'000);
          kill(getpid(), SIGINT);
        }).detach();
        try {
          run_in_children(std::vector<std::function<std::string()>>(2,
                                                                    []() -> std::string {
                                                                      for (;;) pause();
                                                                    }),
                          2, ample);
        } catch (const Interrupted&) {
          std::exit(waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD ? 130 : 1);
        }
      },
      testing::ExitedWithCode(130), "");
}

TEST(RunInChild, DistinguishesOutOfMemoryFromABug)
{
  const auto result = run_in_child([]() -> std::string { throw std::bad_alloc(); }, ample);
  expect_failure(result, Kind::OutOfMemory, "out of memory");
}

TEST(RunInChild, DistinguishesAnInterruptFromABug)
{
  const auto thrown = run_in_child([]() -> std::string { throw Interrupted(); }, ample);
  ASSERT_TRUE(thrown.failure);
  EXPECT_EQ(thrown.failure->code, ExitCode::Interrupted);
  EXPECT_THROW(thrown.output_or_throw(), Interrupted);
  const auto died = run_in_child(
      []() -> std::string {
        std::raise(SIGINT);
        return "";
      },
      ample);
  ASSERT_TRUE(died.failure);
  EXPECT_EQ(died.failure->code, ExitCode::Interrupted);
}

/// Runs work that asks its parent to stop in a supervised child, and exits with the child's failure.
[[noreturn]] void exit_with_supervised_child(const std::function<std::string()>& work)
{
  catch_interrupts();
  const GracefulStop stop;
  const auto result = run_supervised_child(work, stop);
  if (!result.failure) std::exit(static_cast<int>(ExitCode::Done));
  std::fprintf(stderr, "%s", result.failure->text.c_str());
  std::exit(static_cast<int>(result.failure->code));
}

TEST(RunSupervisedChild, PassesTheFirstInterruptOn)
{
  EXPECT_EXIT(exit_with_supervised_child([]() -> std::string {
                kill(getppid(), SIGINT);
                for (;; usleep(10'000)) throw_if_interrupted();
              }),
              testing::ExitedWithCode(static_cast<int>(ExitCode::Interrupted)), "");
}

TEST(RunSupervisedChild, LetsItsWorkStopGracefullyAndReportItsFailure)
{
  EXPECT_EXIT(exit_with_supervised_child([]() -> std::string {
                const GracefulStop stop;
                kill(getppid(), SIGINT);
                while (!stop.requested()) usleep(10'000);
                throw EnvironmentError("the disk is full");
              }),
              testing::ExitedWithCode(static_cast<int>(ExitCode::EnvironmentError)), "^the disk is full$");
}

TEST(RunSupervisedChild, CountsASignalToAllProcessesOfAJobAsOneRequest)
{
  EXPECT_EXIT(exit_with_supervised_child([]() -> std::string {
                constexpr useconds_t longer_than_one_request = 200'000;
                const GracefulStop stop;
                for (const int signal : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) kill(getpid(), signal);
                usleep(longer_than_one_request);
                kill(getppid(), SIGTERM);
                while (!stop.requested()) usleep(10'000);
                usleep(longer_than_one_request);
                throw_if_interrupted();
                throw EnvironmentError("the disk is full");
              }),
              testing::ExitedWithCode(static_cast<int>(ExitCode::EnvironmentError)), "^the disk is full$");
}

TEST(RunCommand, SeparatesStandardErrorFromStandardOutput)
{
  const auto failed = run_command({"/bin/sh", "-c", "echo printed; echo one >&2; echo two >&2; exit 3"}, "", ample);
  EXPECT_EQ(failed.output, "printed\n");
  EXPECT_EQ(failed.errors, "one\ntwo\n");
  EXPECT_EQ(run_command({"/bin/sh", "-c", "echo warning >&2"}, "", ample).errors, "warning\n");
}

TEST(RunCommand, FeedsTheInputAndReturnsTheOutput)
{
  const std::string input(1'000'000, 'y');
  EXPECT_EQ(run_command({"cat"}, input, ample).output_or_throw(), input);
}

TEST(SayHere, ReachesTheStandardErrorOfTheParentFromAChild)
{
  testing::internal::CaptureStderr();
  const auto says = [tell = say_here()]() -> std::string {
    tell("two\tlines\nof a child");
    return "";
  };
  run_in_child(says, ample).output_or_throw();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "isobar: two\\x09lines\nof a child\n");
}

TEST(RunCommand, AcceptsAProgramThatLeavesItsInputUnread)
{
  EXPECT_EQ(run_command({"echo", "done"}, std::string(1'000'000, 'y'), ample).output_or_throw(), "done\n");
}

TEST(RunCommand, DoesNotWaitForProcessesThatAProgramLeavesBehind)
{
  const auto result = run_command({"sh", "-c", "sleep 60 & echo answer"}, "", Seconds(20));
  EXPECT_EQ(result.output_or_throw(), "answer\n");
}

TEST(RunCommand, KillsAProgramWithEndlessOutput)
{
  const auto result = run_command({"yes"}, "", ample);
  expect_failure(result, Kind::Died, "answered more than 256 MiB");
}

TEST(RunCommand, ShowsTheLastErrorLineWithoutControlCharacters)
{
  const auto result = run_command({"sh", "-c", "printf 'red \\033[31m' >&2; exit 1"}, "", ample);
  expect_failure(result, Kind::Died, "exited with code 1; last line on stderr: red \\x1b[31m");
}

TEST(RunCommand, ReportsHowAProgramFailed)
{
  const auto result = run_command({"sh", "-c", "echo no such allocator >&2; exit 9"}, "", ample);
  expect_failure(result, Kind::Died, "exited with code 9; last line on stderr: no such allocator");
}

TEST(RunCommand, RefusesAMissingProgram)
{
  EXPECT_THAT([] { run_command({"./no_such_program"}, "", ample); },
              ThrowsMessage<EnvironmentError>("./no_such_program: cannot start: No such file or directory"));
}

}  // namespace
}  // namespace isobar::child_process_test
