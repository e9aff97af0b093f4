#include "cli/frameworks/megatron_layout.hpp"

#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace isobar::cli::megatron_layout_test {
namespace {

using testing::ElementsAre;

/// What is wrong with a layout, without its place.
std::string fault_of(const std::string& layout)
{
  const std::string message = message_of([&] { stages_of_layout(layout, "layout"); });
  return message.starts_with("InputError layout: ") ? message.substr(19) : message;
}

TEST(MegatronLayout, WritesOutRepetitionsOfLettersAndGroups)
{
  EXPECT_THAT(stages_of_layout("Ettt|(tt|)*3,m|L", "layout"), ElementsAre("Ettt", "tt", "tt", "tt", "m", "L"));
  EXPECT_THAT(stages_of_layout("Et*4|(t*4|)*2tL", "layout"), ElementsAre("Etttt", "tttt", "tttt", "tL"));
  EXPECT_THAT(stages_of_layout("E(t|t)*2L", "layout"), ElementsAre("Et", "tt", "tL"));
}

TEST(MegatronLayout, IgnoresCommas)
{
  EXPECT_EQ(stages_of_layout("E,t,*,2,|,(t,|)*1,0,L", "layout"), stages_of_layout("Et*2|(t|)*10L", "layout"));
}

TEST(MegatronLayout, KeepsEmptyStages)
{
  EXPECT_THAT(stages_of_layout("E|*3t*0|L", "layout"), ElementsAre("E", "", "", "", "L"));
}

TEST(MegatronLayout, NamesTheColumnOfEachFault)
{
  EXPECT_EQ(fault_of(""), "is empty; write a layout such as Et*4|t*4L");
  EXPECT_EQ(fault_of("E,x"), "column 3: \"x\" is no item; write E, t, m, L, |, *n or a group (…)*n");
  EXPECT_EQ(fault_of("Et |L"), "column 3: \" \" is no item; write E, t, m, L, |, *n or a group (…)*n");
  EXPECT_EQ(fault_of("E(t|L"), "column 2: the group has no end; write )*n");
  EXPECT_EQ(fault_of("E()*2L"), "column 2: the group is empty; leave it out");
  EXPECT_EQ(fault_of("E(t|)L"), "column 6: a group without a number; write *n after it");
  EXPECT_EQ(fault_of("E((t)*2|)*2L"),
            "column 3: a group within a group, which Megatron does not read; write out one of them");
  EXPECT_EQ(fault_of("Et*"), "column 3: * without a number; write how many times");
  EXPECT_EQ(fault_of("E(t)*2*3L"), "column 7: a second number; write the product of both");
  EXPECT_EQ(fault_of("*2E"), "column 1: \"*\" repeats nothing; write a letter, a | or a group before it");
  EXPECT_EQ(fault_of("Et)L"), "column 3: \")\" ends no group; leave it out, or write ( before");
}

TEST(MegatronLayout, RefusesMoreItemsThanAnyModelHas)
{
  EXPECT_EQ(fault_of("t*99999999999999999999"), "has more than 65536 items; write fewer");
  EXPECT_EQ(fault_of("(t*60000)*60000"), "has more than 65536 items; write fewer");
  EXPECT_EQ(fault_of("(t*60000t*60000)*1"), "has more than 65536 items; write fewer");
}

TEST(MegatronLayout, IsWrittenShort)
{
  EXPECT_EQ(layout_of({"Et", "tt", "tt", "tL"}), "Et|(t*2|)*2tL");
  EXPECT_EQ(layout_of({"E", "t", "t", "m", "L"}), "E|(t|)*2m|L");
  EXPECT_EQ(layout_of({"EtL"}), "EtL");
  EXPECT_EQ(layout_of({"t", "t"}), "t|t");
  EXPECT_EQ(layout_of({"t", "t", "t"}), "(t|)*2t");
}

TEST(MegatronLayout, IsReadAsItWasWritten)
{
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    std::vector<std::string> stages(1 + random() % 9);
    for (auto& stage : stages) {
      const bool repeats = random() % 2 == 0 && &stage != &stages.front();
      stage = repeats ? *(&stage - 1) : std::string();
      while (stage.empty() || random() % 3 != 0) stage += layout_letters[random() % layout_letters.size()];
    }
    EXPECT_EQ(stages_of_layout(layout_of(stages), "layout"), stages) << layout_of(stages);
  }
}

}  // namespace
}  // namespace isobar::cli::megatron_layout_test
