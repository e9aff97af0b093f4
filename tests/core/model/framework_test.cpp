#include "core/compute/framework.hpp"

#include "core/errors.hpp"
#include "tests/support/thrown_message.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace isobar::compute::framework_test {
namespace {

TEST(Frameworks, AreListedByNameAndHaveASource)
{
  const auto names = framework_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (const auto& name : names) {
    const auto choice = framework_named(name);
    EXPECT_EQ(choice.framework->name, name);
    EXPECT_EQ(choice.note, "");
    EXPECT_FALSE(choice.framework->source.empty()) << name;
    EXPECT_TRUE(name.starts_with(choice.framework->family)) << name;
    EXPECT_GE(choice.framework->memory.state32.all(), 16) << name;
  }
}

TEST(Frameworks, OfAnUnknownYearTakeTheLatestOfTheirFamily)
{
  const auto choice = framework_named("megatron-lm-2019");
  EXPECT_EQ(choice.framework->name, "megatron-lm-2022");
  EXPECT_EQ(choice.note,
            "framework megatron-lm-2019 has no constants of its own; those of megatron-lm-2022 stand for them");
}

TEST(Frameworks, AreFoundByTheSoftwareThatASystemTrainsWith)
{
  EXPECT_EQ(framework_named("megatron-core-0.12").framework->family, "megatron-core");
  EXPECT_EQ(framework_named("megatron-deepspeed-2022").framework->family, "megatron-deepspeed");
  EXPECT_EQ(framework_named("aceso/megatron").framework->family, "aceso");
  EXPECT_EQ(framework_named("amp-2022").framework->family, "megatron-deepspeed");
  EXPECT_EQ(framework_named("mist-megatron").framework->family, "megatron-lm");
}

TEST(Frameworks, DifferInHowTheyTransferActivationsAndSumGradients)
{
  const auto& megatron = *framework_named("megatron-lm-2021").framework;
  const auto& deepspeed = *framework_named("megatron-deepspeed-2024").framework;
  EXPECT_TRUE(megatron.sliced_transfers);
  EXPECT_FALSE(deepspeed.sliced_transfers);
  EXPECT_TRUE(megatron.overlaps_gradient_sums);
  EXPECT_FALSE(deepspeed.overlaps_gradient_sums);
  EXPECT_EQ(framework_named("composer-fsdp-2023").framework->gathered, DType::BFloat16);
}

TEST(Frameworks, UnknownOnesAreRefused)
{
  EXPECT_EQ(message_of([] { framework_named("example"); }),
            "InputError framework example: is unknown; write one of aceso-2024, composer-fsdp-2023, megatron-core-0.8, "
            "megatron-deepspeed-2023, megatron-deepspeed-2024, megatron-lm-2021, megatron-lm-2022");
}

}  // namespace
}  // namespace isobar::compute::framework_test
