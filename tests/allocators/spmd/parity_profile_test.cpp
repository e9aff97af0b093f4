#include "allocators/spmd/parity_profile.hpp"
#include "core/errors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace isobar::allocators::spmd::parity_profile_test {
namespace {

using isobar::spmd::ReformKind;

constexpr auto right = R"({
  "devices": 4,
  "device_flops": 1e12,
  "all_gather": 1e9,
  "all_reduce": 5e8,
  "reduce_scatter": 2e9,
  "all_to_all": 4e9
}
)";

std::string with(const std::string& line, const std::string& other)
{
  std::string text = right;
  return text.replace(text.find(line), line.size(), other);
}

std::string fault_of(const std::string& text)
{
  try {
    parity_profile_from_json(text, "profile.json");
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "none";
}

TEST(ParityProfile, GivesEachCollectiveItsRateAndATenthOfAMillisecond)
{
  const ParityProfile profile = parity_profile_from_json(right, "profile.json");
  const Bytes size(1e6);
  EXPECT_EQ(profile.devices, 4U);
  EXPECT_EQ(profile.device_flops, FlopsPerSecond(1e12));
  EXPECT_DOUBLE_EQ(profile.time_of(ReformKind::AllGather, size).value, 1.1e-3);
  EXPECT_DOUBLE_EQ(profile.time_of(ReformKind::AllReduce, size).value, 2.1e-3);
  EXPECT_DOUBLE_EQ(profile.time_of(ReformKind::ReduceScatter, size).value, 0.6e-3);
  EXPECT_DOUBLE_EQ(profile.time_of(ReformKind::AllToAll, size).value, 0.35e-3);
  for (const auto kind : {ReformKind::Replicate, ReformKind::Slice, ReformKind::Select, ReformKind::Pad}) {
    EXPECT_EQ(profile.time_of(kind, size), Seconds(0));
  }
}

TEST(ParityProfile, NamesTheLineAndKeyOfAFault)
{
  EXPECT_EQ(fault_of(with("4,", "0,")),
            "profile.json:2: devices: \"0\" is out of range; write a whole number from 1 to 1000000");
  EXPECT_EQ(fault_of(with("1e9", "0")), "profile.json:4: all_gather: is 0; write a positive rate");
  EXPECT_EQ(fault_of(with("1e9", "-1")),
            "profile.json:4: all_gather: \"-1\" is out of range; write a number, 0 or more");
  EXPECT_EQ(fault_of(with("\"all_reduce\"", "\"allreduce\"")),
            "profile.json:1: all_reduce: missing; write a number, 0 or more\n"
            "profile.json:5: allreduce: unknown key; did you mean all_reduce?");
  EXPECT_EQ(fault_of("[]"), "profile.json:1: the file is a list; write \"key: value\" pairs");
}

}  // namespace
}  // namespace isobar::allocators::spmd::parity_profile_test
