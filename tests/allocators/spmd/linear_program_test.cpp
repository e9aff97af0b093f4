#include "allocators/spmd/linear_program.hpp"

#include <gtest/gtest.h>

namespace isobar::allocators::spmd::linear_program_test {
namespace {

#ifdef ISOBAR_HAS_CBC

TEST(LinearProgram, IsSolvedAtACorner)
{
  // Least 2x + 3y with x + y = 4 and x <= 1, as -x >= -1.
  LinearProgram program;
  const auto x = program.add_variable(2);
  const auto y = program.add_variable(3);
  program.require_equal(4, {{x, 1}, {y, 1}});
  program.require_at_least(-1, {{x, -1}});
  const auto values = program.minimize();
  ASSERT_TRUE(values);
  EXPECT_DOUBLE_EQ((*values)[x], 1);
  EXPECT_DOUBLE_EQ((*values)[y], 3);
}

TEST(LinearProgram, HasVariablesThatStandInNoRow)
{
  LinearProgram program;
  const auto x = program.add_variable(1);
  const auto unused = program.add_variable(1);
  const auto free_of_cost = program.add_variable();
  program.require_at_least(2, {{x, 1}});
  const auto values = program.minimize();
  ASSERT_TRUE(values);
  ASSERT_EQ(values->size(), 3U);
  EXPECT_DOUBLE_EQ((*values)[x], 2);
  EXPECT_DOUBLE_EQ((*values)[unused], 0);
  EXPECT_GE((*values)[free_of_cost], 0);
}

TEST(LinearProgram, AddsUpTermsOfTheSameVariable)
{
  LinearProgram program;
  const auto x = program.add_variable(1);
  program.require_at_least(6, {{x, 1}, {x, 2}});
  const auto values = program.minimize();
  ASSERT_TRUE(values);
  EXPECT_DOUBLE_EQ((*values)[x], 2);
}

TEST(LinearProgram, HasNoValuesWhereRowsContradictEachOther)
{
  LinearProgram program;
  const auto x = program.add_variable(1);
  program.require_equal(1, {{x, 1}});
  program.require_at_least(2, {{x, 1}});
  EXPECT_FALSE(program.minimize());
  // A row without variables that asks for more than nothing.
  LinearProgram empty;
  empty.add_variable(1);
  empty.require_at_least(1, {});
  EXPECT_FALSE(empty.minimize());
}

#endif

}  // namespace
}  // namespace isobar::allocators::spmd::linear_program_test
