#include "cli/frameworks/shell_text.hpp"

#include "tests/support/thrown_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isobar::cli::shell_text_test {
namespace {

using testing::ElementsAre;

TEST(ShellText, QuotesWhatAShellWouldRead)
{
  EXPECT_EQ(shell_array("ARGUMENTS", {{"--layout", {"Et*2|L"}}, {"--flag", {}}, {"--names", {"a,b", "it's", ""}}},
                        {"two", "lines"}),
            "# two\n# lines\nARGUMENTS=(\n  --layout 'Et*2|L'\n  --flag\n  --names a,b 'it'\\''s' ''\n)\n");
}

TEST(ShellText, ReadsWordsAsAShellDoes)
{
  EXPECT_THAT(shell_words("a 'b c' \"d e\"f\\ g # no word\n\th#i \\\n  '' j", "file"),
              ElementsAre("a", "b c", "d ef g", "h#i", "", "j"));
  EXPECT_THAT(shell_words(" \n# nothing", "file"), ElementsAre());
}

TEST(ShellText, ReadsWhatItWrites)
{
  const std::string text = shell_array("A", {{"--x", {"it's", "(t|)*2", "$HOME", "a b"}}}, {"heading"});
  EXPECT_THAT(shell_words(text, "file"), ElementsAre("A=(", "--x", "it's", "(t|)*2", "$HOME", "a b", ")"));
}

TEST(ShellText, RefusesQuotesWithoutAnEnd)
{
  EXPECT_EQ(message_of([] { shell_words("a 'b", "run.sh"); }), "InputError run.sh: a ' without an end; write another");
}

}  // namespace
}  // namespace isobar::cli::shell_text_test
