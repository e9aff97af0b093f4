#include "tests/fuzz/data_inputs.hpp"
#include "tests/support/fuzz_replay.hpp"

#include <gtest/gtest.h>

namespace isobar::exec::data_fuzz_crashes_test {
namespace {

using testing_support::replay;

TEST(TokenFile, SurvivesEveryInputThatEverCrashedIt)
{
  replay("fuzz_token_file", fuzz::token_file);
}

TEST(MnliFile, SurvivesEveryInputThatEverCrashedIt)
{
  replay("fuzz_mnli", fuzz::mnli);
}

TEST(WordPiece, SurvivesEveryInputThatEverCrashedIt)
{
  replay("fuzz_wordpiece", fuzz::wordpiece);
}

}  // namespace
}  // namespace isobar::exec::data_fuzz_crashes_test
