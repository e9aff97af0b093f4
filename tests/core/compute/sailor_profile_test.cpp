#include "core/compute/sailor_profile.hpp"

#include "core/errors.hpp"
#include "tests/support/thrown_message.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace isobar::compute::sailor_profile_test {
namespace {

using testing::HasSubstr;

/// A run of an embedding, three blocks and a head; the first block is slower.
std::string run_text(double block_forward, double block_backward)
{
  return fmt::format(
      R"({{"0": [0.1, 0.2, 9], "1": [99, 99, 9], "2": [{0}, {1}, 9], "3": [{0}, {1}, 9], "4": [0.5, 0.7, 9]}})",
      block_forward, block_backward);
}

SailorProfile profile_of(const std::string& text)
{
  return sailor_profile_from_json(text, "p.json");
}

/// Micro-batches 1, 2 and 4 with four shards.
SailorProfile three_batches(double first, double second, double third)
{
  return profile_of(fmt::format("{{\"1\": {{\"4\": {}}}, \"2\": {{\"4\": {}}}, \"4\": {{\"4\": {}}}}}",
                                run_text(first, 2 * first), run_text(second, 2 * second), run_text(third, 2 * third)));
}

Framework with_host(double seconds)
{
  Framework framework;
  framework.host_forward = Seconds(seconds / 4);
  framework.host_backward = Seconds(seconds / 4);
  framework.host_shards = Seconds(seconds / 4);
  return framework;
}

std::string fault_of(const std::string& text)
{
  return message_of([&] { profile_of(text); });
}

TEST(SailorProfile, RepeatsTheSecondBlock)
{
  const auto profile = three_batches(1, 2, 4);
  const auto& run = profile.run(2, 4);
  ASSERT_EQ(run.layers.size(), 5U);
  for (const std::size_t block : {1U, 2U, 3U}) EXPECT_EQ(run.layers[block].forward, Seconds(2));
  EXPECT_EQ(run.layers[0].backward, Seconds(0.2));
  EXPECT_EQ(run.layers[4].forward, Seconds(0.5));
  EXPECT_EQ(run.update, Seconds(9));
}

TEST(SailorProfile, NamesWhatItHas)
{
  const auto profile = three_batches(1, 2, 4);
  EXPECT_EQ(message_of([&] { profile.run(3, 4); }), "InputError p.json: no times for micro-batch 3; it has 1, 2, 4");
  EXPECT_EQ(message_of([&] { profile.run(2, 8); }),
            "InputError p.json: no times for micro-batch 2 and tensor-parallel degree 8; it has degrees 4");
}

TEST(SailorProfile, RefusesWrongFiles)
{
  EXPECT_THAT(fault_of("{}"), HasSubstr("no micro-batch; a profile of Sailor has at least one"));
  EXPECT_THAT(fault_of("{\"one\": {}}"), HasSubstr("p.json:1: one: is no micro-batch; write a whole number from 1"));
  EXPECT_THAT(fault_of("{\"1\": {\"0\": {}}}"), HasSubstr("1.0: is no tensor-parallel degree"));
  EXPECT_THAT(fault_of("{\"1\": {\"1\": {\"0\": [1, 2]}}}"),
              HasSubstr("1.1.0: is no list of three numbers; write [forward_s, backward_s, update_s]"));
  EXPECT_THAT(fault_of("{\"1\": {\"1\": {\"0\": [1, -2, 3]}}}"), HasSubstr("1.1.0[1]: \"-2\" is no time from 0"));
  EXPECT_THAT(fault_of("{\"1\": {\"1\": {\"0\": [1, \"2\", 3]}}}"), HasSubstr("1.1.0[1]: \"2\" is no time from 0"));
  EXPECT_THAT(fault_of("{\"1\": {\"1\": {\"0\": [1, 2, 3], \"2\": [1, 2, 3]}}}"),
              HasSubstr("1.1.1: missing; number the layers from 0 without gaps"));
  EXPECT_THAT(fault_of("{\"1\": {\"1\": {\"0\": [1, 2, 3], \"1\": [1, 2, 3]}}}"),
              HasSubstr("2 layers; write an embedding, blocks and a head"));
}

TEST(SailorProfile, InTrainingNoPassTakesLongerThanWithMoreSamples)
{
  const auto profile = three_batches(3, 2, 4);
  const auto run = in_training(profile, 1, 4, with_host(0));
  EXPECT_LE(run.block().forward, Seconds(2));
  EXPECT_EQ(in_training(profile, 2, 4, with_host(0)).block().forward, Seconds(2));
  EXPECT_EQ(in_training(profile, 4, 4, with_host(0)).block().forward, Seconds(4));
}

TEST(SailorProfile, InTrainingABlockThatWaitsForTheHostTakesItsTime)
{
  // Twice the samples take 6.3 in place of 6: the host is slower than the device, which needs at least 3.15.
  const auto profile = three_batches(2, 2.1, 8);
  const auto run = in_training(profile, 1, 4, with_host(5));
  EXPECT_NEAR((run.block().forward + run.block().backward).value, 5, 1e-12);
  EXPECT_NEAR(run.block().backward / run.block().forward, 2, 1e-12);
  EXPECT_EQ(run.layers[0].forward, Seconds(0.1));  // other layers stay
  const auto fast_host = in_training(profile, 1, 4, with_host(1));
  EXPECT_NEAR((fast_host.block().forward + fast_host.block().backward).value, 3.15, 1e-12);
  const auto slow_host = in_training(profile, 1, 4, with_host(100));
  EXPECT_NEAR((slow_host.block().forward + slow_host.block().backward).value, 6, 1e-12);  // as measured
}

TEST(SailorProfile, InTrainingABlockThatTheDeviceBoundsStays)
{
  const auto profile = three_batches(2, 3, 6);
  EXPECT_EQ(in_training(profile, 1, 4, with_host(0.1)).block().forward, Seconds(2));
  EXPECT_EQ(in_training(profile, 4, 4, with_host(0.1)).block().forward, Seconds(6));  // nothing larger is measured
}

TEST(SailorSizes, AreReadByDegreeAndLayer)
{
  const std::string layer = R"({"params_floats": 10, "act_mem_bytes": 400, "act_mem_floats": 100})";
  const auto text = fmt::format("{{\"4\": {{\"0\": {0}, \"1\": {0}, \"2\": {0}}}}}", layer);
  const auto sizes = sailor_sizes_from_json(text, "s.json");
  ASSERT_EQ(sizes.of_shards(4).size(), 3U);
  EXPECT_EQ(sizes.of_shards(4)[1].parameters, 10);
  EXPECT_EQ(sizes.of_shards(4)[1].activations, Bytes(400));
  EXPECT_EQ(message_of([&] { sizes.of_shards(2); }),
            "InputError s.json: no sizes for tensor-parallel degree 2; it has degrees 4");
  EXPECT_THAT(message_of([] { sailor_sizes_from_json(R"({"4": {"0": {"params_floats": 1}}})", "s.json"); }),
              HasSubstr("4.0.act_mem_bytes: missing"));
}

}  // namespace
}  // namespace isobar::compute::sailor_profile_test
