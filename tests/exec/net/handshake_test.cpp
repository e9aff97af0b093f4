#include "exec/net/handshake.hpp"

#include "core/errors.hpp"
#include "exec/net/secret.hpp"
#include "tests/exec/links/tcp_ranks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <sys/stat.h>
#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

namespace isobar::exec::handshake_test {
namespace {

using testing::AllOf;

using testing::HasSubstr;
using testing::Not;

/// Both sides of one handshake, and the initiator's claim.
struct Exchange {
  explicit Exchange(const Secret& of_initiator, const Secret& of_acceptor, std::string_view purpose = "link 0 to 1")
      : initiator(of_initiator, purpose_of(purpose)),
        acceptor(of_acceptor),
        claim(initiator.claim(acceptor.challenge()))
  {
  }

  InitiatorHandshake initiator;
  AcceptorHandshake acceptor;
  Claim claim;
};

template <typename Part>
std::span<std::byte> bytes_of(Part& part)
{
  return std::as_writable_bytes(std::span(&part, 1));
}

std::vector<std::byte> copy_of(const Key& key)
{
  return {key.bytes().begin(), key.bytes().end()};
}

class Handshake : public testing::Test {
 protected:
  std::shared_ptr<const Secret> secret = test_secret();
  std::shared_ptr<const Secret> other = test_secret("the secret of another run");
};

TEST_F(Handshake, ProvesTheSecretBothWaysAndCarriesThePurpose)
{
  Exchange exchange(*secret, *secret, "link 3 to 4");
  ASSERT_TRUE(exchange.acceptor.is_proved_by(exchange.claim));
  EXPECT_EQ(text_of(exchange.claim.purpose), "link 3 to 4");
  EXPECT_EQ(exchange.initiator.reason_of(exchange.acceptor.verdict("")), "");
  EXPECT_EQ(exchange.initiator.reason_of(exchange.acceptor.verdict("it is rank 7")), "it is rank 7");
  EXPECT_EQ(copy_of(exchange.initiator.session_key()), copy_of(exchange.acceptor.session_key()));
}

TEST_F(Handshake, FailsForAnInitiatorWithAnotherSecret)
{
  Exchange exchange(*other, *secret);
  EXPECT_FALSE(exchange.acceptor.is_proved_by(exchange.claim));
}

TEST_F(Handshake, FailsForAnAcceptorWithAnotherSecret)
{
  Exchange exchange(*secret, *other);
  exchange.acceptor.is_proved_by(exchange.claim);
  EXPECT_EQ(exchange.initiator.reason_of(exchange.acceptor.verdict("")), std::nullopt);
}

TEST_F(Handshake, RefusesAClaimWithAnyBitChanged)
{
  Exchange exchange(*secret, *secret);
  for (std::size_t bit = 0; bit < 8 * sizeof(Claim); ++bit) {
    Claim changed = exchange.claim;
    bytes_of(changed)[bit / 8] ^= std::byte(1U << bit % 8);
    EXPECT_FALSE(exchange.acceptor.is_proved_by(changed)) << bit;
  }
  EXPECT_TRUE(exchange.acceptor.is_proved_by(exchange.claim));
}

TEST_F(Handshake, RefusesAVerdictWithAnyBitChanged)
{
  Exchange exchange(*secret, *secret);
  ASSERT_TRUE(exchange.acceptor.is_proved_by(exchange.claim));
  const Verdict verdict = exchange.acceptor.verdict("it has 2 ranks, not 3");
  for (std::size_t bit = 0; bit < 8 * sizeof(Verdict); ++bit) {
    Verdict changed = verdict;
    bytes_of(changed)[bit / 8] ^= std::byte(1U << bit % 8);
    EXPECT_EQ(exchange.initiator.reason_of(changed), std::nullopt) << bit;
  }
}

TEST_F(Handshake, RefusesMessagesOfAnotherHandshake)
{
  Exchange recorded(*secret, *secret);
  ASSERT_TRUE(recorded.acceptor.is_proved_by(recorded.claim));
  const Verdict verdict = recorded.acceptor.verdict("");
  Exchange later(*secret, *secret);
  EXPECT_FALSE(later.acceptor.is_proved_by(recorded.claim));
  EXPECT_EQ(later.initiator.reason_of(verdict), std::nullopt);
  EXPECT_NE(copy_of(later.initiator.session_key()), copy_of(recorded.initiator.session_key()));
}

TEST_F(Handshake, RefusesItsOwnMessages)
{
  // An initiator that reaches an initiator, and an acceptor that receives its own messages.
  Exchange exchange(*secret, *secret);
  Verdict mirrored;
  mirrored.proof = exchange.claim.proof;
  EXPECT_EQ(exchange.initiator.reason_of(mirrored), std::nullopt);
  exchange.acceptor.is_proved_by(exchange.claim);
  Claim reflected = exchange.claim;
  reflected.proof = exchange.acceptor.verdict("").proof;
  EXPECT_FALSE(exchange.acceptor.is_proved_by(reflected));
}

TEST_F(Handshake, SendsOtherBytesEachTime)
{
  std::set<Nonce> nonces;
  for (int i = 0; i < 100; ++i) {
    Exchange exchange(*secret, *secret);
    nonces.insert(exchange.acceptor.challenge().nonce);
    nonces.insert(exchange.claim.nonce);
  }
  EXPECT_EQ(nonces.size(), 200);
}

TEST_F(Handshake, CutsAReasonThatIsTooLong)
{
  Exchange exchange(*secret, *secret);
  ASSERT_TRUE(exchange.acceptor.is_proved_by(exchange.claim));
  EXPECT_EQ(exchange.initiator.reason_of(exchange.acceptor.verdict(std::string(500, 'x'))), std::string(128, 'x'));
}

TEST_F(Handshake, SucceedsIfAndOnlyIfTheSecretsAreEqual)
{
  rc::check([](const std::string& one, const std::string& another, const std::string& purpose) {
    const auto secret_text = [](const std::string& text) { return "sixteen bytes at least " + text; };
    const Secret left("test", secret_text(one));
    const Secret right("test", secret_text(another));
    Exchange exchange(left, right, purpose.substr(0, 128));
    RC_ASSERT(exchange.acceptor.is_proved_by(exchange.claim) == (one == another));
    RC_ASSERT(exchange.initiator.reason_of(exchange.acceptor.verdict("")).has_value() == (one == another));
  });
}

TEST_F(Handshake, RefusesAPurposeThatIsTooLong)
{
  EXPECT_THAT([] { purpose_of(std::string(129, 'x')); },
              testing::ThrowsMessage<std::logic_error>("a purpose has at most 128 bytes"));
}

class SecretTest : public testing::Test {
 protected:
  SecretTest() : folder_(std::filesystem::path(testing::TempDir()) / std::to_string(::getpid()))
  {
    std::filesystem::create_directory(folder_);
  }
  ~SecretTest() override { std::filesystem::remove_all(folder_); }

