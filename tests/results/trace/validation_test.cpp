#include "results/trace/validation.hpp"

#include "tests/results/trace/interleaved_stages.hpp"
#include "tests/results/trace/two_stages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace isobar::results::validation_test {
namespace {

using testing::HasSubstr;

TEST(Validation, FindsNoErrorsBetweenATimelineAndItself)
{
  const TwoStages program;
  const WrittenTrace file;
  file.write_steps(program, 2, 0.5);
  const auto timeline = file.timeline(program);
  const auto validation =
      validate(timeline, timeline, "even", {"a", "b"}, {{Bytes(1), Bytes(1)}, {Bytes(2), Bytes(2)}});
  EXPECT_EQ(validation.step_time.error_fraction(), 0);
  for (const auto& stage : validation.stages) {
    EXPECT_EQ(stage.compute.error_fraction(), 0);
    EXPECT_EQ(stage.peak_memory.error_fraction(), 0);
  }
  EXPECT_EQ(validation.instructions.size(), 10U);
  for (const auto& kind : validation.instructions) EXPECT_EQ(kind.duration.error_fraction(), 0);
}

TEST(Validation, FindsTheInstructionsThatTookLonger)
{
  const TwoStages program;
  const WrittenTrace file;
  file.write_steps(program, 2, 0.5);
  const auto predicted = file.timeline(program);
  file.write_steps(program, 4, 1);
  const auto measured = file.timeline(program);
  const auto validation =
      validate(predicted, measured, "even", {"a", "b"}, {{Bytes(3), Bytes(2)}, {Bytes(1), Bytes(0)}});
  EXPECT_NEAR(validation.step_time.error_fraction(), 11.75 / 12.75 - 1, 1e-9);
  EXPECT_NEAR(validation.stages[0].compute.measured.value, 3.5, 1e-9);
  EXPECT_NEAR(validation.stages[0].peak_memory.error_fraction(), 0.5, 1e-12);
  for (const auto& kind : validation.instructions) {
    EXPECT_NEAR(kind.duration.error_fraction(), kind.opcode == Opcode::Send ? -0.5 : 0, 1e-9) << kind.device;
  }
  EXPECT_EQ(validation.measured_path[0].what, "Backward on b");
  EXPECT_EQ(validation.measured_path[4].what, "Send from a to b");

  const auto json = nlohmann::json::parse(validation_to_json(validation, 0.05));
  EXPECT_FALSE(json["within_tolerance"]);
  EXPECT_TRUE(nlohmann::json::parse(validation_to_json(validation, 0.1))["within_tolerance"]);
  // A prediction of something whose measurement is 0 has no relative error.
  EXPECT_TRUE(json["stages"][1]["peak_memory_error_fraction"].is_null());
  EXPECT_THAT(text_of(validation), HasSubstr("step 11.75 s predicted, 12.75 s measured: -7.8 %"));
}

TEST(Validation, TellsTheStagesOfADeviceApart)
{
  const InterleavedStages program;
  const WrittenTrace file;
  auto events = program.events();
  file.write(program, events, {"a", "b"});
  const auto predicted = file.timeline(program);
  for (auto& event : events) {
    if (event.instruction.opcode == Opcode::Update && event.instruction.stage == 2) event.end += Seconds(0.5);
  }
  file.write(program, events, {"a", "b"});
  const auto measured = file.timeline(program);
  const auto validation =
      validate(predicted, measured, "even", {"a", "b"}, {{Bytes(1), Bytes(1)}, {Bytes(2), Bytes(2)}});
  EXPECT_EQ(validation.stages.size(), 2U);  // of two devices
  EXPECT_NEAR(validation.stages[0].compute.predicted.value, 5, 1e-9);
  EXPECT_NEAR(validation.stages[0].compute.measured.value, 5.5, 1e-9);
  // Of each stage a forward, a backward and an update, and of six messages one each.
  EXPECT_EQ(validation.instructions.size(), 4U * 3 + 6);
  for (const auto& kind : validation.instructions) {
    ASSERT_TRUE(kind.stage);
    EXPECT_EQ(kind.payload.has_value(), kind.opcode == Opcode::Send);
    const bool is_longer = kind.opcode == Opcode::Update && kind.stage == 2U;
    EXPECT_NEAR(kind.duration.error_fraction(), is_longer ? -0.5 : 0, 1e-9);
  }
  const auto kinds = nlohmann::json::parse(validation_to_json(validation, 0.1))["instructions"];
  EXPECT_EQ(kinds[0]["stage"], 0);
  EXPECT_FALSE(kinds[0].contains("payload"));
  EXPECT_EQ(kinds[6]["opcode"], "Send");
  EXPECT_EQ(kinds[6]["payload"], "activation");
  EXPECT_THAT(text_of(validation), HasSubstr("Send activation, stage 0"));
}

TEST(Validation, NamesNoStagesWhereADeviceHoldsOne)
{
  const TwoStages program;
  const WrittenTrace file;
  file.write_steps(program, 2, 0.5);
  const auto timeline = file.timeline(program);
  const auto validation =
      validate(timeline, timeline, "even", {"a", "b"}, {{Bytes(1), Bytes(1)}, {Bytes(2), Bytes(2)}});
  const auto json = nlohmann::json::parse(validation_to_json(validation, 0.1));
  for (const auto& kind : json.at("instructions")) {
    EXPECT_FALSE(kind.contains("stage"));
    EXPECT_FALSE(kind.contains("payload"));
  }
}

}  // namespace
}  // namespace isobar::results::validation_test
