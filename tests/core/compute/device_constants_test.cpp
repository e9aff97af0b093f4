#include "core/compute/device_constants.hpp"

#include "core/errors.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace isobar::compute {
namespace {
using testing::HasSubstr;

TEST(DeviceConstants, HaveASourceAndFractionsOfTheirPeaks)
{
  for (const auto& type : device_constant_types()) {
    const auto& device = device_constants(type);
    EXPECT_EQ(device.type, type);
    EXPECT_FALSE(device.source.empty()) << type;
    EXPECT_GE(device.fp16, device.fp32) << type;
    EXPECT_GT(device.products.efficiency, 0.3) << type;
    EXPECT_LT(device.products.efficiency, 1.05) << type;
    EXPECT_GT(device.core_bandwidth, 0.5) << type;
    EXPECT_LT(device.core_bandwidth, 0.8) << type;
    EXPECT_GT(device.memory, Bytes(10e9)) << type;
  }
}

TEST(DeviceConstants, ComputeEachDtypeAtItsOwnPeak)
{
  const auto& a100 = device_constants("A100-SXM4-80GB");
  EXPECT_EQ(a100.peak(DType::BFloat16, false), FlopsPerSecond(312e12));
  EXPECT_EQ(a100.peak(DType::Float32, true), FlopsPerSecond(156e12));
  EXPECT_EQ(a100.peak(DType::Float32, false), FlopsPerSecond(19.5e12));
  const auto& v100 = device_constants("V100-SXM2-32GB");
  EXPECT_EQ(v100.peak(DType::Float16, false), FlopsPerSecond(125e12));
  EXPECT_EQ(v100.peak(DType::BFloat16, false), v100.fp32);  // no tensor cores for it
  EXPECT_EQ(v100.peak(DType::Float32, true), v100.fp32);    // nor for TF32
}

TEST(DeviceConstants, PriceAProductByItsWorkAndItsExtents)
{
  DeviceConstants device = device_constants("A100-SXM4-80GB");
  device.products = {0.5, 100};
  const Seconds large = device.product_time(DType::Float16, false, 1e9, 1e9, 1e9);
  EXPECT_NEAR(large.value, 2e27 / (312e12 * 0.5), 1e7);
  // An extent as large as the loss costs as much again.
  const Seconds small = device.product_time(DType::Float16, false, 100, 1e12, 1e12);
  EXPECT_NEAR(small.value / (2e26 / (312e12 * 0.5)), 2, 1e-6);
}

TEST(DeviceConstants, AreFoundByNamesWithMoreOrFewerDetails)
{
  EXPECT_EQ(device_constants("V100").type, "V100-SXM2-32GB");
  EXPECT_EQ(device_constants("A100-SXM4").type, "A100-SXM4-80GB");
  EXPECT_EQ(device_constants("L4-24GB").type, "L4");
  EXPECT_THROW(device_constants("L40"), InputError);  // another device, not an L4 with details
}

TEST(DeviceConstants, RefuseUnknownTypes)
{
  const auto message = message_of([] { device_constants("A1000-SXM4-80GB"); });
  EXPECT_THAT(message, HasSubstr("device A1000-SXM4-80GB: has no constants; did you mean A100-SXM4-80GB? known types: "
                                 "A100-SXM4-80GB, "));
  EXPECT_THAT(message_of([] { device_constants(""); }), HasSubstr("has no constants; known types: "));
}

}  // namespace
}  // namespace isobar::compute
