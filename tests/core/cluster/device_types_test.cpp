#include "core/cluster/device_types.hpp"

#include "core/base/files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>
#include <string>

namespace isobar::device_types_test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string hint_for(const std::string& name)
{
  return hint_for_device_type(name, device_type_names());
}

TEST(DeviceTypes, AreListedInTheDocumentation)
{
  const auto page = read_file(ISOBAR_SOURCE_DIR "/docs/platforms.md");
  for (const auto& type : device_types()) {
    const auto bf16 = type.bf16 ? fmt::format("{}", type.bf16->value / 1e12) : "–";
    EXPECT_THAT(page, HasSubstr(fmt::format("\n| {} | {} | {} | {} | {} | {:.2f} | {} | {} | {} |\n", type.name,
                                            fmt::join(type.other_names, ", "), type.float32.value / 1e12,
                                            type.fp16.value / 1e12, bf16, type.memory.value / 0x1p30,
                                            type.inside_bandwidth.value / 1e9, type.source, type.memory_source)));
  }
}

TEST(DeviceTypes, HaveTheDenseRatesOfTheirDataSheets)
{
  // Common mistakes: rates "with sparsity", and rates outside tensor cores.
  for (const auto& type : device_types()) {
    EXPECT_GE(type.fp16, type.float32) << type.name;
    const auto starts = [&](std::string_view begin) { return type.name.starts_with(begin); };
    const bool later = starts("B200") || starts("GB200") || starts("B300") || starts("GB300") || starts("MI3");
    EXPECT_LE(type.fp16.value, later ? 2.5e15 : 989e12) << type.name;
    EXPECT_EQ(type.bf16.value_or(type.fp16), type.fp16) << type.name;
    EXPECT_GE(type.tf32.value_or(type.float32).value, 0.99 * type.float32.value) << type.name;
    EXPECT_GT(type.memory_bandwidth.value, 2e11) << type.name;
    EXPECT_THAT(type.source, HasSubstr(type.name.starts_with("MI") ? "AMD" : "NVIDIA")) << type.name;
  }
}

TEST(DeviceTypes, HaveTheMemoryThatTheDriverReports)
{
  EXPECT_EQ(device_type("A100-SXM4-80GB").memory, Bytes(81051 * 0x1p20));
  EXPECT_EQ(device_type("H100-SXM-80GB").memory, Bytes(81089 * 0x1p20));
  for (const auto& type : device_types()) {
    EXPECT_FALSE(type.memory_source.empty()) << type.name;
    if (!type.name.ends_with("GB")) continue;
    // Of the GB in the name, which are GiB on a card, the driver keeps a little; of superchips' it reports more.
    const double gb = std::strtod(type.name.c_str() + type.name.rfind('-') + 1, nullptr);
    EXPECT_GT(type.memory.value, 0.98e9 * gb) << type.name;
    EXPECT_LT(type.memory.value, 0x1p30 * gb) << type.name;
  }
}

TEST(DeviceTypes, HaveNamesOfTheirOwn)
{
  std::set<std::string> names;
  for (const auto& type : device_types()) {
    EXPECT_TRUE(names.insert(type.name).second) << type.name;
    EXPECT_EQ(find_device_type(type.name), &type);
    for (const auto& other : type.other_names) {
      EXPECT_TRUE(names.insert(other).second) << other;
      EXPECT_EQ(find_device_type(other), &type);
    }
  }
}

TEST(DeviceTypes, AreFoundByWholeNamesAlone)
{
  EXPECT_EQ(device_type("NVIDIA A100-SXM4-80GB").name, "A100-SXM4-80GB");
  EXPECT_EQ(device_type("H100-SXM5-80GB").name, "H100-SXM-80GB");
  EXPECT_EQ(device_type("L4-24GB").name, "L4");
  for (const auto* name : {"", "V100", "A100-SXM4", "L40", "a10", "RTX-3090-Ti", "T4-8GB"}) {
    EXPECT_EQ(find_device_type(name), nullptr) << name;
  }
}

TEST(DeviceTypes, AreTheSameUnderEachOfTheirNames)
{
  EXPECT_TRUE(is_same_device_type("H100-SXM5-80GB", "NVIDIA H100 80GB HBM3"));
  EXPECT_TRUE(is_same_device_type("mine", "mine"));
  EXPECT_FALSE(is_same_device_type("V100-SXM2-16GB", "V100-SXM2-32GB"));
  EXPECT_FALSE(is_same_device_type("mine", "yours"));
}

TEST(DeviceTypes, OfTheSameModelAreSuggested)
{
  EXPECT_EQ(hint_for("A100"), "did you mean A100-SXM4-40GB or A100-SXM4-80GB or A100-PCIE-40GB or A100-PCIE-80GB?");
  EXPECT_EQ(hint_for("A100-SXM4"), "did you mean A100-SXM4-40GB or A100-SXM4-80GB?");
  EXPECT_EQ(hint_for("A100-SXM4-40Gb"), "did you mean A100-SXM4-40GB?");
  EXPECT_EQ(hint_for("V100-PCIE-32GB"), "did you mean V100-SXM2-32GB?");
  EXPECT_EQ(hint_for("mi300"), "did you mean MI300X?");
  EXPECT_EQ(hint_for("H800"), "did you mean H800-SXM-80GB?");
  EXPECT_EQ(hint_for("H100"), "did you mean H100-SXM-80GB or H100-96GB-HBM2e?");
  EXPECT_EQ(hint_for("GB300-288GB"), "did you mean GB300?");
  EXPECT_EQ(hint_for("RTX4090"), "did you mean RTX-4090?");
  EXPECT_EQ(hint_for("h100 sxm"), "did you mean H100-SXM-80GB?");
}

TEST(DeviceTypes, OfAnotherModelAreNotSuggested)
{
  for (const auto* name : {"RTX-3080", "RTX3080", "RTX-5090", "H20", "H900", "A800", "V100S", "T44", "abacus", ""}) {
    EXPECT_THAT(hint_for(name), StartsWith("the types are P100-PCIE-16GB, P100-SXM2-16GB, V100-SXM2-16GB, ")) << name;
  }
}

}  // namespace
}  // namespace isobar::device_types_test
