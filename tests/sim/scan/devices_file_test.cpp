#include "sim/scan/devices_file.hpp"

#include "core/errors.hpp"

#include <gtest/gtest.h>

namespace isobar::sim::devices_file_test {
namespace {

std::vector<ScannedHost> hosts_named(const std::vector<std::string>& names)
{
  std::vector<ScannedHost> hosts;
  for (const auto& name : names) hosts.push_back({.name = name, .line = 1, .zone = 0, .props = {}});
  return hosts;
}

std::string message_of(const std::string& text)
{
  auto hosts = hosts_named({"gpu-0", "gpu-1"});
  try {
    apply_devices_file(hosts, text, "d.yaml");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no fault";
}

TEST(MatchesPattern, MatchesStarsAndQuestionMarks)
{
  EXPECT_TRUE(matches_pattern("gpu-0", "gpu-0"));
  EXPECT_TRUE(matches_pattern("*", ""));
  EXPECT_TRUE(matches_pattern("gpu-*", "gpu-"));
  EXPECT_TRUE(matches_pattern("*.site?", "gpu-0.site1"));
  EXPECT_TRUE(matches_pattern("*a*b*c", "xxabxbyc"));
  EXPECT_FALSE(matches_pattern("gpu-?", "gpu-10"));
  EXPECT_FALSE(matches_pattern("gpu-?", "gpu-"));
  EXPECT_FALSE(matches_pattern("gpu", "gpu-0"));
  EXPECT_FALSE(matches_pattern("*b", "abc"));
}

TEST(MatchesPattern, IsFastWithManyStars)
{
  std::string pattern;
  for (int i = 0; i < 100; ++i) pattern += "*a";
  EXPECT_FALSE(matches_pattern(pattern + "b", std::string(2000, 'a')));
}

TEST(DevicesFile, LetsLaterPatternsWinPropByProp)
{
  auto hosts = hosts_named({"gpu-0", "gpu-1", "store"});
  hosts[0].props.site = "from the platform file";
  apply_devices_file(
      hosts,
      "gpu-*:\n  memory: 16 GiB\n  price: 2 USD/h\n"
      "gpu-1: {memory: 24 GiB, speed.fp16: 100 TFLOP/s, site: Oslo, interference: 1.14, collective_start: 30us}\n"
      "store: {role: data-server}\n",
      "d.yaml");
  EXPECT_EQ(hosts[0].props.memory, Bytes(16.0 * (1 << 30)));
  EXPECT_EQ(hosts[0].props.site, "from the platform file");
  EXPECT_EQ(hosts[1].props.memory, Bytes(24.0 * (1 << 30)));
  EXPECT_EQ(hosts[1].props.price_usd_per_hour, 2);
  EXPECT_EQ(hosts[1].props.site, "Oslo");
  EXPECT_EQ(hosts[1].props.interference, 1.14);
  EXPECT_NEAR(hosts[1].props.collective_start->value, 30e-6, 1e-15);
  EXPECT_FALSE(hosts[0].props.interference);
  EXPECT_EQ(hosts[1].props.speed_in.at(DType::Float16), FlopsPerSecond(100e12));
  EXPECT_FALSE(hosts[2].props.memory);
  EXPECT_EQ(hosts[2].props.role, Role::DataServer);
}

TEST(DevicesFile, ReportsEachFault)
{
  EXPECT_EQ(message_of("cpu-*: {memory: 1 GiB}\n"), "d.yaml:1: cpu-*: matches no host of the platform");
  EXPECT_EQ(message_of("gpu-0: 16 GiB\n"),
            "d.yaml:1: gpu-0: has no props; write them below it, such as memory: 16 GiB");
  EXPECT_EQ(message_of("gpu-0:\n  memory: 80\n"),
            "d.yaml:2: gpu-0.memory: \"80\" is not a size; write a number and a unit, such as \"80 GB\"");
  EXPECT_EQ(message_of("gpu-0:\n  memroy: 80 GB\n"), "d.yaml:2: gpu-0.memroy: unknown; did you mean memory?");
  EXPECT_EQ(message_of("gpu-0:\n  colour: red\n"),
            "d.yaml:2: gpu-0.colour: unknown; a device has memory, device, price, role, host, interference, "
            "collective_start, speed.float32, speed.bf16, speed.fp16, site");
  for (const std::string value : {"0.9", "1e4", "nan", "14 %"}) {
    EXPECT_EQ(message_of("gpu-0:\n  interference: " + value + "\n"),
              "d.yaml:2: gpu-0.interference: \"" + value +
                  "\" is not a number from 1 to 1000; write how many times longer the device computes beside a "
                  "collective");
  }
  EXPECT_EQ(message_of("gpu-0:\n  collective_start: 30\n"),
            "d.yaml:2: gpu-0.collective_start: \"30\" is not a time; write a number and a unit, such as \"20 ms\"");
  EXPECT_EQ(message_of("gpu-0:\n  window: 1 MB\n"),
            "d.yaml:2: gpu-0.window: has no effect here; it belongs to a link, a zone or a cluster");
  EXPECT_EQ(message_of("gpu-0:\n  memory: [1 GB]\n"),
            "d.yaml:2: gpu-0.memory: is not a single value; write one, such as memory: 16 GiB");
  EXPECT_EQ(message_of("- gpu-0\n"), "d.yaml:1: is not a mapping; write host-name patterns and their props");
  EXPECT_EQ(message_of(""), "d.yaml:1: is not a mapping; write host-name patterns and their props");
}

}  // namespace
}  // namespace isobar::sim::devices_file_test
