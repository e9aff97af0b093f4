#include "tests/fuzz/inputs.hpp"

#include "tests/support/fuzz_replay.hpp"

#include <gtest/gtest.h>

namespace isobar::fuzz_crashes_test {
namespace {

using testing_support::replay;

TEST(ParseYamlAndJson, SurviveEveryInputThatEverCrashedThem)
{
  replay("fuzz_document", fuzz::document);
}

TEST(WorkloadFromText, SurvivesEveryInputThatEverCrashedIt)
{
  replay("fuzz_workload", fuzz::workload);
}

TEST(WorkloadFromHuggingFace, SurvivesEveryInputThatEverCrashedIt)
{
  replay("fuzz_huggingface_config", fuzz::huggingface_config);
}

}  // namespace
}  // namespace isobar::fuzz_crashes_test
