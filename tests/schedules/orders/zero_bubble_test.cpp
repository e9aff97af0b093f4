#include "schedules/orders/zero_bubble.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace isobar::schedules::zero_bubble_test {
namespace {

/// max(0, number - limit).
std::uint64_t above(std::uint64_t number, std::uint64_t limit)
{
  return number > limit ? number - limit : 0;
}

TEST(ZeroBubbleOrder, HasThePositionsOfItsFormulas)
{
  for (std::uint64_t M = 1; M <= 11; ++M) {
    for (std::uint64_t w = 0; w <= M; ++w) {
      for (std::uint64_t d = 0; d <= M; ++d) {
        SCOPED_TRACE(fmt::format("M = {}, w = {}, d = {}", M, w, d));
        const Order order = zero_bubble_order(w, d, M);
        ASSERT_EQ(order.length(), 3 * M);
        EXPECT_LE(order.runs().size(), 5U);
        const auto backward = [&](std::uint64_t n) { return std::min(w + n + 1, M) + n + above(n, d); };
        for (std::uint64_t m = 0; m < M; ++m) {
          EXPECT_EQ(order.position_of({Opcode::Forward, 0, m}), m < w ? m : 2 * m - w + above(m, w + d));
          EXPECT_EQ(order.position_of({Opcode::BackwardInput, 0, m}), backward(m));
          EXPECT_EQ(order.position_of({Opcode::BackwardWeight, 0, m}), m + d < M ? backward(m + d) + 1 : 2 * M + m);
          EXPECT_EQ(order.index_of({Opcode::BackwardWeight, 0, m}), m);
        }
        EXPECT_EQ(most_in_flight(order), std::min(M, w + d + 1));
        EXPECT_EQ(zero_bubble_order(w == M ? w + 9 : w, d == M ? d + 9 : d, M), order);
      }
    }
  }
}

TEST(ZeroBubbleOrder, KeepsOnlyWhatWeightGradientsNeedAfterTheInputs)
{
  const Bytes activations(34);
  const Bytes kept(32);  // of them, for the weight gradients
  for (std::uint64_t w = 0; w <= 4; ++w) {
    for (std::uint64_t d = 0; d <= 4; ++d) {
      const auto peak = zero_bubble_order(w, d, 20).peak([&](const Task& task) {
        if (task.opcode == Opcode::Forward) return activations;
        return task.opcode == Opcode::BackwardInput ? kept - activations : Bytes(0) - kept;
      });
      EXPECT_EQ(peak, static_cast<double>(w + 1) * activations + static_cast<double>(d) * kept) << w << " " << d;
    }
  }
}

}  // namespace
}  // namespace isobar::schedules::zero_bubble_test
