#include "core/files.hpp"
#include "tests/fuzz/handshake_input.hpp"

#include <gtest/gtest.h>

#include <filesystem>

namespace isobar {
namespace {

TEST(HandshakeCorpus, ComesToNothing)
{
  std::size_t inputs = 0;
  for (const auto& file : std::filesystem::directory_iterator(ISOBAR_SOURCE_DIR "/tests/fuzz/corpus/fuzz_handshake")) {
    SCOPED_TRACE(file.path());
    const std::string text = read_file(file.path());
    EXPECT_NO_THROW(fuzz::handshake({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()}));
    ++inputs;
  }
  EXPECT_GE(inputs, 6);
}

}  // namespace
}  // namespace isobar
