#include "core/compute/layer_noise.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace isobar::layer_noise_test {
namespace {

Workload equal_layers(std::size_t count)
{
  Workload workload;
  for (std::size_t i = 0; i < count; ++i) {
    Layer layer;
    layer.name = "layer" + std::to_string(i);
    layer.forward = Flops(10);
    layer.backward = Flops(20);
    layer.backward_weight = Flops(5);
    layer.parameters = 7;
    if (i > 0) layer.inputs = {i - 1};
    workload.layers.push_back(layer);
  }
  return workload;
}

TEST(LayerNoise, IsAFactorOfEachLayerWithinItsLimits)
{
  const Workload exact = equal_layers(500);
  const Workload noisy = with_noise(exact, 0.5, 3);
  std::set<double> factors;
  double sum = 0;
  for (std::size_t i = 0; i < exact.layers.size(); ++i) {
    const double factor = noisy.layers[i].forward / exact.layers[i].forward;
    EXPECT_GE(factor, 0.5);
    EXPECT_LE(factor, 1.5);
    EXPECT_DOUBLE_EQ(noisy.layers[i].backward / exact.layers[i].backward, factor);
    EXPECT_DOUBLE_EQ(noisy.layers[i].backward_weight / exact.layers[i].backward_weight, factor);
    EXPECT_EQ(noisy.layers[i].parameters, 7U);
    factors.insert(factor);
    sum += factor;
  }
  EXPECT_EQ(factors.size(), exact.layers.size());
  // Deviation of an even draw: 0.5 / sqrt(3); of the mean of 500: 0.013.
  EXPECT_NEAR(sum / 500, 1, 0.05);
}

TEST(LayerNoise, FollowsFromItsSeedAndIsNoneAtZero)
{
  const Workload exact = equal_layers(3);
  const auto first = [&](double most, std::uint64_t seed) { return with_noise(exact, most, seed).layers[0].forward; };
  EXPECT_EQ(first(0.2, 1), first(0.2, 1));
  EXPECT_NE(first(0.2, 1), first(0.2, 2));
  EXPECT_EQ(first(0, 1), exact.layers[0].forward);
}

}  // namespace
}  // namespace isobar::layer_noise_test
