#include "sim/scan/profile.hpp"

#include "core/errors.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace isobar::sim::profile_test {
namespace {

std::string message_of(const std::string& text, double periodicity = 0)
{
  try {
    scan_profile(text, "p", 1, periodicity);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no fault";
}

TEST(ScanProfile, FindsTheLowestAndTheHighestValue)
{
  const auto range = scan_profile("# load\n% more\n\n0.0 1.0\n 4.5\t0.25 \r\n9 3e0\n", "p");
  EXPECT_EQ(range.lowest, 0.25);
  EXPECT_EQ(range.highest, 3);
}

TEST(ScanProfile, BoundsUniformDistributionsOnly)
{
  const auto uniform = scan_profile("STOCHASTIC\nDET 0 UNIF 0.5 2\n", "p");
  EXPECT_EQ(uniform.lowest, 0.5);
  EXPECT_EQ(uniform.highest, 2);
  const auto normal = scan_profile("STOCHASTIC LOOP\nEXP 3 NORM 1 0.1\n", "p");
  EXPECT_EQ(normal.lowest, 0);
  EXPECT_TRUE(std::isinf(normal.highest));
}

TEST(ScanProfile, AcceptsAnEmptyProfile)
{
  EXPECT_EQ(scan_profile("# nothing\n", "p").highest, 0);
}

TEST(ScanProfile, ReportsTheLineOfAFault)
{
  EXPECT_EQ(message_of("0 1\n1\n"), "p:2: no value; a line is a date and a value, such as \"10.0 0.5\"");
  EXPECT_EQ(message_of("0 1\n1 fast\n"), "p:2: \"fast\" is not a non-negative number");
  EXPECT_EQ(message_of("0 -1\n"), "p:1: \"-1\" is not a non-negative number");
  EXPECT_EQ(message_of("0 nan\n"), "p:1: \"nan\" is not a non-negative number");
  EXPECT_EQ(message_of("0 1\n5 1\n4 1\n"), "p:3: date 4 comes after date 5; dates must ascend from 0");
  EXPECT_EQ(message_of("PERIODICITY\n"), "p:1: PERIODICITY needs one number of seconds");
  EXPECT_EQ(message_of("STOCHASTIC ONCE\n"), "p:1: only LOOP may follow STOCHASTIC");
  EXPECT_EQ(message_of("STOCHASTIC\n1 2\n"),
            "p:2: its date needs a distribution in a STOCHASTIC profile: DET, NORM, UNIF or EXP");
}

TEST(ScanProfile, RefusesLoopsForWhichSimGridAbortsOrNeverEnds)
{
  EXPECT_EQ(message_of("LOOPAFTER 0\n0 1"), "p:2: repeats every 0 s");
  EXPECT_EQ(message_of("PERIODICITY 3\n0 1\n5 2"), "p:3: PERIODICITY 3 is less than the last date, 5");
  EXPECT_EQ(message_of("PERIODICITY 9\nLOOPAFTER 1\n0 1"), "p:3: PERIODICITY and LOOPAFTER cannot be combined");
  EXPECT_EQ(message_of("PERIODICITY 9\nSTOCHASTIC\nDET 0 DET 1"),
            "p:3: PERIODICITY cannot be combined with STOCHASTIC; write LOOPAFTER");
  EXPECT_EQ(message_of("0 1\n5 2", 3), "p:2: PERIODICITY 3 is less than the last date, 5");
  EXPECT_EQ(message_of("0 1\n5 2", 6), "no fault");
}

}  // namespace
}  // namespace isobar::sim::profile_test