  std::string file_of(const std::string& text, mode_t mode = 0600) const
  {
    auto file = (folder_ / "secret").string();
    std::ofstream(file, std::ios::trunc) << text;
    EXPECT_EQ(::chmod(file.c_str(), mode), 0);
    return file;
  }

  static std::vector<std::byte> mark_of(const Secret& secret) { return copy_of(secret.key("test")); }

 private:
  std::filesystem::path folder_;
};

const std::string secret_words = "four words of a secret";

TEST_F(SecretTest, ComesFromAFileWithoutTheEndOfItsLine)
{
  const auto expected = mark_of(Secret("test", secret_words));
  for (const char* end : {"", "\n", "\r\n"})
    EXPECT_EQ(mark_of(*secret_from_file(file_of(secret_words + end))), expected);
  EXPECT_NE(mark_of(*secret_from_file(file_of(secret_words + "\n\n"))), expected);
  EXPECT_NE(mark_of(*secret_from_file(file_of(secret_words + " "))), expected);
}

TEST_F(SecretTest, IsNotTakenFromAFileThatOthersMayReadOrChange)
{
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0644, 0666}) {
    const auto file = file_of(secret_words, mode);
    EXPECT_THAT(error_of([&] { secret_from_file(file); }),
                AllOf(HasSubstr(": others may read or change this secret (mode "), HasSubstr("); run: chmod 600 "),
                      Not(HasSubstr("four"))))
        << mode;
  }
  EXPECT_EQ(error_of([&] { secret_from_file(file_of(secret_words, 0400)); }), "");
}

TEST_F(SecretTest, HasAShortestAndALongestLength)
{
  for (const std::size_t length : {0, 1, 15, 4097}) {
    const auto file = file_of(std::string(length, 'x') + "\n");
    EXPECT_EQ(error_of([&] { secret_from_file(file); }),
              file + ": the secret has " + std::to_string(length) +
                  " bytes; it must have 16 to 4096; create one with: head -c 32 /dev/urandom | base64");
  }
  for (const std::size_t length : {16, 4096}) {
    EXPECT_EQ(error_of([&] { secret_from_file(file_of(std::string(length, 'x') + "\n")); }), "");
  }
}

TEST_F(SecretTest, NamesAFileThatIsMissing)
{
  EXPECT_THAT([] { secret_from_file("/no/such/file"); },
              testing::ThrowsMessage<InputError>("/no/such/file: no such file"));
}

TEST_F(SecretTest, ComesFromTheEnvironmentAndIsRemovedFromIt)
{
  ::unsetenv(Secret::variable);
  EXPECT_EQ(secret_from_environment(), nullptr);
  std::string entry = std::string(Secret::variable) + "=" + secret_words;
  ASSERT_EQ(::putenv(entry.data()), 0);  // makes this string a part of the environment
  EXPECT_EQ(mark_of(*secret_from_environment()), mark_of(Secret("test", secret_words)));
  EXPECT_EQ(std::getenv(Secret::variable), nullptr);
  EXPECT_THAT(entry, Not(HasSubstr("four")));
  ::setenv(Secret::variable, "short", 1);
  EXPECT_THAT(error_of([] { secret_from_environment(); }),
              AllOf(testing::StartsWith("ISOBAR_SECRET: the secret has 5 bytes; it must have 16 to 4096"),
                    Not(HasSubstr("short"))));
  EXPECT_EQ(std::getenv(Secret::variable), nullptr);
  ::setenv(Secret::variable, "", 1);  // counts as not set
  EXPECT_EQ(secret_from_environment(), nullptr);
}

TEST_F(SecretTest, DerivesAnotherKeyForEachUse)
{
  const Secret secret("test", secret_words);
  std::set<std::vector<std::byte>> keys;
  for (const auto* label : {"a", "b", "ab"}) {
    keys.insert(copy_of(secret.key(label)));
    for (const auto* context : {"a", "b"}) {
      keys.insert(copy_of(secret.key(label, std::as_bytes(std::span(std::string_view(context))))));
    }
  }
  EXPECT_EQ(keys.size(), 9);
  EXPECT_NE(mark_of(*random_secret()), mark_of(*random_secret()));
}

}  // namespace
}  // namespace isobar::exec::handshake_test
