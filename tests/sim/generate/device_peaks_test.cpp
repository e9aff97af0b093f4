#include "core/compute/device_constants.hpp"
#include "sim/generate/device_types.hpp"

#include <gtest/gtest.h>

namespace isobar::sim {
namespace {

TEST(DevicePeaks, AreThoseOfTheComputeModel)
{
  int compared = 0;
  for (const auto& type : device_types()) {
    const auto* constants = compute::find_device_constants(type.name);
    if (constants == nullptr || constants->type != type.name) continue;
    // Data sheets round them in different ways.
    EXPECT_NEAR(constants->fp16 / type.fp16, 1, 0.002) << type.name;
    EXPECT_NEAR(constants->fp32 / type.float32, 1, 0.002) << type.name;
    EXPECT_EQ(constants->has_bf16, type.bf16.has_value()) << type.name;
    ++compared;
  }
  EXPECT_GE(compared, 10);
}

}  // namespace
}  // namespace isobar::sim
