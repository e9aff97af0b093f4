#pragma once

#include "core/base/files.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

namespace isobar::testing_support {

/// Passes the fuzzer's corpus and every input that ever crashed it to `run`.
inline void replay(const std::string& fuzzer, const std::function<void(const std::string&)>& run)
{
  const auto tests = std::filesystem::path(ISOBAR_SOURCE_DIR) / "tests/fuzz";
  std::size_t inputs = 0;
  for (const auto* folder : {"corpus", "crashes"}) {
    if (!std::filesystem::exists(tests / folder / fuzzer)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(tests / folder / fuzzer)) {
      EXPECT_NO_THROW(run(read_file(entry.path()))) << entry.path();
      ++inputs;
    }
  }
  EXPECT_GT(inputs, 0u);
}

}  // namespace isobar::testing_support
