#include "exec/files/tensor_part.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace isobar::exec::tensor_part_test {
namespace {

TEST(TensorPart, IsNamedAfterItsElementsAndTheShapeOfTheWholeTensor)
{
  EXPECT_EQ(part_name("a.weight", TensorPart::whole({32, 64})), "a.weight");
  EXPECT_EQ(part_name("a.weight", TensorPart::range(0, 512, {32, 64})), "a.weight[0:512 of 32x64]");
  const TensorPart columns = {.shape = {32, 64}, .begin = 16, .end = 32, .period = 64};
  EXPECT_EQ(part_name("a.weight", columns), "a.weight[16:32:64 of 32x64]");
  EXPECT_EQ(columns.elements(), 512U);
  EXPECT_EQ(TensorPart::whole({}).elements(), 1U);
}

RC_GTEST_PROP(TensorPart, IsReadFromItsName, ())
{
  const auto blocks = *rc::gen::inRange<std::uint64_t>(1, 9);
  const auto period = *rc::gen::inRange<std::uint64_t>(2, 99);
  const auto begin = *rc::gen::inRange<std::uint64_t>(1, period);
  const auto end = *rc::gen::inRange<std::uint64_t>(begin + 1, period + 1);
  const TensorPart part = {.shape = {blocks, period}, .begin = begin, .end = end, .period = period};
  const auto named = tensor_part_in_name(part_name("layers.3.weight:exp_avg", part));
  RC_ASSERT(named.has_value());
  RC_ASSERT(named->tensor == "layers.3.weight:exp_avg");
  RC_ASSERT(named->part == part);
}

TEST(TensorPart, IsNotReadFromOtherNames)
{
  for (const std::string name :
       {"a", "a[", "a[]", "a[0]", "a[0:1]", "a[0:1 of ]", "a[0:1 of 2", "a[0:1 of 2]b", "a[1:1 of 2]", "a[0:3 of 2]",
        "a[0:1: of 2]", "a[0:1:0 of 2]", "a[0:1:3 of 4]", "a[0:3:2 of 4]", "a[0:1 of 2x]", "a[-1:1 of 2]",
        "a[0:1 of 0]", "a[0:1 of 4294967296x4294967296]"}) {
    EXPECT_FALSE(tensor_part_in_name(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace isobar::exec::tensor_part_test
