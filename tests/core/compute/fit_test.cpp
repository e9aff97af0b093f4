#include "core/compute/device_constants.hpp"
#include "core/model/framework.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

/// Constants in code are those that the tools fit again from their named tables and rows.
namespace isobar::compute::fit_test {
namespace {

using testing::HasSubstr;

const std::filesystem::path source = ISOBAR_SOURCE_DIR;

std::string output_of(const std::string& command)
{
  std::string output;
  std::FILE* pipe = popen(command.c_str(), "r");  // NOLINT(cert-env33-c): a test
  if (pipe == nullptr) return "no process";
  std::array<char, 4096> buffer = {};
  while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) output += buffer.data();
  pclose(pipe);
  return output;
}

TEST(FittedConstants, OfProductsAreThoseOfTheTablesOfOperators)
{
  const std::string printed = output_of(fmt::format("python3 {}", (source / "tools/fit_operators.py").string()));
  for (const auto* type : {"A100-PCIE-80GB", "B200-SXM", "V100-SXM2-32GB", "L4", "A10G", "A40"}) {
    EXPECT_TRUE(device_constants(type).are_products_alone) << type;
    const ProductConstants& own = device_constants(type).products;
    const auto at = printed.find(fmt::format("{}: ", type));
    ASSERT_NE(at, std::string::npos) << printed;
    const auto line = printed.substr(at, printed.find('\n', at) - at);
    EXPECT_THAT(line, HasSubstr(fmt::format("efficiency {:.3f}, size_loss {:.0f} (", own.efficiency, own.size_loss)));
    if (own.gradients != 1) {
      EXPECT_THAT(line, HasSubstr(fmt::format("gradients x {:.2f} (", own.gradients)));
    } else {
      EXPECT_EQ(line.find("gradients"), std::string::npos) << "measured, and not taken: " << line;
    }
  }
}

TEST(FittedConstants, OfOneChipDifferByTheBandwidthOfItsMemory)
{
  const auto& large = device_constants("A100-SXM4-80GB");
  const auto& small = device_constants("A100-SXM4-40GB");
  EXPECT_EQ(small.products.efficiency, large.products.efficiency);
  EXPECT_NEAR(small.products.size_loss / large.products.size_loss, large.memory_bandwidth / small.memory_bandwidth,
              1e-3);
}

TEST(FittedConstants, OfUnfusedAttentionAreThoseOfTheTablesOfOperators)
{
  const std::string printed = output_of(fmt::format("python3 {}", (source / "tools/fit_operators.py").string()));
  for (const auto* type : {"A100-SXM4-40GB", "V100-SXM2-32GB", "L4", "A10G"}) {
    const auto at = printed.find(fmt::format("{}: ", type));
    ASSERT_NE(at, std::string::npos) << printed;
    const auto line = printed.substr(at, printed.find('\n', at) - at);
    EXPECT_THAT(line, HasSubstr(fmt::format("core_bandwidth {:.2f}", device_constants(type).core_bandwidth)));
  }
  EXPECT_THAT(printed, HasSubstr("norm forward: 0.53 of"));
  EXPECT_THAT(printed, HasSubstr("norm backward: 0.24 of"));
  EXPECT_THAT(printed, HasSubstr("activation forward: 0.76 of"));
  EXPECT_THAT(printed, HasSubstr("activation backward: 0.60 of"));
  EXPECT_THAT(printed, HasSubstr("dropout_residual forward: 0.36 of"));
  EXPECT_THAT(printed, HasSubstr("dropout_residual backward: 0.46 of"));
}

TEST(FittedConstants, AreThoseOfTheCalibrationRowsOfMeasuredRuns)
{
  const std::string printed = output_of(fmt::format("python3 {} {}/*.csv", (source / "tools/fit_compute.py").string(),
                                                    (source / "results/fidelity/measured").string()));
  const auto& a100 = device_constants("A100-SXM4-80GB");
  EXPECT_THAT(printed, HasSubstr(fmt::format(
                           "A100-SXM4-80GB: efficiency {:.3f}, size_loss {:.0f}, fused_attention {:.3f}, "
                           "core_bandwidth {:.3f}, product_speed {:.3f}\n",
                           a100.products.efficiency, a100.products.size_loss, a100.fused_attention, a100.core_bandwidth,
                           framework_named("megatron-lm-2022").framework->product_speed)));
  const auto& h100 = device_constants("H100-SXM5-80GB");
  EXPECT_THAT(printed,
              HasSubstr(fmt::format("H100-SXM5-80GB: efficiency {:.3f}, size_loss {:.0f}, fused_attention {:.3f}\n",
                                    h100.products.efficiency, h100.products.size_loss, h100.fused_attention)));
  const auto& deepspeed = *framework_named("megatron-deepspeed-2024").framework;
  EXPECT_THAT(printed,
              HasSubstr(fmt::format("host time of a block {:.2f} ms, of a pipeline {:.2f} ms, context {:.2f} GB, "
                                    "activations x {:.2f}\n",
                                    1e3 * (deepspeed.host_forward + deepspeed.host_backward).value,
                                    1e3 * deepspeed.pipeline_host.value, deepspeed.memory.context.value / 1e9,
                                    deepspeed.memory.activations)));
}

}  // namespace
}  // namespace isobar::compute::fit_test
