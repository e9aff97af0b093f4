#include "core/compute/device_constants.hpp"

#include "core/cluster/device_types.hpp"
#include "tests/support/thrown_message.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <string>

namespace isobar::compute::device_constants_test {
namespace {

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
  device.products = {0.5, 100, 1.25};
  const Seconds large = device.product_time(DType::Float16, false, 1e9, 1e9, 1e9, false);
  EXPECT_NEAR(large.value, 2e27 / (312e12 * 0.5), 1e7);
  EXPECT_NEAR((large / device.product_time(DType::Float16, false, 1e9, 1e9, 1e9, true)), 1.25, 1e-9) << "of gradients";
  // An extent as large as the loss costs as much again.
  const Seconds small = device.product_time(DType::Float16, false, 100, 1e12, 1e12, false);
  EXPECT_NEAR(small.value / (2e26 / (312e12 * 0.5)), 2, 1e-6);
}

TEST(DeviceConstants, AreFoundByEachNameOfTheirType)
{
  EXPECT_EQ(device_constants("H100-SXM5-80GB").type, "H100-SXM-80GB");
  EXPECT_EQ(device_constants("NVIDIA L4").type, "L4");
  EXPECT_EQ(find_device_constants("V100"), nullptr);  // of which memory?
}

TEST(DeviceConstants, HaveTheRatesOfTheTableOfTypes)
{
  for (const auto& name : device_constant_types()) {
    const auto& constants = device_constants(name);
    const auto& type = device_type(name);
    EXPECT_EQ(constants.fp16, type.fp16);
    EXPECT_EQ(constants.fp32, type.float32);
    EXPECT_EQ(constants.tf32, type.tf32);
    EXPECT_EQ(constants.memory_bandwidth, type.memory_bandwidth);
  }
}

TEST(DeviceConstants, RefuseUnknownTypes)
{
  const std::string way_out =
      " (for another type, measure a table with isobar profile --operators, and name it with --profile)";
  EXPECT_EQ(message_of([] { device_constants("V100"); }),
            "InputError device V100: has no constants; did you mean V100-SXM2-32GB or V100-SXM2-16GB?" + way_out);
  EXPECT_EQ(message_of([] { device_constants("P100-PCIE-16GB"); }),
            fmt::format("InputError device P100-PCIE-16GB: has no constants; the types are {}{}",
                        fmt::join(device_constant_types(), ", "), way_out));
}

}  // namespace
}  // namespace isobar::compute::device_constants_test
