#include "tests/fuzz/stored_input.hpp"
#include "tests/support/fuzz_replay.hpp"

#include <gtest/gtest.h>

namespace isobar::exec::stored_fuzz_test {
namespace {

using testing_support::replay;

TEST(CheckpointManifest, SurvivesEveryInputThatEverCrashedIt)
{
  replay("fuzz_manifest", fuzz::manifest);
}

TEST(Safetensors, SurviveEveryInputThatEverCrashedThem)
{
  replay("fuzz_safetensors", fuzz::safetensors);
}

}  // namespace
}  // namespace isobar::exec::stored_fuzz_test
