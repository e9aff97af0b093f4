#include "core/order/schedule_choice.hpp"

#include "core/errors.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace isobar::schedule_choice_test {
namespace {

std::string fault_of(const std::string& text)
{
  try {
    schedule_from_text(text);
  } catch (const InputError& fault) {
    return fault.what();
  }
  return "";
}

TEST(ScheduleText, IsTheNameOfASchedule)
{
  EXPECT_EQ(text_of(ScheduleChoice{}), "1f1b");
  EXPECT_EQ(text_of(ScheduleChoice{"gpipe"}), "gpipe");
  EXPECT_EQ(schedule_from_text("zero-bubble-h1"), ScheduleChoice{"zero-bubble-h1"});
}

TEST(ScheduleText, HasNumbersInParenthesesAndAutoForThoseToBeChosen)
{
  const ScheduleChoice interleaved{"interleaved", {{"chunks", {2}}}};
  EXPECT_EQ(text_of(interleaved), "interleaved(chunks=2)");
  const ScheduleChoice warm{"1f1b", {{"warm_up", {3, 2, 1, 0}}}};
  EXPECT_EQ(text_of(warm), "1f1b(warm_up=3/2/1/0)");
  const ScheduleChoice open{"1f1b", {{"warm_up", {}}}};
  EXPECT_EQ(text_of(open), "1f1b(warm_up=auto)");
  for (const auto& choice : {interleaved, warm, open}) EXPECT_EQ(schedule_from_text(text_of(choice)), choice);
}

TEST(ScheduleText, IsReadAsItIsWrittenWithAnyNumbers)
{
  const ScheduleChoice choice{"mine_2.0", {{"a", {18'446'744'073'709'551'615ULL}}, {"b", {}}, {"c-d", {0, 7}}}};
  EXPECT_EQ(text_of(choice), "mine_2.0(a=18446744073709551615;b=auto;c-d=0/7)");
  EXPECT_EQ(schedule_from_text(text_of(choice)), choice);
}

TEST(ScheduleText, LeavesOrdersOut)
{
  const ScheduleChoice listed{"listed", {}, {{"d0", Order({{1, {{{Opcode::Forward, 0, 0}}}}})}}};
  EXPECT_EQ(text_of(listed), "listed");
}

TEST(ScheduleText, IsRefusedWithWhatWouldBeRight)
{
  EXPECT_EQ(fault_of(""),
            "schedule: \"\" is no schedule; write a name, and numbers in parentheses, such as "
            "interleaved(chunks=2)");
  EXPECT_EQ(fault_of("1f1b, gpipe"),
            "schedule: \"1f1b, gpipe\" is no schedule; write a name, and numbers in "
            "parentheses, such as interleaved(chunks=2)");
  EXPECT_EQ(fault_of("interleaved(chunks=2"),
            "schedule: \"interleaved(chunks=2\" has no closing parenthesis at its end; write interleaved(KEY=NUMBERS), "
            "with / between numbers and ; between keys");
  EXPECT_EQ(fault_of("interleaved(chunks=2) "),
            "schedule: \"interleaved(chunks=2) \" has no closing parenthesis at its end; write "
            "interleaved(KEY=NUMBERS), with / between numbers and ; between keys");
  EXPECT_EQ(fault_of("interleaved()"),
            "schedule: \"interleaved()\" has nothing in its parentheses; leave them out, or write "
            "interleaved(KEY=NUMBERS)");
  EXPECT_EQ(fault_of("interleaved(chunks=2;)"),
            "schedule: \"\" in \"interleaved(chunks=2;)\" is not KEY=NUMBERS; write it as in interleaved(chunks=2)");
  EXPECT_EQ(fault_of("interleaved(2)"),
            "schedule: \"2\" in \"interleaved(2)\" is not KEY=NUMBERS; write it as in interleaved(chunks=2)");
  EXPECT_EQ(fault_of("interleaved(chunks=2;chunks=3)"),
            "schedule: \"interleaved(chunks=2;chunks=3)\" has chunks twice; write it once");
  for (const std::string text : {"interleaved(chunks=2,chunks=2)", "1f1b(warm_up=1,0;warm_up=1,0)", "1f1b(1,0)"}) {
    EXPECT_EQ(fault_of(text),
              "schedule: \"" + text + "\" has a comma; write / between numbers, as in 3/2/1/0, and ; between keys");
  }
  EXPECT_EQ(fault_of("1f1b(warm_up=)"), "schedule: warm_up has no value; write auto, or numbers as in 3/2/1/0");
  for (const std::string numbers : {"two", "-1", "2/", "/2", "1e3", " 2", "18446744073709551616"}) {
    EXPECT_EQ(fault_of("1f1b(warm_up=" + numbers + ")"),
              "schedule: warm_up: \"" + numbers + "\" is neither auto nor numbers; write them as in 3/2/1/0");
  }
}

TEST(ScheduleChoice, HasOrdersWhereTheyDoNotFollowFromTheStages)
{
  EXPECT_TRUE(takes_orders("listed"));
  EXPECT_TRUE(takes_orders("greedy"));
  EXPECT_FALSE(takes_orders("1f1b"));
  EXPECT_FALSE(takes_orders(""));
}

TEST(ChainSchedule, IsThatOfTheThreeNamesWithoutNumbers)
{
  for (const auto schedule : {ChainSchedule::Sequential, ChainSchedule::GPipe, ChainSchedule::OneForwardOneBackward}) {
    EXPECT_EQ(chain_schedule(choice_of(schedule)), schedule);
    EXPECT_EQ(require_chain_schedule(choice_of(schedule)), schedule);
    EXPECT_EQ(text_of(choice_of(schedule)), name_of(schedule));
  }
  EXPECT_EQ(chain_schedule({}), ChainSchedule::OneForwardOneBackward);
  EXPECT_EQ(chain_schedule({"zero-bubble-h1"}), std::nullopt);
  EXPECT_EQ(chain_schedule({"1f1b", {{"warm_up", {1, 0}}}}), std::nullopt);
  EXPECT_EQ(chain_schedule({"1f1b", {{"warm_up", {}}}}), std::nullopt);
  EXPECT_THROW(require_chain_schedule({"interleaved"}), std::logic_error);
}

}  // namespace
}  // namespace isobar::schedule_choice_test
