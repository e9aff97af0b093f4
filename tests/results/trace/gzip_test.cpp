#include "results/trace/gzip.hpp"

#include "core/errors.hpp"
#include "tests/support/temporary_folder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace isobar::results::gzip_test {
namespace {

using testing::ThrowsMessage;

/// A text compressed by gzip.
std::string packed(const std::string& text)
{
  const testing_support::TemporaryFolder folder;
  const auto file = folder.write("text", text).string();
  EXPECT_EQ(std::system(("gzip '" + file + "'").c_str()), 0);
  std::ifstream stream(file + ".gz", std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST(UnpackGzip, RestoresTheOriginal)
{
  std::string many;
  for (int i = 0; i < 300'000; ++i) many += std::to_string(i);
  for (const auto& text : {std::string(), std::string("a"), many, std::string(3'000'000, 'x')}) {
    EXPECT_TRUE(unpack_gzip(packed(text)) == text) << text.size();
  }
  EXPECT_EQ(unpack_gzip(packed("one, ") + packed("two")), "one, two");  // as concatenated by cat
}

TEST(UnpackGzip, RefusesTruncatedAndDamagedFiles)
{
  const std::string whole = packed(std::string(10'000, 'x') + "end");
  const std::string fault = "is not a complete gzip file; compress it again";
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THAT([&] { unpack_gzip(whole.substr(0, length)); }, ThrowsMessage<InputError>(fault)) << length;
  }
  std::string damaged = whole;
  damaged[damaged.size() - 6] = static_cast<char>(damaged[damaged.size() - 6] ^ 1);  // of its checksum
  EXPECT_THAT([&] { unpack_gzip(damaged); }, ThrowsMessage<InputError>(fault));
}

TEST(ReadUnpacked, ReadsFilesCompressedOrNot)
{
  const testing_support::TemporaryFolder folder;
  EXPECT_EQ(read_unpacked(folder.write("plain", "text")), "text");
  EXPECT_EQ(read_unpacked(folder.write("packed", packed("text"))), "text");
  const auto cut = folder.write("cut", "\x1f\x8b");
  EXPECT_THAT([&] { read_unpacked(cut); },
              ThrowsMessage<InputError>(cut.string() + ": is not a complete gzip file; compress it again"));
}

}  // namespace
}  // namespace isobar::results::gzip_test
