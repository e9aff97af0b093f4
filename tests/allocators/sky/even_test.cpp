#include "allocators/sky/even.hpp"
#include "allocators/registry.hpp"

#include "tests/support/instances.hpp"
#include "tests/support/sky.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace isobar::allocators::even_test {

namespace {

using namespace testing_support;  // NOLINT: a test file

std::vector<std::size_t> run_lengths(std::size_t layers, std::size_t devices)
{
  return even_counts(layers, devices);
}

}  // namespace

TEST(PlaceEvenly, GivesTheFirstWorkersOneMore)
{
  EXPECT_EQ(run_lengths(33, 3), (std::vector<std::size_t>{11, 11, 11}));
  EXPECT_EQ(run_lengths(33, 7), (std::vector<std::size_t>{5, 5, 5, 5, 5, 4, 4}));
  const auto counts = run_lengths(483, 63);
  EXPECT_EQ(std::count(counts.begin(), counts.end(), 8U), 42);
  EXPECT_EQ(std::count(counts.begin() + 42, counts.end(), 7U), 21);
}

TEST(PlaceEvenly, KeepsTheOrderOfTheFile)
{
  const Workload workload = chain({1, 1, 1, 1, 1});
  const Cluster platform = cluster({1, 2});
  const CostModel cost(workload, platform);
  const Placement placement = place_evenly({cost, Goal{}, {}});
  ASSERT_EQ(placement.stages.size(), 2U);
  EXPECT_EQ(placement.stages[0].device, 0U);
  EXPECT_EQ(placement.stages[0].last_layer, 2U);
  EXPECT_EQ(placement.stages[1].device, 1U);
  EXPECT_EQ(placement.stages[1].first_layer, 3U);
  EXPECT_EQ(placement.stages[1].last_layer, 4U);
}

TEST(PlaceEvenly, LeavesTheLastDevicesEmptyWhenThereAreMoreThanLayers)
{
  const Workload workload = chain({1, 1});
  const Cluster platform = cluster({1, 1, 1, 1});
  const CostModel cost(workload, platform);
  const Placement placement = place_evenly({cost, Goal{}, {}});
  ASSERT_EQ(placement.stages.size(), 2U);
  EXPECT_EQ(placement.stages[1].device, 1U);
}

TEST(PlaceEvenly, NamesTheOverfullDeviceAndAnotherAllocatorThatFits)
{
  const Workload workload = sky_bert(80);  // breaks the memory of workers 5, 6 and 7
  const Cluster cluster = sky_cluster(15);
  const CostModel cost(workload, cluster);
  const Placement placement = place_evenly({cost, Goal::with_defaults(Objective::Sequential), {}});
  EXPECT_EQ(placement.outcome, Outcome::Infeasible);
  EXPECT_TRUE(placement.stages.empty());
  EXPECT_EQ(placement.reason,
            "device node-5: layers 67..82 need 6.13 GiB and it has 5.18 GiB; 970 MiB more memory there, and up to that "
            "on 2 other devices, or allocator chain-dp would be enough");
}

TEST(PlaceEvenly, SuggestsOnlyMoreMemoryWhenNoOtherAllocatorIsKnownToFit)
{
  Workload workload = chain({1, 1, 1, 1}, 0, 0, 0);
  for (auto& layer : workload.layers) layer.parameters = 1 << 27;  // 1 GiB with its gradient
  const Cluster platform = cluster({1, 1}, {Seconds(0), BytesPerSecond(1e9)}, 1.5 * 0x1p30);
  const CostModel cost(workload, platform);
  const Placement placement = place_evenly({cost, Goal::with_defaults(Objective::Sequential), {}});
  EXPECT_EQ(placement.reason,
            "device d0: layers 0..1 need 2.00 GiB and it has 1.50 GiB; 512 MiB more memory there, and up to that on 1 "
            "other device, would be enough");
}

TEST(PlaceEvenly, LooksUpAFewPathsForEachOfFourThousandDevices)
{
  const Workload workload = chain(std::vector<double>(100'000, 1));
  Cluster platform = cluster({1});
  platform.devices.clear();
  for (int i = 0; i < 4096; ++i) platform.devices.push_back(device("d" + std::to_string(i), 1e9, 1e12));
  class CountedPaths : public Network {
   public:
    explicit CountedPaths(std::size_t& asked) : asked_(asked) {}

   private:
    Path path(std::size_t, std::size_t) const override
    {
      ++asked_;
      return {Seconds(0.001), BytesPerSecond(1e9)};
    }
    std::vector<std::string> links(std::size_t, std::size_t) const override { return {}; }

    std::size_t& asked_;
  };
  std::size_t asked = 0;
  platform.network = std::make_shared<CountedPaths>(asked);
  const Plan plan = allocate("even", workload, platform, Goal{}, {});
  EXPECT_EQ(plan.stages.size(), 4096U);
  EXPECT_LE(asked, 12 * 4096U);  // of 16.8 million
}

}  // namespace isobar::allocators::even_test
