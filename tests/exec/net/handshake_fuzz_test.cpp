#include "tests/fuzz/handshake_input.hpp"
#include "tests/support/fuzz_replay.hpp"

#include <gtest/gtest.h>

namespace isobar::handshake_fuzz_test {
namespace {

TEST(HandshakeInputs, AreRefusedWithoutACrash)
{
  testing_support::replay("fuzz_handshake", [](const std::string& text) {
    fuzz::handshake({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  });
}

}  // namespace
}  // namespace isobar::handshake_fuzz_test
