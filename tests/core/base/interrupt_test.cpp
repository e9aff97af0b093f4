#include "core/base/interrupt.hpp"

#include "core/base/child_process.hpp"
#include "core/errors.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <string>

namespace isobar::interrupt_test {
namespace {

constexpr int stopping_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

/// What `work` returns in a process of its own, since a request stays with its process.
std::string in_a_process(const std::function<std::string()>& work)
{
  return run_in_child(work, Seconds(60)).output_or_throw();
}

TEST(CatchInterrupts, TakesEverySignalThatEndsAJobAsARequestToStop)
{
  for (const int signal : stopping_signals) {
    const auto before_and_after = in_a_process([signal] {
      catch_interrupts();
      std::string states = interrupted() ? "stop" : "go on";
      std::raise(signal);
      return states + (interrupted() ? ", stop" : ", go on");
    });
    EXPECT_EQ(before_and_after, "go on, stop") << signal;
  }
}

TEST(CatchInterrupts, LeavesIgnoredWhatTheCallerIgnores)
{
  for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2}) {
    const auto state = in_a_process([signal]() -> std::string {
      std::signal(signal, SIG_IGN);
      catch_interrupts();
      std::raise(signal);
      return interrupted() ? "stop" : "go on";
    });
    EXPECT_EQ(state, "go on") << signal;
  }
}

TEST(GracefulStop, LetsWorkFinishAfterTheFirstOfAnySignal)
{
  for (const int signal : stopping_signals) {
    const auto state = in_a_process([signal]() -> std::string {
      catch_interrupts();
      const GracefulStop stop;
      std::raise(signal);
      throw_if_interrupted();
      return stop.requested() ? "requested" : "not requested";
    });
    EXPECT_EQ(state, "requested") << signal;
  }
}

}  // namespace
}  // namespace isobar::interrupt_test
