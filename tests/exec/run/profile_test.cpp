#include "exec/run/profile.hpp"

#include "exec/launch/link_probe.hpp"
#include "tests/support/small_models.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace isobar::exec {
namespace {

TEST(MeasureProfile, TimesEachKindOfLayerOnceAndNamesEveryLayer)
{
  const Workload workload = testing_support::small_model(testing_support::shipped_workload("bert24"));
  ProfileOptions options;
  options.repetitions = 5;
  const DeviceProfile profile = measure_profile(workload, options);
  ASSERT_EQ(profile.layers.size(), workload.layers.size());
  Seconds total;
  for (std::size_t i = 0; i < profile.layers.size(); ++i) {
    const LayerProfile& layer = profile.layers[i];
    EXPECT_EQ(layer.name, workload.layers[i].name);
    EXPECT_GT(layer.forward.value, 0);
    EXPECT_GT(layer.backward.value, 0);
    EXPECT_GT(layer.update.value, 0);
    EXPECT_GT(layer.activations.value, 0);
    const Bytes parameters(4 * static_cast<double>(workload.layers[i].parameters));
    EXPECT_GE(layer.peak.value(), layer.activations + parameters);
    EXPECT_GE(layer.spread_fraction, 0);
    total += layer.forward + layer.backward;
  }
  // The second encoder's units have the kinds of the first one's.
  EXPECT_EQ(profile.layers[4].forward, profile.layers[1].forward);
  EXPECT_EQ(profile.layers[5].backward, profile.layers[2].backward);
  Flops work;
  for (const auto& layer : workload.layers) work += layer.forward + layer.backward;
  EXPECT_NEAR((profile.speed * total).value, work.value, 1e-6 * work.value);
  EXPECT_NE(profile.device.find(", 1 thread"), std::string::npos);
}

TEST(ProbeLoopback, MeasuresALatencyAndABandwidth)
{
  for (const std::size_t flows : {1U, 4U}) {
    const LinkMeasurement link = probe_loopback(flows);
    EXPECT_GT(link.latency.value, 0);
    EXPECT_TRUE(std::isfinite(link.latency.value));
    EXPECT_GT(link.bandwidth.value, 0);
    EXPECT_TRUE(std::isfinite(link.bandwidth.value));
  }
}

}  // namespace
}  // namespace isobar::exec
