#pragma once

#include "core/errors.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <string>

namespace isobar::testing_support {

/// The message that a malformed file must cause: the comment in its first lines ("# expect: …", or "<!-- expect: …
/// -->" of one or more lines), or the content of NAME.expected next to it if the format has no comments.
inline std::string expected_message(const std::filesystem::path& file)
{
  std::ifstream neighbour(file.string() + ".expected");
  std::ostringstream text;
  if (neighbour) {
    text << neighbour.rdbuf();
  } else {
    text << std::ifstream(file).rdbuf();
  }
  const std::string content = text.str();
  std::smatch match;
  const std::regex comment("# expect: (.*)|<!-- expect: ([\\s\\S]*?) -->");
  if (std::regex_search(content, match, comment)) return match.str(1) + match.str(2);
  return neighbour ? content.substr(0, content.find_last_not_of('\n') + 1) : "no expected message in the file";
}

/// Reads each file tests/instances/bad/PREFIX*ENDING and compares the whole message of its InputError with the expected
/// one; files are named without their folder. Returns the number of files.
inline std::size_t expect_each_bad_file_refused(const std::string& prefix, const std::string& ending,
                                                const std::function<void(const std::filesystem::path&)>& read)
{
  namespace fs = std::filesystem;
  fs::current_path(fs::path(ISOBAR_SOURCE_DIR) / "tests/instances/bad");
  std::size_t files = 0;
  for (const auto& entry : fs::directory_iterator(".")) {
    const fs::path file = entry.path().filename();
    if (!file.string().starts_with(prefix) || file.extension() != ending) continue;
    ++files;
    try {
      read(file);
      ADD_FAILURE() << file << " was accepted";
    } catch (const InputError& error) {
      EXPECT_EQ(error.what(), expected_message(file)) << file;
    }
  }
  return files;
}

}  // namespace isobar::testing_support
