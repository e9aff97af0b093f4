#include "exec/watch/lateness.hpp"

#include "tests/exec/links/tcp_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace isobar::exec::lateness_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::MatchesRegex;

constexpr Seconds tiny(1e-6);
constexpr Seconds long_time(1e6);

struct Reports {
  Lateness::Report report()
  {
    return [this](const std::string& line) { lines.push_back(line); };
  }
  std::vector<std::string> lines;
};

void play_step(Lateness& lateness, std::uint64_t step, double length = 0.6)
{
  lateness.step_begins(step);
  pause(length);
  lateness.step_ends();
}

TEST(Lateness, IsReportedOnceForTheMeanOfTheStepsAfterTheFirst)
{
  Reports reports;
  Lateness lateness(tiny, long_time, reports.report());
  play_step(lateness, 4, 1.1);
  EXPECT_THAT(reports.lines, IsEmpty());
  for (std::uint64_t step = 5; step < 9; ++step) play_step(lateness, step);
  EXPECT_THAT(reports.lines,
              ElementsAre(MatchesRegex("(the second step|each of 2 steps after the first) took [0-9.]+ s, "
                                       "[0-9]+ times the 1e-06 s that the plan predicts")));
}

TEST(Lateness, IsReportedForTheStepUnderWayWithTheRankAtWork)
{
  Reports reports;
  Lateness lateness(tiny, Seconds(0), reports.report());
  lateness.look("rank 1 (b): Forward 0 of step 0 for 3 s");  // no step has begun
  EXPECT_THAT(reports.lines, IsEmpty());
  lateness.step_begins(0);
  pause(0.01);
  lateness.look("rank 1 (b): Forward 0 of step 0 for 3 s");
  lateness.look("");
  EXPECT_THAT(reports.lines,
              ElementsAre(MatchesRegex(
                  "step 0, still under way, took [0-9.]+ s, [0-9]+ times the 1e-06 s that the plan predicts; "
                  "rank 1 \\(b\\): Forward 0 of step 0 for 3 s")));
}

TEST(Lateness, IsNotReportedWithinItsPatienceNorInTimeNorWithoutAPrediction)
{
  Reports reports;
  Lateness patient(tiny, long_time, reports.report());
  patient.step_begins(0);
  pause(0.01);
  patient.look("");
  for (const Seconds predicted : {long_time, Seconds(0)}) {
    Lateness lateness(predicted, Seconds(0), reports.report());
    play_step(lateness, 0);
    play_step(lateness, 1, 1.1);
    lateness.step_begins(2);
    lateness.look("");
  }
  EXPECT_THAT(reports.lines, IsEmpty());
}

}  // namespace
}  // namespace isobar::exec::lateness_test
