#include "core/plan/step_interval.hpp"

#include "core/errors.hpp"
#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace isobar::step_interval_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Reads the members of an object of JSON. @throws InputError with every fault.
std::optional<StepInterval> interval_in(const std::string& json)
{
  const DocumentNode document = parse_json(json, "f");
  FaultList faults("f");
  MappingReader reader(document, "predicted.", faults);
  auto interval = read_step_interval(reader, faults);
  reader.refuse_unknown();
  faults.throw_if_any();
  return interval;
}

TEST(ReadStepInterval, HasItsEndsAndCauses)
{
  const auto interval = interval_in(R"({"step_interval_s": [1, 2.5], "interval_because": ["any run: ±6 %", "b"]})");
  ASSERT_TRUE(interval);
  EXPECT_EQ(interval->low, Seconds(1));
  EXPECT_EQ(interval->high, Seconds(2.5));
  EXPECT_THAT(interval->because, ElementsAre("any run: ±6 %", "b"));
  EXPECT_TRUE(interval_in(R"({"step_interval_s": [1, 1]})")->because.empty());
  EXPECT_FALSE(interval_in("{}"));
}

TEST(ReadStepInterval, RefusesWhatIsNoInterval)
{
  for (const auto* ends : {"[2, 1]", "[1]", "[1, 2, 3]"}) {
    EXPECT_THAT(message_of([&] { interval_in(std::string(R"({"step_interval_s": )") + ends + "}"); }),
                HasSubstr("predicted.step_interval_s: is no interval; write its two ends, the lower one first"));
  }
  EXPECT_THAT(message_of([] { interval_in(R"({"step_interval_s": ["a", 2]})"); }),
              HasSubstr("predicted.step_interval_s[0]: "));
  EXPECT_THAT(message_of([] { interval_in(R"({"step_interval_s": [1, 2], "interval_because": [3]})"); }),
              HasSubstr("predicted.interval_because[0]: "));
  EXPECT_EQ(message_of([] { interval_in(R"({"interval_because": ["luck"]})"); }),
            "InputError f:1: predicted.interval_because: goes with step_interval_s; leave it out, or write that");
}

TEST(TextOfAStepInterval, HasThreeDigitsOrWholeSeconds)
{
  EXPECT_EQ(text_of(StepInterval{Seconds(14.0999), Seconds(15.904)}), "80 %: 14.1 to 15.9 s");
  EXPECT_EQ(text_of(StepInterval{Seconds(0.01234), Seconds(0.0198)}), "80 %: 0.0123 to 0.0198 s");
  EXPECT_EQ(text_of(StepInterval{Seconds(999), Seconds(12345.6)}), "80 %: 999 to 12346 s");
}

}  // namespace
}  // namespace isobar::step_interval_test
