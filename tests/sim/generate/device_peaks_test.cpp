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

TEST(DevicePeaks, OfTypesWithConstantsAreFoundByEachOfTheirNames)
{
  for (const auto& known : compute::device_constant_types()) {
    const DeviceType& type = device_type(known);
    EXPECT_NE(compute::find_device_constants(type.name), nullptr) << type.name;
    if (!type.other_name.empty()) {
      EXPECT_NE(compute::find_device_constants(type.other_name), nullptr) << type.other_name;
    }
  }
}

}  // namespace
}  // namespace isobar::sim
