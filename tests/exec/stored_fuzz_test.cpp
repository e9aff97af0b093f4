#include "tests/fuzz/stored_input.hpp"

#include "core/files.hpp"

#include <gtest/gtest.h>

#include <filesystem>

namespace isobar {
namespace {

/// What the fuzzers begin with, and what ever crashed them.
template <typename Try>
void replay(const std::string& fuzzer, Try try_input)
{
  const auto folder = std::filesystem::path(ISOBAR_SOURCE_DIR) / "tests" / "fuzz";
  std::size_t inputs = 0;
  for (const auto* kind : {"corpus", "crashes"}) {
    if (!std::filesystem::exists(folder / kind / fuzzer)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder / kind / fuzzer)) {
      EXPECT_NO_THROW(try_input(read_file(entry.path()))) << entry.path();
      ++inputs;
    }
  }
  EXPECT_GT(inputs, 0U);
}

TEST(FuzzedInputs, OfManifestsAreReadOrRefused)
{
  replay("fuzz_manifest", fuzz::manifest);
}

TEST(FuzzedInputs, OfSafetensorsAreReadOrRefused)
{
  replay("fuzz_safetensors", fuzz::safetensors);
}

}  // namespace
}  // namespace isobar
