#include "sim/scan/systems_file.hpp"

#include "core/errors.hpp"

#include <gtest/gtest.h>

#include <string>

namespace isobar::sim::systems_file_test {
namespace {

std::string message_of(const std::string& text)
{
  try {
    systems_from_yaml(text, "s.yaml");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no fault";
}

TEST(SystemsFile, HoldsWhatWasMeasuredOfEachSystem)
{
  const auto systems = systems_from_yaml(
      "l2l:\n"
      "  update_speed: 7.2 GFLOP/s\n"
      "  busy_update_speed: 3 GFLOP/s\n"
      "  copy_bandwidth: 4.2 GB/s\n"
      "  backward_delay: 373 ms\n"
      "  workspace: 2619 MiB\n"
      "  reserved_fraction: 1.429\n"
      "  host_fraction: 2.3\n"
      "zero-offload: {}\n",
      "s.yaml");
  ASSERT_EQ(systems.size(), 2U);
  const MeasuredSystem& l2l = systems.at("l2l");
  EXPECT_EQ(l2l.update_speed, FlopsPerSecond(7.2e9));
  EXPECT_EQ(l2l.busy_update_speed, FlopsPerSecond(3e9));
  EXPECT_EQ(l2l.copy_bandwidth, BytesPerSecond(4.2e9));
  EXPECT_EQ(l2l.backward_delay, Seconds(0.373));
  EXPECT_EQ(l2l.workspace, Bytes(2619.0 * (1 << 20)));
  EXPECT_EQ(l2l.reserved_fraction, 1.429);
  EXPECT_EQ(l2l.host_fraction, 2.3);
  const MeasuredSystem& without = systems.at("zero-offload");
  EXPECT_FALSE(without.update_speed || without.busy_update_speed || without.copy_bandwidth);
  EXPECT_EQ(without.backward_delay, Seconds(0));
  EXPECT_EQ(without.workspace, Bytes(0));
  EXPECT_EQ(without.reserved_fraction, 1);
  EXPECT_EQ(without.host_fraction, 1);
}

TEST(SystemsFile, ReportsEachFault)
{
  EXPECT_EQ(message_of("l2l:\n  update_sped: 1 GFLOP/s\n"),
            "s.yaml:2: l2l.update_sped: unknown key; did you mean update_speed?");
  EXPECT_EQ(message_of("l2l:\n  update_speed: 1 GB/s\n"),
            "s.yaml:2: l2l.update_speed: \"1 GB/s\" is not a speed; the units are FLOP/s, kFLOP/s, MFLOP/s, GFLOP/s, "
            "TFLOP/s, PFLOP/s");
  EXPECT_EQ(message_of("l2l:\n  busy_update_speed: 0 FLOP/s\n"),
            "s.yaml:2: l2l.busy_update_speed: \"0 FLOP/s\" is less than 1 FLOP/s");
  EXPECT_EQ(message_of("l2l:\n  copy_bandwidth: 0.5 B/s\n"),
            "s.yaml:2: l2l.copy_bandwidth: \"0.5 B/s\" is less than 1 B/s");
  EXPECT_EQ(message_of("l2l:\n  backward_delay: 373\n"),
            "s.yaml:2: l2l.backward_delay: \"373\" is not a time; write a number and a unit, such as \"20 ms\"");
  EXPECT_EQ(message_of("l2l:\n  workspace: [1 GB]\n"),
            "s.yaml:2: l2l.workspace: is a list; write a number and a unit, such as \"80 GB\"");
  EXPECT_EQ(message_of("l2l:\n  reserved_fraction: 0.9\n"),
            "s.yaml:2: l2l.reserved_fraction: \"0.9\" is out of range; write a number, 1 or more");
  EXPECT_EQ(message_of("l2l:\n  host_fraction: 0\n"),
            "s.yaml:2: l2l.host_fraction: \"0\" is out of range; write a number, 1 or more");
  EXPECT_EQ(message_of("l2l:\n  reserved_fraction: 1e308\n  host_fraction: 1000.5\n"),
            "s.yaml:2: l2l.reserved_fraction: 1e+308 is out of range; write a number from 1 to 1000\n"
            "s.yaml:3: l2l.host_fraction: 1000.5 is out of range; write a number from 1 to 1000");
  EXPECT_EQ(message_of("l2l: 4.2 GB/s\n"), "s.yaml:1: l2l: is a single value; write \"key: value\" pairs");
  EXPECT_EQ(message_of("- l2l\n"), "s.yaml:1: is not a mapping; write names of systems and what was measured of them");
  EXPECT_EQ(message_of("l2l:\n  copy_bandwidth: 1\nl2l2:\n  workspace: 2\n"),
            "s.yaml:2: l2l.copy_bandwidth: \"1\" is not a bandwidth; write a number and a unit, such as \"10 Gbit/s\"\n"
            "s.yaml:4: l2l2.workspace: \"2\" is not a size; write a number and a unit, such as \"80 GB\"");
}

}  // namespace
}  // namespace isobar::sim::systems_file_test
