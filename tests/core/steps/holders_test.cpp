#include "core/steps/holders.hpp"

#include <gtest/gtest.h>

namespace isobar::holders_test {

TEST(Holders, HaveWholeNumbersOfParameters)
{
  Plan plan;
  Replica& replica = plan.stages.emplace_back().replicas.emplace_back();
  for (const char* device : {"a", "b"}) replica.shards.push_back(Shard{.device = device, .share = 0.5});
  for (std::uint64_t units = 3; units < 5000; units += 2) {
    constexpr std::uint64_t width = 96;
    Layer layer;
    layer.parameters = units * width + 7;
    layer.split = Split{.name = "vocabulary", .units = units, .parameters = units * width};
    layer.experts.emplace().parameters = units * width;
    const auto holders = holders_of(plan);
    const Holder& holder = holders.front();
    const auto more = static_cast<double>((units + 1) / 2 * width);
    const auto fewer = static_cast<double>(units / 2 * width);
    EXPECT_EQ(parameters_of(plan, holder, holder.parts[0], layer), more + 7);
    EXPECT_EQ(parameters_of(plan, holder, holder.parts[1], layer), fewer + 7);
    EXPECT_EQ(experts_of(plan, holder, holder.parts[1], layer), fewer);
  }
}

}  // namespace isobar::holders_test
