#include "tests/fuzz/order_inputs.hpp"

#include "tests/support/fuzz_replay.hpp"

#include <gtest/gtest.h>

namespace isobar::fuzz_crashes_test {
namespace {

using testing_support::replay;

TEST(ReadOrder, SurvivesEveryInputThatEverCrashedIt)
{
  replay("fuzz_order", fuzz::order);
}

TEST(OrdersFromCsv, SurvivesEveryInputThatEverCrashedIt)
{
  replay("fuzz_order_csv", fuzz::order_csv);
}

}  // namespace
}  // namespace isobar::fuzz_crashes_test
